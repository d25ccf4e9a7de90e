"""Rows streamed through blocks: read once for the totals, and once more for the outputs.

    pass 1     tile 0, tile 1, ...      fold each tile, merge it into the running totals of the thread
    exchange   shared memory            every thread of the block holds the row's totals
    pass 2     tile 0, tile 1, ...      load again, map, store

A program without a merge has a pass for each of its folds.  A row has one block; or, where rows are few, a block for
each of its parts: then each pass is a launch, which leaves the totals of each part in the workspace for the next one.

Bytes moved: each element is read twice (once if the program writes no elements, or has no folds) and written once.
Limits: none.  Rows of any length, strided in any way.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32, const_expr
from cutlass.memory import SmemAllocator

from forge_core.cache import Traceable, compile_cached
from forge_core.cute.copy import store_if
from forge_core.cute.exchange import Sharers, open_exchange, reduce_row
from forge_core.cute.memory import name_kernel
from forge_core.rows.config import StreamConfig
from forge_core.rows.kernel import RowKernel, example_arguments

__all__ = ["Stream", "build"]


class Stream(StreamConfig, RowKernel):
    """The kernel of a configuration."""

    @property
    def launches(self) -> tuple[int, ...]:
        """The passes that have a launch of their own, and the one that writes; 0 for all in one."""
        return tuple(range(1 + len(self.passes))) if self.parted else (0,)

    @cute.jit
    def __call__(self, *args: Any):
        """Launches a block for each part of each row; ``args`` as ``RowKernel.split`` takes them."""
        pointers, length, parts, dims, numbers = self.split(args)
        if const_expr(not self.parted):
            parts = 1
        rows, scratch = self.rows_of(dims), args[len(pointers)].toint() if const_expr(self.parted) else Int64(0)
        for launch in self.launches:
            name_kernel(self.kernel, f"{self.kernel_name}_pass{launch}" if self.parted else self.kernel_name)
            self.kernel(pointers, scratch, length, Uint32(parts), dims, numbers, launch).launch(
                grid=(Int32(rows * parts), 1, 1),
                block=(self.threads, 1, 1),
                stream=args[-1],
                **self.room(self.threads),
            )

    @cute.kernel
    def kernel(
        self,
        pointers: tuple,
        scratch: Int64,
        length: Int64,
        parts: Uint32,
        dims: tuple,
        numbers: tuple,
        launch: cutlass.Constexpr,
    ):
        program, passes = self.binding.program, self.passes
        sharers = Sharers(self.threads, self.threads)
        exchange = open_exchange(SmemAllocator(), [monoid for _, monoid in passes], sharers)
        thread, block = cute.arch.thread_idx()[0], Uint32(cute.arch.block_idx()[0])
        row, part = Int64(block // parts), Int32(block % parts)
        g = self.row_of(pointers, length, dims, row)
        known, totals = self.known(g, length, numbers), ()

        # Whole vectors in tiles; a row's first threads have an element each outside of them.
        head = Int32(self.head(g))
        body = (length - head) // self.vec * self.vec
        step = self.threads * self.vec * self.chunks
        begin, end = Int32(0), Int32((body + (step - 1)) // step)
        if const_expr(self.parted):
            span = (end + (Int32(parts) - 1)) // Int32(parts)
            begin, end = cutlass.min(part * span, end), cutlass.min(part * span + span, end)
        edges = []
        if const_expr(self.align == "shifted"):
            i = Int64(cutlass.select_(thread < head, Int64(thread), thread + body))
            edges = [self.element(g, i, (thread < length - body) & (part == 0))]

        for p in cutlass.range_constexpr(len(passes) if const_expr(not self.parted) else min(launch + 1, len(passes))):
            folds, monoid = passes[p]
            gAcc = self.partials(scratch, p, self.rows_of(dims), row, parts)
            rAcc = [cute.make_rmem_tensor(1, dtype) for dtype in monoid.types]
            start = monoid.identity()
            if const_expr(len(edges) > 0 and (not self.parted or p == launch)):
                start = self.fold_each(folds, edges, known, totals)
            for k in cutlass.range_constexpr(len(rAcc)):
                rAcc[k][0] = start[k]
            if const_expr(self.parted and p < launch):
                for other in cutlass.range(thread, Int32(parts), self.threads, unroll=1):
                    acc = monoid.combine(tuple(r[0] for r in rAcc), tuple(g[other] for g in gAcc))
                    for k in cutlass.range_constexpr(len(rAcc)):
                        rAcc[k][0] = acc[k]
            else:
                for tile in cutlass.range(begin, end, unroll=1):
                    pieces = self.tile(g, head, body, tile, thread)
                    found = self.fold_each(folds, pieces, known, totals)
                    acc = monoid.combine(tuple(r[0] for r in rAcc), found)
                    for k in cutlass.range_constexpr(len(rAcc)):
                        rAcc[k][0] = acc[k]
            acc = reduce_row(tuple(r[0] for r in rAcc), monoid, exchange[p])
            if const_expr(self.parted and p == launch):
                for k in cutlass.range_constexpr(len(acc)):
                    store_if(gAcc[k], part, acc[k], thread == 0)
            totals = (*totals, *acc)

        if const_expr(not self.parted or launch == len(passes)):
            constants = program.constants(totals, known)
            self.write_results(g, constants, known, (thread == 0) & (part == 0))
            if const_expr(len(program.operands.writes) > 0):
                self.map(edges, constants)
                for tile in cutlass.range(begin, end, unroll=1):
                    self.map(self.tile(g, head, body, tile, thread), constants)

    def tile(self, g: dict[str, cute.Tensor], head: Int32, body: Int64, tile: Int32, thread: Int32) -> list[Any]:
        """This thread's pieces of one tile of a row."""
        step = self.threads * self.vec * self.chunks
        begin = Int64(tile) * step
        left = Int32(cutlass.min(body - begin, Int64(step)))
        if self.align == "element":
            places = [thread + c * self.threads for c in range(self.chunks)]
            return [self.element(g, begin + i, i < left) for i in places]
        return self.vectors(g, head + begin, left, thread, self.threads)


@compile_cached
def build(config: StreamConfig) -> Traceable:
    """What to compile for a configuration."""
    return Traceable(Stream.of(config), example_arguments(config), name=config.kernel_name)
