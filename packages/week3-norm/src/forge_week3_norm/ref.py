"""What the operators mean, in plain PyTorch: serves CPU tensors and the backend ``ref``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from forge_core.dims import Dims, normalize_dims

__all__ = ["fused", "norm", "norm_backward", "norm_gradients", "statistics", "weight_backward"]


def _wide(t: Any) -> Any:
    return t if t is None else t.to(torch.promote_types(t.dtype, torch.float32))


def _hat(x: torch.Tensor, dims: tuple[int, ...], eps: float, center: bool) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """What is normalized, less its mean, times rstd; and the mean, with ``center``, and rstd of each row."""
    d, found = _wide(x), []
    if center:
        found.append(d.mean(dims, keepdim=True))
        d = d - found[0]
    found.append(torch.rsqrt(d.square().mean(dims, keepdim=True) + eps))
    rows = [size for i, size in enumerate(x.shape) if i not in dims]
    return d * found[-1], [t.reshape(rows) for t in found]


def _along(t: torch.Tensor, x: torch.Tensor, dims: tuple[int, ...]) -> Any:
    """A weight or a bias, to be broadcast over rows."""
    return _wide(t).reshape([size if i in dims else 1 for i, size in enumerate(x.shape)])


def norm(named: dict[str, Any], *, center: bool) -> Any:
    """The norm of a call given by all of its arguments.

    With a parameter for a residual, also the sum, the mean, of ``center``, and rstd; what is not asked for is empty.
    """
    x, residual, weight, bias = named["x"], named.get("residual"), named["weight"], named["bias"]
    dims, total = normalize_dims("norm", named["dim"], x.ndim), x
    if residual is not None:
        total = (_wide(x) + _wide(residual)).to(named["residual_dtype"] or torch.promote_types(x.dtype, residual.dtype))
    y, of_rows = _hat(total, dims, named["eps"], center)
    y = y.to(x.dtype).to(y.dtype) if named["cast"] == "input" else y
    if weight is not None:
        scale, offset = _along(weight, x, dims), named["weight_offset"]
        y = y * (scale + offset if offset else scale)
    if bias is not None:
        y = y + _along(bias, x, dims)
    y = y.to(named["dtype"] or x.dtype).contiguous()
    if "residual" not in named:
        return y
    found = [t.detach() if named["statistics"] else t.new_empty(0) for t in of_rows]
    return (y, x.new_empty(0) if residual is None else total.contiguous(), *found)


def fused(named: dict[str, Any], *, center: bool) -> Callable[..., Any] | None:
    """A call of :func:`norm` by PyTorch's own kernels; None where they give another result."""
    x, residual, statistics = named["x"], named.get("residual"), named.get("statistics", False)
    dims, eps, wide = normalize_dims("norm", named["dim"], x.ndim), named["eps"], x.dtype.itemsize >= 4
    first, alone, dtype = x.ndim - len(dims), "residual" not in named, named["dtype"] or x.dtype
    if named["weight_offset"] or dims != (*range(first, x.ndim),) or not x.numel():
        return None
    if (named["cast"] == "input" and not wide) or (statistics and not center):
        return None
    rows, sizes = x.shape[:first], x.shape[first:]
    promoted = x.dtype if residual is None else torch.promote_types(x.dtype, residual.dtype)
    total = named.get("residual_dtype") or promoted
    # Of 16-bit tensors theirs are statistics of 16 bits, and an RMSNorm that is rounded before the weight.
    dtypes = {dtype, total, *(t.dtype for t in named.values() if isinstance(t, torch.Tensor))}
    direct = len(dtypes) == 1 and (wide or (center and not statistics))

    def run(x: Any, residual: Any = None, weight: Any = None, bias: Any = None) -> Any:
        h = x if residual is None else x + residual if total is promoted else (_wide(x) + _wide(residual)).to(total)
        a, w, b = (h, weight, bias) if direct else map(_wide, (h, weight, bias))
        if center:
            y, *found = torch.native_layer_norm(a, sizes, w, b, eps)
        else:
            y, found = torch.rms_norm(a, sizes, w, eps).contiguous(), [x]
            y = y if b is None else y + b
        y = y if direct else y.to(dtype)
        if alone:
            return y
        kept = x.new_empty(0) if residual is None else h.contiguous()
        return (y, kept, *(t.detach().view(rows) if statistics else t.new_empty(0) for t in found))

    return run


def statistics(x: torch.Tensor, dim: Dims, eps: float, *, center: bool) -> list[torch.Tensor]:
    """The mean, with ``center``, and rstd of each row."""
    return _hat(x, normalize_dims("statistics", dim, x.ndim), eps, center)[1]


def _given(
    x: torch.Tensor, mean: torch.Tensor | None, rstd: torch.Tensor, dims: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """What was normalized, less its mean, times rstd; and rstd, to be broadcast over rows."""
    shape = [1 if i in dims else size for i, size in enumerate(x.shape)]
    d = _wide(x) if mean is None else _wide(x) - _wide(mean).reshape(shape)
    return d * _wide(rstd).reshape(shape), _wide(rstd).reshape(shape)


def norm_backward(dy: torch.Tensor, x: torch.Tensor, rstd: torch.Tensor, dim: Dims = -1, **named: Any) -> Any:
    """The gradient of x, where rstd and, for layer_norm, mean are those of its rows."""
    mean, weight, dtotal = (named.get(name) for name in ("mean", "weight", "dtotal"))
    dims = normalize_dims("norm_backward", dim, x.ndim)
    hat, scale = _given(x, mean, rstd, dims)
    g = _wide(dy) if weight is None else _wide(dy) * (_along(weight, x, dims) + named.get("weight_offset", 0.0))
    dx = g - hat * (g * hat).mean(dims, keepdim=True)
    dx = (dx if mean is None else dx - g.mean(dims, keepdim=True)) * scale
    return (dx if dtotal is None else dx + _wide(dtotal)).to(x.dtype).contiguous()


def norm_gradients(dy: Any, x: Any, mean: Any, rstd: Any, dim: Dims = -1, **named: Any) -> Any:
    """All of them: of x, weight and bias."""
    dx = norm_backward(dy, x, rstd, dim, mean=mean, **named)
    others = tuple(i for i in range(x.ndim) if i not in normalize_dims("norm_gradients", dim, x.ndim))
    if not others:  # one row
        dy, x, rstd, mean, others = dy[None], x[None], rstd[None], None if mean is None else mean[None], (0,)
    return dx, *weight_backward(dy, x, mean, rstd, others, **named)


def weight_backward(dy: Any, x: Any, mean: Any, rstd: Any, dim: Dims = 0, **named: Any) -> Any:
    """The gradients of weight and bias, over the dims ``dim``: those that do not make a row of the norm."""
    cast, dtype, of_bias = (named.get(name) for name in ("cast", "dtype", "bias_dtype"))
    over = normalize_dims("weight_backward", dim, x.ndim)
    hat = _given(x, mean, rstd, tuple(i for i in range(x.ndim) if i not in over))[0]
    hat = hat if cast is None else hat.to(cast).to(hat.dtype)
    dweight = (_wide(dy) * hat).sum(over)
    dbias = _wide(dy).sum(over) if named.get("bias") else dweight.new_empty(0)
    return dweight.to(dtype or x.dtype), dbias.to(of_bias or x.dtype)
