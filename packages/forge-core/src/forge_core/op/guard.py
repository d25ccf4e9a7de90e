"""Conditions under which an eager call may bypass the dispatcher, which saves several microseconds.

A call launches its kernel directly if its tensors are plain and no mode, functorch transform, forward-mode level or
autocast region is active.  The dispatcher serves all other calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

#: Exact types, since a subclass may override __torch_function__ or __torch_dispatch__.
PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)

dispatch_modes = torch._C._len_torch_dispatch_stack
function_modes = torch._C._len_torch_function_stack
_tracing = torch._C._is_tracing  # takes half as long as _get_tracing_state
_functorch_level = torch._C._functorch.maybe_current_level
# Of CUDA, the only autocast that affects a call on CUDA tensors.  Passing the device type takes five times as long,
# checking for any device twice as long.
_autocast_enabled = torch.is_autocast_enabled
grad_enabled = torch.is_grad_enabled
_strided = torch.strided

# The tensor guards of torch.compile, which compare all properties in one call; a private class that a torch may lack.
_TensorGuards: Any = getattr(torch._C._dynamo.guards, "TensorGuards", None)

#: The guard that matches no tensor.
match_none: Callable[[object], bool] = ().__contains__


def tensor_guard(x: torch.Tensor) -> Callable[[object], bool]:
    """Returns a guard: a function that tells whether a tensor matches ``x`` under the current thread state.

    It compares the exact type, dtype, device index, sizes, strides, ``requires_grad``, and the dispatch keys of tensor
    and thread.  These differ for a negated, conjugated, sparse or nested tensor, and under a functorch transform,
    autocast, inference mode and tracing.

    It does not check the dispatch-mode and function-mode stacks, forward-mode levels, or the address.  Do not pass a
    nested tensor to the guard: torch reads its sizes before it compares the keys, and aborts the process.

    Args:
        x: a strided tensor; no reference to it is kept.
    """
    if _TensorGuards is None:  # pragma: no cover - for a torch without them
        return match_none
    guards = _TensorGuards(x, dynamic_dims_sizes=[list(x.shape)], dynamic_dims_strides=[list(x.stride())])
    check: Callable[[object], bool] = guards.check
    return check


def quiet() -> bool:
    """Whether this thread has no active mode, functorch transform, forward-mode level, tracer or CUDA autocast."""
    return not (
        dispatch_modes()
        or function_modes()
        or _functorch_level() is not None
        or _tracing()
        or forward_ad._current_level >= 0
        or _autocast_enabled()
    )


def transformed(args: tuple[object, ...]) -> bool:
    """Whether an argument is wrapped by an active ``torch.func`` transform."""
    if _functorch_level() is None:
        return False
    return any(isinstance(a, torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(a) for a in args)


def forward_levels() -> int:
    """The nesting depth of ``torch.func.jvp`` on this thread."""
    stack = torch._C._functorch.get_interpreter_stack() or []
    return sum(interpreter.key() == torch._C._functorch.TransformType.Jvp for interpreter in stack)


def has_tangent(args: tuple[object, ...]) -> bool:
    """Whether forward-mode AD is active and an argument has a tangent, or may have one."""
    # Compiled code enters forward-mode levels without updating the Python state.
    if forward_ad._current_level < 0 and (_functorch_level() is None or not forward_levels()):
        return False
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    # Tensors that are batched by torch.func.vmap, or by the legacy vmap of gradcheck, cannot be unpacked.
    if _functorch_level() is not None or any(map(torch._C._functorch.is_legacy_batchedtensor, tensors)):
        return True
    return any(forward_ad.unpack_dual(a).tangent is not None for a in tensors)


def plain_cpu(x: Any) -> bool:
    """Whether ``x`` is a plain strided CPU tensor without a lazy conjugation or negation, and no CPU autocast is on."""
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
    """Whether ``x`` is a plain strided CUDA tensor without a lazy conjugation or negation."""
    return (
        type(x) in PLAIN_TYPES
        and x.is_cuda
        and x.layout is _strided
        and not x.is_nested
        and not x.is_conj()
        and not x.is_neg()
    )
