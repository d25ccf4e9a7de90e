"""The pytest plugin of the marks ``gpu``, ``large`` and ``sanitizer``, and of the fixture ``dispatched``.

A GPU test is skipped with the reason where there is no GPU, and fails instead with ``FORGE_REQUIRE_GPU=1``: a machine
for GPU tests must not pass by skipping them.

The repository's conftest.py loads it; other projects use ``pytest -p forge_core.pytest_plugin``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from forge_core import settings


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--forge-warm week1`` compiles a suite's kernels before the first test; ``--forge-proofs`` adds a summary."""
    group = parser.getgroup("forge")
    group.addoption(
        "--forge-proofs", action="store_true", help="name the kernels that await a proof at the end of the summary"
    )
    group.addoption(
        "--forge-warm",
        action="append",
        default=[],
        metavar="SUITE",
        help="compile a suite's kernels into the cache before the first test, several at a time; repeatable",
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compiles the suites of ``--forge-warm`` once; the workers of pytest-xdist find the kernels in the cache."""
    names = session.config.getoption("--forge-warm")
    if names and not hasattr(session.config, "workerinput"):
        from forge_core.bench import kernels

        archs = settings.target_archs()
        if not archs:
            raise pytest.UsageError("--forge-warm: no GPU tells the architecture; name one by FORGE_ARCH")
        kernels.ahead(kernels.requests(names, archs))


def pytest_configure(config: pytest.Config) -> None:
    """Registers the markers."""
    for marker in (
        "gpu(count=1): needs that many CUDA GPUs; skipped with the reason where there are fewer",
        "sanitizer: the subset that runs under compute-sanitizer; implies small shapes",
        "large(gib): needs that much free GPU memory, in GiB",
    ):
        config.addinivalue_line("markers", marker)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips or fails a test that needs more GPUs or GPU memory than there are."""
    from forge_core import device

    gpu, large = item.get_closest_marker("gpu"), item.get_closest_marker("large")
    if gpu is not None:
        count, found = gpu.kwargs.get("count", gpu.args[0] if gpu.args else 1), device.gpu_count()
        reason = "No GPU devices found" if found == 0 else f"{count} GPUs are needed, {found} found"
        # FORGE_REQUIRE_GPU promises one GPU; a test for several is skipped on a machine with one.
        if settings.current().require_gpu and found < count and (found == 0 or count == 1):
            pytest.fail(f"FORGE_REQUIRE_GPU=1: {reason}", pytrace=False)
        if found < count:
            pytest.skip(reason)
    if large is not None:
        import torch

        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info()
        if free < large.args[0] * 2**30:
            pytest.skip(f"{large.args[0]} GiB of free GPU memory are needed, {free / 2**30:.1f} GiB found")


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Returns the memory that the caching allocator keeps: processes of tests share the GPU."""
    if item.get_closest_marker("gpu") is not None:
        import torch

        torch.cuda.empty_cache()


@pytest.fixture
def dispatched() -> Iterator[None]:
    """Calls go through the dispatcher, where the gradient of CPU tensors too is the operator's own rule."""
    from forge_core.testing.conformance import Dispatched

    with Dispatched():
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Names the kernels that await validation, which fails no test."""
    if not config.getoption("--forge-proofs"):
        return
    from forge_core.proofs import check, declare, evidence

    weeks, records = declare.discover(), config.rootpath / "docs" / "records"
    found = check.check(weeks, records, evidence.Evidence(config.rootpath, recompute="never"))
    terminalreporter.section("proofs", sep="-")
    terminalreporter.write_line(check.in_words(found) or "every kernel is as it was validated")


def pytest_report_header(config: pytest.Config) -> Iterator[str]:
    """The torch version and the GPUs."""
    import torch

    from forge_core import device

    # Unlike counting, naming the GPU would create a CUDA context in every worker.
    count = device.gpu_count()
    gpus, required = f"{count} GPU(s)" if count else "no GPU", int(settings.current().require_gpu)
    yield f"forge: torch {torch.__version__}, {gpus}, FORGE_REQUIRE_GPU={required}"
