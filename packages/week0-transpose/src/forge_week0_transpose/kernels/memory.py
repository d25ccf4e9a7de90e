"""What the kernels of this package share on the GPU: accesses by words, whatever the element means.

They come on top of ``forge_core.cute.memory``: addresses are 64-bit integers in bytes, and an access has a
stated width.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint8, Uint16, Uint32, Uint64

from forge_core.cute import memory as core
from forge_core.cute.check import check
from forge_core.cute.hold import load_held
from forge_core.cute.memory import GLOBAL, SHARED, entry_offsets, name_kernel
from forge_week0_transpose.kernels.words import CHUNK

__all__ = [
    "SHARED",
    "Int32",
    "Int64",
    "Uint32",
    "access_unit",
    "batch_offsets",
    "check",
    "chunk_tensor",
    "example_arguments",
    "funnel_shift_left",
    "funnel_shift_right",
    "load_parts",
    "move",
    "name_kernel",
    "permute",
    "select",
    "store_parts",
    "view",
]

UNITS = {1: Uint8, 2: Uint16, 4: Uint32, 8: Uint64}


def access_unit(width: int) -> tuple[Any, int]:
    """The word type and the number of words of one access of ``width`` bytes."""
    return (UNITS[width], 1) if width < CHUNK else (Uint32, 4)


def view(address: Any, width: int, space: Any = GLOBAL, unit: Any = None) -> Any:
    """A tensor over the ``width`` bytes at an address, which must be a multiple of ``width``.

    Args:
        address: in bytes.
        width: 1, 2, 4, 8 or 16; the access is one instruction of that width.
        space: global or shared memory.
        unit: the word type; the widest that fits where None.
    """
    if unit is None:
        unit, count = access_unit(width)
    else:
        count = width * 8 // unit.width
    return cute.make_tensor(cute.make_ptr(unit, address, space, assumed_align=width), cute.make_layout(count))


def chunk_tensor(count: int) -> Any:
    """``count`` chunks of four words in registers; a row of it is contiguous."""
    return cute.make_rmem_tensor(cute.make_layout((count, 4), stride=(4, 1)), Uint32)


def load_parts(address: Any, rChunk: Any, width: int, policy: Any) -> None:
    """Loads a chunk of global memory by accesses of ``width`` bytes, which is what its address is a multiple of.

    Accesses of 16 bytes are made under a policy of the L2; ``policy`` is that of ``forge_core.cute.hold``.
    """
    if width == CHUNK:
        load_held(address, rChunk, CHUNK, policy)
        return
    unit, _ = access_unit(width)
    rParts = cute.make_tensor(cute.recast_ptr(rChunk.iterator, dtype=unit), cute.make_layout(CHUNK // width))
    for i in range(CHUNK // width):
        rParts[i] = view(address + i * width, width)[0]


def store_parts(rChunk: Any, address: Any, width: int) -> None:
    """Stores a chunk to global memory by accesses of ``width`` bytes."""
    if width == CHUNK:
        cute.autovec_copy(rChunk, view(address, CHUNK))
        return
    unit, _ = access_unit(width)
    rParts = cute.make_tensor(cute.recast_ptr(rChunk.iterator, dtype=unit), cute.make_layout(CHUNK // width))
    for i in range(CHUNK // width):
        view(address + i * width, width)[0] = rParts[i]


def move(src: Any, dst: Any, width: int, src_space: Any = GLOBAL, dst_space: Any = GLOBAL) -> None:
    """Moves ``width`` bytes through registers: one load, one store."""
    unit, count = access_unit(width)
    rWords = cute.make_rmem_tensor(count, unit)
    cute.autovec_copy(view(src, width, src_space), rWords)
    cute.autovec_copy(rWords, view(dst, width, dst_space))


def permute(a: Any, b: Any, selector: int) -> Any:
    """PTX prmt: each nibble of the selector names the byte of b:a that takes that place."""
    return Uint32(cute.arch.prmt(a, b, selector))


def select(condition: Any, a: Any, b: Any) -> Any:
    """Chooses a where the condition holds, else b, without a branch."""
    return type(a)(cutlass.select_(condition, a, b))


def funnel_shift_right(low: Any, high: Any, bits: Any) -> Any:
    """The word that begins ``bits`` (below 32) above the start of high:low."""
    return cute.arch.shf(low, high, bits, "r")


def funnel_shift_left(low: Any, high: Any, bits: Any) -> Any:
    """The word that ends ``bits`` (below 32) before the end of high:low."""
    return cute.arch.shf(low, high, bits, "l")


def batch_offsets(index: Any, dims: Any) -> tuple[Any, Any]:
    """Byte offsets of one entry of some dimensions in the source and in the destination.

    Args:
        index: the entry's number, counted with the innermost dimension fastest; its type is that of the divisions.
        dims: the number of entries, then for each dimension, innermost first, size, source step and destination step
            in bytes.
    """
    src, dst = entry_offsets(index, dims, 2)
    return src, dst


def example_arguments(*, pointers: int = 2, wide: int = 0, batch_rank: int = 0) -> tuple[Any, ...]:
    """What a kernel is traced with: null pointers to words, 64-bit integers, the batch, and a stream.

    Pointers are declared as bytes without alignment: a kernel states the width of each access itself.
    """
    return core.example_arguments(pointers=pointers, wide=wide, tuples=(1 + 3 * batch_rank,))
