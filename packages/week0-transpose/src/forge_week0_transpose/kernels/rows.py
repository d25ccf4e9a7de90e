"""Copy of contiguous rows, 16 bytes a thread.

    dst[b..., j] = src[b..., j]        rows of ``length`` bytes, any outer dimensions and pitches

How the data moves.  The rows are cut into chunks of ``width`` bytes; a thread moves one, and a block of 128 threads
moves 128 neighbouring ones:

    thread     0      1      2    ...  127 | 0 ...          one contiguous run: chunk = thread, no division
    row 0    [16 B][16 B][16 B]   ... [16 B]|                pitched rows: row, chunk = divmod(thread, chunks a row)
    row 1    ...

Nothing is kept, nothing is staged: a grid of one chunk a thread leaves the order to the memory system.  On the H200
more bytes a thread, persistent grids, streaming hints and bulk copies were all slower; docs/week0-designs.md.

Bytes moved: each once, 2 * rows * length; the bound is DRAM bandwidth.

Limits: pitches, lengths and both addresses must be multiples of ``width``, except for one contiguous run, whose
last, incomplete chunk is copied by element.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from forge_core.cache import Traceable, compile_cached
from forge_week0_transpose.configs import RowsConfig
from forge_week0_transpose.kernels.memory import (
    Int32,
    Int64,
    Uint32,
    batch_offsets,
    check,
    example_arguments,
    move,
    name_kernel,
)

__all__ = ["RowCopy", "build"]


class RowCopy:
    """The kernel for one configuration."""

    def __init__(self, config: RowsConfig) -> None:
        self.config = config

    @cute.jit
    def __call__(self, src: cute.Pointer, dst: cute.Pointer, length: Int64, outer: tuple, stream: Any):
        """Launches one thread a chunk.

        ``length`` is a row's bytes; ``outer`` holds the number of rows, then size, source step and destination step in
        bytes for each outer dimension, innermost first.
        """
        config = self.config
        chunks = (length + (config.width - 1)) // config.width
        name_kernel(self.kernel, config.kernel_name)
        self.kernel(src, dst, length, chunks, chunks * outer[0], outer).launch(
            grid=(Int32((chunks * outer[0] + (config.threads - 1)) // config.threads), 1, 1),
            block=(config.threads, 1, 1),
            stream=stream,
        )

    @cute.kernel
    def kernel(self, src: cute.Pointer, dst: cute.Pointer, length: Int64, chunks: Int64, total: Int64, outer: tuple):
        config = self.config
        width = config.width
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        index = Int64(block) * config.threads + Int64(thread)
        if index < total:
            chunk = index
            src_address, dst_address = src.toint(), dst.toint()
            if cutlass.const_expr(config.rank > 0):
                number = index if cutlass.const_expr(config.wide_index) else Uint32(index)
                per_row = type(number)(chunks)
                chunk = Int64(number % per_row)
                src_offset, dst_offset = batch_offsets(number // per_row, outer)
                src_address += src_offset
                dst_address += dst_offset
            check(((src_address | dst_address) & (width - 1)) == 0, "rows begin at multiples of an access's width")
            src_address += chunk * width
            dst_address += chunk * width
            check(chunk * width < length, "the chunk begins inside the row")
            check((length % (config.tail or width)) == 0, "rows are whole accesses")
            if cutlass.const_expr(config.tail == 0):
                move(src_address, dst_address, width)
            else:
                left = length - chunk * width
                if left >= width:
                    move(src_address, dst_address, width)
                else:
                    for i in cutlass.range_constexpr(width // config.tail):
                        if i * config.tail < left:
                            move(src_address + i * config.tail, dst_address + i * config.tail, config.tail)


@compile_cached
def build(config: RowsConfig) -> Traceable:
    """What to compile for a configuration."""
    return Traceable(RowCopy(config), example_arguments(wide=1, batch_rank=config.rank), name=config.kernel_name)
