"""Many rows a block, for short rows.

    dst[k...] = reduce(src[k..., 0:N])        N contiguous elements, at most 32 * unroll loads

How the data moves.  A group of 1 to 32 lanes has a row, or several at once; no shared memory, no barrier:

    lanes = 4        row 0: [l0][l1][l2][l3]   row 1: [l4][l5][l6][l7]   ...          a warp reads neighbouring rows
                     shuffles among the 4 lanes of a group, then its first lane stores the row's result

    lanes = 1        row 0: [l0 ][l0 ]   row 1: [l1 ][l1 ]                            a thread has the whole row, and
                     the lanes of a warp store 32 neighbouring results                nothing is exchanged

With ``rows`` of 2 or more, a group has the loads of that many rows in flight before it adds the first: a row of 16
bytes would otherwise leave a thread with a single load.

Bytes moved: each element once; the bound is DRAM bandwidth, results included.

Limits: one contiguous reduced dimension, whose addresses are multiples of the load's width.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from forge_core.cache import Traceable, compile_cached
from forge_core.cute.hold import hold_policy
from forge_core.cute.memory import (
    Int32,
    Int64,
    Uint32,
    entry_offsets,
    flat_arguments,
    name_kernel,
    split_arguments,
)
from forge_core.cute.warp import reduce_lanes
from forge_week1_reduce.configs import ShortConfig
from forge_week1_reduce.kernels.values import Values

__all__ = ["Short", "build"]


class Short:
    """The kernel for one configuration."""

    def __init__(self, config: ShortConfig) -> None:
        self.config = config
        self.values = Values(config.arithmetic)

    @cute.jit
    def __call__(self, *args: Any):
        """Launches one block for ``rows_per_block`` rows; the arguments are those of ``vectorized`` but ``outer``."""
        (src, dst), (length,), (kept,) = split_arguments(args, self.config)
        per_block = self.config.rows_per_block
        name_kernel(self.kernel, self.config.kernel_name)
        self.kernel(src, dst, length, kept).launch(
            grid=(Int32((kept[0] + (per_block - 1)) // per_block), 1, 1),
            block=(self.config.threads, 1, 1),
            stream=args[-1],
        )

    @cute.kernel
    def kernel(self, src: cute.Pointer, dst: cute.Pointer, length: Int64, kept: tuple):
        config, values = self.config, self.values
        lanes, unroll, rows, width = config.lanes, config.unroll, config.rows, config.width
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        lane = thread % lanes
        first = Int64(block) * config.rows_per_block + Int64(thread // lanes)
        chunks = Int32(length // values.vector(width))

        rChunks = values.new_chunks(rows * unroll, width)
        policy = hold_policy() if cutlass.const_expr(config.held) else None
        for k in cutlass.range_constexpr(rows):
            row = first + k * (config.threads // lanes)
            number = row if cutlass.const_expr(config.wide) else Uint32(row)
            src_offset, _ = entry_offsets(number, kept, 2)
            start = src.toint() + src_offset
            for u in cutlass.range_constexpr(unroll):
                chunk = u * lanes + lane
                values.clear(rChunks[(k * unroll + u, None)])
                inside = row < kept[0]
                if cutlass.const_expr(not config.exact):
                    inside = inside & (chunk < chunks)
                if inside:
                    rChunk = rChunks[(k * unroll + u, None)]
                    values.fetch(start + Int64(chunk) * width, rChunk, once=config.once, policy=policy)
        for k in cutlass.range_constexpr(rows):
            rAcc = values.new_lanes(width)
            for u in cutlass.range_constexpr(unroll):
                values.add(rChunks[(k * unroll + u, None)], rAcc)
            acc = reduce_lanes(values.collapse(rAcc), values.monoid, lanes)
            row = first + k * (config.threads // lanes)
            number = row if cutlass.const_expr(config.wide) else Uint32(row)
            _, dst_offset = entry_offsets(number, kept, 2)
            if (lane == 0) & (row < kept[0]):
                values.store(acc, length, dst.toint() + dst_offset)


@compile_cached
def build(config: ShortConfig) -> Traceable:
    """What to compile for a configuration."""
    return Traceable(Short(config), flat_arguments(config), name=config.kernel_name)
