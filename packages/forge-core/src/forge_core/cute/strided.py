"""Tensors of an input and an output from pointers and from the dims of :func:`forge_core.strided.flatten`."""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Int64
from cutlass.cute.testing import assert_ as check

from forge_core.cute.memory import GLOBAL


def place(index: Any, sizes: tuple[Any, ...]) -> tuple[Any, ...]:
    """The coordinate of an entry of some dimensions, innermost first; divides by the type of the index.

    CuTe's own ``idx2crd`` divides signed integers, which takes longer and ends at 2^31.  Sizes may be divisors.
    """
    found: list[Any] = []
    for size in sizes[:-1]:
        by = size if isinstance(size, cute.FastDivmodDivisor) else type(index)(size)
        found.append(Int64(index % by))
        index = index // by
    return (*found, Int64(index)) if sizes else ()


def tensor(pointer: Any, dtype: Any, shape: Any, stride: Any, width: int = 0) -> cute.Tensor:
    """A tensor in global memory, aligned to ``width`` bytes, or to its elements; strides in elements."""
    width = width or dtype.width // 8
    check((pointer.toint() & (width - 1)) == 0, "a tensor begins at a multiple of its alignment")
    start = cute.make_ptr(dtype, pointer.toint(), GLOBAL, assumed_align=width)
    return cute.make_tensor(start, cute.make_layout(shape, stride=stride))


def operands(
    pointers: tuple[Any, Any], dtype: Any, dims: Any, shape: tuple = (), strides: Any = ((), ()), width: int = 0
) -> list:
    """Both operands, mX and mY, of ``shape`` with the strides of each, and ``dims`` around it."""
    sides = zip(pointers, strides, (dims[2::3], dims[3::3]), strict=True)
    return [tensor(pointer, dtype, (*shape, *dims[1::3]), own + outer, width) for pointer, own, outer in sides]
