"""May an eager call skip the dispatcher?

The dispatcher costs several microseconds.  Only when nothing that listens there is active does a call launch its
kernel directly: plain CUDA tensors, and no mode, subclass, functorch transform, forward-mode level or autocast region
in force.  Anything else takes the dispatcher, where all of them are served.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

__all__ = [
    "PLAIN_TYPES",
    "alike",
    "dispatch_modes",
    "forward_levels",
    "function_modes",
    "grad_enabled",
    "has_tangent",
    "nothing",
    "plain_cpu",
    "plain_cuda",
    "quiet",
    "transformed",
]

#: The exact types: a subclass may define __torch_function__ or __torch_dispatch__ and must be asked.
PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)

dispatch_modes = torch._C._len_torch_dispatch_stack
function_modes = torch._C._len_torch_function_stack
_tracing = torch._C._is_tracing  # half the time of asking for the state
_functorch_level = torch._C._functorch.maybe_current_level
# CUDA's, the only one that changes what a call on CUDA tensors does.  Asking by the device's name takes five times as
# long, asking for any device twice.
_autocast_enabled = torch.is_autocast_enabled
grad_enabled = torch.is_grad_enabled
_strided = torch.strided

# What torch.compile guards its code's tensors by: many questions in one call.  A torch that asks otherwise has none.
_TensorGuards: Any = getattr(torch._C._dynamo.guards, "TensorGuards", None)


#: What is like nothing: the answer of ``alike`` before there was a call.
nothing: Callable[[object], bool] = ().__contains__


def alike(x: torch.Tensor) -> Callable[[object], bool]:
    """A function that says whether something is now what ``x`` is, for the dispatcher and for a kernel.

    It compares the exact type, the dtype, the device's index, sizes, strides, ``requires_grad``, and the dispatch keys,
    those of the tensor together with those of the thread, by which the dispatcher itself decides: a negated,
    conjugated, sparse or nested tensor has keys of its own, and so have a functorch transform, an autocast region,
    inference mode and tracing.  Not covered, so the caller must check: the dispatch-mode and function-mode stacks,
    forward-mode levels, and the address.  A nested tensor must not be given to it: torch reads its sizes before it
    compares the keys, and ends the process.

    Args:
        x: a strided tensor; no reference to it is kept.
    """
    if _TensorGuards is None:  # pragma: no cover - for a torch without them
        return nothing
    guards = _TensorGuards(x, dynamic_dims_sizes=[list(x.shape)], dynamic_dims_strides=[list(x.stride())])
    check: Callable[[object], bool] = guards.check
    return check


def quiet() -> bool:
    """Whether nothing that listens at the dispatcher is active on this thread."""
    return not (
        dispatch_modes()
        or function_modes()
        or _functorch_level() is not None
        or _tracing()
        or forward_ad._current_level >= 0
        or _autocast_enabled()
    )


def transformed(args: tuple[object, ...]) -> bool:
    """Whether a ``torch.func`` transform is in force on this thread and one of the arguments takes part in it."""
    if _functorch_level() is None:
        return False
    return any(isinstance(a, torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(a) for a in args)


def forward_levels() -> int:
    """How many ``torch.func.jvp`` are in force on this thread, one within the other."""
    stack = torch._C._functorch.get_interpreter_stack() or []
    return sum(interpreter.key() == torch._C._functorch.TransformType.Jvp for interpreter in stack)


def has_tangent(args: tuple[object, ...]) -> bool:
    """Whether forward-mode differentiation is in force and one of the arguments carries a tangent, or may do so."""
    # Compiled code enters levels without telling Python.
    if forward_ad._current_level < 0 and (_functorch_level() is None or not forward_levels()):
        return False
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    # Mapped tensors cannot be asked, be it by torch.func.vmap or by the one before it, which gradcheck uses.
    if _functorch_level() is not None or any(map(torch._C._functorch.is_legacy_batchedtensor, tensors)):
        return True
    return any(forward_ad.unpack_dual(a).tangent is not None for a in tensors)


def plain_cpu(x: Any) -> bool:
    """Whether ``x`` is a plain strided CPU tensor, and no autocast region of the CPU is in force."""
    return (
        type(x) in PLAIN_TYPES
        and x.is_cpu
        and x.layout is _strided
        and not x.is_nested
        and not x.is_conj()
        and not x.is_neg()
        and not torch.is_autocast_enabled("cpu")
    )


def plain_cuda(x: Any) -> bool:
    """Whether ``x`` is a plain strided CUDA tensor whose memory is to be read literally."""
    return (
        type(x) in PLAIN_TYPES
        and x.is_cuda
        and x.layout is _strided
        and not x.is_nested
        and not x.is_conj()
        and not x.is_neg()
    )
