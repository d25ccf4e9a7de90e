"""The gradients as operators of their own, and how they are differentiated in turn.

    forward       keeps       its gradient
    softmax       y           y * (grad - sum(y * grad))
    log_softmax   y           grad - exp(y) * sum(grad)
    logsumexp     x, lse      grad * exp(x - lse)

A gradient is rounded to the dtype of the forward pass's input as it is written, so that a call with ``dtype=`` needs
no pass for the conversion on its way back either.  Second derivatives are PyTorch's, of the references.
"""

from __future__ import annotations

from typing import Any

import torch

from forge_core.dims import Dims
from forge_core.dtypes import FLOATS
from forge_core.errors import DTypeError
from forge_core.op import Operator
from forge_core.rows.operator import row_operator, row_output
from forge_week2_softmax import ref
from forge_week2_softmax.program import LogsumexpBackward, SoftmaxBackward

__all__ = [
    "keep_input_and_output",
    "keep_output",
    "log_softmax_backward",
    "logsumexp_backward",
    "of_log_softmax",
    "of_logsumexp",
    "of_softmax",
    "softmax_backward",
    "softmax_tangent",
]


def _gradient_like(
    op: str, grad: torch.Tensor, y: torch.Tensor, dim: int, input_dtype: torch.dtype | None
) -> torch.Tensor:
    if input_dtype not in (None, *FLOATS):
        raise DTypeError(op=op, argument="input_dtype", expected="None or a floating-point dtype", got=str(input_dtype))
    return row_output(op, SoftmaxBackward(), dim=dim, same=True, dtype=input_dtype, grad=grad, y=y)


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
    ctx.call = inputs[1:3]


@row_operator(
    "forge_week2::softmax_backward(Tensor grad, Tensor y, int dim=-1, *, ScalarType? input_dtype=None, "
    "str variant='auto') -> Tensor",
    program=SoftmaxBackward(),
    reference=ref.softmax_backward,
    gradient="reference",
)
def softmax_backward(
    grad: torch.Tensor,
    y: torch.Tensor,
    dim: int = -1,
    *,
    input_dtype: torch.dtype | None = None,
    variant: str = "auto",
) -> torch.Tensor:
    """The gradient of softmax's input: ``y * (grad - sum(y * grad))``.

    Args:
        grad: the gradient of the output, any strides, 0 among them; fp16, bf16, fp32 or fp64.
        y: softmax's output, of the shape and dtype of ``grad``.
        dim: the dimension that softmax was taken over.
        input_dtype: the dtype of the result, that of softmax's input; None for that of ``y``.
        variant: ``"auto"``, or one of ``softmax_backward.variants()``.

    Returns:
        A contiguous tensor of the shape of ``y``; differentiable.

    Raises:
        ShapeError, DTypeError, DimError, LayoutError, DeviceError: the tensors are not that.
        UnsupportedError: a variant that cannot do this layout.
    """
    return _gradient_like("softmax_backward", grad, y, dim, input_dtype)


@row_operator(
    "forge_week2::log_softmax_backward(Tensor grad, Tensor y, int dim=-1, *, ScalarType? input_dtype=None, "
    "str variant='auto') -> Tensor",
    program=SoftmaxBackward("log_softmax"),
    reference=ref.log_softmax_backward,
    gradient="reference",
)
def log_softmax_backward(
    grad: torch.Tensor,
    y: torch.Tensor,
    dim: int = -1,
    *,
    input_dtype: torch.dtype | None = None,
    variant: str = "auto",
) -> torch.Tensor:
    """The gradient of log_softmax's input, ``grad - exp(y) * sum(grad)``; ``y`` is log_softmax's output.

    Takes, returns and raises what :func:`softmax_backward` does.
    """
    return _gradient_like("log_softmax_backward", grad, y, dim, input_dtype)


@row_operator(
    "forge_week2::logsumexp_backward(Tensor grad, Tensor x, Tensor lse, int[1]? dim, bool keepdim=False, *, "
    "str variant='auto') -> Tensor",
    program=LogsumexpBackward(),
    reference=ref.logsumexp_backward,
    gradient="reference",
)
def logsumexp_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    lse: torch.Tensor,
    dim: Dims,
    keepdim: bool = False,
    *,
    variant: str = "auto",
) -> torch.Tensor:
    """The gradient of logsumexp's input: ``grad * exp(x - lse)``.

    Args:
        grad: the gradient of the output, of the shape of ``lse``.
        x: logsumexp's input; fp16, bf16, fp32 or fp64, as all three.
        lse: its output.
        dim: the dimensions that were reduced.
        keepdim: whether they stayed, with size 1.
        variant: as for :func:`softmax_backward`.

    Returns:
        A contiguous tensor of the shape of ``x``; differentiable.

    Raises:
        ShapeError, DTypeError, DimError, RepeatedDimError, LayoutError, DeviceError: the tensors are not that.
        UnsupportedError: a variant that cannot do this layout.
    """
    program = LogsumexpBackward()
    return row_output("logsumexp_backward", program, dim=dim, keepdim=keepdim, same=True, x=x, grad=grad, lse=lse)


def _same(variant: str, operator: Operator) -> str:
    """The variant of a gradient: that of the forward pass, or "auto" for a step of the ladder, which has none."""
    return variant if variant in operator.variants() else "auto"


def of_softmax(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    """The gradient of softmax."""
    dim, dtype, variant = ctx.call
    variant = _same(variant, softmax_backward)
    return softmax_backward(grad, ctx.saved_tensors[0], dim, input_dtype=dtype, variant=variant), None, None


def softmax_tangent(
    output: torch.Tensor, tangents: dict[str, torch.Tensor], *, dim: int, variant: str, **call: Any
) -> torch.Tensor:
    """The tangent of softmax: its Jacobian is symmetric, so this is its gradient."""
    tangent = tangents["x"].to(output.dtype)
    return softmax_backward(tangent, output, dim, variant=_same(variant, softmax_backward))


def of_log_softmax(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    """The gradient of log_softmax."""
    dim, dtype, variant = ctx.call
    return log_softmax_backward(grad, ctx.saved_tensors[0], dim, input_dtype=dtype, variant=variant), None, None


def of_logsumexp(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    """The gradient of logsumexp, which has no reduction: its variant is not that of the forward pass."""
    dim, keepdim = ctx.call
    return logsumexp_backward(grad, *ctx.saved_tensors, dim, keepdim), None, None
