"""Modules of the operators, in place of those of ``torch.nn``."""

from __future__ import annotations

from typing import Any

import torch

from forge_week3_norm.ops import layer_norm, rms_norm

__all__ = ["LayerNorm", "RMSNorm"]


class RMSNorm(torch.nn.RMSNorm):
    """``torch.nn.RMSNorm`` by :func:`forge_week3_norm.rms_norm`."""

    def forward(self, x: torch.Tensor, **options: Any) -> Any:
        """The norm of x; ``options`` are those of :func:`forge_week3_norm.rms_norm`, ``residual`` among them."""
        return rms_norm(x, self.normalized_shape, self.weight, self.eps, **options)


class LayerNorm(torch.nn.LayerNorm):
    """``torch.nn.LayerNorm`` by :func:`forge_week3_norm.layer_norm`."""

    def forward(self, input: torch.Tensor, **options: Any) -> Any:  # noqa: A002 - as in torch.nn
        """The norm of ``input``; ``options`` are those of :func:`forge_week3_norm.layer_norm`."""
        return layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps, **options)
