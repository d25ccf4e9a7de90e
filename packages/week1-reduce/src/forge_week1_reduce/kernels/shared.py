"""A block a row, and a tree in shared memory.

    dst[k...] = reduce(src[k..., r...])        any rank, any strides on either side

How the data moves.  The threads of a block read their row side by side, so that a warp's 32 elements are one line of
memory, and each keeps what it has added up.  Then the block adds its threads' accumulators in halves:

    shared   [0]  [1]  [2]  [3]  [4]  [5]  [6]  [7]       8 threads
    half 4    +4   +5   +6   +7   .    .    .    .        barrier
    half 2    +2   +3   .    .    .    .    .    .        barrier
    half 1    +1   .    .    .    .    .    .    .        thread 0 holds the row's

Bytes moved: each element once, coalesced.  The tree costs log2(threads) barriers, at each of which half as many
threads work: for short rows that, and not the memory, is what takes the time; ``shuffle`` does without.

Limits: none; a row shorter than the block leaves threads idle.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from forge_core.cache import Traceable, compile_cached
from forge_core.cute.memory import (
    SHARED,
    Int32,
    Int64,
    Uint32,
    entry_offsets,
    flat_arguments,
    load_element,
    name_kernel,
    split_arguments,
    store_element,
)
from forge_week1_reduce.configs import SharedConfig
from forge_week1_reduce.kernels.elementwise import STRANDS, walk
from forge_week1_reduce.kernels.values import Values

__all__ = ["Shared", "build"]


class Shared:
    """The kernel for one configuration."""

    def __init__(self, config: SharedConfig) -> None:
        self.config = config
        self.values = Values(config.arithmetic)

    @cute.jit
    def __call__(self, *args: Any):
        """Launches one block a row; the arguments are those of ``naive``."""
        (src, dst), _, (kept, reduced) = split_arguments(args, self.config)
        name_kernel(self.kernel, self.config.kernel_name)
        self.kernel(src, dst, kept, reduced).launch(
            grid=(Int32(kept[0]), 1, 1),
            block=(self.config.threads, 1, 1),
            smem=self.config.threads * self.values.acc.width // 8,
            stream=args[-1],
        )

    @cute.kernel
    def kernel(self, src: cute.Pointer, dst: cute.Pointer, kept: tuple, reduced: tuple):
        values, monoid = self.values, self.values.monoid
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        number = Int64(block) if cutlass.const_expr(self.config.wide) else Uint32(block)
        src_offset, dst_offset = entry_offsets(number, kept, 2)
        rAcc = values.new_strands(STRANDS)
        walk(values, self.config, src.toint() + src_offset, reduced, thread, rAcc)

        acc = values.collapse(rAcc)
        size = values.acc.width // 8
        shared = cute.arch.get_dyn_smem(Uint32, alignment=16).toint()
        mine = shared + thread * size
        store_element(acc[0], mine, values.acc, SHARED)
        half = self.config.threads // 2
        while cutlass.const_expr(half > 0):
            cute.arch.sync_threads()
            if thread < half:
                own = (load_element(mine, values.acc, SHARED),)
                other = (load_element(mine + half * size, values.acc, SHARED),)
                store_element(monoid.combine(own, other)[0], mine, values.acc, SHARED)
            half = half // 2
        if thread == 0:
            total = load_element(mine, values.acc, SHARED)
            values.store((total,), reduced[0], dst.toint() + dst_offset)


@compile_cached
def build(config: SharedConfig) -> Traceable:
    """What to compile for a configuration."""
    return Traceable(Shared(config), flat_arguments(config), name=config.kernel_name)
