"""The public operators of week 0: copy and transpose.

Each body checks a call's metadata and allocates its output; that is the operator's fake, and the first step of a real
call.  What runs is decided by ``config.plan``.
"""

from __future__ import annotations

from typing import Any

import torch

from forge_core import checks
from forge_core.device import Device
from forge_core.dtypes import MOVABLE
from forge_core.errors import ShapeError
from forge_core.op import Launch, operator
from forge_week0_transpose import ref
from forge_week0_transpose.config import COPY_VARIANTS, TILE_SIZES, TILED_ONLY, TRANSPOSE_VARIANTS, plan
from forge_week0_transpose.problem import Problem

__all__ = ["copy", "copy_transpose", "transpose", "transpose_out"]


def _check_input(op: str, x: torch.Tensor, *, rank: int) -> None:
    checks.is_tensor(op, "x", x)
    checks.strided(op, "x", x)
    checks.supported_dtype(op, "x", x, MOVABLE)
    checks.min_rank(op, "x", x, rank)


def _new_transposed(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty((*x.shape[:-2], x.shape[-1], x.shape[-2]))


def _plan_copy(device: Device, out: torch.Tensor, x: torch.Tensor, variant: str) -> Launch:
    return plan("copy", Problem.copy(x, out), device, variant)


def _plan_transpose(device: Device, out: torch.Tensor, x: torch.Tensor, variant: str) -> Launch:
    return plan("transpose", Problem.transpose(x, out), device, variant)


def _plan_copy_transpose(device: Device, out: torch.Tensor, x: torch.Tensor, tile_size: int) -> Launch:
    return plan("copy_transpose", Problem.transpose(x, out), device, "tiled", tile_size=tile_size)


# The operators below are named in their own rules, so the rules are functions of their own.


def _copy_backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    return grad


def _transpose_backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    return transpose(grad)


def _copy_transpose_setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.tile_size = inputs[1]


def _copy_transpose_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
    return copy_transpose(grad, ctx.tile_size), None


def _batched(x: torch.Tensor, in_dims: tuple[int | None, ...], *, op: str, rank: int) -> torch.Tensor:
    """Any leading batch is taken, so the mapped dimension becomes the first; ``rank`` is what one example needs."""
    if x.ndim - 1 < rank:
        raise ShapeError(
            op=op, argument="x", expected=f"at least {rank} dimensions in each example", got=f"{x.ndim - 1}"
        )
    return x.movedim(in_dims[0] or 0, 0)


def _copy_jvp(output: torch.Tensor, tangents: Any, **call: Any) -> torch.Tensor:
    return copy(**call | tangents)


def _transpose_jvp(output: torch.Tensor, tangents: Any, **call: Any) -> torch.Tensor:
    return transpose(**call | tangents)


def _copy_transpose_jvp(output: torch.Tensor, tangents: Any, **call: Any) -> torch.Tensor:
    return copy_transpose(**call | tangents)


def _copy_vmap(info: Any, in_dims: Any, x: torch.Tensor, *, variant: str = "auto") -> tuple[torch.Tensor, int]:
    return copy(_batched(x, in_dims, op="copy", rank=0), variant=variant), 0


def _transpose_vmap(info: Any, in_dims: Any, x: torch.Tensor, *, variant: str = "auto") -> tuple[torch.Tensor, int]:
    return transpose(_batched(x, in_dims, op="transpose", rank=2), variant=variant), 0


def _copy_transpose_vmap(info: Any, in_dims: Any, x: torch.Tensor, tile_size: int = 16) -> tuple[torch.Tensor, int]:
    return copy_transpose(_batched(x, in_dims, op="copy_transpose", rank=2), tile_size), 0


@operator(
    "forge_week0::copy(Tensor x, *, str variant='auto') -> Tensor",
    reference=ref.copy,
    plan=_plan_copy,
    variants=COPY_VARIANTS,
    backward=_copy_backward,
    vmap=_copy_vmap,
    jvp=_copy_jvp,
)
def copy(x: torch.Tensor, *, variant: str = "auto") -> torch.Tensor:
    """A new contiguous tensor with the values of ``x``.

    Args:
        x: shape (...), any strides and storage offset; elements of 1, 2, 4, 8 or 16 bytes.
        variant: ``"auto"``, or one of ``copy.variants()``.

    Returns:
        A contiguous tensor of the same shape, dtype and device; differentiable.

    Raises:
        DTypeError: elements of another size.
        LayoutError: sparse, quantised or nested.
        ArgumentError: an unknown variant, or one named for CPU tensors.
        UnsupportedError: a variant that cannot do this layout.
    """
    _check_input("copy", x, rank=0)
    return x.new_empty(x.shape)


@operator(
    "forge_week0::transpose(Tensor x, *, str variant='auto') -> Tensor",
    reference=ref.transpose,
    plan=_plan_transpose,
    variants=TRANSPOSE_VARIANTS,
    backward=_transpose_backward,
    vmap=_transpose_vmap,
    jvp=_transpose_jvp,
)
def transpose(x: torch.Tensor, *, variant: str = "auto") -> torch.Tensor:
    """A new contiguous tensor with the last two dimensions of ``x`` swapped.

    The values and the layout of ``x.transpose(-1, -2).contiguous()``, except that the result never aliases ``x``.

    Args:
        x: shape (..., M, N), any strides and storage offset; elements of 1, 2, 4, 8 or 16 bytes.
        variant: ``"auto"``, or one of ``transpose.variants()``.

    Returns:
        A contiguous tensor of shape (..., N, M), the same dtype and device; differentiable.

    Raises:
        DTypeError: elements of another size.
        ShapeError: fewer than two dimensions.
        LayoutError: sparse, quantised or nested.
        ArgumentError: an unknown variant, or one named for CPU tensors.
        UnsupportedError: a variant that cannot do this layout.
    """
    _check_input("transpose", x, rank=2)
    return _new_transposed(x)


@operator(
    "forge_week0::copy_transpose(Tensor x, int tile_size=16) -> Tensor",
    reference=ref.copy_transpose,
    plan=_plan_copy_transpose,
    variants=TILED_ONLY,
    setup_context=_copy_transpose_setup,
    backward=_copy_transpose_backward,
    vmap=_copy_transpose_vmap,
    jvp=_copy_transpose_jvp,
)
def copy_transpose(x: torch.Tensor, tile_size: int = 16) -> torch.Tensor:
    """The course's name for ``transpose`` by the tiled kernel.

    Args:
        x: shape (..., M, N), any strides and storage offset; elements of 1, 2, 4, 8 or 16 bytes.
        tile_size: edge of the square tile in elements: 16 or 32.

    Returns:
        A contiguous tensor of shape (..., N, M), the same dtype and device; differentiable.

    Raises:
        ArgumentError: another tile size.
        DTypeError, ShapeError, LayoutError: as :func:`transpose`.
    """
    _check_input("copy_transpose", x, rank=2)
    checks.one_of("copy_transpose", "tile_size", tile_size, TILE_SIZES)
    return _new_transposed(x)


def transpose_out(x: torch.Tensor, out: torch.Tensor, *, variant: str = "auto") -> torch.Tensor:
    """As :func:`transpose`, written into ``out``; not differentiable.

    Args:
        x: as for :func:`transpose`.
        out: shape (..., N, M), the dtype and device of ``x``, any strides; its memory must be apart from that of
            ``x``.
        variant: as for :func:`transpose`.

    Returns:
        ``out``.

    Raises:
        ShapeError, DTypeError, DeviceError, LayoutError: ``out`` is not that, or overlaps ``x``; nothing was written.
        ArgumentError: a tensor that needs a gradient; and as :func:`transpose`.
    """
    return transpose.out(x, variant=variant, out=out)
