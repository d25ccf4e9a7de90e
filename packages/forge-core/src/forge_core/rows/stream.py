"""Rows streamed through blocks: read for the totals, and once more for the outputs.

    pass 1     tile 0, tile 1, ...      fold each tile and merge it into the thread's running totals
    exchange   shared memory            every thread of the block has the row's totals
    pass 2     tile 0, tile 1, ...      load again, map, store

A program without a merge has a pass, and a read, for each fold.  A row has one block; or, if rows are few (``parted``),
a block per part, and for each pass a launch that computes partial results and one that combines them.

Reads: one for all folds with a merge, else one per fold; one more if the program writes elements.  Writes: one.
Limits: fewer than 2^31 rows, of at most 16 dims that cannot be merged; rows of any length and strides.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32, const_expr
from cutlass.memory import SmemAllocator

from forge_core.cute.copy import store_if
from forge_core.cute.exchange import Sharers, open_exchange, reduce_row
from forge_core.cute.grid import follow, lead
from forge_core.cute.monoid import get, kept, put
from forge_core.rows.columns import Columns
from forge_core.rows.config import StreamConfig
from forge_core.rows.kernel import row_builder
from forge_core.rows.parted import ALL, PartedKernel


class Stream(StreamConfig, PartedKernel):
    """The kernel of a configuration."""

    @cute.jit
    def __call__(self, *args: Any):
        """Launches a block per part of each row; ``args``: see :meth:`RowKernel.unpack`."""
        pointers, length, parts, dims, numbers = self.unpack(args)
        parts = Int32(parts) if const_expr(self.parted) else Int32(1)
        rows, scratch = self.rows_of(dims), self.scratch(args) if const_expr(self.parted) else Int64(0)
        row, sizes = (pointers, scratch, length, dims, numbers), (parts, self.policy(rows, length))
        self.launch_all(
            (*row, sizes), row, parts, args[-1], grid=(Int32(rows * parts), 1, 1), block=(self.threads, 1, 1)
        )

    @cute.kernel
    def kernel(
        self,
        pointers: tuple,
        scratch: Int64,
        length: Int64,
        dims: tuple,
        numbers: tuple,
        sizes: tuple,
        pass_index: cutlass.Constexpr,
    ):
        program, passes, (parts, policy) = self.binding.program, self.passes, sizes
        lead(self.overlap and pass_index != self.launches[-1])
        sharers = Sharers(self.threads, self.threads)
        exchange = open_exchange(SmemAllocator(), [monoid for _, monoid in passes], sharers)
        thread, block = cute.arch.thread_idx()[0], Uint32(cute.arch.block_idx()[0])
        row, part = Int64(block), Int32(0)
        if const_expr(self.parted):
            row, part = Int64(block // Uint32(parts)), Int32(block % Uint32(parts))
        g = self.row_of(pointers, length, dims, row)
        row_values, totals = self.row_values(g, length, numbers), ()

        # Aligned vectors in tiles; the first threads also have an element of the head or tail each.
        head = Int32(self.head(g))
        head, body = self.inner(head, (length - head) // self.vec * self.vec)
        step = self.threads * self.vec * self.chunks
        begin, end = Int32(0), Int32((body + (step - 1)) // step)
        if const_expr(self.parted):
            span = (end + (parts - 1)) // parts
            begin, end = cutlass.min(part * span, end), cutlass.min(part * span + span, end)
        edges = []
        if const_expr(self.has_edges):
            i = Int64(cutlass.select_(thread < head, Int64(thread), thread + body))
            edges = [self.element(g, i, (thread < length - body) & (part == 0), alone=True)]

        follow(self.overlap and pass_index > 0)
        for p in cutlass.range_constexpr(len(passes) if pass_index == ALL else min(pass_index + 1, len(passes))):
            folds, monoid = passes[p]
            gAcc = self.partials(scratch, p, self.rows_of(dims), row, parts + 1)
            if const_expr(p < pass_index):  # behind the partial results lies their total, stored by the launch before
                totals = (*totals, *[total[parts] for total in gAcc])
            else:
                acc = self.fold_each(folds, edges, row_values, totals) if edges else monoid.identity()
                rAcc = kept(monoid, [acc])
                for tile in cutlass.range(begin, end, unroll=1):
                    found = self.fold_each(folds, self.tile(g, head, body, tile, thread, policy), row_values, totals)
                    put(rAcc, [monoid.combine(get(rAcc, 0), found)])
                acc = reduce_row(get(rAcc, 0), monoid, exchange[p])
                if const_expr(p == pass_index):
                    for k in cutlass.range_constexpr(len(acc)):
                        store_if(gAcc[k], part, acc[k], thread == 0)
                totals = (*totals, *acc)

        if const_expr(pass_index in (ALL, len(passes))):
            constants = program.constants(totals, row_values)
            self.write_results(g, constants, row_values, (thread == 0) & (part == 0))
            if const_expr(len(self.binding.operands.writes) > 0):
                self.map(edges, constants)
                for tile in cutlass.range(begin, end, unroll=1):
                    self.map(self.tile(g, head, body, tile, thread, policy), constants)

    def tile(
        self, g: dict[str, cute.Tensor], head: Int32, body: Int64, tile: Int32, thread: Int32, policy: Int64
    ) -> list[Any]:
        """Loads a thread's pieces of one tile of a row."""
        step = self.threads * self.vec * self.chunks
        begin = Int64(tile) * step
        left = Int32(cutlass.min(body - begin, Int64(step)))
        if self.align == "element":
            steps = [thread + c * self.threads for c in range(self.chunks)]
            return [self.element(g, begin + i, i < left) for i in steps]
        first = head + begin
        return self.vectors(Columns(self, g, first, left, thread, self.threads), (first, left), policy)


build = row_builder(Stream)
