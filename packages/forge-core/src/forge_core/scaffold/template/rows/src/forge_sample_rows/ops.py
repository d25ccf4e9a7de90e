"""The public operator: its signature, checks and gradient."""

from __future__ import annotations

import torch

from forge_core.rows.operator import row_operator, row_output
from forge_sample_rows import ref
from forge_sample_rows.program import SampleNorm

#: The arguments as PyTorch's schemas have them; tensors and numbers are the program's operands by name.
SCHEMA = "(Tensor x, int dim=-1, float eps=1e-5, *, str variant='auto') -> Tensor"


@row_operator(
    f"forge_sample_rows::sample_norm{SCHEMA}",
    program=SampleNorm(),
    reference=ref.sample_norm,
    gradient="reference",  # or {"x": the row operator that computes the gradient of x}
)
def sample_norm(x: torch.Tensor, dim: int = -1, eps: float = 1e-5, *, variant: str = "auto") -> torch.Tensor:
    """``x / sqrt(mean(x^2) + eps)`` along a dim.

    Args:
        x: any shape, strides and storage offset; fp16, bf16, fp32 or fp64.
        dim: the dim that makes a row.
        eps: added to the mean square.
        variant: ``"auto"``, or one of ``sample_norm.variants()``.

    Returns:
        A contiguous tensor of the shape, dtype and device of ``x``; differentiable.

    Raises:
        DimError: a dim out of range; an IndexError too.
        DTypeError: another dtype.
        LayoutError: sparse, quantised or nested.
        UnsupportedError: a variant that does not support this call.
    """
    return row_output("sample_norm", SampleNorm(), x=x, dim=dim)
