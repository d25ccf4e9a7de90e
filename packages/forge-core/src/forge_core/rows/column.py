"""Neighboring threads have neighboring rows: for rows that are not contiguous, as in softmax(x, 0).

A block has a tile of ``lanes * vec`` neighboring rows, and its threads walk down them:

                 rows ->  lane 0    lane 1   ...      a thread reads ``vec`` rows at once, 16 bytes where it can
    group 0      n = 0    [16 B]    [16 B]
    group 1      n = 1    [16 B]    [16 B]            each place of the 16 bytes is a row of its own, with totals of
      ...                                             its own
    group 0      n = G    [16 B]    [16 B]   ...      chunk 1 of the same threads

    exchange     lanes of a warp that have the same rows: shuffles; warps: shared memory

Bytes moved: rows of at most ``capacity`` elements are read once, from where they stay in registers; longer ones twice.
Limits: few and very long rows leave most of the GPU idle, for a tile of rows has one block.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, Uint32, const_expr
from cutlass.memory import SmemAllocator

from forge_core.cache import Traceable, compile_cached
from forge_core.cute.copy import copy_if, neighbors
from forge_core.cute.exchange import get, put, reduce_columns
from forge_core.cute.memory import name_kernel
from forge_core.rows.config import ColumnConfig
from forge_core.rows.kernel import RowKernel, example_arguments
from forge_core.rows.values import Piece

__all__ = ["Column", "build"]


class Column(ColumnConfig, RowKernel):
    """The kernel of a configuration."""

    @cute.jit
    def __call__(self, *args: Any):
        """Launches a block for each tile of rows; ``args`` as ``RowKernel.split`` takes them."""
        pointers, length, _, dims, numbers = self.split(args)
        inner = dims[(self.rank - 1) * (1 + len(pointers))]
        tiles = (inner + (self.tile - 1)) // self.tile
        name_kernel(self.kernel, self.kernel_name)
        self.kernel(pointers, Int32(length), dims, numbers, Uint32(tiles)).launch(
            grid=(Int32(self.rows_of(dims) // inner * tiles), 1, 1),
            block=(self.threads, 1, 1),
            stream=args[-1],
            **self.room(self.threads),
        )

    @cute.kernel
    def kernel(self, pointers: tuple, length: Int32, dims: tuple, numbers: tuple, tiles: Uint32):
        program, names, passes = self.binding.program, self.binding.program.operands, self.passes
        smem = SmemAllocator()
        thread, block = cute.arch.thread_idx()[0], Uint32(cute.arch.block_idx()[0])
        lane, group = thread % self.lanes, thread // self.lanes
        inner = dims[(self.rank - 1) * (1 + len(pointers))]

        # This thread's first row.  Threads beyond the last row stand in the first one and write nothing.
        column = Int64(block % tiles) * self.tile + lane * self.vec
        inside = column < inner
        first = Int64(block // tiles) * inner + cutlass.select_(inside, column, Int64(0))
        gs = [self.row_of(pointers, length, dims, first + r) for r in range(self.vec)]
        known = [self.known(g, length, numbers) for g in gs]

        step = self.capacity
        turns = (length + (step - 1)) // step
        held = self.load(gs, group, length)
        totals = [() for _ in range(self.vec)]
        for p in cutlass.range_constexpr(len(passes)):
            folds, monoid = passes[p]
            rAcc = [cute.make_rmem_tensor(self.vec, dtype) for dtype in monoid.types]
            put(rAcc, [self.fold_each(folds, [held[r]], known[r], totals[r]) for r in range(self.vec)])
            if const_expr(not self.held):
                for turn in cutlass.range(1, turns, unroll=1):
                    more = self.load(gs, group + turn * step, length)
                    found = [self.fold_each(folds, [more[r]], known[r], totals[r]) for r in range(self.vec)]
                    put(rAcc, [monoid.combine(get(rAcc, r), found[r]) for r in range(self.vec)])
            reduce_columns(smem, rAcc, monoid, self.lanes, self.threads)
            totals = [(*totals[r], *get(rAcc, r)) for r in range(self.vec)]

        constants = [program.constants(totals[r], known[r]) for r in range(self.vec)]
        for r in cutlass.range_constexpr(self.vec):
            self.write_results(gs[r], constants[r], known[r], inside & (group == 0))
        if const_expr(len(names.writes) > 0):
            self.store(gs, held, constants, group, length, inside)
            if const_expr(not self.held):
                for turn in cutlass.range(1, turns, unroll=1):
                    begin = group + turn * step
                    self.store(gs, self.load(gs, begin, length), constants, begin, length, inside)

    def load(self, gs: list[Any], begin: Int32, length: Int32) -> list[Piece]:
        """For each of this thread's rows, the elements ``begin``, ``begin + groups``, ...: a piece of each row."""
        names, g = self.binding.program.operands, gs[0]
        groups = self.threads // self.lanes
        rInside, index = cute.make_rmem_tensor(self.chunks, Boolean), cute.make_rmem_tensor(self.chunks, Int32)
        rX = {n: cute.make_rmem_tensor((self.vec, self.chunks), g[n].element_type) for n in self.binding.loaded}
        rW = {n: cute.make_rmem_tensor(self.chunks, g[n].element_type) for n in names.columns}
        for c in range(self.chunks):
            n = begin + c * groups
            rInside[c], index[c] = n < length, n
            own = Int32(cutlass.select_(n < length, n, 0))
            for name, r in rX.items():
                rX_c = cute.make_rmem_tensor(self.vec, r.element_type)
                cute.autovec_copy(neighbors(g[name], own, self.vec), rX_c)
                for i in range(self.vec):
                    r[i, c] = cutlass.select_(rInside[c], rX_c[i], self.nothing(name, g))
            for name, r in rW.items():
                r[c] = cutlass.select_(rInside[c], g[name][own], self.nothing(name, g))
        pieces = []
        for i in range(self.vec):
            registers = {n: partial(_row, r, i) for n, r in rX.items()} | {n: r.load for n, r in rW.items()}
            pieces.append(self.piece(gs[i], registers, index.load, rInside.load(), self.chunks, store=None))
        return pieces

    def store(
        self, gs: list[Any], pieces: list[Piece], constants: list[Any], begin: Int32, length: Int32, inside: Boolean
    ) -> None:
        """Computes and writes the outputs at the places of some pieces."""
        names, g = self.binding.program.operands, gs[0]
        rY = {n: cute.make_rmem_tensor((self.vec, self.chunks), g[n].element_type) for n in names.writes}
        for i in range(self.vec):
            for name, y in zip(names.writes, self.binding.program.map(pieces[i], constants[i]), strict=True):
                out = y.to(g[name].element_type)
                for c in range(self.chunks):
                    rY[name][i, c] = out[c]
        for c in range(self.chunks):
            n = begin + c * (self.threads // self.lanes)
            for name, r in rY.items():
                own = Int32(cutlass.select_(n < length, n, 0))
                copy_if(r[None, c], neighbors(g[name], own, self.vec), inside & (n < length))


def _row(rX: cute.Tensor, i: int) -> Any:
    """One row's elements among those of neighboring rows."""
    rRow = cute.make_rmem_tensor(rX.shape[1], rX.element_type)
    for c in range(rX.shape[1]):
        rRow[c] = rX[i, c]
    return rRow.load()


@compile_cached
def build(config: ColumnConfig) -> Traceable:
    """What to compile for a configuration."""
    return Traceable(Column.of(config), example_arguments(config), name=config.kernel_name)
