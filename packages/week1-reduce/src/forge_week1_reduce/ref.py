"""What the operators mean, in plain PyTorch: served for CPU tensors and for backend ``ref``, and compared with."""

from __future__ import annotations

import torch

from forge_core.dims import Dims, normalize_dims

__all__ = ["amax", "amin", "mean", "prod", "reduce_sum"]


def _dims(op: str, x: torch.Tensor, dim: Dims) -> tuple[int, ...]:
    return normalize_dims(op, dim, x.ndim)


def _given(dim: Dims) -> int | tuple[int, ...] | None:
    return dim if dim is None or isinstance(dim, int) else tuple(dim)


def reduce_sum(
    x: torch.Tensor, dim: Dims = -1, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """The sum; integers and bool give int64."""
    return torch.sum(x, _given(dim), keepdim, dtype=dtype).contiguous()


def mean(x: torch.Tensor, dim: Dims = -1, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The arithmetic mean; NaN of nothing."""
    return torch.mean(x, _given(dim), keepdim, dtype=dtype).contiguous()


def prod(x: torch.Tensor, dim: Dims = -1, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The product; integers and bool give int64.  PyTorch's own takes one dimension or all; this takes any."""
    dims = _dims("prod", x, dim)
    if x.ndim == 0:
        return torch.prod(x, dtype=dtype)
    if len(dims) == 1:
        return torch.prod(x, dims[0], keepdim, dtype=dtype).contiguous()
    kept = [i for i in range(x.ndim) if i not in dims]
    sizes = [x.shape[i] for i in kept]
    count = 1
    for i in dims:
        count *= x.shape[i]
    result = torch.prod(x.permute(*kept, *dims).reshape(*sizes, count), -1, dtype=dtype)
    if keepdim:
        for i in dims:
            result = result.unsqueeze(i)
    return result.contiguous()


def amax(x: torch.Tensor, dim: Dims = -1, keepdim: bool = False) -> torch.Tensor:
    """The largest element; NaN where there is one."""
    if x.ndim == 0:
        return torch.amax(x, ())
    return torch.amax(x, _dims("amax", x, dim), keepdim).contiguous()


def amin(x: torch.Tensor, dim: Dims = -1, keepdim: bool = False) -> torch.Tensor:
    """The smallest element; NaN where there is one."""
    if x.ndim == 0:
        return torch.amin(x, ())
    return torch.amin(x, _dims("amin", x, dim), keepdim).contiguous()
