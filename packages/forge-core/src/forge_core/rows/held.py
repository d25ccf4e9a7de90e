"""Rows held in registers: one read and one write of memory, whatever the program does with them.

A row is held by some lanes of a warp, a block, a cluster of blocks or the grid.  Its threads take turns along it, a
vector each, and ask for all of theirs before they use the first:

    thread      0       1     ...  T-1  |  0       1    ...        T = lanes * blocks
    vector      [16 B]  [16 B]          |  [16 B]  ...             all in flight at once
                  |
                  v  fold: the thread's totals
    exchange    lanes: shuffles; block: shared memory; cluster: distributed; grid: global memory
                  |
                  v  constants of the row
    map, store  [16 B]  [16 B]  ...      the same vectors, from registers

Bytes moved: each element is read once and written once, so the bound is DRAM bandwidth.  A block alternates between
loading, exchanging and storing; several resident blocks overlap.
Limits: rows of at most ``capacity`` vectors.  Programs without folds, and grids, have any number of blocks a row.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32, const_expr
from cutlass.memory import SmemAllocator

from forge_core.cache import Traceable, compile_cached
from forge_core.cute.exchange import Sharers, close_exchange, open_exchange, reduce_row
from forge_core.cute.grid import SLOT_BYTES
from forge_core.cute.memory import name_kernel
from forge_core.cute.monoid import Monoid
from forge_core.cute.room import room_for
from forge_core.cute.warp import reduce_part
from forge_core.rows.config import HeldConfig
from forge_core.rows.kernel import RowKernel, example_arguments

__all__ = ["Held", "build"]


class Held(HeldConfig, RowKernel):
    """The kernel of a configuration."""

    @cute.jit
    def __call__(self, *args: Any):
        """Launches the blocks of all rows; ``args`` as ``RowKernel.split`` takes them."""
        pointers, length, threads, dims, numbers = self.split(args)
        step, rows = threads * self.chunks * self.vec, self.rows_of(dims)
        parts = (length + (step - 1)) // step if const_expr(self.blocks == 0) else self.blocks
        groups = rows if const_expr(self.sized) else (rows + (threads // self.lanes - 1)) // (threads // self.lanes)
        name_kernel(self.kernel, self.kernel_name)
        slots = (args[len(pointers)].toint(), args[-2]) if const_expr(self.in_grid) else (Int64(0), Int64(0))
        self.kernel(pointers, slots, Int32(length), Int32(threads), dims, numbers, Uint32(parts)).launch(
            grid=(Int32(groups * parts), 1, 1),
            block=(Int32(threads), 1, 1) if const_expr(self.sized) else (threads, 1, 1),
            max_number_threads=(self.threads, 1, 1) if const_expr(self.sized) else (0, 0, 0),
            cluster=(self.blocks, 1, 1) if const_expr(self.blocks > 1) else None,
            cooperative=self.in_grid,
            stream=args[-1],
            **room_for(self.resident),
        )

    @cute.kernel
    def kernel(
        self, pointers: tuple, slots: tuple, length: Int32, threads: Int32, dims: tuple, numbers: tuple, parts: Uint32
    ):
        program = self.binding.program
        m, rows = self.operands(pointers, length, dims), self.rows_of(dims)

        # Which row, and which of the threads that take turns along it.
        thread, block = cute.arch.thread_idx()[0], Uint32(cute.arch.block_idx()[0])
        blocks = parts if const_expr(self.blocks == 0) else self.blocks
        rank, group = Int32(block % blocks), block // blocks
        # A launch has as many threads as a row needs, or a block has several rows.
        lanes = threads if const_expr(self.sized) else self.lanes
        row, place, own, count = Int64(group), rank * lanes + thread, Int64(group), length
        if const_expr(not self.sized):
            # Lanes beyond the last row take part in shuffles: they stand in that row and hold nothing of it.
            row, place = row * (self.threads // lanes) + thread // lanes, thread % lanes
            own, count = cutlass.min(row, rows - 1), Int32(cutlass.select_(row < rows, length, 0))
        monoids = self.exchanged()
        sharers = Sharers(threads, self.threads, max(self.blocks, 1), rank)
        if const_expr(self.in_grid):
            start = slots[0] + Int64(group) * len(monoids) * (Int64(parts) * SLOT_BYTES)
            sharers = Sharers(threads, self.threads, 1, rank, Int32(parts), start, slots[1])
        exchange = open_exchange(SmemAllocator(), monoids, sharers)
        line, at = self.line(m, own)

        # Load.
        pieces = self.load(line, count, place, rank, lanes)

        # Fold and exchange.
        known, zero = self.known(m, line, at, length, numbers), Uint32(count) >> 31
        totals: tuple[Any, ...] = ()
        merged = const_expr(program.merge != "" and self.sized and len(program.folds) > 0)
        for i in cutlass.range_constexpr(len(program.folds)):
            fold = program.folds[i]
            if const_expr(i > 0):
                self.forget(pieces, totals, zero << i)
            total = self.fold(fold, pieces, known, totals)
            if const_expr(not self.sized):
                total = reduce_part(total, self.monoid(fold), self.lanes)
            elif const_expr(not merged):
                (total,) = reduce_row((total,), monoids[i], exchange[i])
            totals = (*totals, total)
        if const_expr(merged):
            totals = reduce_row(totals, monoids[0], exchange[0])

        # Map and store.
        constants = program.constants(totals, known)
        self.write_results(m, at, constants, known, (place == 0) & (row < rows))
        if const_expr(len(program.operands.writes) > 0):
            if const_expr(len(totals) > 0):
                self.forget(pieces, totals, zero << len(totals))
            self.map(pieces, constants)
        for i in cutlass.range_constexpr(len(monoids)):
            close_exchange(monoids[i], exchange[i])

    def load(
        self, line: dict[str, cute.Tensor], count: Int32, place: Int32, rank: Int32, lanes: int | Int32
    ) -> list[Any]:
        """A thread's pieces of a row; a row's first threads also have an element each outside whole vectors."""
        threads = lanes * max(self.blocks, 1)
        if self.align == "element":
            numbers = [place + c * threads for c in range(self.chunks)]
            return [self.element(line, i, i < count) for i in numbers]
        # Of any number of blocks each has neighboring vectors; blocks of a cluster take turns.
        first = rank * (lanes * self.chunks * self.vec) if self.blocks == 0 else Int32(0)
        start = place - rank * lanes if self.blocks == 0 else place
        head = cutlass.min(self.head(line), count)
        body = (count - head) // self.vec * self.vec
        pieces = self.vectors(line, head + first, body - first, start, threads)
        if self.align == "shifted":
            i = Int32(cutlass.select_(place < head, place, place + body))
            pieces.append(self.element(line, i, place < count - body))
        return pieces

    def exchanged(self) -> tuple[Monoid, ...]:
        """How the totals of each exchange are combined."""
        program = self.binding.program
        if not self.sized or not program.folds:
            return ()
        return (self.merge(),) if program.merge else tuple(map(self.monoid, program.folds))


@compile_cached
def build(config: HeldConfig) -> Traceable:
    """What to compile for a configuration."""
    return Traceable(Held(**vars(config)), example_arguments(config), name=config.kernel_name)
