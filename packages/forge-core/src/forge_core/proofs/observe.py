"""The pytest plugin of a validation: which kernels each test launched, by which calls, and how the test ended.

    python -m pytest -p forge_core.proofs.observe --prove JOURNAL ...

Launches are observed where they are planned (``LaunchTable._make_entry``), except in processes that a test starts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from forge_core.op import table
from forge_core.proofs.calls import describe, run_digest
from forge_core.proofs.chunks import append_outcome, given

PROPERTY = "forge_launched"


@contextlib.contextmanager
def observed() -> Iterator[dict[str, dict[str, str]]]:
    """Observes all launches of this process: kernel -> call as text -> digest of the launch.

    What is planned within the block stays observed after it.
    """
    launched: dict[str, dict[str, str]] = {}
    make_entry = table.LaunchTable._make_entry
    # One wrapper for each compiled kernel and name: callers compare kernels by identity.
    known: dict[tuple[str, int], Callable[..., Any]] = {}

    def watched(
        self: table.LaunchTable, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, debug: bool
    ) -> table.TableEntry:
        entry = make_entry(self, out, args, kwargs, debug=debug)
        if entry.plan is None:
            return entry
        name = f"{self.name}/{entry.name}"
        own = launched.setdefault(name, {})
        if not entry.debug:  # debug code has assertions, so it is other code
            own[describe(self._schema.bind(args, kwargs), out)] = run_digest(entry.plan)
        kernel = entry.function

        def launch(*arguments: Any) -> Any:
            launched.setdefault(name, {})
            return kernel(*arguments)

        return replace(entry, function=known.setdefault((name, id(kernel)), launch))

    with mock.patch.object(table.LaunchTable, "_make_entry", watched):
        yield launched


class _Plugin:
    def __init__(self, config: pytest.Config, launched: dict[str, dict[str, str]]) -> None:
        self.launched = launched
        self.results: dict[str, dict[str, Any]] = {}
        self.journal = Path(config.getoption("--prove"))
        # The controller of pytest-xdist has the reports of all workers and writes them.
        self.writes = not hasattr(config, "workerinput")

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Attaches the launches of a test to its report."""
        self.launched.clear()
        yield
        item.user_properties.append((PROPERTY, dict(self.launched)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keeps the worst outcome of a test's three phases."""
        nothing: dict[str, Any] = {"outcome": "passed", "launched": {}, "reason": "", "seconds": 0.0}
        found = self.results.setdefault(report.nodeid, nothing)
        found["seconds"] = round(found["seconds"] + report.duration, 2)
        if report.outcome != "passed" and found["outcome"] != "failed":
            found["outcome"] = report.outcome
            reason = report.longrepr
            found["reason"] = str(reason[2] if isinstance(reason, tuple) else reason).strip()[-500:]
        found["launched"] = dict(report.user_properties).get(PROPERTY, {})
        # A worker that died sends no teardown, so a failure is written at once.
        if self.writes and (report.when == "teardown" or report.failed):
            append_outcome(self.journal, report.nodeid, found)

    # After pytest's selection by marks, so that parts are shares of the tests that run.
    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Selects the tests of the chunk's part."""
        chunk = given(self.journal)
        # Consecutive tests take about equally long, so they go to different parts and workers.
        chosen = [item for item in items if chunk.runs(item.nodeid)][chunk.part - 1 :: chunk.parts]
        kept = set(chosen)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        # A whole week stays in order: consecutive tests need the same kernels, which one worker then compiles.
        workers = getattr(config, "workerinput", {}).get("workercount", 1)
        items[:] = chosen if chunk.tests is None else dealt(chosen, workers)


def dealt(items: Sequence[pytest.Item], workers: int) -> list[pytest.Item]:
    """Tests in an order that gives the workers of pytest-xdist about equal shares.

    ``--dist worksteal`` splits the list into a block for each worker.  Consecutive tests go to different blocks; those
    marked `large` go to the front of the first block, because together they exceed the GPU's memory.
    """
    least, more = divmod(len(items), workers)
    depths = [depth for worker in range(workers) for depth in range(least + (worker >= workers - more))]
    large = [item for item in items if item.get_closest_marker("large")]
    others = [item for item in items if not item.get_closest_marker("large")]
    places = sorted(range(len(large), len(items)), key=depths.__getitem__)
    return large + [item for _, item in sorted(zip(places, others, strict=True), key=lambda pair: pair[0])]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the plugin's option."""
    group = parser.getgroup("forge proofs")
    group.addoption("--prove", metavar="JOURNAL", help="run the chunk beside a journal, and enter its tests")


def pytest_configure(config: pytest.Config) -> None:
    """Starts to observe before the first operator is called."""
    observing = contextlib.ExitStack()
    config.add_cleanup(observing.close)
    config.pluginmanager.register(_Plugin(config, observing.enter_context(observed())), "forge-proofs")
