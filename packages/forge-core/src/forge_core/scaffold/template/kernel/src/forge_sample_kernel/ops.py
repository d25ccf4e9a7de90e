"""The public operator: its signature, checks and gradient."""

from __future__ import annotations

from typing import Any

import torch

from forge_core import checks
from forge_core.dtypes import FLOATS
from forge_core.op import operator
from forge_sample_kernel import ref
from forge_sample_kernel.config import VARIANTS, plan


def _keep(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor, **keywords: Any) -> None:
    ctx.factor = inputs[1] if len(inputs) > 1 else 2.0


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
    return sample_scale(grad, ctx.factor), None


@operator(
    "forge_sample_kernel::sample_scale(Tensor x, float factor=2.0, *, str variant='auto') -> Tensor",
    reference=ref.sample_scale,
    plan=plan,
    variants=VARIANTS,
    setup_context=_keep,
    backward=_backward,
    least_rank=0,
    linear=True,
)
def sample_scale(x: torch.Tensor, factor: float = 2.0, *, variant: str = "auto") -> torch.Tensor:
    """``factor * x``.

    Args:
        x: any shape, strides and storage offset; fp16, bf16, fp32 or fp64.
        factor: a number; the product is rounded once.
        variant: ``"auto"``, or one of ``sample_scale.variants()``.

    Returns:
        A contiguous tensor of the shape, dtype and device of ``x``; differentiable.

    Raises:
        DTypeError: another dtype.
        LayoutError: sparse, quantised or nested.
        UnsupportedError: 2^31 elements or more on a GPU.
    """
    checks.operand("sample_scale", "x", x, FLOATS)
    return x.new_empty(x.shape)
