"""Rows held in registers: one read and one write of memory, whatever the program does with them.

A row is held by some lanes of a warp, by a block, or by a cluster of blocks.  Its threads take turns along it, a vector
each, and ask for all of theirs before they use the first:

    thread      0       1     ...  T-1  |  0       1    ...        T = lanes * blocks
    vector      [16 B]  [16 B]          |  [16 B]  ...             all in flight at once
                  |
                  v  fold: the thread's totals
    exchange    lanes: shuffles; block: shared memory; cluster: distributed shared memory
                  |
                  v  constants of the row
    map, store  [16 B]  [16 B]  ...      the same vectors, from registers

Bytes moved: each element is read once and written once, so the bound is DRAM bandwidth.  A block alternates between
loading, exchanging and storing; several resident blocks overlap.

Limits: rows of at most ``capacity`` vectors.  Programs without folds may have any number of blocks a row.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32, const_expr
from cutlass.memory import SmemAllocator

from forge_core.cache import Traceable, compile_cached
from forge_core.cute.copy import store_if
from forge_core.cute.exchange import open_exchange, reduce_row
from forge_core.cute.memory import name_kernel
from forge_core.cute.room import room_for
from forge_core.cute.warp import WARP, reduce_part
from forge_core.rows.config import HeldConfig
from forge_core.rows.kernel import RowKernel, example_arguments

__all__ = ["Held", "build"]


class Held(HeldConfig, RowKernel):
    """The kernel of a configuration."""

    @property
    def in_warp(self) -> bool:
        """Whether lanes of one warp hold a row, or every thread works for itself."""
        return self.blocks == 0 or (self.lanes <= WARP and self.blocks == 1)

    @cute.jit
    def __call__(self, *args: Any):
        """Launches the blocks of all rows; ``args`` as ``RowKernel.split`` takes them."""
        pointers, length, dims, numbers = self.split(args)
        step, group = self.lanes * self.chunks * self.vec, self.threads // self.lanes
        parts = (length + (step - 1)) // step if const_expr(self.blocks == 0) else self.blocks
        name_kernel(self.kernel, self.kernel_name)
        self.kernel(pointers, Int32(length), dims, numbers, Uint32(parts)).launch(
            grid=(Int32((self.rows_of(dims) + (group - 1)) // group * parts), 1, 1),
            block=(self.threads, 1, 1),
            cluster=(self.blocks, 1, 1) if const_expr(self.blocks > 1) else None,
            stream=args[-1],
            **room_for(self.resident),
        )

    @cute.kernel
    def kernel(self, pointers: tuple, length: Int32, dims: tuple, numbers: tuple, parts: Uint32):
        program, names, lanes = self.binding.program, self.binding.program.operands, self.lanes
        exchange = open_exchange(SmemAllocator(), self.exchanged(), self.threads // WARP, self.blocks)
        m, rows = self.operands(pointers, length, dims), self.rows_of(dims)

        # Which row, and which of the threads that take turns along it.
        thread, block = cute.arch.thread_idx()[0], Uint32(cute.arch.block_idx()[0])
        rank = Int32(block % (parts if const_expr(self.blocks == 0) else max(self.blocks, 1)))
        group = block // (parts if const_expr(self.blocks == 0) else max(self.blocks, 1))
        row, place = Int64(group) * (self.threads // lanes) + thread // lanes, rank * lanes + thread % lanes
        own, count = row, length
        if const_expr(self.threads > lanes):
            # Lanes beyond the last row take part in shuffles: they stand in that row and hold nothing of it.
            own, count = cutlass.min(row, rows - 1), Int32(cutlass.select_(row < rows, length, 0))
        line, at = self.line(m, own)

        # Load.
        pieces = self.load(line, count, place, rank)

        # Fold and exchange.
        known, zero = self.known(m, line, at, length, numbers), Uint32(count) >> 31
        totals: tuple[Any, ...] = ()
        merged = const_expr(program.merge != "" and not self.in_warp)
        for i in cutlass.range_constexpr(len(program.folds)):
            fold = program.folds[i]
            if const_expr(i > 0):
                self.forget(pieces, totals, zero << i)
            total = self.fold(fold, pieces, known, totals)
            if const_expr(self.in_warp):
                total = reduce_part(total, self.monoid(fold), lanes)
            elif const_expr(not merged):
                (total,) = reduce_row((total,), self.monoid(fold), exchange[i], self.blocks, rank)
            totals = (*totals, total)
        if const_expr(merged and len(program.folds) > 0):
            totals = reduce_row(totals, self.merge(), exchange[0], self.blocks, rank)

        # Map and store.
        constants = program.constants(totals, known)
        if const_expr(len(names.results) > 0):
            results = program.results(constants, known)
            for i in cutlass.range_constexpr(len(names.results)):
                store_if(m[names.results[i]], (at,), results[i], (place == 0) & (row < rows))
        if const_expr(len(names.writes) > 0):
            if const_expr(len(totals) > 0):
                self.forget(pieces, totals, zero << len(totals))
            self.map(pieces, constants)

    def load(self, line: dict[str, cute.Tensor], count: Int32, place: Int32, rank: Int32) -> list[Any]:
        """A thread's pieces of a row; a row's first threads also have an element each outside whole vectors."""
        threads = self.lanes * max(self.blocks, 1)
        if self.align == "element":
            numbers = [place + c * threads for c in range(self.chunks)]
            return [self.element(line, i, i < count) for i in numbers]
        first = rank * (self.lanes * self.chunks * self.vec) if self.blocks == 0 else Int32(0)
        start = place - rank * self.lanes if self.blocks == 0 else place
        head = cutlass.min(self.head(line), count)
        body = (count - head) // self.vec * self.vec
        pieces = self.vectors(line, head + first, body - first, start, threads)
        if self.align == "shifted":
            i = Int32(cutlass.select_(place < head, place, place + body))
            pieces.append(self.element(line, i, place < count - body))
        return pieces

    def exchanged(self) -> tuple[tuple[Any, ...], ...]:
        """The types of the totals of each exchange."""
        if self.in_warp or not self.binding.program.folds:
            return ()
        if self.binding.program.merge:
            return (self.merge().types,)
        return tuple(self.monoid(fold).types for fold in self.binding.program.folds)


@compile_cached
def build(config: HeldConfig) -> Traceable:
    """What to compile for a configuration."""
    return Traceable(Held(**vars(config)), example_arguments(config), name=config.kernel_name)
