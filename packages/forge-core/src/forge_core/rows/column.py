"""Neighboring threads have neighboring rows, which are not contiguous, as in softmax(x, 0) and softmax(x.t(), 1).

A block has a tile of ``width`` neighboring rows, or one row.  Its threads cover several element indices of the tile at
once and advance along the rows in steps:

                 rows ->  thread 0   thread 1   ...    a thread reads a vector, up to 16 bytes
    step 0       n = 0    [16 B]     [16 B]
                 n = 1    [16 B]     [16 B]            each element of the vector belongs to a row of its own, the same
    step 1       n = 2    [16 B]     [16 B]   ...      one at every step, with totals of its own
                 n = 3    ...

If a tile has all rows and they are contiguous memory together, a vector may span two element indices (``shifted``), so
that any number of rows is read by aligned vectors; so are rows in several tiles, at offsets per thread (``skewed``).

    exchange     elements of the same row, of all threads: through shared memory; one total a row is written from there
    cluster      if tiles are few, a block per part of a tile, which exchange as blocks of a cluster; or
    parts        for each pass a launch that computes partial results, and one that combines them

Bytes moved: a block that has a whole tile keeps its first ``chunks`` steps in registers, so that rows of at most that
length are read once; others once for all folds (with a merge; else once per fold) and once to write.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, const_expr
from cutlass.memory import SmemAllocator

from forge_core.cute.exchange import Cluster, reduce_columns
from forge_core.cute.grid import follow, lead
from forge_core.cute.math import divisor
from forge_core.cute.monoid import get, kept, put
from forge_core.rows.config import ColumnConfig
from forge_core.rows.kernel import grouped, row_builder
from forge_core.rows.parted import ALL, PartedKernel
from forge_core.rows.tile import Tile, load_tile, writer


class Column(ColumnConfig, PartedKernel):
    """The kernel of a configuration."""

    @cute.jit
    def __call__(self, *args: Any):
        """Launches a block per part of each tile; ``args``: see :meth:`RowKernel.unpack`."""
        pointers, length, (parts, width, step, threads), dims, numbers = self.unpack(args)
        inner, rows = grouped(self, dims)[self.rank - 1][0], self.rows_of(dims)
        tiles, parts = (inner + (step - 1)) // step, Int32(parts)
        scratch = self.scratch(args) if const_expr(self.workspace) else Int64(0)
        # Divisions happen here, once, on the host.
        width, threads, edge = Int32(width), Int32(threads), self.vec - 1 if const_expr(self.align == "shifted") else 0
        groups = threads * self.vec // width
        steps = (Int32(length) + (edge + width - 1) // width + groups - 1) // groups
        span = ((steps + (self.chunks - 1)) // self.chunks + parts - 1) // parts * self.chunks
        along = divisor(Int32(grouped(self, dims)[-1][0])) if const_expr(self.reduced == 2) else None
        divisors = divisor(width), divisor(Int32(tiles)), along
        sizes = (Int32(length), self.nested(dims, first=True), width, Int32(step), threads, groups, steps, span, parts)
        # Constants that all rows need first: fewer cache lines of them are waited for.
        inner_first = dims[self.others :] + dims[: self.others]
        own = pointers, scratch, (*sizes, divisors, self.policy(rows, length)), inner_first, numbers
        row = pointers, scratch, Int32(length), dims, numbers
        grid, block = (Int32(rows // inner * tiles), parts, 1), (Int32((threads + 31) // 32 * 32), 1, 1)
        shape = {"grid": grid, "block": block, "max_number_threads": (self.threads, 1, 1)}
        cluster = (1, parts, 1) if const_expr(self.blocks > 1) else None
        self.launch_all(own, row, parts, args[-1], **shape, cluster=cluster)

    @property
    def others(self) -> int:
        """Integers of all kept dims but the innermost."""
        return (self.rank - 1) * (1 + len(self.binding.operands.tensors))

    @cute.kernel
    def kernel(
        self,
        pointers: tuple,
        scratch: Int64,
        sizes: tuple,
        dims: tuple,
        numbers: tuple,
        pass_index: cutlass.Constexpr,
    ):
        program, names, passes, vec = self.binding.program, self.binding.operands, self.passes, self.vec
        length, nested, width, step, threads, groups, steps, span, parts, divisors, policy = sizes
        smem, dims = SmemAllocator(), dims[-self.others :] + dims[: -self.others]
        (block, part, _), rows = cute.arch.block_idx(), self.rows_of(dims)
        inner = grouped(self, dims)[self.rank - 1][0]
        lead(self.overlap and ALL < self.launches[-1] != pass_index)
        cluster = Cluster(part, parts) if const_expr(self.blocks > 1) else None

        # Rows of this block.  Neighboring blocks have neighboring tiles.
        outer, tile_index = divmod(block, divisors[1]) if const_expr(self.rank > 1) else (Int32(0), block)
        first = Int64(tile_index) * step
        g0 = self.row_of(pointers, length, dims, Int64(outer), first=True, nested=nested)
        g0 = self.neighbor(g0, dims, first)
        counts = width, divisors[0], divisors[2], step, threads, groups
        tile = Tile.of(self, g0, counts, length, (first, inner - first), policy)
        g, gs = self.neighbor(g0, dims, tile.first), [self.neighbor(g0, dims, column) for column in tile.columns()]
        row_values = [self.row_values(g, length, numbers) for g in gs]
        begin, end = part * span, cutlass.min(part * span + span, steps)

        last = pass_index in (ALL, len(passes))
        held = last and len(names.writes) > 0  # the first steps, if this launch writes
        pieces, rest = (load_tile(tile, g, gs, begin, end), begin + self.chunks) if const_expr(held) else ([], begin)
        follow(self.overlap and pass_index > 0)
        totals, sTotals, before = [() for _ in range(vec)], [], Int64(outer) * inner + first
        for p in cutlass.range_constexpr(len(passes) if pass_index == ALL else min(pass_index + 1, len(passes))):
            folds, monoid = passes[p]
            if const_expr(p < pass_index):
                gAcc = [self.partials(scratch, p, rows, before + column, parts + 1) for column in tile.columns()]
                totals = [(*totals[r], *[total[parts] for total in gAcc[r]]) for r in range(vec)]
            else:
                accs = [monoid.identity()] * vec
                if const_expr(held):
                    accs = [self.fold_each(folds, [pieces[r]], row_values[r], totals[r]) for r in range(vec)]
                rAcc = kept(monoid, accs)
                for i in cutlass.range(rest, end, self.chunks, unroll=1):
                    more = load_tile(tile, g, gs, i, end)
                    found = [self.fold_each(folds, [more[r]], row_values[r], totals[r]) for r in range(vec)]
                    put(rAcc, [monoid.combine(get(rAcc, r), found[r]) for r in range(vec)])
                spread = not held and p + 1 == (len(passes) if pass_index == ALL else pass_index + 1)
                places = tile.places
                sTotals += reduce_columns(smem, rAcc, monoid, places, self.threads, spread=spread, cluster=cluster)
                totals = [(*totals[r], *get(rAcc, r)) for r in range(vec)]

        if const_expr(held):
            constants = [program.constants(totals[r], row_values[r]) for r in range(vec)]
            for r, one in enumerate(tile.first_of_row()):
                self.write_results(gs[r], constants[r], row_values[r], one & (part == 0))
            store = writer(tile, g, smem, lambda row: self.neighbor(g0, dims, row), inner - first)
            store(pieces, constants, begin, end)
            for i in cutlass.range(rest, end, self.chunks, unroll=1):
                store(load_tile(tile, g, gs, i, end), constants, i, end)
        else:
            # Neighboring threads write what neighboring rows have, from shared memory.
            most = cutlass.select_(part == 0, step, 0) if const_expr(self.blocks > 1) else step
            own = Int32(cutlass.min(Int64(most), inner - first))
            for row in cutlass.range(cute.arch.thread_idx()[0], own, cute.arch.block_dim()[0], unroll=1):
                acc = tuple(total[tile.slot(row)] for total in sTotals)
                if const_expr(last):
                    own_g = self.neighbor(g0, dims, Int64(row))
                    values = self.row_values(own_g, length, numbers)
                    self.write_results(own_g, program.constants(acc, values), values, Boolean(True))
                else:
                    for k, gTotal in enumerate(self.partials(scratch, pass_index, rows, before + row, parts + 1)):
                        gTotal[part] = acc[k]


build = row_builder(Column)
