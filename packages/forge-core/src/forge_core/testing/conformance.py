"""How an operator has to behave towards PyTorch and CUDA, whatever it computes.

Each function takes the operator as a function of its arguments, what makes fresh arguments from a seed, and what tells
whether a result is right for its arguments.  They raise AssertionError when the operator misbehaves.  The battery makes
tests of them; what concerns layouts, outputs and values is in ``conformance_memory``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = [
    "Make",
    "Right",
    "check_concurrent_threads",
    "check_current_device_unchanged",
    "check_determinism",
    "check_dynamic_shapes",
    "check_export",
    "check_fullgraph",
    "check_graph_replay",
    "check_opcheck",
    "check_second_device",
    "check_side_stream",
    "same_bits",
]

Arguments = tuple[Any, ...]
#: Makes fresh arguments from a seed.
Make = Callable[[int], Arguments]
Call = Callable[..., torch.Tensor]
#: Raises AssertionError unless a result is right for its arguments.
Right = Callable[[torch.Tensor, Arguments], None]

# Long enough, in GPU clock cycles, that a launch on the wrong stream is over before this is (about 50 ms).
LONG_CYCLES = 100_000_000


# ------------------------------------------------------------------------------------------------------- PyTorch


def check_opcheck(overload: Any, args: Arguments, kwargs: dict[str, Any] | None = None) -> None:
    """``torch.library.opcheck``: schema, autograd registration, fake against real (strides too), AOT dispatch.

    Args:
        overload: a registered ``OpOverload``, or a ``forge_core.op.Operator``.
        args: of one call.
        kwargs: of the call.
    """
    schema = getattr(overload, "schema", None)
    if schema is not None:
        overload = getattr(getattr(torch.ops, schema.namespace), schema.name).default
    try:
        torch.library.opcheck(overload, args, kwargs or {})
    except AssertionError:
        raise
    except Exception as error:
        # opcheck raises an error of a private class of torch's, or what the failing subsystem raises.
        raise AssertionError(f"opcheck of {overload}: {type(error).__name__}: {error}") from error


def check_fullgraph(call: Call, make: Make, right: Right, *, backend: str, dynamic: bool | None) -> None:
    """``torch.compile(fullgraph=True)`` gives the right result, on changed inputs too."""
    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend=backend, dynamic=dynamic)
    for seed in range(3):
        args = make(seed)
        right(_compiled(compiled, args), args)


def check_dynamic_shapes(call: Call, calls: Sequence[Arguments], right: Right) -> None:
    """A graph of symbolic shapes takes all shapes behind the first two without being compiled anew.

    Args:
        call: the operator.
        calls: arguments, of another shape each.
        right: tells whether a result is right.
    """
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(call, fullgraph=True, backend=counter, dynamic=True)
    known = 0
    for index, args in enumerate(calls):
        right(_compiled(compiled, args), args)
        if index < 2:
            known = counter.frame_count
        elif counter.frame_count != known:
            shapes = [tuple(a.shape) for a in args if isinstance(a, torch.Tensor)]
            raise AssertionError(f"dynamic shapes: {shapes} was compiled anew, after {known} graphs")


def _compiled(compiled: Call, args: Arguments) -> torch.Tensor:
    from torch._dynamo.exc import TorchDynamoException

    try:
        return compiled(*args)
    except TorchDynamoException as error:
        raise AssertionError(f"torch.compile(fullgraph=True): {type(error).__name__}: {error}") from error


def check_export(call: Call, overload: Any, make: Make, right: Right) -> None:
    """``torch.export`` keeps the operator as one node, and the exported program gives the right result."""

    class Module(torch.nn.Module):
        def forward(self, *args: Any) -> torch.Tensor:
            return call(*args)

    program = torch.export.export(Module(), make(0))
    targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    if targets != [str(overload)]:
        raise AssertionError(f"export: expected the single node {overload}, got {targets}")
    args = make(1)
    right(program.module()(*args), args)


def check_concurrent_threads(call: Call, make: Make, right: Right, *, threads: int = 8) -> None:
    """Calls from several threads at once, the first compile included, all give the right result."""
    failures: list[BaseException] = []
    barrier = threading.Barrier(threads)

    def work(seed: int) -> None:
        try:
            args = make(seed)
            barrier.wait()
            for _ in range(5):
                right(call(*args), args)
        except BaseException as error:  # noqa: BLE001  # handed to the caller below
            failures.append(error)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failures:
        raise failures[0]


# ---------------------------------------------------------------------------------------------------------- CUDA


def check_graph_replay(call: Call, make: Make, right: Right) -> None:
    """A captured CUDA graph, replayed with changed inputs, computes the changed result."""
    static = make(0)
    call(*static)  # compiles outside the capture
    replay, out = capture(call, static)
    for seed in (1, 2):
        fresh = make(seed)
        _overwrite(static, fresh)
        replay()
        right(out, fresh)


def capture(call: Call, args: Arguments) -> tuple[Callable[[], None], torch.Tensor]:
    """Captures a call in a CUDA graph; gives what replays it to its end, and the output that a replay writes."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call(*args)

    def replay() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return replay, out


