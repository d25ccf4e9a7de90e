"""Determinism, streams, graphs, devices, threads, forks, backends, sanitizers, and what importing does."""

from __future__ import annotations

import itertools
import subprocess
import sys
import textwrap
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

import forge_week2_softmax as week2
from forge_core.device import query
from forge_core.errors import UnsupportedError
from forge_core.op import backend
from forge_core.op.launch import load
from forge_core.settings import use_settings
from forge_core.testing.conformance import (
    check_concurrent_threads,
    check_second_device,
)
from forge_week2_softmax.config import plan_backward, plan_forward

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
VARIANTS = tuple(week2.softmax.variants())


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want)


def near(got: torch.Tensor, exact: torch.Tensor) -> None:
    """Within an ulp of float64's, and what a short row's sums may lose of its largest result."""
    info = torch.finfo(got.dtype)
    assert got.shape == exact.shape
    lost = max(info.eps / 2**8 if info.bits == 16 else 16 * info.eps, 2.0**-49) * exact.abs().max()
    allowed = info.eps * exact.abs() + lost
    assert bool(((got.double() - exact).abs() <= allowed).all()), f"{(got.double() - exact).abs().max()}"


def make_on(device: str, shape: tuple[int, ...]) -> Any:
    return lambda seed: (torch.randn(shape, device=device, generator=torch.Generator(device).manual_seed(seed)),)


def run_python(source: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.gpu
def test_a_whole_step_is_captured() -> None:
    """Forward, backward and the gradient's accumulation in one graph, replayed with changed inputs."""
    x = torch.randn(64, 3000, device="cuda", requires_grad=True)
    weight = torch.randn(64, 3000, device="cuda")

    def step(op: Any) -> torch.Tensor:
        (grad,) = torch.autograd.grad((op(x, -1) * weight).sum(), x)
        return grad

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step(week2.softmax)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        grad = step(week2.softmax)
    for seed in (1, 2):
        fresh = torch.randn(64, 3000, device="cuda", generator=torch.Generator("cuda").manual_seed(seed))
        x.detach().copy_(fresh)
        graph.replay()
        close(grad, step(torch.softmax))


def gradient(op: Any, x: torch.Tensor) -> torch.Tensor:
    leaf = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(op(leaf, -1).square().sum(), leaf)
    return found


def right_gradient(got: torch.Tensor, args: tuple[torch.Tensor, ...]) -> None:
    close(got, gradient(torch.softmax, *args))


@pytest.mark.gpu(count=2)
def test_gradients_on_a_second_device() -> None:
    for shape in ((64, 100), (1, 2**20)):
        check_second_device(partial(gradient, week2.softmax), make_on("cuda:0", shape), right_gradient)


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_from_several_threads(device: str) -> None:
    check_concurrent_threads(partial(gradient, week2.softmax), make_on(device, (63, 129)), right_gradient)


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="this system has no fork")
@pytest.mark.parametrize("device", DEVICES)
def test_after_a_fork(device: str) -> None:
    run_python(
        f"""
        import warnings; warnings.simplefilter("ignore", DeprecationWarning)
        import os, torch, forge_week2_softmax as week2
        torch.set_num_threads(1)  # PyTorch's own softmax hangs in a child whose parent had threads of OpenMP
        assert week2.softmax(torch.ones(3, 4)).tolist() == [[0.25] * 4] * 3
        child = os.fork()
        if child == 0:
            x = torch.ones(3, 4, device="{device}")
            os._exit(0 if week2.softmax(x).tolist() == [[0.25] * 4] * 3 else 3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert week2.logsumexp(torch.zeros(1, device="{device}"), 0).item() == 0.0
        """
    )


def test_importing_touches_neither_cutlass_nor_cuda() -> None:
    out = run_python(
        """
        import sys, torch
        before = set(sys.modules)
        import forge_week2_softmax
        new = {m.split(".")[0] for m in set(sys.modules) - before}
        print(sorted(new & {"cutlass", "tvm_ffi", "cuda", "triton"}), torch.cuda.is_initialized())
        forge_week2_softmax.softmax(torch.zeros(2, 3))
        print("cutlass" in sys.modules)
        """
    )
    assert out.split() == ["[]", "False", "False"]


@pytest.mark.gpu
def test_backend_ref_runs_no_kernel() -> None:
    x = torch.randn(37, 41, device="cuda")
    with backend("ref"):
        assert torch.equal(week2.softmax(x), torch.softmax(x, -1))
        assert week2.softmax.explain(x).backend == "ref"


VARIANTS_OF_ROWS = ("auto", "naive", "online", "grid", "split")


@pytest.mark.gpu
def test_debug_mode_gives_the_same_result() -> None:
    x = torch.randn(100, 300, device="cuda")
    want = [week2.softmax(x, variant=variant) for variant in VARIANTS_OF_ROWS]
    with use_settings(debug=True):
        for variant, plain in zip(VARIANTS_OF_ROWS, want, strict=True):
            assert torch.equal(week2.softmax(x, variant=variant), plain)


