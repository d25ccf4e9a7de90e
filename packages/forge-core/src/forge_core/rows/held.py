"""Rows held on chip, in registers or shared memory: one read and one write, for any program.

The configuration says which threads share a row; without lanes, threads per block are a launch argument.

    lanes > 0      lanes of a warp; a block has several rows      warp shuffles
    blocks == 1    a block                                        shared memory
    blocks > 1     a cluster                                      distributed shared memory
    blocks == 0    as many blocks as the row needs                with folds (``in_grid``): a cooperative launch and
                                                                  slots in global memory

    load     vectors p, p + T, p + 2T, ... of a row by thread p of T, ``chunks`` each, all in flight before the first
             use; with ``blocks == 0`` each block has a contiguous part.  The last ``staged`` vectors go to shared
             memory, as column operands may; copies of those are made by a launch before, if ``columns_realigned``
    fold     per thread, then an exchange after which every thread has the total; map and store

A vector is 16 bytes of the narrowest operand, at most 8 elements.  The head and tail of ``shifted`` and ``unaligned``
rows are read by element, ``edges`` per thread; ``element`` rows are read by element throughout, ``paired`` rows by two.
Bytes moved: each element read once and written once, so that DRAM bandwidth is the bound.  A block's loads overlap only
with the arithmetic and stores of other resident blocks.  Limits: ``HeldConfig.capacity`` vectors per row, or per block
if ``blocks`` is 0: rows of a grid are limited by the number of multiprocessors, those of maps are not.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32, const_expr
from cutlass.memory import SmemAllocator

from forge_core.cute import SLOT_BYTES
from forge_core.cute.exchange import Sharers, open_exchange
from forge_core.cute.grid import Slots, follow
from forge_core.cute.memory import name_kernel
from forge_core.cute.warp import reduce_part
from forge_core.rows.columns import Columns
from forge_core.rows.config import HeldConfig
from forge_core.rows.kernel import row_builder
from forge_core.rows.pieces import PREDICATES
from forge_core.rows.program import Fold
from forge_core.rows.realign import RealigningKernel


class Held(HeldConfig, RealigningKernel):
    """The kernel of a configuration."""

    @cute.jit
    def __call__(self, *args: Any):
        """Launches the blocks of all rows; ``args``: see :meth:`RowKernel.unpack`."""
        pointers, length, threads, dims, numbers = self.unpack(args)
        step, rows = threads * self.chunks, self.rows_of(dims)
        parts = (length // self.vec + (step - 1)) // step if const_expr(self.blocks == 0) else self.blocks
        each = 1 if const_expr(self.sized) else threads // self.lanes * self.rows
        groups = (rows + (each - 1)) // each
        name_kernel(self.kernel, self.kernel_name)
        slots = (self.scratch(args), args[-2]) if const_expr(self.workspace) else ()
        if const_expr(self.columns_realigned):
            self.launch_realign(pointers, self.scratch(args), Int32(length), dims, args[-1])
        sizes = Int32(length), Int32(threads), Uint32(parts), Int64(rows), self.policy(rows, length)
        self.kernel(pointers, slots, sizes, (self.nested(dims), *dims), numbers).launch(
            grid=(Int32(parts), Int32(rows), 1) if const_expr(self.in_grid) else (Int32(groups * parts), 1, 1),
            block=(Int32(threads), 1, 1) if const_expr(self.sized) else (threads, 1, 1),
            max_number_threads=(self.threads, 1, 1) if const_expr(self.sized) else (0, 0, 0),
            cluster=(self.blocks, 1, 1) if const_expr(self.blocks > 1) else None,
            cooperative=self.in_grid,
            stream=args[-1],
            **({"use_pdl": True} if self.columns_realigned else {}),
            **self.resources(threads),
        )

    @cute.kernel
    def kernel(self, pointers: tuple, slots: tuple, sizes: tuple, dims: tuple, numbers: tuple):
        (length, threads, parts, rows, policy), program, smem = sizes, self.binding.program, SmemAllocator()
        nested, dims = dims[0], dims[1:]
        thread, (block, group, _) = cute.arch.thread_idx()[0], map(Uint32, cute.arch.block_idx())
        if const_expr(not self.in_grid):
            block, group = block % (self.blocks or parts), block // (self.blocks or parts)
        # who: index of this thread among those of the row; rank of its block in the row; threads per block, or lanes.
        rank, width = Int32(block), threads if const_expr(self.sized) else self.lanes
        who = (rank * width + thread if const_expr(self.sized) else thread % width), rank, width
        monoids, sharers = self.exchanged(), Sharers(threads, self.threads, max(self.blocks, 1), rank)
        if const_expr(self.in_grid):
            start = slots[0] + Int64(group) * len(monoids) * (Int64(parts) * SLOT_BYTES)
            sharers = Sharers(threads, self.threads, slots=Slots(start, slots[1], rank, Int32(parts), threads))
        exchange = open_exchange(smem, monoids, sharers)

        # Load: all addresses first, so that the loads of a thread's rows follow one another.
        lines = []
        for turn in cutlass.range_constexpr(self.rows):
            row, source, count = Int64(group), Int64(group), length
            if const_expr(not self.sized):
                # Lane groups past the last row are clamped to it with count 0, so that the warp stays converged.
                row = (row * self.rows + turn) * (self.threads // width) + thread // width
                source, count = cutlass.min(row, rows - 1), Int32(cutlass.select_(row < rows, length, 0))
            lines.append((row, count, self.row_of(pointers, length, dims, source, nested=nested)))
        held = [(*line, self.load(line[2], line[1], who, smem, policy, slots)) for line in lines]

        for row, count, g, pieces in held:
            # Fold and exchange.
            row_values, zero = self.row_values(g, length, numbers), Uint32(count) >> 31  # 0, unknown to the compiler
            totals = self.reduce(pieces, row_values, exchange, zero)

            # Map and store.  `drop_conversions`: converting elements again instead of keeping them in 32 bits.
            constants = program.constants(totals, row_values)
            self.write_results(g, constants, row_values, (who[0] == 0) & (row < rows))
            if const_expr(len(self.binding.operands.writes) > 0):
                if const_expr(len(totals) > 0):
                    self.drop_conversions(pieces, totals, zero << len(totals))
                self.map(pieces, constants)
        # Under graph capture, blocks of a grid clear their slots, since a replay has the same number.
        for i in cutlass.range_constexpr(len(monoids) if self.in_grid else 0):
            exchange[i].slots.clear(monoids[i])

    def load(
        self, g: dict[str, cute.Tensor], count: Int32, who: tuple, smem: Any, policy: Int64, slots: tuple
    ) -> list[Any]:
        """Loads a thread's pieces of a row, among them elements of its head and tail."""
        thread_in_row, rank, width = who
        threads = width * max(self.blocks, 1)
        # With ``blocks == 0`` each block has a contiguous part of the row; the blocks of a cluster are interleaved.
        first = rank * (width * self.chunks * self.vec) if self.blocks == 0 else Int32(0)
        start = thread_in_row - rank * width if self.blocks == 0 else thread_in_row
        if self.align == "element":
            each = [first + start + c * threads for c in range(self.chunks)]
            end = count if self.chunks * self.rows > PREDICATES else None
            return [self.element(g, i, i < count, end=end) for i in each]
        head, body = Int32(0), count
        if self.has_edges:
            head = cutlass.min(self.head(g), count)
            rest = cutlass.max(count - head - self.behind, 0) if self.behind else count - head
            head, body = self.inner(head, rest & -self.vec)
        inner, at = (g | self.realigned(g, slots[0], head), first) if self.columns_realigned else (g, head + first)
        columns = Columns(self, inner, at, body - first, start, threads)
        edges = (thread_in_row + e * width for e in range(self.edges)) if self.has_edges else ()
        ends = [(Int32(cutlass.select_(i < head, i, i + body)), i < count - body) for i in edges]
        elements = [self.element(g, *end, alone=True) for end in ends]
        vectors = self.vectors(columns, (head + first, body - first), policy, smem, self.staged)
        follow(self.columns_realigned)
        columns.prefetch(smem, width)
        return vectors + elements

    def of_lanes(self, total: Any, fold: Fold) -> Any:
        """Reduces over the lanes of a row; looked up in this module, where tests plant a faulty function."""
        return reduce_part(total, self.monoid(fold), self.lanes)


build = row_builder(Held)
