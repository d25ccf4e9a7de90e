"""The operands as CuTe tensors; addresses by hand, since a pointer's alignment is stated where it is made.

Elements are unsigned integers of their width, whatever they mean.  mX (M, N), the input, and mY (M, N), the output, are
both seen in the input's coordinates; gX and gY are a tile of them.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

import cutlass.cute as cute
from cutlass import Boolean, Int64, Uint8, Uint16, Uint32, Uint64, Uint128
from cutlass.cute.nvgpu import CopyUniversalOp
from cutlass.memory import SmemAllocator

from forge_core.cache import Traceable
from forge_core.cute.check import check
from forge_core.cute.memory import GLOBAL, example_arguments
from forge_week0_transpose.configs import PLAIN, Step

__all__ = [
    "UNSIGNED",
    "inside",
    "matrices",
    "permute",
    "place",
    "shared_tile",
    "tensor",
    "tile_at",
    "tiled_copy",
    "traceable",
]

#: By bytes.
UNSIGNED = {1: Uint8, 2: Uint16, 4: Uint32, 8: Uint64, 16: Uint128}


def place(index: Any, sizes: tuple[Any, ...]) -> tuple[Any, ...]:
    """The coordinate of an entry of some dimensions, innermost first; divides by the type of the index.

    CuTe's own ``idx2crd`` divides signed integers, which takes longer and ends at 2^31.
    """
    found: list[Any] = []
    for size in sizes[:-1]:
        found.append(Int64(index % type(index)(size)))
        index = index // type(index)(size)
    return (*found, Int64(index)) if sizes else ()


def tensor(pointer: Any, size: int, shape: tuple[Any, ...], stride: tuple[Any, ...]) -> cute.Tensor:
    """A tensor of elements of ``size`` bytes; strides are 64-bit integers, in elements."""
    start = cute.make_ptr(UNSIGNED[size], pointer.toint(), GLOBAL, assumed_align=size)
    return cute.make_tensor(start, cute.make_layout(shape, stride=stride))


def matrices(
    pointers: tuple[Any, Any], size: int, shape: tuple[Any, Any], strides: tuple[Any, Any], batch: Any, entry: Any
) -> list[cute.Tensor]:
    """Both matrices, mX and mY, of one entry of a batch, from pointers, bytes of an element and strides of each.

    ``batch`` has the number of entries, then for each dimension, innermost first, its size and its two strides.
    """
    at, sizes = place(entry, batch[1::3]), (*shape, *batch[1::3])
    sides = zip(pointers, strides, (batch[2::3], batch[3::3]), strict=True)
    return [tensor(p, size, sizes, own + outer)[(None, None, *at)] for p, own, outer in sides]


def tile_at(mat: cute.Tensor, origin: tuple[Any, Any], tile: tuple[int, int], vec: int = 1) -> cute.Tensor:
    """The tile of a matrix that begins at ``origin``; accesses begin at multiples of ``vec`` elements."""
    start = mat.iterator + cute.crd2idx(origin, mat.layout)
    width, steps = vec * mat.element_type.width // 8, [s for s in mat.stride if not isinstance(s, int)]
    check((start.toint() & (width - 1)) == 0, "a tile begins at a multiple of an access's width")
    check(reduce(or_, steps, 0) % vec == 0, "rows lie multiples of an access's width apart")
    start = cute.make_ptr(mat.element_type, start.toint(), GLOBAL, assumed_align=width)
    stride = tuple(s if isinstance(s, int) else cute.assume(s, divby=vec) for s in mat.stride)
    return cute.make_tensor(start, cute.make_layout(tile, stride=stride))


def shared_tile(step: Step, dtype: Any) -> cute.Tensor:
    """A tile in shared memory, all that the block has of it."""
    layout, swizzle = cute.make_layout(step.tile, stride=step.strides), cute.make_swizzle(*(step.swizzle or PLAIN))
    return SmemAllocator().allocate_tensor(dtype, layout, byte_alignment=128, swizzle=swizzle)


def tiled_copy(step: Step, dtype: Any, thread: Any, op: Any = CopyUniversalOp) -> tuple[Any, Any]:
    """The copy of a step, and a thread's part of the tile."""
    atom = cute.make_copy_atom(op(), dtype, num_bits_per_copy=8 * step.width)
    copy = cute.make_tiled_copy(atom, cute.make_layout(step.layout[0], stride=step.layout[1]), step.tile)
    return copy, copy.get_slice(thread)


def inside(tXcX: cute.Tensor, first: tuple[Any, Any], shape: tuple[Any, Any]) -> cute.Tensor:
    """For each access of a thread to the tile at ``first`` whether it begins inside the matrix."""
    tXpX = cute.make_rmem_tensor((tXcX.shape[0][1], 1, 1), Boolean)
    for i in range(tXcX.shape[0][1]):
        row, col = (place + c for place, c in zip(first, tXcX[(0, i), 0, 0], strict=True))
        tXpX[i] = (row < shape[0]) & (col < shape[1])
    return tXpX


def permute(a: Any, b: Any, selector: int) -> Any:
    """PTX prmt: each nibble of the selector names the byte of b:a that takes that place."""
    return Uint32(cute.arch.prmt(a, b, selector))


def traceable(kernel: Any, integers: int, dims: int) -> Traceable:
    """What to compile: a kernel whose launch takes two pointers, 64-bit integers, and ``dims`` dimensions."""
    arguments = example_arguments(wide=integers, tuples=(1 + 3 * dims,))
    return Traceable(kernel, arguments, name=kernel.kernel_name)