@pytest.mark.gpu
def test_a_parameter_s_gradient_by_the_short_way_and_by_the_dispatcher() -> None:
    """What is recorded past the dispatcher is what the dispatcher records."""
    x = torch.randn(33, 700, device="cuda", requires_grad=True)
    weight = torch.randn(33, 700, device="cuda")
    for call in (
        lambda op: op(x),
        lambda op: op(x, -1),
        lambda op: op(x, 0),
        lambda op: op(x, -1, dtype=torch.float64),
        lambda op: op(x, dim=0, variant="naive"),
    ):
        for ours, registered in (
            (week2.softmax, torch.ops.forge_week2.softmax),
            (week2.log_softmax, torch.ops.forge_week2.log_softmax),
        ):
            y, z = call(ours), call(registered)
            assert torch.equal(y, z)
            assert y.requires_grad
            assert z.requires_grad
            (first,) = torch.autograd.grad((y * weight).sum(), x, create_graph=True)
            (second,) = torch.autograd.grad((z * weight).sum(), x, create_graph=True)
            assert torch.equal(first, second)
            close(torch.autograd.grad(first.square().sum(), x), torch.autograd.grad(second.square().sum(), x))


def test_explain_names_what_a_gpu_would_run() -> None:
    x = torch.zeros(64, 4096, dtype=torch.bfloat16)
    assert week2.softmax.explain(x).backend == "ref"
    for arch in ("sm_80", "sm_90a", "sm_100a"):
        for told in (
            week2.softmax.explain(x, arch=arch),
            week2.softmax.explain(x, 0, arch=arch),
            week2.softmax_backward.explain(x, x, arch=arch),
        ):
            assert told.backend == "kernel"
            assert told.variant in VARIANTS
            assert told.arch == arch
            assert told.read in (x.nbytes, 2 * x.nbytes)
            assert told.written == x.nbytes
            assert told.why
            assert told.variant in str(told)


#: Rows, columns, and the elements by which every tensor begins behind its allocation.
SMALLEST = ((300, 9, 0), (8449, 40, 0), (2, 4099, 3), (5, 2048, 0), (3, 257, 1), (2, 64, 0), (3, 5, 1), (1, 1, 0))
OPS = ("softmax", "log_softmax", "logsumexp")


def placed(values: torch.Tensor, offset: int, device: str) -> torch.Tensor:
    """The values in an allocation that ends with them, so that memcheck sees a read past their end."""
    flat = torch.empty(values.numel() + offset, dtype=values.dtype, device=device)
    flat[offset:] = values.reshape(-1).to(device)
    return flat[offset:].view(values.shape)


def small_call(
    case: tuple[Any, ...], backward: bool, device: str
) -> tuple[Any, tuple[torch.Tensor, ...], int, torch.Tensor]:
    """An operator, its tensors, the dimension, and the result in float64."""
    op, dtype, (rows, cols, offset), dim = case
    # The references are computed on the CPU: PyTorch's sums over columns read what none of its threads wrote, and a
    # sanitizer that watches for that cannot tell them from ours.
    x = torch.randn(rows, cols).to(dtype)
    y = getattr(torch, op)(x.double(), dim)
    on = partial(placed, offset=offset, device=device)
    if not backward:
        return getattr(week2, op), (on(x),), dim, y.to(device)
    y = y.to(dtype)
    grad = torch.randn(y.shape).to(dtype)
    p, g = y.double(), grad.double()
    if op == "logsumexp":
        exact = g.unsqueeze(dim) * (x.double() - p.unsqueeze(dim)).exp()
        return week2.logsumexp_backward, (on(grad), on(x), on(y)), dim, exact.to(device)
    exact = getattr(torch.ops.aten, f"_{op}_backward_data")(g, p, dim, torch.float64)
    return getattr(week2, f"{op}_backward"), (on(grad), on(y)), dim, exact.to(device)


def traits(config: Any, op: str, dtype: torch.dtype) -> set[tuple[Any, ...]]:
    """What of a configuration decides which addresses a kernel reads and writes, and what its threads exchange."""
    row = getattr(config, "row", config)
    lanes = getattr(row, "lanes", None)
    return {
        ("op", op),
        ("dtype", dtype),
        ("width", row.vector * dtype.itemsize, getattr(row, "edges", None)),
        ("lanes", lanes and min(lanes, 64), getattr(row, "held", None)),
        ("blocks", getattr(row, "blocks", None)),
        ("top first", getattr(row, "top_first", None), getattr(row, "edges", None)),
        ("unroll", min(getattr(row, "unroll", getattr(row, "chunks", 1)), 2)),
        ("hold", getattr(row, "hold", None)),
        ("ranks", row.kept_rank, getattr(row, "reduced_rank", None)),
    }


