"""Modules of the operators, in place of those of ``torch.nn``."""

from __future__ import annotations

import torch

from forge_week2_softmax.ops import log_softmax, softmax

__all__ = ["LogSoftmax", "Softmax"]


class Softmax(torch.nn.Softmax):
    """``torch.nn.Softmax`` by :func:`forge_week2_softmax.softmax`, over the last dimension by default.

    Args:
        dim: the dimension that sums to 1.

    Raises:
        DimError, DTypeError, LayoutError: as of the operator.
    """

    def __init__(self, dim: int = -1) -> None:
        super().__init__(dim)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - the name in torch.nn
        """Any shape (..., N, ...) -> the same shape and dtype."""
        return softmax(input, self.dim)


class LogSoftmax(torch.nn.LogSoftmax):
    """``torch.nn.LogSoftmax`` by :func:`forge_week2_softmax.log_softmax`, over the last dimension by default.

    Args:
        dim: the dimension whose exponentials sum to 1.

    Raises:
        DimError, DTypeError, LayoutError: as of the operator.
    """

    def __init__(self, dim: int = -1) -> None:
        super().__init__(dim)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - the name in torch.nn
        """Any shape (..., N, ...) -> the same shape and dtype."""
        return log_softmax(input, self.dim)
