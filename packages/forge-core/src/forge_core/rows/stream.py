"""Rows streamed through a block: read once for the totals, and once more for the outputs.

    pass 1     tile 0, tile 1, ...      fold each tile, merge it into the running totals of the thread
    exchange   shared memory            every thread of the block holds the row's totals
    pass 2     tile 0, tile 1, ...      load again, map, store

A program without a merge has a pass for each of its folds.

Bytes moved: each element is read twice (once if the program writes no elements, or has no folds) and written once.

Limits: none.  Rows of any length, strided in any way.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr
from cutlass.memory import SmemAllocator

from forge_core.cache import Traceable, compile_cached
from forge_core.cute.copy import store_if
from forge_core.cute.exchange import open_exchange, reduce_row
from forge_core.cute.memory import name_kernel
from forge_core.cute.room import room_for
from forge_core.cute.warp import WARP
from forge_core.rows.config import StreamConfig
from forge_core.rows.kernel import RowKernel, example_arguments

__all__ = ["Stream", "build"]


class Stream(StreamConfig, RowKernel):
    """The kernel of a configuration."""

    @cute.jit
    def __call__(self, *args: Any):
        """Launches a block for each row; ``args`` as ``RowKernel.split`` takes them."""
        pointers, length, dims, numbers = self.split(args)
        name_kernel(self.kernel, self.kernel_name)
        self.kernel(pointers, length, dims, numbers).launch(
            grid=(Int32(self.rows_of(dims)), 1, 1),
            block=(self.threads, 1, 1),
            stream=args[-1],
            **room_for(self.resident),
        )

    @cute.kernel
    def kernel(self, pointers: tuple, length: Int64, dims: tuple, numbers: tuple):
        program, names, passes = self.binding.program, self.binding.program.operands, self.passes
        types = tuple(monoid.types for _, monoid in passes)
        exchange = open_exchange(SmemAllocator(), types, self.threads // WARP, 1)
        m = self.operands(pointers, length, dims)
        thread, row = cute.arch.thread_idx()[0], Int64(cute.arch.block_idx()[0])
        line, at = self.line(m, row)
        known, totals = self.known(m, line, at, length, numbers), ()

        # Whole vectors in tiles; a row's first threads have an element each outside of them.
        head = Int32(self.head(line))
        body = (length - head) // self.vec * self.vec
        step = self.threads * self.vec * self.chunks
        tiles = Int32((body + (step - 1)) // step)
        edges = []
        if const_expr(self.align == "shifted"):
            i = Int64(cutlass.select_(thread < head, Int64(thread), thread + body))
            edges = [self.element(line, i, thread < length - body)]

        for p in cutlass.range_constexpr(len(passes)):
            folds, monoid = passes[p]
            rAcc = [cute.make_rmem_tensor(1, dtype) for dtype in monoid.types]
            start = monoid.identity()
            if const_expr(len(edges) > 0):
                start = self.fold_each(folds, edges, known, totals)
            for part in cutlass.range_constexpr(len(rAcc)):
                rAcc[part][0] = start[part]
            for tile in cutlass.range(tiles, unroll=1):
                pieces = self.tile(line, head, body, tile, thread)
                found = self.fold_each(folds, pieces, known, totals)
                acc = monoid.combine(tuple(r[0] for r in rAcc), found)
                for part in cutlass.range_constexpr(len(rAcc)):
                    rAcc[part][0] = acc[part]
            totals = (*totals, *reduce_row(tuple(r[0] for r in rAcc), monoid, exchange[p], 1, Int32(0)))

        constants = program.constants(totals, known)
        if const_expr(len(names.results) > 0):
            results = program.results(constants, known)
            for i in cutlass.range_constexpr(len(names.results)):
                store_if(m[names.results[i]], (at,), results[i], thread == 0)
        if const_expr(len(names.writes) > 0):
            self.map(edges, constants)
            for tile in cutlass.range(tiles, unroll=1):
                self.map(self.tile(line, head, body, tile, thread), constants)

    def tile(self, line: dict[str, cute.Tensor], head: Int32, body: Int64, tile: Int32, thread: Int32) -> list[Any]:
        """This thread's pieces of one tile of a row."""
        step = self.threads * self.vec * self.chunks
        begin = Int64(tile) * step
        left = Int32(cutlass.min(body - begin, Int64(step)))
        if self.align == "element":
            places = [thread + c * self.threads for c in range(self.chunks)]
            return [self.element(line, begin + i, i < left) for i in places]
        return self.vectors(line, head + begin, left, thread, self.threads)


@compile_cached
def build(config: StreamConfig) -> Traceable:
    """What to compile for a configuration."""
    return Traceable(Stream(**vars(config)), example_arguments(config), name=config.kernel_name)
