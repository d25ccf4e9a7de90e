"""What the operator means, in plain PyTorch: serves CPU tensors and the backend ``ref``."""

from __future__ import annotations

import torch


def sample_norm(x: torch.Tensor, dim: int = -1, eps: float = 1e-5) -> torch.Tensor:
    """``x / sqrt(mean(x^2) + eps)`` along ``dim``; computed in fp32, or in fp64 for fp64."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * torch.rsqrt(wide.square().mean(dim, keepdim=True) + eps)).to(x.dtype).contiguous()
