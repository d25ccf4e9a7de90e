"""Copy of contiguous rows that begin anywhere, still 16 bytes a thread.

    dst[b..., j] = src[b..., j]        rows of ``length`` bytes, any outer dimensions and pitches

How the data moves.  Memory is accessed in aligned chunks of 16 bytes; a thread owns one chunk of an output row and
reads the two chunks of the input row that hold its bytes:

    input    |....AAAA|AAAABBBB|BBBBCCCC|CCCC....|      two neighbouring loads of a thread; the second is the first of
                  ^ S                                   the next thread, so L1 has it
    thread    0: AA..   1: ...                          funnel-shifted by (S - D) mod 16 bytes
    output   |..AAAAAA|AABBBBBB|BBCCCCCC|CC......|      whole chunks by one store; the first and the last of a row,
                ^ D                                     which can hold bytes of another row, by element

Bytes moved: each once, 2 * rows * length; the second load of each thread is served by L1.

Limits: addresses are multiples of the element.  Reads stay inside the 16-byte chunk that holds the tensor's first
element, and never pass the end of its last; ``rows`` is faster where 16-byte chunks coincide on both sides.

Sources: this project's own.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from forge_core.cache import Traceable, compile_cached
from forge_week0_transpose.configs import RealignedConfig
from forge_week0_transpose.kernels.memory import (
    Int32,
    Int64,
    Uint32,
    batch_offsets,
    check,
    chunk_tensor,
    example_arguments,
    funnel_shift_right,
    move,
    name_kernel,
    select,
    view,
)
from forge_week0_transpose.kernels.words import CHUNK, funnel_right

__all__ = ["RealignedCopy", "build"]


class RealignedCopy:
    """The kernel for one configuration."""

    def __init__(self, config: RealignedConfig) -> None:
        self.config = config

    @cute.jit
    def __call__(self, src: cute.Pointer, dst: cute.Pointer, length: Int64, extent: Int64, outer: tuple, stream: Any):
        """Launches one thread for each chunk that a row can touch.

        ``length`` is a row's bytes, ``extent`` the bytes from the source's first to the end of its last element;
        ``outer`` holds the number of rows, then size, source step and destination step in bytes for each outer
        dimension, innermost first.
        """
        config = self.config
        chunks = (length + 2 * (CHUNK - 1)) // CHUNK
        name_kernel(self.kernel, config.kernel_name)
        self.kernel(src, dst, length, extent, chunks, chunks * outer[0], outer).launch(
            grid=(Int32((chunks * outer[0] + (config.threads - 1)) // config.threads), 1, 1),
            block=(config.threads, 1, 1),
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self,
        src: cute.Pointer,
        dst: cute.Pointer,
        length: Int64,
        extent: Int64,
        chunks: Int64,
        total: Int64,
        outer: tuple,
    ):
        config = self.config
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        index = Int64(block) * config.threads + Int64(thread)
        if index < total:
            chunk = index
            src_row, dst_row = src.toint(), dst.toint()
            end = src_row + extent
            if cutlass.const_expr(config.rank > 0):
                number = index if cutlass.const_expr(config.wide_index) else Uint32(index)
                per_row = type(number)(chunks)
                chunk = Int64(number % per_row)
                src_offset, dst_offset = batch_offsets(number // per_row, outer)
                src_row += src_offset
                dst_row += dst_offset
            check(((src_row | dst_row | length) & (config.itemsize - 1)) == 0, "rows begin and end at elements")
            check((src_row >= src.toint()) & (src_row + length <= end), "the row lies inside the source")
            # The chunk's first byte, counted from the row's first: negative where the row begins inside the chunk.
            begin = chunk * CHUNK - (dst_row & (CHUNK - 1))
            first = (src_row + begin) & -CHUNK
            offset = Uint32(src_row + begin) & (CHUNK - 1)
            whole = (begin >= 0) & (begin + CHUNK <= length)
            if whole & (first + 2 * CHUNK <= end):
                rPair = chunk_tensor(2)
                cute.autovec_copy(view(first, CHUNK), rPair[0, None])
                cute.autovec_copy(view(first + CHUNK, CHUNK), rPair[1, None])
                words = funnel_right(
                    [rPair[0, w] for w in range(4)],
                    [rPair[1, w] for w in range(4)],
                    offset,
                    config.itemsize,
                    select,
                    funnel_shift_right,
                )
                for w in cutlass.range_constexpr(4):
                    rPair[0, w] = words[w]
                cute.autovec_copy(rPair[0, None], view(dst_row + begin, CHUNK))
            else:
                self._by_element(src_row, dst_row, begin, length)

    @cute.jit
    def _by_element(self, src_row: Int64, dst_row: Int64, begin: Int64, length: Int64):
        """Copies what belongs to the row of the chunk that begins at ``begin``."""
        size = self.config.itemsize
        low = cutlass.max(begin, Int64(0))
        high = cutlass.min(begin + CHUNK, length)
        for i in cutlass.range(Int32(high - low) // size):
            place = low + Int64(i * self.config.itemsize)
            move(src_row + place, dst_row + place, self.config.itemsize)


@compile_cached
def build(config: RealignedConfig) -> Traceable:
    """What to compile for a configuration."""
    return Traceable(RealignedCopy(config), example_arguments(wide=2, batch_rank=config.rank), name=config.kernel_name)