def subset(variant: str, backward: bool, device: str) -> tuple[list[tuple[Any, ...]], set[tuple[Any, ...]]]:
    """Few of the smallest calls that have together all the traits of all of them, and those traits."""
    arch = "sm_90a" if device == "cpu" else None
    able: dict[tuple[Any, ...], set[tuple[Any, ...]]] = {}
    for case in itertools.product(OPS, (torch.bfloat16, torch.float32, torch.float64), SMALLEST, (-1, 0)):
        op, tensors, dim, _ = small_call(case, backward, device)
        try:
            config = op.explain(*tensors, dim, variant=variant, arch=arch).config
        except UnsupportedError:
            continue
        able[case] = {*traits(config, case[0], case[1]), ("shape", case[2])}
    wanted: set[tuple[Any, ...]] = set().union(*able.values())
    chosen, left = [], set(wanted)
    while left:
        chosen.append(max(able, key=lambda case: len(able[case] & left)))
        left -= able[chosen[-1]]
    return chosen, wanted


def test_the_subset_for_sanitizers_is_small_and_holds_every_width_and_alignment() -> None:
    kernels = 0
    for variant, backward in itertools.product(VARIANTS, (False, True)):
        chosen, wanted = subset(variant, backward, "cpu")
        kernels += len(chosen)
        ops = {trait[1] for trait in wanted if trait[0] == "op"}
        alone = variant in ("split", "grid", "cluster") and backward  # where logsumexp has nothing to exchange
        assert ops == set(OPS[:2] if alone else OPS)
        assert len({trait for trait in wanted if trait[0] == "dtype"}) == 3
        widths = {trait[1:] for trait in wanted if trait[0] == "width"}
        if variant in ("single_pass", "online", "cluster", "split"):
            assert {(16, False), (16, True)} <= widths, variant
        if variant in ("naive", "online"):
            assert {(2, False), (4, False), (8, False)} <= widths
        if variant == "column":
            assert {width for width, _ in widths} >= {2, 4, 8, 16}
        if variant == "single_pass":
            assert {trait[1] for trait in wanted if trait[0] == "lanes"} >= {2, 4, 8, 16, 32, 64}
            assert (("top first", True, False) in wanted) == (("top first", True, True) in wanted) == (not backward)
        if variant == "cluster":
            assert {trait[1] for trait in wanted if trait[0] == "blocks"} >= {2, 16}
        if variant in ("grid", "split"):
            assert {trait[1] for trait in wanted if trait[0] == "hold"} == {True, False}
    assert kernels <= 110  # each is compiled anew, in a process that a sanitizer slows down


@pytest.mark.gpu
@pytest.mark.sanitizer
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_smallest_shapes(variant: str, backward: bool) -> None:
    """The subset for compute-sanitizer; the test above says what it holds."""
    chosen, _ = subset(variant, backward, "cuda")
    assert len(chosen) >= 4
    for case in chosen:
        op, tensors, dim, exact = small_call(case, backward, "cuda")
        near(op(*tensors, dim, variant=variant), exact)


#: Chunks of a row that two blocks of 64 threads hold by four turns, the last of them not full: two wait in registers,
#: two in shared memory, as those of the longest rows do.  In whole chunks, and with elements outside them.
WAITING = (3 * 128 + 50, 3 * 128 + 50.4)


def waiting(
    op: str, chunks: float, dtype: torch.dtype, backward: bool
) -> tuple[Any, tuple[torch.Tensor, ...], torch.Tensor]:
    """A launch whose rows wait in shared memory in part, its tensors on the GPU, and the result in float64."""
    cols = int(chunks * 16 // dtype.itemsize)
    _, tensors, _, exact = small_call((op, dtype, (3, cols, 0), -1), backward, "cuda")
    device, out = query(torch.device("cuda")), torch.empty(exact.shape, dtype=dtype, device="cuda")
    if backward:
        plan = plan_backward(op, out, tensors[0], tensors[1:], (1,), device, "cluster")
    else:
        plan = plan_forward(op, out, tensors[0], (1,), None, device, "cluster")
    config = replace(plan.config, lanes=64, threads=64, blocks=2, chunks=4, staged=2, resident=0)
    return replace(plan, config=config), (*tensors, out), exact


@pytest.mark.gpu
@pytest.mark.sanitizer
@pytest.mark.parametrize(
    "op, backward",
    [("softmax", False), ("softmax", True), ("log_softmax", False), ("log_softmax", True), ("logsumexp", False)],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("chunks", WAITING)
def test_smallest_rows_that_wait_in_shared_memory(chunks: float, dtype: torch.dtype, op: str, backward: bool) -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("clusters need sm_90 or newer")
    plan, tensors, exact = waiting(op, chunks, dtype, backward)
    assert plan.config.edges == (chunks != int(chunks))
    compiled = load(plan.builder).compile(plan.config, arch=query(tensors[0].device).arch)
    stream = torch.cuda.current_stream().cuda_stream
    compiled.launch(*(tensor.data_ptr() for tensor in tensors), *plan.arguments, stream)
    torch.cuda.synchronize()
    near(tensors[-1], exact)
