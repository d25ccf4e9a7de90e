"""What the operators mean, in plain PyTorch: served for CPU tensors and for backend ``ref``, and compared with."""

from __future__ import annotations

import torch

from forge_core.dims import Dims, normalize_dims

__all__ = ["log_softmax", "log_softmax_backward", "logsumexp", "logsumexp_backward", "softmax", "softmax_backward"]


def softmax(x: torch.Tensor, dim: int = -1, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """``exp(x - max) / sum(exp(x - max))`` along one dimension."""
    return torch.softmax(x, dim, dtype=dtype).contiguous()


def log_softmax(x: torch.Tensor, dim: int = -1, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """``x - max - log(sum(exp(x - max)))`` along one dimension."""
    return torch.log_softmax(x, dim, dtype=dtype).contiguous()


def logsumexp(x: torch.Tensor, dim: Dims, keepdim: bool = False) -> torch.Tensor:
    """``log(sum(exp(x)))`` over some dimensions; integers and bool give the default dtype."""
    if x.ndim == 0:
        return torch.logsumexp(x, 0, keepdim).contiguous()
    return torch.logsumexp(x, normalize_dims("logsumexp", dim, x.ndim), keepdim).contiguous()


def softmax_backward(
    grad: torch.Tensor, y: torch.Tensor, dim: int = -1, *, input_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """``y * (grad - sum(y * grad))``."""
    found: torch.Tensor = torch.ops.aten._softmax_backward_data(grad, y, dim, y.dtype)
    return found.to(input_dtype or y.dtype).contiguous()


def log_softmax_backward(
    grad: torch.Tensor, y: torch.Tensor, dim: int = -1, *, input_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """``grad - exp(y) * sum(grad)``."""
    found: torch.Tensor = torch.ops.aten._log_softmax_backward_data(grad, y, dim, y.dtype)
    return found.to(input_dtype or y.dtype).contiguous()


def logsumexp_backward(
    grad: torch.Tensor, x: torch.Tensor, lse: torch.Tensor, dim: Dims, keepdim: bool = False
) -> torch.Tensor:
    """``grad * exp(x - lse)``, rounded once as the kernels do it: in 16 bits exp would be 0 for most of a long row."""
    if not keepdim:
        for i in normalize_dims("logsumexp_backward", dim, x.ndim):
            grad, lse = grad.unsqueeze(i), lse.unsqueeze(i)
    acc = torch.promote_types(x.dtype, torch.float32)
    return (grad.to(acc) * (x.to(acc) - lse.to(acc)).exp()).to(x.dtype).contiguous()
