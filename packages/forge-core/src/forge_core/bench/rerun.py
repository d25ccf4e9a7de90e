"""Measuring the suspects of a comparison again: old and new sources in turn, on this machine, at this moment.

Two records were made at two times.  What is accused by them is measured once more, in processes of the old sources and
of the new ones by turns (old, new, new, old, ...), so that both see the same machine; the verdict is then theirs.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from forge_core.bench.compare import Comparison, compare
from forge_core.bench.environment import sources_here
from forge_core.bench.processes import pool, run_bench
from forge_core.bench.records import Record
from forge_core.bench.schema import ALL, AUTO, OURS
from forge_core.errors import BenchmarkError
from forge_core.timing import TIMERS
from forge_core.timing.l2 import POLICIES

__all__ = ["confirm", "in_turns"]

#: Which sources run, in turn: so that a drift of the machine falls on both alike.
TURNS = ("old", "new", "new", "old")


def confirm(found: Comparison, *, old_source: Path | None = None) -> Comparison:
    """Measures the suspects again where a GPU and both sources are there; otherwise says why not.

    Args:
        found: the comparison of the records.
        old_source: a checkout of the old sources; without it, one is made of the old record's commit.
    """
    if not found.suspects:
        return found
    obstacle = _obstacle(found, old_source)
    if obstacle:
        return replace(found, rerun=f"The suspects were not measured again: {obstacle}.")
    try:
        return _measured_again(found, old_source)
    except BenchmarkError as error:
        return replace(found, rerun=f"The suspects could not be measured again: {error}.")


def _arguments(found: Comparison) -> list[str]:
    """What the bench is asked for, so that the suspects are measured as the new record was.

    The old sources have to understand it, too: nothing that has its default is named, and no option that came late.
    """
    record = found.new
    names = {change.case for change in found.suspects}
    cases = [case for case in record.cases if case.name in names]
    # "all" leaves out by name what cannot serve a case; a variant asked for by its own name would be an error there.
    variant = AUTO if all(change.contender == OURS for change in found.suspects) else ALL
    wanted = (
        ("--shape", [case.shape_text for case in cases]),
        ("--dtype", [case.dtype for case in cases]),
        ("--variant", [variant] if record.backend == "kernel" else []),
        ("--timer", [record.stopwatch] if record.stopwatch in TIMERS and record.stopwatch != "events" else []),
        ("--l2", [record.l2_policy] if record.l2_policy in POLICIES and record.l2_policy != "cold" else []),
        ("--backend", [record.backend] if record.backend != "kernel" else []),
        ("--seed", [str(record.seed)]),
    )
    return [record.suite, *(part for option, values in wanted for v in dict.fromkeys(values) for part in (option, v))]


def _measured_again(found: Comparison, old_source: Path | None) -> Comparison:
    root, arguments = _root(), _arguments(found)
    with tempfile.TemporaryDirectory(prefix="forge-rerun-") as folder, _checkout(found, old_source) as old:
        sources, numbers = {"old": old, "new": root}, iter(range(len(TURNS)))

        def measure(which: str) -> Record:
            source = sources[which] / "packages"
            # Before what is on the path already: torch and the peers may be found by it, too.
            before = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
            path = os.pathsep.join([*(str(p) for p in sorted(source.glob("*/src"))), *before])
            file = Path(folder) / f"{next(numbers)}.json"
            return run_bench(arguments, file, environment={"PYTHONPATH": path})

        return in_turns(found, {change.case for change in found.suspects}, measure)


def in_turns(found: Comparison, names: set[str], measure: Callable[[str], Record]) -> Comparison:
    """Measures by turns, and puts what that says of the suspects in the place of what the records said.

    Args:
        found: the comparison of the records.
        names: the cases to decide anew.
        measure: takes ``"old"`` or ``"new"`` and returns a record of these sources.

    Raises:
        BenchmarkError: a process failed, or a suspect is not among what they measured.
    """
    taken: dict[str, list[Record]] = {"old": [], "new": []}
    for which in TURNS:
        taken[which].append(measure(which))
    again = compare(pool(taken["old"]), pool(taken["new"]), found.threshold)
    decided = {(change.case, change.contender): change for change in again.changes if change.case in names}
    changes = [decided.get((change.case, change.contender), change) for change in found.changes]
    missed = [c for c in found.suspects if (c.case, c.contender) not in decided and c.case not in again.broken]
    if missed:
        which = ", ".join(f"{change.case} ({change.contender})" for change in missed)
        raise BenchmarkError(f"the processes left no figures of {which}")
    broken = {**found.broken, **{name: error for name, error in again.broken.items() if name in names}}
    accused = len({change.case for change in found.suspects})
    text = f"{accused} suspect cases were measured again, {' '.join(TURNS)} in turn; these figures are theirs."
    return replace(found, changes=changes, broken=broken, rerun=text)


def _obstacle(found: Comparison, old_source: Path | None) -> str:
    if found.new.environment.device != "cuda" or not torch.cuda.is_available():
        return "there is no GPU here"
    here = torch.cuda.get_device_name()
    if here != found.new.environment.gpu:
        return f"this is {here}, and the records are of {found.new.environment.gpu}"
    if not (_root() / "packages").is_dir():
        return "this is an installed package and no checkout, and the old sources are needed, too"
    if sources_here(found.new.environment.sources):
        return f"the sources here are not those of the new record ({sources_here(found.new.environment.sources)})"
    if old_source is not None:
        return ""
    environment = found.old.environment
    if not environment.has_commit or environment.dirty:
        return "the old record has no clean commit; name a checkout of it by --old-source"
    return ""


def _root() -> Path:
    """The checkout that this module is run from."""
    return Path(__file__).resolve().parents[5]


@contextmanager
def _checkout(found: Comparison, old_source: Path | None) -> Iterator[Path]:
    """The old sources: the given checkout, or a worktree of the old record's commit that is gone afterwards."""
    if old_source is not None:
        yield old_source
        return
    root, commit = _root(), found.old.environment.commit
    with tempfile.TemporaryDirectory(prefix="forge-old-") as folder:
        place = Path(folder) / "old"
        _git(root, "worktree", "add", "--detach", str(place), commit)
        try:
            yield place
        finally:
            _git(root, "worktree", "remove", "--force", str(place))


def _git(root: Path, *arguments: str) -> None:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)  # noqa: S607 - the user's own git
    if done.returncode != 0:
        raise BenchmarkError(f"git {' '.join(arguments[:2])} failed: {done.stderr.strip()}")