def check_side_stream(call: Call, make: Make, right: Right) -> None:
    """On a side stream, the operator runs after what was queued there before it and before what comes after."""
    static = make(0)
    fresh = make(1)
    call(*static)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG_CYCLES)
        _overwrite(static, fresh)
        result = call(*static).clone()
    torch.cuda.synchronize()
    right(result, fresh)


def _overwrite(static: Arguments, fresh: Arguments) -> None:
    for target, source in zip(static, fresh, strict=True):
        if isinstance(target, torch.Tensor):
            target.copy_(source)


def check_current_device_unchanged(call: Call, make: Make) -> None:
    """A call leaves the current device as it was."""
    before = torch.cuda.current_device()
    call(*make(0))
    after = torch.cuda.current_device()
    if before != after:
        raise AssertionError(f"the current device was {before} before the call and is {after} after it")


def check_second_device(call: Call, make: Make, right: Right) -> None:
    """One call on each of two GPUs, whichever is current, and the current device stays what it was."""
    for current in (0, 1):
        with torch.cuda.device(current):
            for index in (0, 1):
                args = tuple(a.to(f"cuda:{index}") if isinstance(a, torch.Tensor) else a for a in make(index))
                right(call(*args), args)
                if torch.cuda.current_device() != current:
                    raise AssertionError(f"the current device changed from {current} in a call on cuda:{index}")


# --------------------------------------------------------------------------------------------------- determinism


def same_bits(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Whether two tensors hold the same bits, as a bool tensor on their device, so that no one has to wait for it."""
    left, right = (x.contiguous().reshape(-1).view(torch.uint8) for x in (a, b))
    return (left == right).all()


def check_determinism(call: Call, args: Arguments, *, repeats: int = 100) -> None:
    """The same arguments give the same bits; on a GPU from four streams at once, and from a replayed graph."""
    first = call(*args)
    if not first.is_cuda:
        if not all(bool(same_bits(call(*args), first)) for _ in range(repeats)):
            raise AssertionError(f"{repeats} calls with the same arguments gave different bits")
        return
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    same = []
    for index in range(repeats):
        with torch.cuda.stream(streams[index % 4]):
            same.append(same_bits(call(*args), first))
    torch.cuda.synchronize()
    differ = sum(not bool(one) for one in same)
    if differ:
        raise AssertionError(f"{differ} of {repeats} calls from four streams gave other bits than the first")
    replay, out = capture(call, args)
    for index in range(repeats):
        out.zero_()
        replay()
        if not bool(same_bits(out, first)):
            raise AssertionError(f"replay {index} of a captured call gave other bits than the call")
