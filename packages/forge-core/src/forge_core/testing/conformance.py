"""Checks that any operator must pass, whatever it computes.

Each function takes the public operator, and a function that makes fresh arguments for a seed.  They raise
AssertionError (or what PyTorch raises) when the operator misbehaves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from forge_core.op import Operator

__all__ = [
    "check_concurrent_threads",
    "check_current_device_unchanged",
    "check_export",
    "check_fullgraph",
    "check_graph_replay",
    "check_opcheck",
    "check_second_device",
    "check_side_stream",
]

Arguments = tuple[torch.Tensor, ...]
Make = Callable[[int], tuple[Any, ...]]
Call = Callable[..., torch.Tensor]
Same = Callable[[torch.Tensor, torch.Tensor], None]

# Long enough, in GPU clock cycles, that a launch on the wrong stream is over before this is (about 50 ms).
LONG_CYCLES = 100_000_000


def check_opcheck(op: Operator, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
    """``torch.library.opcheck``: schema, autograd registration, fake against real (strides too), AOT dispatch."""
    overload = getattr(getattr(torch.ops, op.schema.namespace), op.schema.name).default
    torch.library.opcheck(overload, args, kwargs or {})


def check_fullgraph(op: Call, make: Make, reference: Call, same: Same, *, backend: str, dynamic: bool | None) -> None:
    """``torch.compile(fullgraph=True)`` gives what the reference gives, on changed inputs too."""
    torch._dynamo.reset()
    compiled = torch.compile(op, fullgraph=True, backend=backend, dynamic=dynamic)
    for seed in range(3):
        args = make(seed)
        same(compiled(*args), reference(*args))


def check_export(op: Operator, make: Make, reference: Call, same: Same) -> None:
    """``torch.export`` keeps the operator as one node, and the exported program gives the reference's result."""

    class Module(torch.nn.Module):
        def forward(self, *args: Any) -> torch.Tensor:
            return op(*args)

    args = make(0)
    program = torch.export.export(Module(), args)
    targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    wanted = f"{op.schema.namespace}.{op.schema.name}.default"
    if targets != [wanted]:
        raise AssertionError(f"export: expected the single node {wanted}, got {targets}")
    args = make(1)
    same(program.module()(*args), reference(*args))


def check_concurrent_threads(op: Call, make: Make, reference: Call, same: Same, *, threads: int = 8) -> None:
    """Calls from several threads at once, the first compile included, all give the right result."""
    failures: list[BaseException] = []
    barrier = threading.Barrier(threads)

    def work(seed: int) -> None:
        try:
            args = make(seed)
            barrier.wait()
            for _ in range(5):
                same(op(*args), reference(*args))
        except BaseException as error:  # noqa: BLE001  # handed to the caller below
            failures.append(error)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failures:
        raise failures[0]


def check_graph_replay(op: Call, make: Make, reference: Call, same: Same) -> None:
    """A captured CUDA graph, replayed with changed inputs, computes the changed result."""
    static = make(0)
    op(*static)  # compiles outside the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = op(*static)
    for seed in (1, 2):
        fresh = make(seed)
        for target, source in zip(static, fresh, strict=True):
            if isinstance(target, torch.Tensor):
                target.copy_(source)
        graph.replay()
        torch.cuda.synchronize()
        same(out, reference(*fresh))


def check_side_stream(op: Call, make: Make, reference: Call, same: Same) -> None:
    """On a side stream, the operator runs after what was queued there before it and before what comes after."""
    static = make(0)
    fresh = make(1)
    op(*static)
    expected = reference(*fresh)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG_CYCLES)
        for target, source in zip(static, fresh, strict=True):
            if isinstance(target, torch.Tensor):
                target.copy_(source)
        result = op(*static).clone()
    torch.cuda.synchronize()
    same(result, expected)


def check_current_device_unchanged(op: Call, make: Make) -> None:
    """A call leaves the current device as it was."""
    before = torch.cuda.current_device()
    op(*make(0))
    after = torch.cuda.current_device()
    if before != after:
        raise AssertionError(f"the current device was {before} before the call and is {after} after it")


def check_second_device(op: Call, make: Make, reference: Call, same: Same) -> None:
    """One call on each of two GPUs, whichever is current, and the current device stays what it was."""
    for current in (0, 1):
        with torch.cuda.device(current):
            for index in (0, 1):
                args = tuple(a.to(f"cuda:{index}") if isinstance(a, torch.Tensor) else a for a in make(index))
                same(op(*args), reference(*args))
                if torch.cuda.current_device() != current:
                    raise AssertionError(f"the current device changed from {current} in a call on cuda:{index}")
