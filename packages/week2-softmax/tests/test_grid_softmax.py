"""Rows over the whole GPU: blocks that wait for each other's slots, in calls, graphs and streams that come together."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import forge_week2_softmax as week2
from forge_core.device import query
from forge_core.errors import UnsupportedError
from forge_core.op.launch import load
from forge_week2_softmax import parting
from forge_week2_softmax.config import plan_forward

pytestmark = pytest.mark.gpu

#: One row and several; parts that fill their blocks, and that do not.
SHAPES = ((1, 2**20), (3, 100_000), (1, 2**18), (132, 64))


def randn(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, device="cuda", generator=torch.Generator("cuda").manual_seed(seed)).to(dtype)


def forward(x: torch.Tensor) -> torch.Tensor:
    return week2.softmax(x, variant="grid")


def backward(x: torch.Tensor) -> torch.Tensor:
    return week2.softmax_backward(x, x, variant="grid")


def one_number(x: torch.Tensor) -> torch.Tensor:
    return week2.logsumexp(x, -1, variant="grid")


CALLS = (forward, backward, one_number)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_call_after_call_in_memory_that_held_the_slots_of_the_last(
    dtype: torch.dtype, call: Callable[..., torch.Tensor], shape: tuple[int, ...]
) -> None:
    inputs = [randn(shape, seed, dtype) for seed in range(3)]
    want = [call(x) for x in inputs]
    for k in range(300):
        got = call(inputs[k % 3])
        # Every tenth is looked at: looking at all would give the GPU time between them.
        assert k % 10 or torch.equal(got, want[k % 3]), f"call {k}"


@pytest.mark.parametrize("call", CALLS)
def test_a_graph_gives_the_bits_of_a_call_however_often_it_is_replayed(call: Callable[..., torch.Tensor]) -> None:
    x = randn((1, 2**20), 0)
    call(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = call(x)
    for seed in range(20):
        x.copy_(randn(x.shape, seed))
        graph.replay()
        assert torch.equal(y, call(x)), f"replay {seed}"


def test_graphs_and_calls_on_streams_beside_each_other() -> None:
    inputs = [randn((1, 2**18), seed) for seed in range(4)]
    want = [forward(x) for x in inputs]
    graphs, results = [], []
    for x in inputs[:2]:
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1]):
            results.append(forward(x))
    streams = [torch.cuda.Stream() for _ in inputs]
    torch.cuda.synchronize()
    for turn in range(50):
        for k, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                if k < 2:
                    graphs[k].replay()
                elif turn:
                    results[k] = forward(inputs[k])
                else:
                    results.append(forward(inputs[k]))
    torch.cuda.synchronize()
    assert all(torch.equal(got, y) for got, y in zip(results, want, strict=True))


@pytest.mark.parametrize("dtype, columns", [(torch.bfloat16, 2**23), (torch.float32, 2**22)], ids=str)
def test_launches_that_do_not_fit_beside_each_other(dtype: torch.dtype, columns: int) -> None:
    """16 chunks a thread: a block takes more than half of the registers of a multiprocessor."""
    inputs = [randn((1, columns), seed, dtype) for seed in range(4)]
    want = [forward(x) for x in inputs]
    streams = [torch.cuda.Stream() for _ in inputs]
    results: list[torch.Tensor] = list(want)
    torch.cuda.synchronize()
    for _ in range(100):
        for k, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                results[k] = forward(inputs[k])
    torch.cuda.synchronize()
    assert all(torch.equal(got, y) for got, y in zip(results, want, strict=True))


def test_branches_of_one_graph() -> None:
    inputs = [randn((1, 2**22), seed, torch.float32) for seed in range(2)]
    want, side = [forward(x) for x in inputs], torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        side.wait_stream(torch.cuda.current_stream())
        first = forward(inputs[0])
        with torch.cuda.stream(side):
            second = forward(inputs[1])
        torch.cuda.current_stream().wait_stream(side)
    for _ in range(20):
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(first, want[0])
        assert torch.equal(second, want[1])


# torch's manager of graphs captures an empty one to begin with.
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_under_torch_compile_with_graphs() -> None:
    compiled = torch.compile(lambda x: week2.softmax(x) + 1, mode="reduce-overhead", fullgraph=True)
    for seed in range(6):
        x = randn((1, 2**20), seed, torch.float32)
        torch.testing.assert_close(compiled(x).clone(), torch.softmax(x, -1) + 1)


def test_a_gpu_that_another_stream_keeps_busy() -> None:
    x, a = randn((1, 2**20), 1), randn((8192, 8192), 2)
    want, side = forward(x), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(20):
            b = a @ a
    got = [forward(x) for _ in range(50)]
    torch.cuda.synchronize()
    assert b.isfinite().all()
    assert all(torch.equal(y, want) for y in got)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("op", ["softmax", "logsumexp"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_a_number_that_comes_again_is_left_in_no_slot(dtype: torch.dtype, op: str, shape: tuple[int, ...]) -> None:
    """Launch after launch with the same number, in slots that held anything before."""
    inputs = [randn(shape, seed, dtype) for seed in range(4)]
    want = [getattr(week2, op)(x, -1, variant="grid") for x in inputs]
    plan = plan_forward(op, want[0], inputs[0], (1,), None, query(inputs[0].device), "grid")
    launch = load(plan.builder).compile(plan.config, arch=query(inputs[0].device).arch).launch
    scratch = torch.full((plan.workspace // 8,), -1, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    for k in range(100):
        got = torch.full_like(want[0], float("nan"))
        launch(inputs[k % 4].data_ptr(), got.data_ptr(), scratch.data_ptr(), *plan.arguments, -7, stream)
        if k % 10 == 0:
            assert torch.equal(got, want[k % 4]), f"launch {k}"
            assert not (scratch == -7).any()


def test_a_number_that_stays_in_its_slots_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay takes what the last one wrote where the number does not say that it comes again."""
    from forge_core.op import table

    next_number = table.next_number
    x = randn((1, 2**20), 0)
    forward(x)
    monkeypatch.setattr(table, "next_number", lambda: -next_number())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = forward(x)
    monkeypatch.undo()
    wrong = 0
    for seed in range(20):
        x.copy_(randn(x.shape, seed) + seed)
        graph.replay()
        wrong += not torch.equal(y, forward(x))
    assert wrong


def test_more_blocks_than_can_be_resident_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parting, "_grid_parts", lambda problem, device: 32 * device.sm_count + 1)
    x = randn((1, 2**19 + 64), 0)
    with pytest.raises(UnsupportedError, match=r"'grid' needs all of its blocks resident at once"):
        forward(x)
    torch.testing.assert_close(week2.softmax(x, variant="split"), torch.softmax(x, -1))
