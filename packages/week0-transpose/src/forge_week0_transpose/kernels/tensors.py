"""The operands as CuTe tensors; addresses by hand, since a pointer's alignment is stated where it is made.

Elements are integers of their width, whatever they mean.

mX    (M, N)         the input; elements are unsigned integers of their width
mY    (M, N)         the output, transposed: both are seen in the input's coordinates
gX    (tile)         a tile of either; a kernel states what its accesses are aligned to, which the host looked at
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

import cutlass.cute as cute
from cutlass import Boolean, Int64, Uint8, Uint16, Uint32, Uint64, Uint128
from cutlass.memory import SmemAllocator

from forge_core.cute import memory as core
from forge_core.cute.check import check
from forge_core.cute.memory import GLOBAL
from forge_week0_transpose.configs import Layout

__all__ = [
    "example_arguments",
    "inside",
    "matrices",
    "permute",
    "place",
    "shared_tile",
    "tensor",
    "tile_at",
    "tiled_copy",
    "unsigned",
]


def unsigned(size: int) -> Any:
    """The unsigned integer of ``size`` bytes."""
    return {1: Uint8, 2: Uint16, 4: Uint32, 8: Uint64, 16: Uint128}[size]


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
    start = cute.make_ptr(unsigned(size), pointer.toint(), GLOBAL, assumed_align=size)
    return cute.make_tensor(start, cute.make_layout(shape, stride=stride))


def matrices(
    pointers: tuple[Any, Any], size: int, shape: tuple[Any, Any], strides: tuple[Any, Any], batch: Any, entry: Any
) -> tuple[cute.Tensor, ...]:
    """Both matrices, mX and mY, of one entry of a batch: (M, N).

    Args:
        pointers: to the input and to the output.
        size: bytes of an element.
        shape: rows and columns.
        strides: of the input and of the output.
        batch: the number of entries, then for each dimension, innermost first, its size and its two strides.
        entry: which one.
    """
    found, at = [], place(entry, batch[1::3])
    for side in range(2):
        whole = tensor(pointers[side], size, (*shape, *batch[1::3]), (*strides[side], *batch[2 + side :: 3]))
        found.append(whole[(None, None, *at)])
    return tuple(found)


def tile_at(mat: cute.Tensor, origin: tuple[Any, Any], tile: tuple[int, int], vec: int = 1) -> cute.Tensor:
    """The tile of a matrix that begins at ``origin``; accesses begin at multiples of ``vec`` elements."""
    start = mat.iterator + cute.crd2idx(origin, mat.layout)
    width, steps = vec * mat.element_type.width // 8, [s for s in mat.stride if not isinstance(s, int)]
    check((start.toint() & (width - 1)) == 0, "a tile begins at a multiple of an access's width")
    check(reduce(or_, steps, 0) % vec == 0, "rows lie multiples of an access's width apart")
    start = cute.make_ptr(mat.element_type, start.toint(), GLOBAL, assumed_align=width)
    stride = tuple(s if isinstance(s, int) else cute.assume(s, divby=vec) for s in mat.stride)
    return cute.make_tensor(start, cute.make_layout(tile, stride=stride))


def shared_tile(config: Any, layout: Layout, swizzle: tuple[int, int, int] = (0, 4, 3)) -> cute.Tensor:
    """A tile in shared memory, all that the block has of it."""
    return SmemAllocator().allocate_tensor(
        unsigned(config.itemsize),
        cute.make_layout(layout[0], stride=layout[1]),
        byte_alignment=128,
        swizzle=cute.make_swizzle(*swizzle),
    )


def tiled_copy(op: Any, dtype: Any, width: int, layout: Layout, tile: tuple[int, int], thread: Any) -> Any:
    """A copy by accesses of ``width`` bytes, and a thread's part by a thread-value layout of the tile."""
    atom = cute.make_copy_atom(op, dtype, num_bits_per_copy=8 * width)
    copy = cute.make_tiled_copy(atom, cute.make_layout(layout[0], stride=layout[1]), tile)
    return copy, copy.get_slice(thread)


def inside(tXcX: cute.Tensor, first: tuple[Any, Any], shape: tuple[Any, Any]) -> cute.Tensor:
    """For each access of a thread to the tile at ``first`` whether it begins inside the matrix."""
    accesses = tXcX.shape[0][1]
    tXpX = cute.make_rmem_tensor((accesses, 1, 1), Boolean)
    for i in range(accesses):
        row, col = (place + c for place, c in zip(first, tXcX[(0, i), 0, 0], strict=True))
        tXpX[i] = (row < shape[0]) & (col < shape[1])
    return tXpX


def permute(a: Any, b: Any, selector: int) -> Any:
    """PTX prmt: each nibble of the selector names the byte of b:a that takes that place."""
    return Uint32(cute.arch.prmt(a, b, selector))


def example_arguments(*, wide: int = 0, rank: int = 0) -> tuple[Any, ...]:
    """What a kernel is traced with: two pointers, 64-bit integers, ``rank`` dimensions, and a stream."""
    return core.example_arguments(wide=wide, tuples=(1 + 3 * rank,))
