"""What autograd keeps of a call, and how the gradients are differentiated in turn, in PyTorch's own operations.

forward       keeps       its gradient, an operator of backward.py
softmax       y           y * (grad - sum(y * grad))
log_softmax   y           grad - exp(y) * sum(grad)
logsumexp     x, lse      grad * exp(x - lse)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from forge_core.dims import normalize_dims

__all__ = [
    "keep_all",
    "keep_input_and_output",
    "keep_output",
    "map_first",
    "second_of_log_softmax",
    "second_of_logsumexp",
    "second_of_softmax",
]


def keep_output(
    ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor, keyword_only_inputs: dict[str, Any] | None = None
) -> None:
    """For softmax and log_softmax."""
    ctx.save_for_backward(output)
    ctx.call = (inputs[1], inputs[0].dtype, (keyword_only_inputs or {}).get("variant", "auto"))


def keep_input_and_output(
    ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor, keyword_only_inputs: dict[str, Any] | None = None
) -> None:
    """For logsumexp."""
    ctx.save_for_backward(inputs[0], output)
    ctx.call = (inputs[1], inputs[2], (keyword_only_inputs or {}).get("variant", "auto"))


def keep_all(
    ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor, keyword_only_inputs: dict[str, Any] | None = None
) -> None:
    """For the gradients themselves."""
    ctx.save_for_backward(*(value for value in inputs if isinstance(value, torch.Tensor)))
    ctx.call = tuple(value for value in inputs if not isinstance(value, torch.Tensor))


def second_of_softmax(ctx: Any, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
    """Of ``y * (grad - sum(y * grad))``, by ``grad`` and by ``y``."""
    grad, y = ctx.saved_tensors
    (dim,) = ctx.call
    second = second.to(y.dtype)
    both = (second * y).sum(dim, keepdim=True)
    of_grad = y * (second - both)
    of_y = second * (grad - (grad * y).sum(dim, keepdim=True)) - grad * both
    return of_grad, of_y, None


def second_of_log_softmax(ctx: Any, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
    """Of ``grad - exp(y) * sum(grad)``, by ``grad`` and by ``y``."""
    grad, y = ctx.saved_tensors
    (dim,) = ctx.call
    second = second.to(y.dtype)
    weighted = second * y.exp()
    return second - weighted.sum(dim, keepdim=True), -weighted * grad.sum(dim, keepdim=True), None


def second_of_logsumexp(ctx: Any, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None, None]:
    """Of ``grad * exp(x - lse)``, by ``grad``, ``x`` and ``lse``."""
    grad, x, lse = ctx.saved_tensors
    dim, keepdim = ctx.call
    shape = lse.shape
    dims = normalize_dims("logsumexp_backward", dim, x.ndim)
    if not keepdim:
        for i in dims:
            grad, lse = grad.unsqueeze(i), lse.unsqueeze(i)
    weighted = second * (x - lse).exp()
    of_x = weighted * grad
    of_grad, of_lse = ((t.sum(dims, keepdim=True) if dims else t).reshape(shape) for t in (weighted, of_x))
    return of_grad, of_x, -of_lse, None, None


def map_first(info: Any, in_dims: Sequence[int | None], *tensors: torch.Tensor) -> list[torch.Tensor]:
    """The tensors of a mapped call with the mapped dimension first; one that is not mapped is expanded, not copied."""
    return [
        t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0)
        for t, d in zip(tensors, in_dims, strict=False)
    ]
