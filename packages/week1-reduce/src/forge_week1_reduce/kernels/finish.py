"""The second pass of ``split`` and of a split ``column``: partial accumulators become results.

    dst[k...] = reduce(partial[k, 0:S])        S accumulators a result, in the order of the parts

How the data moves.  The partials were written moments ago and lie in the L2 cache.  Many results of few parts get a
thread each; few results of many parts get a block each, which ends as in ``shuffle``.

On sm_90 and newer this pass is launched while the first one runs, and waits on the GPU for it to end: the launch,
which takes longer than the work, is then over before it is needed.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from forge_core.cute.block import SLOTS_BYTES, reduce_block
from forge_core.cute.memory import Int32, Int64, Uint32, entry_offsets, name_kernel
from forge_week1_reduce.configs import FinishConfig
from forge_week1_reduce.kernels.values import Values

__all__ = ["Finish"]

#: Threads of a block where a thread has a result, and the partials that each has on their way before it adds the first:
#: the L2's latency is what this pass consists of.
THREADS = 128
BATCH = 32


class Finish:
    """The kernel for one configuration; launched by the kernel of the first pass."""

    def __init__(self, config: FinishConfig) -> None:
        self.config = config
        self.values = Values(config.arithmetic)

    @cute.jit
    def __call__(
        self,
        partial: cute.Pointer,
        dst: cute.Pointer,
        parts: Int64,
        part_step: Int64,
        row_step: Int64,
        count: Int64,
        kept: tuple,
        stream: Any,
    ):
        """Launches a thread or a block for each result.

        ``parts`` accumulators of a result lie ``part_step`` bytes apart, those of the next result ``row_step`` further;
        a result is made of ``count`` elements; ``kept`` is that of the first pass.
        """
        threads = self.config.threads
        name_kernel(self.kernel, self.config.kernel_name)
        grid = Int32(kept[0] if cutlass.const_expr(threads > 1) else (kept[0] + (THREADS - 1)) // THREADS)
        self.kernel(partial, dst, parts, part_step, row_step, count, kept).launch(
            grid=(grid, 1, 1),
            block=(threads if cutlass.const_expr(threads > 1) else THREADS, 1, 1),
            smem=SLOTS_BYTES,
            use_pdl=self.config.dependent,
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self,
        partial: cute.Pointer,
        dst: cute.Pointer,
        parts: Int64,
        part_step: Int64,
        row_step: Int64,
        count: Int64,
        kept: tuple,
    ):
        threads, values = self.config.threads, self.values
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        acc = values.monoid.identity()[0]
        if cutlass.const_expr(threads > 1):
            start = partial.toint() + Int64(block) * row_step
            _, dst_offset = entry_offsets(Uint32(block), kept, 2)
            self.wait()
            for part in cutlass.range(thread, Int32(parts), threads, unroll=4):
                acc = values.monoid.combine((acc,), (values.load(start + Int64(part) * part_step),))[0]
            shared = cute.arch.get_dyn_smem(Uint32, alignment=16).toint()
            total = reduce_block((acc,), values.monoid, threads, shared, thread)
            if thread == 0:
                values.store(total, count, dst.toint() + dst_offset)
        else:
            row = Int64(block) * THREADS + Int64(thread)
            if row < kept[0]:
                start = partial.toint() + row * row_step
                _, dst_offset = entry_offsets(Uint32(row), kept, 2)
                self.wait()
                acc = self.add_parts(start, parts, part_step)
                values.store((acc,), count, dst.toint() + dst_offset)

    def wait(self) -> None:
        """Waits for the first pass, whose launch is long past: where to read and write is known before."""
        if self.config.dependent:
            cute.arch.griddepcontrol_wait()

    @cute.jit
    def add_parts(self, start: Any, parts: Any, part_step: Any):
        """Adds a result's accumulators in the order of the parts, a batch of them on its way."""
        values, fixed = self.values, self.config.parts
        acc = values.monoid.identity()[0]
        rPart = values.new_strands(fixed or BATCH)
        if cutlass.const_expr(fixed > 0):
            for u in cutlass.range_constexpr(fixed):
                rPart[u] = values.load(start + u * part_step)
            for u in cutlass.range_constexpr(fixed):
                acc = values.monoid.combine((acc,), (rPart[u],))[0]
        else:
            turns = Int32(parts) // BATCH
            for turn in cutlass.range(turns):
                for u in cutlass.range_constexpr(BATCH):
                    rPart[u] = values.load(start + Int64(turn * BATCH + u) * part_step)
                for u in cutlass.range_constexpr(BATCH):
                    acc = values.monoid.combine((acc,), (rPart[u],))[0]
            if turns * BATCH < Int32(parts):
                for u in cutlass.range_constexpr(BATCH):
                    part = turns * BATCH + u
                    rPart[u] = values.monoid.identity()[0]
                    if part < Int32(parts):
                        rPart[u] = values.load(start + Int64(part) * part_step)
                for u in cutlass.range_constexpr(BATCH):
                    acc = values.monoid.combine((acc,), (rPart[u],))[0]
        return acc
