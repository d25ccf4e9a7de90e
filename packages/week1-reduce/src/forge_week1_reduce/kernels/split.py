"""Many blocks a row and a second pass, for very few and very long rows.

    partial[k, s] = reduce(part s of src[k..., r..., 0:N])
    dst[k...]     = reduce(partial[k, 0:S])

How the data moves.  The row is cut into as many parts as fill the GPU; each block reads its own as in ``vectorized``
and writes one accumulator; ``finish`` adds them up in the order of the parts, so the result does not depend on which
block was ready first:

    row       [ part 0 | part 1 | part 2 | ... | part S-1 ]
    block         0        1        2              S-1
    partial      [0]      [1]      [2]    ...     [S-1]      -> finish -> dst

Bytes moved: each element once, and S accumulators a row, which stay in the L2 cache.  Against a counter in global
memory by which the last block finishes, nothing has to be zeroed, and two streams cannot meet in one counter.

Limits: workspace of S accumulators a row; 65535 parts.
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
    store_element,
)
from forge_core.cute.room import room_for
from forge_week1_reduce.configs import SplitConfig
from forge_week1_reduce.kernels.finish import Finish
from forge_week1_reduce.kernels.sweep import part_chunks, sweep
from forge_week1_reduce.kernels.values import Values

__all__ = ["Split", "build"]


class Split:
    """The two kernels for one configuration."""

    def __init__(self, config: SplitConfig) -> None:
        self.config = config
        self.values = Values(config.row.arithmetic)
        self.finish = Finish(config.finish)

    @cute.jit
    def __call__(self, *args: Any):
        """Launches ``parts`` blocks a row, and the second pass.

        The arguments are ``src``, ``dst`` and ``partial``; ``length`` and ``parts``; the rest is as in ``vectorized``.
        """
        (src, dst, partial), (length, parts), (kept, outer) = split_arguments(args, self.config, pointers=3)
        size = self.values.acc.width // 8
        name_kernel(self.kernel, self.config.kernel_name)
        span = part_chunks(self.values.vector(self.config.row.width), length, outer, parts)
        self.kernel(src, partial, length, parts, span, kept, outer).launch(
            grid=(Int32(parts), Int32(kept[0]), 1),
            block=(self.config.row.threads, 1, 1),
            smem=SLOTS_BYTES,
            stream=args[-1],
            **room_for(self.config.row.resident),
        )
        self.finish(partial, dst, parts, Int64(size), parts * size, length * outer[0], kept, args[-1])

    @cute.kernel
    def kernel(
        self,
        src: cute.Pointer,
        partial: cute.Pointer,
        length: Int64,
        parts: Int64,
        span: Int64,
        kept: tuple,
        outer: tuple,
    ):
        values, row = self.values, self.config.row
        if cutlass.const_expr(self.config.finish.dependent):
            cute.arch.griddepcontrol_launch_dependents()
        thread, _, _ = cute.arch.thread_idx()
        part, block, _ = cute.arch.block_idx()
        src_offset, _ = entry_offsets(Uint32(block), kept, 2)
        rAcc = values.new_lanes(row.width)
        sweep(values, row, src.toint() + src_offset, length, outer, Int64(part), span, thread, rAcc)

        shared = cute.arch.get_dyn_smem(Uint32, alignment=16).toint()
        acc = reduce_block(values.collapse(rAcc), values.monoid, row.threads, shared, thread)
        if thread == 0:
            place = Int64(block) * parts + Int64(part)
            store_element(acc[0], partial.toint() + place * (values.acc.width // 8), values.acc)


@compile_cached
def build(config: SplitConfig) -> Traceable:
    """What to compile for a configuration."""
    return Traceable(Split(config), flat_arguments(config, pointers=3), name=config.kernel_name)
