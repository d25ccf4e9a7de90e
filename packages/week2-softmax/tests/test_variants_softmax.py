"""Rows over the whole GPU, call after call, on streams and in graphs; and each kernel under a sanitizer."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
import torch

import forge_week2_softmax as week2
from forge_core.cache import builder_at
from forge_core.device import query
from forge_core.errors import UnsupportedError
from forge_core.rows.plan import plan_call
from forge_core.testing.inputs import cover, placed, traits
from forge_week2_softmax.program import Softmax

FORWARD = ("softmax", "log_softmax", "logsumexp")
OPS = (*FORWARD, *(f"{name}_backward" for name in FORWARD))
VARIANTS = tuple(week2.softmax.variants())
LADDER = VARIANTS[:3]
FLOATS = (torch.bfloat16, torch.float32, torch.float64)


def randn(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32, device: str = "cuda") -> torch.Tensor:
    return torch.randn(shape, device=device, generator=torch.Generator(device).manual_seed(seed)).to(dtype)


# ------------------------------------------------------------------------------------------- rows over the whole GPU

#: One row and several; parts that fill their blocks, and that do not.
SHAPES = ((1, 2**19), (3, 100_000), (1, 2**18 + 1), (60, 64))
CALLS = {
    "forward": lambda x: week2.softmax(x, variant="grid"),
    "backward": lambda x: week2.softmax_backward(x, x, variant="grid"),
    "one number": lambda x: week2.logsumexp(x, -1, variant="grid"),
}


def same(got: list[torch.Tensor], want: list[torch.Tensor]) -> bool:
    torch.cuda.synchronize()
    return all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_call_after_call_in_memory_that_held_the_slots_of_the_last(dtype: Any, call: str, shape: Any) -> None:
    inputs = [randn(shape, seed, dtype) for seed in range(3)]
    want = [CALLS[call](x) for x in inputs]
    for k in range(300):
        got = CALLS[call](inputs[k % 3])
        # Every tenth is looked at: looking at all would give the GPU time between them.
        assert k % 10 or torch.equal(got, want[k % 3]), f"call {k}"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype, length", [(torch.bfloat16, 2**18), (torch.bfloat16, 2**23), (torch.float32, 2**22)])
def test_graphs_and_calls_on_streams_beside_each_other(dtype: Any, length: int) -> None:
    """Also such as do not fit beside each other: their blocks take most of the registers of a multiprocessor."""
    inputs = [randn((1, length), seed, dtype) for seed in range(4)]
    want = [CALLS["forward"](x) for x in inputs]
    graphs, results = [torch.cuda.CUDAGraph() for _ in range(2)], list(want)
    for k, graph in enumerate(graphs):
        with torch.cuda.graph(graph):
            results[k] = CALLS["forward"](inputs[k])
    streams = [torch.cuda.Stream() for _ in inputs]
    torch.cuda.synchronize()
    for _ in range(50):
        for k, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                if k < 2:
                    graphs[k].replay()
                else:
                    results[k] = CALLS["forward"](inputs[k])
    assert same(results, want)


# torch's manager of graphs captures an empty one to begin with.
@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_under_torch_compile_with_graphs() -> None:
    compiled = torch.compile(lambda x: CALLS["forward"](x) + 1, mode="reduce-overhead", fullgraph=True)
    for seed in range(6):
        x = randn((1, 2**20), seed)
        torch.testing.assert_close(compiled(x).clone(), torch.softmax(x, -1) + 1)


@pytest.mark.gpu
def test_a_gpu_that_another_stream_keeps_busy() -> None:
    x, a, side = randn((1, 2**20), 1), randn((8192, 8192), 2), torch.cuda.Stream()
    want = CALLS["forward"](x)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(20):
            b = a @ a
    got = [CALLS["forward"](x) for _ in range(50)]
    assert same(got, [want] * 50)
    assert b.isfinite().all()


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_a_number_that_comes_again_is_left_in_no_slot(dtype: Any, shape: Any) -> None:
    """Launch after launch with the same number, as a graph's replays have it, in slots that held anything before."""
    inputs = [randn(shape, seed, dtype) for seed in range(4)]
    want = [CALLS["forward"](x) for x in inputs]
    device = query(inputs[0].device)
    plan = plan_call("softmax", Softmax(), {"x": inputs[0], "y": want[0]}, (1,), device, "grid")
    launch = builder_at(plan.builder).compile(plan.config, arch=device.arch).launch
    scratch = torch.full((plan.workspace // 8,), -1, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    for k in range(100):
        got = torch.full_like(want[0], float("nan"))
        launch(inputs[k % 4].data_ptr(), got.data_ptr(), scratch.data_ptr(), *plan.arguments, -7, stream)
        if k % 10 == 0:
            assert torch.equal(got, want[k % 4]), f"launch {k}"
            assert not (scratch == -7).any()


# -------------------------------------------------------------------------------------------------------- sanitizers

#: Rows, columns, and the elements by which every tensor begins behind its allocation.
SMALLEST = (
    *((300, 9, 0), (849, 40, 0), (2, 4099, 3), (70, 2048, 0), (5, 2048, 0), (3, 257, 1), (2, 64, 0), (3, 5, 1)),
    *((1, 1, 0), (33, 8, 0), (9, 512, 0), (2, 65536, 0), (70, 257, 1), (17_000, 257, 0), (470_000, 9, 0)),
)
#: Rows of which a cluster of 16 blocks keeps a part in shared memory, and one of most of the vectors that a grid holds.
LONG = ((1, 200_704, 0), (1, 200_705, 0), (1, 2_200_000, 0))


def small_call(case: tuple[Any, ...]) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """The tensors of a call on the GPU, and its result in float64."""
    op, dtype, (rows, cols, offset), dim = case
    # The references are computed on the CPU: PyTorch's sums over columns read what none of its threads wrote, and a
    # sanitizer that watches for that cannot tell them from ours.
    forward, x = op.removesuffix("_backward"), randn((rows, cols), 0, dtype, "cpu")
    y = getattr(torch, forward)(x.double(), dim)
    on = partial(placed, offset=offset, device="cuda")
    if op == forward:
        return (on(x),), y.cuda()
    y = y.to(dtype)
    grad = randn(tuple(y.shape), 1, dtype, "cpu")
    p, g = y.double(), grad.double()
    if forward == "logsumexp":
        exact = g.unsqueeze(dim) * (x.double() - p.unsqueeze(dim)).exp()
        return (on(grad), on(x), on(y)), exact.cuda()
    return (on(grad), on(y)), getattr(torch.ops.aten, f"_{op}_data")(g, p, dim, torch.float64).cuda()


def assert_near(got: torch.Tensor, exact: torch.Tensor, case: tuple[Any, ...]) -> None:
    """Within an ulp of float64's, and what a short row's sums may lose of its largest result."""
    info = torch.finfo(got.dtype)
    assert got.shape == exact.shape
    lost = max(info.eps / 2**8 if info.bits == 16 else 16 * info.eps, 2.0**-49) * exact.abs().max()
    assert bool(((got.double() - exact).abs() <= info.eps * exact.abs() + lost).all()), case


def subset(variant: str, arch: str | None) -> tuple[list[tuple[Any, ...]], set[tuple[Any, ...]]]:
    """Few of the smallest calls that have together all the traits of all of them, and those traits."""
    able: dict[tuple[Any, ...], set[tuple[Any, ...]]] = {}
    for case in itertools.product(OPS if variant not in LADDER else OPS[:1], FLOATS, (*SMALLEST, *LONG), (-1, 0)):
        op, dtype, (rows, cols, offset), dim = case
        x = torch.empty(rows * cols + offset, dtype=dtype, device="cuda" if arch is None else "cpu")[offset:].view(
            rows, cols
        )
        kept = x.select(dim, 0)
        tensors = {"logsumexp_backward": (kept, x, kept)}.get(op, (x, x) if op.endswith("_backward") else (x,))
        try:
            told = getattr(week2, op).explain(*tensors, dim, variant=variant, arch=arch)
        except UnsupportedError:
            continue
        able[case] = {*traits(told.config), ("op", op), ("dtype", dtype)}
        able[case] |= {("shape", case[2])} if case[2] in SMALLEST else set()
    return cover(able, {case: case[2][0] * case[2][1] for case in able}), set().union(*able.values())


def test_the_subset_for_sanitizers_is_small_and_holds_every_width_and_alignment() -> None:
    kernels = 0
    for variant in VARIANTS:
        chosen, wanted = subset(variant, "sm_90a")
        kernels += len(chosen)
        values = {name: {value for key, value in wanted if key == name} for name, _ in wanted}
        alone = variant in ("split", "grid")  # where logsumexp's gradient has nothing to exchange
        assert values["op"] == set(OPS[:1] if variant in LADDER else OPS[:-1] if alone else OPS)
        assert values["dtype"] == set(FLOATS[:2] if variant in LADDER else FLOATS)
        if variant in ("held", "grid", "split", "stream"):
            assert {"whole", "shifted", "element"} - values["align"] <= {
                "held": set(), "grid": {"element"}, "split": {"whole"}, "stream": {"whole"}
            }[variant]  # fmt: skip
        if variant == "column":
            assert values["align"] == {"whole", "shifted", "skewed", "element"}
            assert values["held"] == {True, False}
        if variant == "held":
            assert values["lanes"] >= {0, 4, 8, 16, 32}
            assert values["blocks"] >= {0, 1} and max(values["blocks"]) == 16
            assert True in values["staged"]
    assert kernels <= 110  # each is compiled anew, in a process that a sanitizer slows down


@pytest.mark.gpu
@pytest.mark.sanitizer
@pytest.mark.parametrize("variant", VARIANTS)
def test_smallest_shapes(variant: str) -> None:
    """The subset for compute-sanitizer; the test above says what it holds."""
    for case in subset(variant, None)[0]:
        tensors, exact = small_call(case)
        assert_near(getattr(week2, case[0])(*tensors, case[3], variant=variant), exact, case)


@pytest.mark.gpu
@pytest.mark.sanitizer
@pytest.mark.parametrize(("length", "held", "chunks"), [(2049, True, 8), (10_000, True, 16), (30_000, False, 8)])
@pytest.mark.parametrize("op", ["softmax", "softmax_backward"])
def test_smallest_shapes_of_rows_that_are_transposed_on_chip(op: str, length: int, held: bool, chunks: int) -> None:
    for dtype in (torch.bfloat16, torch.float32):
        case = (op, dtype, (3, length, 0), -1)
        tensors, exact = small_call(case)
        permuted = [x.t().contiguous().t() for x in tensors]
        config = getattr(week2, op).explain(*permuted, -1).config
        assert (config.transposes, config.held, config.chunks) == (True, held, chunks)
        assert_near(getattr(week2, op)(*permuted, -1), exact, case)
