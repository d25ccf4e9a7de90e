"""What the operators mean, in plain PyTorch: served for CPU tensors and for backend ``ref``, and compared with."""

from __future__ import annotations

import torch


def copy(x: torch.Tensor) -> torch.Tensor:
    """A new contiguous tensor with the values of ``x``; shape (...) -> (...)."""
    return x.clone(memory_format=torch.contiguous_format)


def transpose(x: torch.Tensor) -> torch.Tensor:
    """A new contiguous tensor with the last two dimensions swapped; shape (..., M, N) -> (..., N, M)."""
    return x.transpose(-1, -2).clone(memory_format=torch.contiguous_format)


def copy_transpose(x: torch.Tensor, tile_size: int) -> torch.Tensor:
    """As :func:`transpose`; the tile size is the kernel's business."""
    del tile_size
    return transpose(x)
