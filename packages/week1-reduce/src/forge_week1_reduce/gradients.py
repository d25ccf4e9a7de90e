"""How the operators are differentiated, in PyTorch's own operations, so that gradients can be differentiated in turn.

sum     the gradient, expanded: a view, no kernel
mean    the same, divided by the number of elements
amax    the gradient, shared evenly by the elements that tie for the extreme
prod    the gradient times the product of all other elements, conjugated, from both sides, so that zeros need no case
"""

from __future__ import annotations

from typing import Any

import torch

from forge_core.dims import normalize_dims

__all__ = [
    "extreme_backward",
    "keep_extreme",
    "keep_input",
    "keep_shape",
    "mean_backward",
    "prod_backward",
    "sum_backward",
]


def _keep(ctx: Any, inputs: tuple[Any, ...]) -> None:
    x = inputs[0]
    dim = inputs[1] if len(inputs) > 1 else -1
    ctx.keepdim = inputs[2] if len(inputs) > 2 else False
    ctx.shape, ctx.dtype = x.shape, x.dtype
    ctx.dims = normalize_dims("backward", dim, x.ndim)


def keep_shape(
    ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor, keyword_only_inputs: dict[str, Any] | None = None
) -> None:
    """For sum and mean."""
    _keep(ctx, inputs)


def keep_input(
    ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor, keyword_only_inputs: dict[str, Any] | None = None
) -> None:
    """For prod."""
    _keep(ctx, inputs)
    ctx.to = (keyword_only_inputs or {}).get("dtype")
    ctx.save_for_backward(inputs[0])


def keep_extreme(
    ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor, keyword_only_inputs: dict[str, Any] | None = None
) -> None:
    """For amax and amin."""
    _keep(ctx, inputs)
    ctx.save_for_backward(inputs[0], output)


def _restore(y: torch.Tensor, ctx: Any) -> torch.Tensor:
    """Puts the reduced dimensions back, with size 1."""
    if not ctx.keepdim:
        for i in ctx.dims:
            y = y.unsqueeze(i)
    return y


def sum_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    """D sum / dx = 1."""
    return _restore(grad, ctx).expand(ctx.shape).to(ctx.dtype), None, None


def mean_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    """D mean / dx = 1 / count."""
    count = 1
    for i in ctx.dims:
        count = count * ctx.shape[i]
    return (_restore(grad, ctx).expand(ctx.shape) / count).to(ctx.dtype), None, None


def extreme_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    """D amax / dx = 1 / ties where x is the extreme, 0 elsewhere."""
    x, output = ctx.saved_tensors
    ties = (x == _restore(output, ctx)).to(grad.dtype)
    count = ties.sum(ctx.dims, keepdim=True) if ctx.dims else ties
    return _restore(grad, ctx) * ties / count, None, None


def prod_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    """D prod / dx[i] = the product of the others: of those before it, and of those after it."""
    (x,) = ctx.saved_tensors
    x = x if ctx.to is None else x.to(ctx.to)
    if not ctx.dims:
        return grad.to(ctx.dtype), None, None
    kept = [i for i in range(x.ndim) if i not in ctx.dims]
    order = (*kept, *ctx.dims)
    moved = x.permute(order)
    line = moved.reshape(*moved.shape[: len(kept)], -1)
    others = (_before(line) * _before(line.flip(-1)).flip(-1)).reshape(moved.shape)
    back = [order.index(i) for i in range(x.ndim)]
    return (_restore(grad, ctx) * others.permute(back).conj()).to(ctx.dtype), None, None


def _before(line: torch.Tensor) -> torch.Tensor:
    """At each place of the last dimension, the product of the elements before it."""
    if line.shape[-1] == 0:
        return line
    ones = torch.ones_like(line[..., :1])
    return torch.cat((ones, line[..., :-1]), -1).cumprod(-1)
