"""Rows over the whole GPU: blocks that wait for each other's slots, in calls, graphs and streams that come together."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import forge_week2_softmax as week2

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


def test_a_captured_call_empties_its_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a replay would take what the last one wrote: the test above is shown to notice that."""
    from forge_core.op import table

    x = randn((1, 2**20), 0)
    forward(x)
    monkeypatch.setattr(table, "_clear", lambda workspace: None)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = forward(x)
    wrong = 0
    for seed in range(20):
        x.copy_(randn(x.shape, seed) + seed)
        graph.replay()
        wrong += not torch.equal(y, forward(x))
    assert wrong
