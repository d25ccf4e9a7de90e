"""The public operators of week 0: copy and transpose; each body is its fake implementation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from forge_core import checks
from forge_core.device import Device
from forge_core.dtypes import MOVABLE
from forge_core.op import Operator, Plan, operator
from forge_week0_transpose import ref
from forge_week0_transpose.problem import Problem
from forge_week0_transpose.selection import TILE_SIZES, VARIANTS, plan


def _output(op: str, x: torch.Tensor, *, transposed: bool = True) -> torch.Tensor:
    """The output of a call, whose input is checked."""
    checks.operand(op, "x", x, MOVABLE)
    checks.min_rank(op, "x", x, 2 if transposed else 0)
    return x.new_empty((*x.shape[:-2], x.shape[-1], x.shape[-2]) if transposed else x.shape)


def _moving(schema: str) -> Callable[[Any], Operator]:
    """Declares an operator that moves elements, which is linear, and transposes the last two dims unless it is copy."""
    name = schema.partition("::")[2].partition("(")[0]
    rank = 0 if name == "copy" else 2

    def planned(device: Device, out: torch.Tensor, x: torch.Tensor, option: Any) -> Plan:
        variant, tile_size = ("tiled", option) if name == "copy_transpose" else (option, None)
        return plan(name, Problem.of(x, out, transposed=rank == 2), device, variant, tile_size)

    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        back = transpose(grad) if rank else grad
        return (back, None) if name == "copy_transpose" else back

    rules = {"plan": planned, "variants": VARIANTS[name], "backward": backward, "least_rank": rank, "linear": True}
    return operator(schema, reference=getattr(ref, name), cpu_autograd=True, **rules)


@_moving("forge_week0::copy(Tensor x, *, str variant='auto') -> Tensor")
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
    return _output("copy", x, transposed=False)


@_moving("forge_week0::transpose(Tensor x, *, str variant='auto') -> Tensor")
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
    return _output("transpose", x)


@_moving("forge_week0::copy_transpose(Tensor x, int tile_size=16) -> Tensor")
def copy_transpose(x: torch.Tensor, tile_size: int = 16) -> torch.Tensor:
    """The course's name for ``transpose`` by the tiled kernel: takes, returns and raises what :func:`transpose` does.

    Args:
        x: shape (..., M, N).
        tile_size: edge of the square tile in elements: 16 or 32.

    Raises:
        ArgumentError: another tile size.
    """
    output = _output("copy_transpose", x)
    checks.one_of("copy_transpose", "tile_size", tile_size, TILE_SIZES)
    return output


def transpose_out(x: torch.Tensor, out: torch.Tensor, *, variant: str = "auto") -> torch.Tensor:
    """Writes the transpose into ``out`` and returns it; not differentiable.

    Args:
        x: shape (..., M, N), as for :func:`transpose`.
        out: shape (..., N, M), the dtype and device of ``x``, any strides; its memory must be apart from that of ``x``.
        variant: ``"auto"``, or one of ``transpose.variants()``.

    Raises:
        ShapeError, DTypeError, DeviceError, LayoutError: ``out`` is not that, or overlaps ``x``; nothing was written.
        ArgumentError: a tensor that needs a gradient; and as :func:`transpose`.
    """
    return transpose.out(x, variant=variant, out=out)
