"""Streams, graphs, devices, threads, forks, backends, debugging, and what importing does."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import subprocess
import sys
import textwrap

import pytest
import torch

import forge_week0_transpose as week0
from forge_core.errors import SettingsError, UnsupportedError
from forge_core.op import backend
from forge_core.settings import use_settings
from forge_core.testing import assert_same_bits, random_bits
from forge_core.testing.inputs import cover

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))


def reference(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(-1, -2).contiguous()


def run_python(source: str, **environment: str) -> str:
    import os

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


FORK = """
    import os, torch, forge_week0_transpose as week0
    from forge_week0_transpose.config import plan  # planning in the parent is host work only
    parent = torch.arange(12.).view(3, 4)
    assert torch.equal(week0.transpose(parent), parent.t())
    child = os.fork()
    if child == 0:
        x = torch.arange(12., device="{device}").view(3, 4)
        ok = torch.equal(week0.transpose(x), x.t()) and torch.equal(week0.copy(x.t()), x.t())
        os._exit(0 if ok else 3)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, status
    x = torch.arange(12., device="{device}").view(3, 4)
    assert torch.equal(week0.transpose(x), x.t())
"""


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="this system has no fork")
@pytest.mark.parametrize("device", DEVICES)
def test_after_a_fork(device: str) -> None:
    # 3.12 warns that forking a process with threads may deadlock; that it does not is what is tested here.
    run_python(
        "import warnings; warnings.simplefilter('ignore', DeprecationWarning)\n"
        + textwrap.dedent(FORK.format(device=device))
    )


def test_importing_touches_neither_cutlass_nor_cuda() -> None:
    out = run_python(
        """
        import sys, torch
        before = set(sys.modules)
        import forge_week0_transpose
        new = {m.split(".")[0] for m in set(sys.modules) - before}
        print(sorted(new & {"cutlass", "tvm_ffi", "cuda", "triton"}), torch.cuda.is_initialized())
        x = torch.zeros(2, 3)
        forge_week0_transpose.transpose(x)
        print("cutlass" in sys.modules)
        """
    )
    assert out.split() == ["[]", "False", "False"]


def test_backend_by_environment_is_read_at_the_call() -> None:
    out = run_python(
        """
        import os, torch, forge_week0_transpose as week0
        from forge_core.errors import DeviceError
        x = torch.zeros(2, 3)
        week0.transpose(x)
        os.environ["FORGE_BACKEND"] = "kernel"
        try:
            week0.transpose(x)
        except DeviceError:
            print("refused")
        del os.environ["FORGE_BACKEND"]
        week0.transpose(x)
        """
    )
    assert out.strip() == "refused"


def test_a_bad_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGE_BACKEND", "triton")
    with pytest.raises(SettingsError, match="FORGE_BACKEND: expected 'kernel' or 'ref', got 'triton'"):
        week0.transpose(torch.zeros(2, 3))
    with pytest.raises(SettingsError, match="backend"), backend("cuda"):
        pass


@pytest.mark.gpu
def test_backend_ref_runs_no_kernel(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(37, 41, device="cuda")
    with backend("ref"), caplog.at_level(logging.DEBUG, "forge_core"):
        assert_same_bits(week0.transpose(x), reference(x))
        assert week0.transpose.explain(x).backend == "ref"
    assert not caplog.records
    with caplog.at_level(logging.DEBUG, "forge_core"):
        week0.transpose(torch.randn(38, 43, device="cuda"))
    assert any("transpose" in record.message for record in caplog.records)


@pytest.mark.gpu
def test_debug_mode_gives_the_same_result() -> None:
    x = random_bits((100, 300), torch.float32, "cuda")
    with use_settings(debug=True):
        for variant in ("auto", "naive", "tiled"):
            assert_same_bits(week0.transpose(x, variant=variant), reference(x))


def test_explain_names_what_a_gpu_would_run() -> None:
    x = torch.zeros(4096, 4096, dtype=torch.bfloat16)
    assert week0.transpose.explain(x).backend == "ref"
    for arch in ("sm_80", "sm_90a", "sm_100a"):
        told = week0.transpose.explain(x, arch=arch)
        assert told.backend == "kernel"
        assert told.variant in week0.transpose.variants()
        assert told.arch == arch
        assert told.read == told.written == x.numel() * 2
        assert told.why
        assert told.key
        assert told.variant in str(told)
    assert told.as_dict()["config"]["itemsize"] == 2


def test_explain_follows_forge_arch() -> None:
    x = torch.zeros(64, 64)
    with use_settings(arch="sm_100a"):
        assert week0.transpose.explain(x).arch == "sm_100a"
    assert week0.transpose.explain(x).arch is None


@pytest.mark.gpu
def test_explain_says_what_runs() -> None:
    x = torch.zeros(4096, 4096, dtype=torch.bfloat16, device="cuda")
    told = week0.transpose.explain(x)
    assert told.backend == "kernel"
    assert "auto" not in (told.variant or "")


DTYPE_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}

#: Sizes, and the elements by which the tensor begins behind its allocation: whole tiles and parts of them; rows of
#: whole chunks, of halves and quarters, and such that begin anywhere; few rows and columns, single ones, batches.
SMALLEST = (
    *((1, 1, 0), (16, 32, 0), (48, 80, 0), (3, 17, 19, 0), (3, 5, 1), (33, 17, 1), (2, 3, 33, 21, 1), (16, 16, 0)),
    *((272, 288, 0), (256, 264, 0), (3, 32, 48, 0), (168, 176, 0), (84, 88, 0), (42, 44, 0), (21, 22, 0)),
    *((82, 86, 0), (41, 43, 0), (172, 164, 0), (86, 88, 0), (44, 42, 0), (176, 172, 0), (43, 44, 0), (22, 21, 0)),
    *((129, 67, 0), (272, 261, 3), (259, 272, 0), (256, 261, 0), (3, 65, 67, 1), (3, 17, 1), (2, 2100, 0)),
    *((2051, 3, 0), (2051, 3, 1), (8, 2048, 0), (2048, 7, 0), (2048, 7, 1), (2, 3, 2048, 0), (1, 77, 0), (33, 1, 1)),
    *((1, 300, 3), (3, 2064, 0), (2064, 3, 0), (164, 172, 0), (2, 2100, 1)),
    *((2, 9, 513, 1), (64, 131, 3), (131, 64, 1)),
)


def small_call(size: int, shape: tuple[int, ...], device: str) -> torch.Tensor:
    """An input in an allocation that ends with it, so that memcheck sees a read past its end.

    What lies before it has a value: kernels read the 16 bytes at a boundary that hold its first element.
    """
    *sizes, offset = shape
    return random_bits((math.prod(sizes) + offset,), DTYPE_OF_SIZE[size], device, seed=size)[offset:].view(sizes)


def subset(variant: str, arch: str | None = None) -> tuple[list[tuple[int, tuple[int, ...]]], dict[str, set[object]]]:
    """Few of the smallest calls that have together every figure of a configuration that any of them has, and which."""
    able = {}
    for case in itertools.product(DTYPE_OF_SIZE, SMALLEST):
        x = small_call(*case, "cpu" if arch else "cuda")
        with contextlib.suppress(UnsupportedError):
            config = week0.transpose.explain(x, variant=variant, arch=arch).config
            figures = vars(config) | {"shape": case[1]}
            able[case] = {*figures.items(), *((f"{name} by size", (case[0], n)) for name, n in vars(config).items())}
    wanted: dict[str, set[object]] = {}
    for name, value in set().union(*able.values()):
        wanted.setdefault(name, set()).add(value)
    return cover(able, {case: math.prod(case[1][:-1]) for case in able}), wanted


def test_the_subset_holds_every_width() -> None:
    """The smallest shapes reach every width of access that a kernel is compiled for."""
    _, wanted = subset("vectorized", "sm_90a")
    widths = {(size, width) for size in DTYPE_OF_SIZE for width in (8, 16) if width >= size}
    assert wanted["src_width by size"] == widths - {(1, 16)}  # those are for the largest tile alone
    assert wanted["batch_rank"] == {0, 1}
    _, wanted = subset("shifted", "sm_90a")
    assert wanted["src_shift"] == wanted["dst_shift"] == {True, False}
    _, wanted = subset("skinny", "sm_90a")
    assert wanted["lines"] == {2, 3, 7, 8}
    assert wanted["gather"] == {True, False}
    _, wanted = subset("lines", "sm_90a")
    assert wanted["gather by size"] == set(itertools.product(DTYPE_OF_SIZE, (True, False)))
    assert wanted["batch_rank"] == {0, 1}
    shortest = {min(shape[-3:-1]) for shape in wanted["shape"]}
    assert {2, 64} <= shortest <= set(range(2, 65))


@pytest.mark.gpu
@pytest.mark.sanitizer
@pytest.mark.parametrize("variant", ["auto", *week0.transpose.variants()])
def test_smallest_shapes(variant: str) -> None:
    """The subset for compute-sanitizer; the test above says what it holds."""
    for size, shape in subset(variant)[0]:
        x = small_call(size, shape, "cuda")
        assert_same_bits(week0.transpose(x, variant=variant), reference(x), what=f"{size} bytes {shape}")


@pytest.mark.gpu
@pytest.mark.sanitizer
@pytest.mark.parametrize("size", DTYPE_OF_SIZE)
@pytest.mark.parametrize("offset", [0, 1])
def test_smallest_outs(offset: int, size: int) -> None:
    x = random_bits((2, 33, 48), DTYPE_OF_SIZE[size], "cuda")
    for pitch in (33, 36, 48):
        storage = random_bits((2 * 48 * pitch + offset,), DTYPE_OF_SIZE[size], "cuda", seed=1)
        out = storage[offset:].view(2, 48, pitch)[..., :33]
        week0.transpose_out(x, out)
        assert_same_bits(out.contiguous(), reference(x))


@pytest.mark.gpu
@pytest.mark.sanitizer
@pytest.mark.parametrize("variant", ["auto", "naive", "vectorized", "realigned"])
@pytest.mark.parametrize("size", DTYPE_OF_SIZE)
def test_smallest_copies(size: int, variant: str) -> None:
    if variant == "realigned" and size > 8:
        with pytest.raises(UnsupportedError, match="elements of at most 8 bytes"):
            week0.copy(torch.zeros(4, dtype=DTYPE_OF_SIZE[size], device="cuda"), variant=variant)
        return
    for count, offset in ((1, 0), (5, 1), (64, 0), (4099, 3)):
        x = random_bits((count + offset,), DTYPE_OF_SIZE[size], "cuda")[offset:]
        assert_same_bits(week0.copy(x, variant=variant), x.clone())
    pitched = random_bits((7, 40), DTYPE_OF_SIZE[size], "cuda")[:, 3:36]
    assert_same_bits(week0.copy(pitched, variant=variant), pitched.contiguous())
