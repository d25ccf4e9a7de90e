"""Neighboring threads have neighboring rows: for rows that are not contiguous, as in softmax(x, 0).

A block has a tile of ``lanes * vec`` neighboring rows, and its threads walk down them:

                 rows ->  lane 0    lane 1   ...      a thread reads ``vec`` rows at once, 16 bytes where it can
    group 0      n = 0    [16 B]    [16 B]
    group 1      n = 1    [16 B]    [16 B]            each place of the 16 bytes is a row of its own, with totals of
      ...                                             its own
    group 0      n = G    [16 B]    [16 B]   ...      chunk 1 of the same threads

    exchange     lanes of a warp that have the same rows: shuffles; warps: shared memory

The first ``capacity`` elements stay in registers.  Where tiles are few, longer rows are cut into parts, a block for
each part of a tile: then each pass is a launch, which leaves the totals of parts in the workspace for the next one.

Bytes moved: rows of at most ``capacity`` elements are read once; others twice, or once if the program writes no
elements, or has no folds.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32, const_expr
from cutlass.memory import SmemAllocator

from forge_core.cache import Traceable, compile_cached
from forge_core.cute.copy import store_if
from forge_core.cute.exchange import get, put, reduce_columns
from forge_core.cute.memory import name_kernel
from forge_core.rows.config import ColumnConfig
from forge_core.rows.kernel import RowKernel, example_arguments
from forge_core.rows.tile import load_tile, store_tile

__all__ = ["Column", "build"]

ALL = -1
"""In place of the number of a pass: the launch that has them all."""


class Column(ColumnConfig, RowKernel):
    """The kernel of a configuration."""

    @cute.jit
    def __call__(self, *args: Any):
        """Launches a block for each part of each tile of rows; ``args`` as ``RowKernel.split`` takes them."""
        pointers, length, parts, dims, numbers = self.split(args)
        if const_expr(self.held):
            parts = 1
        inner = dims[(self.rank - 1) * (1 + len(pointers))]
        tiles = (inner + (self.tile - 1)) // self.tile
        scratch = args[len(pointers)].toint() if const_expr(self.workspace) else Int64(0)
        for launch in range(1 + len(self.passes)) if self.workspace else (ALL,):
            name_kernel(self.kernel, f"{self.kernel_name}_pass{launch}" if self.workspace else self.kernel_name)
            self.kernel(pointers, scratch, Int32(length), dims, numbers, (Uint32(tiles), Uint32(parts)), launch).launch(
                grid=(Int32(self.rows_of(dims) // inner * tiles * parts), 1, 1),
                block=(self.threads, 1, 1),
                stream=args[-1],
                **self.room(self.threads),
            )

    @cute.kernel
    def kernel(
        self,
        pointers: tuple,
        scratch: Int64,
        length: Int32,
        dims: tuple,
        numbers: tuple,
        cut: tuple,
        launch: cutlass.Constexpr,
    ):
        program, names, passes, (tiles, parts) = self.binding.program, self.binding.program.operands, self.passes, cut
        smem = SmemAllocator()
        thread, block = cute.arch.thread_idx()[0], Uint32(cute.arch.block_idx()[0])
        lane, group, groups = thread % self.lanes, thread // self.lanes, self.threads // self.lanes
        rows, inner = self.rows_of(dims), dims[(self.rank - 1) * (1 + len(pointers))]

        # Which rows, and which part of them.  Blocks side by side read side by side.
        outer, part = block // tiles, Int32(0)
        if const_expr(not self.held):
            outer, part = outer // parts, Int32(outer % parts)
        # Threads beyond the last row stand in the first one and write nothing.
        column = Int64(block % tiles) * self.tile + lane * self.vec
        inside = column < inner
        first = Int64(outer) * inner + cutlass.select_(inside, column, Int64(0))
        gs = [self.row_of(pointers, length, dims, first + r) for r in range(self.vec)]
        known = [self.known(g, length, numbers) for g in gs]
        span = ((length + (self.capacity - 1)) // self.capacity + Int32(parts) - 1) // Int32(parts) * self.capacity
        begin = group + part * span
        end = cutlass.min(part * span + span, length)

        held = launch == ALL  # the first elements are
        pieces, rest = (load_tile(self, gs, begin, end), begin + self.capacity) if const_expr(held) else ([], begin)
        totals = [() for _ in range(self.vec)]
        for p in cutlass.range_constexpr(len(passes) if launch == ALL else min(launch + 1, len(passes))):
            folds, monoid = passes[p]
            rAcc = [cute.make_rmem_tensor(self.vec, dtype) for dtype in monoid.types]
            gAcc = [self.partials(scratch, p, rows, first + r, parts) for r in range(self.vec)]
            if const_expr(held):
                put(rAcc, [self.fold_each(folds, [pieces[r]], known[r], totals[r]) for r in range(self.vec)])
            else:
                put(rAcc, [monoid.identity() for r in range(self.vec)])
            if const_expr(p < launch):
                for other in cutlass.range(group, Int32(parts), groups, unroll=max(1, 16 // self.vec)):
                    found = [tuple(g[other] for g in gAcc[r]) for r in range(self.vec)]
                    put(rAcc, [monoid.combine(get(rAcc, r), found[r]) for r in range(self.vec)])
            else:
                for i in cutlass.range(rest, end, self.capacity, unroll=1):
                    more = load_tile(self, gs, i, end)
                    found = [self.fold_each(folds, [more[r]], known[r], totals[r]) for r in range(self.vec)]
                    put(rAcc, [monoid.combine(get(rAcc, r), found[r]) for r in range(self.vec)])
            reduce_columns(smem, rAcc, monoid, self.lanes, self.threads)
            totals = [(*totals[r], *get(rAcc, r)) for r in range(self.vec)]
            if const_expr(p == launch):
                for r in cutlass.range_constexpr(self.vec):
                    for k in cutlass.range_constexpr(len(rAcc)):
                        store_if(gAcc[r][k], part, rAcc[k][r], inside & (group == 0))

        if const_expr(launch in (ALL, len(passes))):
            constants = [program.constants(totals[r], known[r]) for r in range(self.vec)]
            for r in cutlass.range_constexpr(self.vec):
                self.write_results(gs[r], constants[r], known[r], inside & (group == 0) & (part == 0))
            if const_expr(len(names.writes) > 0):
                if const_expr(held):
                    store_tile(self, gs, pieces, constants, begin, end, inside)
                for i in cutlass.range(rest, end, self.capacity, unroll=1):
                    store_tile(self, gs, load_tile(self, gs, i, end), constants, i, end, inside)


@compile_cached
def build(config: ColumnConfig) -> Traceable:
    """What to compile for a configuration."""
    return Traceable(Column.of(config), example_arguments(config), name=config.kernel_name)
