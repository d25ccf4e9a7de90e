"""Properties of any operator towards PyTorch and CUDA; each function raises AssertionError.

    call         the operator as a function of a call's tensors
    make         makes fresh arguments of ``call`` from a seed
    right        ``right(result, args)`` raises AssertionError unless a result is right for its arguments
    overload     the registered ``OpOverload``

Layouts, ``out``, empty tensors and NaN are in ``conformance_memory``, gradients and ``vmap`` in
``conformance_gradients``, what an operator of ``forge_core.op`` refuses in ``conformance_calls``.
"""

from __future__ import annotations

import copy
import pickle
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import torch
from torch import fx
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import BaseTorchDispatchMode

Arguments = tuple[Any, ...]
Tensors = tuple[torch.Tensor, ...]
Call = Callable[..., torch.Tensor]
Make = Callable[[int], Arguments]
Right = Callable[[torch.Tensor, Arguments], None]

# Long enough, in GPU clock cycles, that a launch on the wrong stream is over before this is (about 50 ms).
LONG_CYCLES = 100_000_000

#: Calls within it go through the dispatcher, where the gradient of CPU tensors too is the operator's own rule.
Dispatched = BaseTorchDispatchMode


def check_opcheck(overload: Any, args: Arguments, kwargs: dict[str, Any] | None = None) -> None:
    """``torch.library.opcheck`` of an ``OpOverload`` or a ``forge_core.op.Operator``.

    It checks the schema, the autograd registration, the fake against the real result, strides too, and AOT dispatch.
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
    """A graph of symbolic shapes is not recompiled for any shape after the second of ``calls``."""
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


def check_concurrent_threads(call: Call, make: Make, right: Right) -> None:
    """Calls from eight threads at once, the first compile included, all give the right result."""
    given = [make(seed) for seed in range(8)]
    barrier = threading.Barrier(len(given))

    def work(args: tuple[Any, ...]) -> None:
        barrier.wait()
        for _ in range(5):
            right(call(*args), args)

    with ThreadPoolExecutor(len(given)) as pool:
        list(pool.map(work, given))


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


def check_value(operator: Any) -> None:
    """The operator is pickled by name, and copied as itself, alone and within other values."""
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(operator, protocol))  # noqa: S301  # its own bytes
        _expect(again is operator, f"pickled with protocol {protocol} it comes back as {again!r}")
    _expect(copy.copy(operator) is operator, "copy.copy makes another operator")
    _expect(copy.deepcopy({"operator": [operator]})["operator"][0] is operator, "copy.deepcopy makes another operator")


class _Seen(torch.Tensor):
    """A subclass that records the functions that ``__torch_function__`` receives."""

    given: ClassVar[list[Any]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        _Seen.given.append(func)
        return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]


def check_traced(operator: Any, overload: Any, call: Call, tensors: Arguments, right: Right) -> None:
    """``torch.fx`` records ``operator`` as one node, ``make_fx`` the ``overload``; ``__torch_function__`` gets it.

    A trace of ``torch.jit`` has the operator too.
    """
    first, *others = tensors
    graph = fx.symbolic_trace(lambda x: call(x, *others))
    targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    _expect(targets == [operator], f"torch.fx.symbolic_trace records {targets}")
    right(copy.deepcopy(graph)(first), tensors)
    traced = make_fx(call)(*tensors)
    targets = [node.target for node in traced.graph.nodes if node.op == "call_function"]
    _expect(overload in targets, f"make_fx records {targets}")
    right(traced(*tensors), tensors)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit is deprecated, and still there
        warnings.filterwarnings("ignore", "Converting a tensor")  # of shapes that are checked, constant in a trace
        scripted = torch.jit.trace(call, tensors, check_trace=False)
    right(scripted(*tensors), tensors)
    _Seen.given.clear()
    result = call(first.as_subclass(_Seen), *others)
    _expect(type(result) is _Seen, f"a subclass gets {type(result)}")
    _expect(_Seen.given == [operator], f"__torch_function__ is given {_Seen.given}")
    right(result.as_subclass(torch.Tensor), tensors)


def near(what: str, got: torch.Tensor | None, exact: torch.Tensor) -> None:
    """Raises AssertionError unless a derivative is the float64 one but for a few of the last bits of its dtype."""
    if got is None:
        raise AssertionError(f"{what}: the tangent is lost")
    # Derivatives are sums of several rounded products.
    tolerance = 64 * torch.finfo(got.dtype).eps
    scale = exact.abs().max().clamp_min(1.0).item() if exact.numel() else 1.0
    torch.testing.assert_close(
        got.double(), exact, rtol=tolerance, atol=tolerance * scale, msg=lambda text: f"{what}: {text}"
    )


def check_forward_mode(call: Call, overload: Call, expected: Call, tensors: Arguments, directions: Arguments) -> None:
    """Forward mode: dual tensors, ``jvp`` alone, mapped, nested in itself and in ``grad``, compiled.

    What is right follows from PyTorch's forward mode of ``expected``, the reference, in float64; ``call``, ``overload``
    and ``expected`` are functions of floating-point ``tensors``, and ``directions`` are their tangents.
    """

    def jvp(function: Call) -> Call:
        return lambda *both: torch.func.jvp(function, both[: len(both) // 2], both[len(both) // 2 :])[1]

    def loss(function: Call) -> Call:
        return lambda *all: function(*all).sin().sum()

    wide, both = tuple(t.double() for t in (*tensors, *directions)), (*tensors, *directions)
    exact = jvp(expected)(*wide)
    with warnings.catch_warnings():
        # Entering forward mode for the first time makes torch compile its own decompositions by a deprecated way.
        warnings.filterwarnings("ignore", ".torch.jit.script. is deprecated", DeprecationWarning)
        near("torch.func.jvp", jvp(call)(*both), exact)
        for what, function in (("a dual tensor", call), ("a dual tensor, by torch.ops", overload)):
            with forward_ad.dual_level():
                dual = function(*map(forward_ad.make_dual, tensors, directions))
                near(what, forward_ad.unpack_dual(dual).tangent, exact)
        stacked = tuple(torch.stack([d, 2 * d]) for d in directions)
        in_dims = (*(None for _ in tensors), *(0 for _ in stacked))
        mapped = torch.func.vmap(jvp(call), in_dims)(*tensors, *stacked)
        near("torch.func.vmap of jvp", mapped, torch.stack([exact, 2 * exact]))
        near("jvp of jvp", jvp(jvp(call))(*both, *both), jvp(jvp(expected))(*wide, *wide))
        near("jvp of grad", jvp(torch.func.grad(loss(call)))(*both), jvp(torch.func.grad(loss(expected)))(*wide))
        torch._dynamo.reset()
        compiled = torch.compile(jvp(call), backend="aot_eager", fullgraph=True)
        near("a compiled jvp", compiled(*both), exact)


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
    """Captures a call in a CUDA graph: a function that replays and synchronizes, and the output that it writes."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call(*args)

    def replay() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return replay, out


def check_side_stream(call: Call, make: Make, right: Right) -> None:
    """On a side stream, the operator is ordered with the work that was queued there before and after it."""
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


def check_current_device_unchanged(call: Call, make: Make, right: Right) -> None:
    """A call leaves the current device as it was."""
    before, args = torch.cuda.current_device(), make(0)
    right(call(*args), args)
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


def same_bits(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Whether two tensors hold the same bits: a bool tensor on their device, without synchronization."""
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
