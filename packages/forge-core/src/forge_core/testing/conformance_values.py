"""How an operator behaves as a value, and how it is differentiated forward: as PyTorch's functions do.

The functions raise AssertionError when the operator misbehaves; the battery makes tests of them.
"""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import fx
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

__all__ = ["check_forward_mode", "check_traced", "check_value"]

Call = Callable[..., torch.Tensor]
Tensors = tuple[torch.Tensor, ...]


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


def check_value(operator: Any) -> None:
    """It is pickled by its name, and copied as itself, alone and within other values.

    Args:
        operator: a module-level function, or a ``forge_core.op.Operator``.
    """
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(operator, protocol))  # noqa: S301  # its own bytes
        _expect(again is operator, f"pickled with protocol {protocol} it comes back as {again!r}")
    _expect(copy.copy(operator) is operator, "copy.copy makes another operator")
    _expect(copy.deepcopy({"operator": [operator]})["operator"][0] is operator, "copy.deepcopy makes another operator")


class _Seen(torch.Tensor):
    """A subclass that notes which functions it is given."""

    given: ClassVar[list[Any]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        _Seen.given.append(func)
        return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]


def check_traced(operator: Any, overload: Any, call: Call, tensors: Tensors, right: Callable[..., None]) -> None:
    """``torch.fx`` records one node of it, ``make_fx`` one of the registered operator; a subclass is given it.

    Args:
        operator: the operator.
        overload: its registered ``OpOverload``.
        call: the operator as a function of a call's tensors.
        tensors: of a call.
        right: ``right(result, tensors)`` raises AssertionError unless a result is right.
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
    _Seen.given.clear()
    result = call(first.as_subclass(_Seen), *others)
    _expect(type(result) is _Seen, f"a subclass gets {type(result)}")
    _expect(_Seen.given == [operator], f"__torch_function__ is given {_Seen.given}")
    right(result.as_subclass(torch.Tensor), tensors)


def check_forward_mode(call: Call, overload: Call, expected: Call, tensors: Tensors, directions: Tensors) -> None:
    """Forward mode: dual tensors, ``jvp`` alone, mapped, nested in itself and in ``grad``, compiled.

    What is right follows from PyTorch's forward mode of the reference, in float64.

    Args:
        call: the operator as a function of a call's tensors.
        overload: the registered operator, likewise.
        expected: the reference, likewise.
        tensors: of a call, floating point.
        directions: their tangents.
    """
    # A few of the last bits of the coarsest dtype: tangents are sums of several rounded products.
    tolerance = 64 * max(torch.finfo(t.dtype).eps for t in (call(*tensors), *tensors))

    def near(what: str, got: torch.Tensor | None, exact: torch.Tensor) -> None:
        if got is None:
            raise AssertionError(f"{what}: the tangent is lost")
        scale = exact.abs().max().clamp_min(1.0).item() if exact.numel() else 1.0
        torch.testing.assert_close(
            got.double(), exact, rtol=tolerance, atol=tolerance * scale, msg=lambda text: f"{what}: {text}"
        )

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
