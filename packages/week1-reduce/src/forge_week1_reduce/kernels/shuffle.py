"""A block a row, and warp shuffles.

    dst[k...] = reduce(src[k..., r...])        any rank, any strides on either side

How the data moves.  The row is read as in ``shared``.  Then lanes pass their accumulators to each other through
registers; shared memory carries one value a warp, and the block meets at one barrier:

    warp 0   32 lanes -> shuffles -> [w0] --.
    warp 1   32 lanes -> shuffles -> [w1] ---+-> shared -> barrier -> every warp: shuffles -> the row's
    ...                                     |
    warp 7   32 lanes -> shuffles -> [w7] --'

Bytes moved: each element once, coalesced, 4 bytes (or the element's) a thread and load: for long rows the number of
load instructions is the bound, which ``vectorized`` divides by four and more.

Limits: none; a row shorter than the block leaves threads idle.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from forge_core.cache import Traceable, compile_cached
from forge_core.cute.block import SLOTS_BYTES, reduce_block
from forge_core.cute.memory import (
    Int32,
    Int64,
    Uint32,
    entry_offsets,
    flat_arguments,
    name_kernel,
    split_arguments,
)
from forge_week1_reduce.configs import ShuffleConfig
from forge_week1_reduce.kernels.elementwise import STRANDS, walk
from forge_week1_reduce.kernels.values import Values

__all__ = ["Shuffle", "build"]


class Shuffle:
    """The kernel for one configuration."""

    def __init__(self, config: ShuffleConfig) -> None:
        self.config = config
        self.values = Values(config.arithmetic)

    @cute.jit
    def __call__(self, *args: Any):
        """Launches one block a row; the arguments are those of ``naive``."""
        (src, dst), _, (kept, reduced) = split_arguments(args, self.config)
        name_kernel(self.kernel, self.config.kernel_name)
        self.kernel(src, dst, kept, reduced).launch(
            grid=(Int32(kept[0]), 1, 1), block=(self.config.threads, 1, 1), smem=SLOTS_BYTES, stream=args[-1]
        )

    @cute.kernel
    def kernel(self, src: cute.Pointer, dst: cute.Pointer, kept: tuple, reduced: tuple):
        values = self.values
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        number = Int64(block) if cutlass.const_expr(self.config.wide) else Uint32(block)
        src_offset, dst_offset = entry_offsets(number, kept, 2)
        rAcc = values.new_strands(STRANDS)
        walk(values, self.config, src.toint() + src_offset, reduced, thread, rAcc)

        shared = cute.arch.get_dyn_smem(Uint32, alignment=16).toint()
        acc = reduce_block(values.collapse(rAcc), values.monoid, self.config.threads, shared, thread)
        if thread == 0:
            values.store(acc, reduced[0], dst.toint() + dst_offset)


@compile_cached
def build(config: ShuffleConfig) -> Traceable:
    """What to compile for a configuration."""
    return Traceable(Shuffle(config), flat_arguments(config), name=config.kernel_name)
