"""One thread a row: the kernel to start from, and one that can do every problem.

    dst[k...] = reduce(src[k..., r...])        any rank, any strides on either side

How the data moves.  Threads are numbered in the order of the rows; each walks along its own:

    row      step 0   1   2   3                            a contiguous matrix, reduced over its last dimension:
    thread 0   [a0]  [a1][a2][a3] ...                      at each step a warp reads 32 elements that lie a whole row
    thread 1   [b0]  [b1][b2][b3] ...                      apart: 32 sectors of 32 bytes for 32 elements
    thread 2   [c0]  [c1][c2][c3] ...

Bytes moved: each element once, if the caches keep a sector until the thread has walked through it; 2048 rows at once
on a multiprocessor touch 64 KB at a time, so they do not always.  The bound is the latency of one load after the
other.  Reduced over the first dimension the same walk is coalesced: neighbouring threads read neighbouring elements.

A thread adds up 128 elements at a time and then adds those sums, which keeps the rounding error near that of a tree.

Limits: none; with 2^31 entries and more they are numbered by 64-bit integers, which makes the divisions slow.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from forge_core.cache import Traceable, compile_cached
from forge_core.cute.memory import (
    Int32,
    Int64,
    Uint32,
    entry_offsets,
    flat_arguments,
    name_kernel,
    split_arguments,
)
from forge_week1_reduce.configs import NaiveConfig
from forge_week1_reduce.kernels.values import Values

__all__ = ["Naive", "build"]

#: Elements that are added up before their sum is added to the row's.
RUN = 128


class Naive:
    """The kernel for one configuration."""

    def __init__(self, config: NaiveConfig) -> None:
        self.config = config
        self.values = Values(config.arithmetic)

    @cute.jit
    def __call__(self, *args: Any):
        """Launches one thread a row.

        The arguments are ``src`` and ``dst``; ``kept`` and ``reduced``, laid flat; the stream.  ``kept`` holds the
        number of rows, then size, source step and destination step in bytes for each dimension, innermost first;
        ``reduced`` the number of elements of a row, then size and source step.
        """
        (src, dst), _, (kept, reduced) = split_arguments(args, self.config)
        threads = self.config.threads
        name_kernel(self.kernel, self.config.kernel_name)
        self.kernel(src, dst, kept, reduced).launch(
            grid=(Int32((kept[0] + (threads - 1)) // threads), 1, 1), block=(threads, 1, 1), stream=args[-1]
        )

    @cute.kernel
    def kernel(self, src: cute.Pointer, dst: cute.Pointer, kept: tuple, reduced: tuple):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        index = Int64(block) * self.config.threads + Int64(thread)
        if index < kept[0]:
            # Below 2^31 entries 32-bit divisions do, and cost a fifth.
            number = index if cutlass.const_expr(self.config.wide) else Uint32(index)
            src_offset, dst_offset = entry_offsets(number, kept, 2)
            row = src.toint() + src_offset
            total = self.values.monoid.identity()[0]
            runs = (reduced[0] + (RUN - 1)) // RUN
            for run in cutlass.range(runs):
                part = self.values.monoid.identity()[0]
                left = Int32(cutlass.min(reduced[0] - run * RUN, Int64(RUN)))
                for i in cutlass.range(left, unroll=4):
                    entry = run * RUN + Int64(i)
                    place = entry if cutlass.const_expr(self.config.wide) else Uint32(entry)
                    (offset,) = entry_offsets(place, reduced, 1)
                    part = self.values.monoid.combine((part,), (self.values.load(row + offset),))[0]
                total = self.values.monoid.combine((total,), (part,))[0]
            self.values.store((total,), reduced[0], dst.toint() + dst_offset)


@compile_cached
def build(config: NaiveConfig) -> Traceable:
    """What to compile for a configuration."""
    return Traceable(Naive(config), flat_arguments(config), name=config.kernel_name)
