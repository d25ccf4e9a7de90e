"""The gradients as operators of their own, with kernels; ``gradients`` says how they are differentiated in turn.

A gradient is rounded to the dtype of the forward pass's input as it is written, so that a call with ``dtype=`` needs
no pass for the conversion on its way back either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from forge_core import checks
from forge_core.device import Device
from forge_core.dims import normalize_dim, normalize_dims, result_shape
from forge_core.errors import DTypeError, ShapeError
from forge_core.op import Launch, Operator, operator
from forge_week2_softmax import gradients, ref
from forge_week2_softmax.config import VARIANTS, plan_backward

__all__ = [
    "FLOATS",
    "log_softmax_backward",
    "logsumexp_backward",
    "of_log_softmax",
    "of_logsumexp",
    "of_softmax",
    "softmax_backward",
]

Dims = int | Sequence[int] | None

#: What the family computes with.
FLOATS: tuple[torch.dtype, ...] = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _check_pair(op: str, first: str, x: torch.Tensor, name: str, other: torch.Tensor) -> None:
    """The tensors that come out of one forward pass have one dtype."""
    checks.is_tensor(op, name, other)
    checks.strided(op, name, other)
    if other.dtype != x.dtype:
        raise DTypeError(op=op, argument=name, expected=f"the dtype of '{first}', {x.dtype}", got=str(other.dtype))


def _check_shape(op: str, name: str, x: torch.Tensor, shape: Sequence[int]) -> None:
    if tuple(x.shape) != tuple(shape):
        raise ShapeError(op=op, argument=name, expected=f"shape {tuple(shape)}", got=f"{tuple(x.shape)}")


def _gradient_like(
    op: str, grad: torch.Tensor, y: torch.Tensor, dim: int, input_dtype: torch.dtype | None
) -> torch.Tensor:
    checks.is_tensor(op, "grad", grad)
    checks.strided(op, "grad", grad)
    checks.supported_dtype(op, "grad", grad, FLOATS)
    _check_pair(op, "grad", grad, "y", y)
    _check_shape(op, "y", y, grad.shape)
    normalize_dim(op, dim, y.ndim)
    if input_dtype is not None and input_dtype not in FLOATS:
        raise DTypeError(op=op, argument="input_dtype", expected="None or a floating-point dtype", got=str(input_dtype))
    return y.new_empty(y.shape, dtype=input_dtype or y.dtype)


def _plan_softmax_backward(
    device: Device, out: torch.Tensor, grad: torch.Tensor, y: torch.Tensor, dim: int, input_dtype: Any, variant: str
) -> Launch:
    return plan_backward("softmax", out, grad, (y,), (normalize_dim("softmax", dim, y.ndim),), device, variant)


def _plan_log_softmax_backward(
    device: Device, out: torch.Tensor, grad: torch.Tensor, y: torch.Tensor, dim: int, input_dtype: Any, variant: str
) -> Launch:
    return plan_backward("log_softmax", out, grad, (y,), (normalize_dim("log_softmax", dim, y.ndim),), device, variant)


def _plan_logsumexp_backward(
    device: Device,
    out: torch.Tensor,
    grad: torch.Tensor,
    x: torch.Tensor,
    lse: torch.Tensor,
    dim: Dims,
    keepdim: bool,
    variant: str,
) -> Launch:
    dims = normalize_dims("logsumexp_backward", dim, x.ndim)
    return plan_backward("logsumexp", out, grad, (x, lse), dims, device, variant)


# vmap's rules name the operators below, so they are functions of their own.


def _vmap_of(name: str) -> Any:
    def rule(
        info: Any, in_dims: Any, grad: torch.Tensor, y: torch.Tensor, dim: int = -1, **kwargs: Any
    ) -> tuple[torch.Tensor, int]:
        grad, y = gradients.map_first(info, in_dims, grad, y)
        if y.ndim == 1:  # An example without dimensions is a row of one element.
            return OPERATORS[name](grad.unsqueeze(1), y.unsqueeze(1), 1, **kwargs).squeeze(1), 0
        return OPERATORS[name](grad, y, normalize_dim("vmap", dim, y.ndim - 1) + 1, **kwargs), 0

    return rule


def _vmap_logsumexp(
    info: Any,
    in_dims: Any,
    grad: torch.Tensor,
    x: torch.Tensor,
    lse: torch.Tensor,
    dim: Dims,
    keepdim: bool = False,
    **kwargs: Any,
) -> tuple[torch.Tensor, int]:
    grad, x, lse = gradients.map_first(info, in_dims, grad, x, lse)
    if x.ndim == 1:
        return logsumexp_backward(grad, x.unsqueeze(1), lse, (1,), keepdim=False, **kwargs).squeeze(1), 0
    dims = tuple(i + 1 for i in normalize_dims("vmap", dim, x.ndim - 1))
    return logsumexp_backward(grad, x, lse, dims, keepdim, **kwargs), 0


@operator(
    "forge_week2::softmax_backward(Tensor grad, Tensor y, int dim=-1, *, ScalarType? input_dtype=None, "
    "str variant='auto') -> Tensor",
    reference=ref.softmax_backward,
    plan=_plan_softmax_backward,
    variants=VARIANTS,
    setup_context=gradients.keep_all,
    backward=gradients.second_of_softmax,
    vmap=_vmap_of("softmax_backward"),
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


@operator(
    "forge_week2::log_softmax_backward(Tensor grad, Tensor y, int dim=-1, *, ScalarType? input_dtype=None, "
    "str variant='auto') -> Tensor",
    reference=ref.log_softmax_backward,
    plan=_plan_log_softmax_backward,
    variants=VARIANTS,
    setup_context=gradients.keep_all,
    backward=gradients.second_of_log_softmax,
    vmap=_vmap_of("log_softmax_backward"),
)
def log_softmax_backward(
    grad: torch.Tensor,
    y: torch.Tensor,
    dim: int = -1,
    *,
    input_dtype: torch.dtype | None = None,
    variant: str = "auto",
) -> torch.Tensor:
    """The gradient of log_softmax's input: ``grad - exp(y) * sum(grad)``; takes and raises what softmax_backward does.

    Args:
        grad: as for :func:`softmax_backward`.
        y: log_softmax's output.
        dim: as for :func:`softmax_backward`.
        input_dtype: as for :func:`softmax_backward`.
        variant: as for :func:`softmax_backward`.
    """
    return _gradient_like("log_softmax_backward", grad, y, dim, input_dtype)


@operator(
    "forge_week2::logsumexp_backward(Tensor grad, Tensor x, Tensor lse, int[1]? dim, bool keepdim=False, *, "
    "str variant='auto') -> Tensor",
    reference=ref.logsumexp_backward,
    plan=_plan_logsumexp_backward,
    variants=VARIANTS,
    setup_context=gradients.keep_all,
    backward=gradients.second_of_logsumexp,
    vmap=_vmap_logsumexp,
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
    op = "logsumexp_backward"
    checks.is_tensor(op, "x", x)
    checks.strided(op, "x", x)
    checks.supported_dtype(op, "x", x, FLOATS)
    shape = result_shape(x.shape, normalize_dims(op, dim, x.ndim), keepdim)
    for name, other in (("grad", grad), ("lse", lse)):
        _check_pair(op, "x", x, name, other)
        _check_shape(op, name, other, shape)
    return x.new_empty(x.shape)


#: The operators by name, for vmap's rules.
OPERATORS: dict[str, Operator] = {"softmax_backward": softmax_backward, "log_softmax_backward": log_softmax_backward}


# What the forward operators are told of their gradients.


def of_softmax(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
    """The gradient of softmax."""
    dim, dtype, variant = ctx.call
    return softmax_backward(grad, ctx.saved_tensors[0], dim, input_dtype=dtype, variant=variant), None


def of_log_softmax(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
    """The gradient of log_softmax."""
    dim, dtype, variant = ctx.call
    return log_softmax_backward(grad, ctx.saved_tensors[0], dim, input_dtype=dtype, variant=variant), None


def of_logsumexp(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    """The gradient of logsumexp."""
    dim, keepdim, variant = ctx.call
    return logsumexp_backward(grad, *ctx.saved_tensors, dim, keepdim, variant=variant), None, None
