"""Persistent blocks: each team processes rows one after the other and loads the next ones meanwhile.

    team b       row b, row b + B, row b + 2 B, ...       B teams: as many as are resident
    load         column operands, once for all rows; rows into a pipeline in shared memory (``successive``)
    fold         per thread, then an exchange among the team; ``delayed``: the next row is folded before totals arrive
    map, store   of the current row; contributions to sums over rows (``accumulate``) are added up in registers
    finish       sums of a team to the workspace; a second launch adds up those of all teams, in a fixed order

    lanes > 0    lanes of a warp share a row; a team is a block, with several rows at once
    blocks == 1  a block; blocks > 1: a cluster, whose exchange is through distributed shared memory

A thread has the same indices of all rows, so that it reads a column operand once and adds up a sum over rows in a
register.  Bytes moved: each element read once and written once; column operands and sums once per team, from the L2.
Bound: DRAM bandwidth, if about 64 KB of rows are in flight per multiprocessor and a row's arithmetic and exchange take
less time than its bytes.  Limits: rows of at most ``PersistentConfig.capacity`` vectors.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32, const_expr
from cutlass.memory import SmemAllocator

from forge_core.cute.copy import behind
from forge_core.cute.exchange import Exchange, Sharers, at_turn, open_exchange, receive, send
from forge_core.cute.grid import lead
from forge_core.cute.memory import name_kernel
from forge_core.rows.accumulate import AccumulatingKernel
from forge_core.rows.kernel import row_builder
from forge_core.rows.successive import Successive
from forge_core.rows.teams import PersistentConfig


class Persistent(PersistentConfig, AccumulatingKernel):
    """The kernel of a configuration."""

    @cute.jit
    def __call__(self, *args: Any):
        """Launches all teams, and the kernel that adds up their sums; ``args``: see :meth:`RowKernel.unpack`."""
        pointers, length, (threads, teams), dims, numbers = self.unpack(args)
        scratch = self.scratch(args) if const_expr(self.workspace) else Int64(0)
        threads = Int32(threads) if const_expr(self.sized) else self.threads
        sizes = Int32(length), threads, Int32(teams), Int64(self.rows_of(dims))
        name_kernel(self.kernel, self.kernel_name)
        self.kernel(pointers, scratch, sizes, dims, numbers).launch(
            grid=(Int32(teams * self.blocks), 1, 1),
            block=(threads, 1, 1),
            max_number_threads=(self.threads, 1, 1),
            cluster=(self.blocks, 1, 1) if const_expr(self.blocks > 1) else None,
            stream=args[-1],
            **self.resources(threads),
        )
        if const_expr(self.workspace):
            self.finish_sums(pointers, scratch, Int32(length), dims, Int32(teams), args[-1])

    @cute.kernel
    def kernel(self, pointers: tuple, scratch: Int64, sizes: tuple, dims: tuple, numbers: tuple):
        (length, threads, teams, rows), program, smem = sizes, self.binding.program, SmemAllocator()
        # Rows of this team, and this thread's index among those of a row.
        thread, block = cute.arch.thread_idx()[0], Int32(cute.arch.block_idx()[0])
        rank, team, own, width = block % self.blocks, block // self.blocks, Int32(0), threads * self.blocks
        thread_in_row = rank * threads + thread
        if const_expr(not self.sized):
            own, thread_in_row, width = thread // self.lanes, thread % self.lanes, self.lanes
        first, step = Int64(team) * self.rows_at_once + own, Int64(teams) * self.rows_at_once
        iterations = Int32((rows - Int64(team) * self.rows_at_once + (step - 1)) // step)
        exchange = open_exchange(
            smem, self.exchanged(), Sharers(threads, self.threads, self.blocks, rank), turns=self.turns
        )
        if const_expr(self.blocks > 1 and len(exchange) > 0):
            cute.arch.cluster_wait()

        # Load.
        arguments, who = (pointers, length, dims, numbers), (thread_in_row, width)
        mine, sums = Successive.of(self, arguments, (rows, first, step), who, behind(smem)), self.sums()
        for iteration in cutlass.range_constexpr(mine.ahead):
            mine.prefetch(Int32(iteration))
        mine.prefetch_scalars(Int32(0))
        zero, scalars = Uint32(length) >> 31, mine.scalars()
        if const_expr(self.delayed):
            _, place = self.fold_ahead(mine, exchange[0], Int32(0), zero)
            mine.prefetch_scalars(Int32(1))

        for iteration in cutlass.range(iterations, unroll=1):
            at = [at_turn(at, iteration) for at in exchange]
            # Fold and exchange, map and store.
            if const_expr(self.delayed):
                mine.prefetch(iteration + mine.ahead)
                following, _ = self.fold_ahead(mine, exchange[0], iteration + 1, zero)
                mine.prefetch_scalars(iteration + 2)
                pieces, row_values, g, inside = mine.at(iteration, scalars)
                for name, rX in scalars.items():
                    rX.store(following[name].load())
                totals = receive(self.exchanged()[0], at[0], place)
                self.drop_conversions(pieces, totals, zero << len(totals))
            else:
                pieces, row_values, g, inside = mine.at(iteration, mine.scalars())
                mine.wait(iteration)
                if const_expr(self.stages != 1):
                    mine.prefetch(iteration + mine.ahead)
                mine.prefetch_scalars(iteration + 1)
                totals = self.reduce(pieces, row_values, at, zero)
            constants = program.constants(totals, row_values)
            self.write_results(g, constants, row_values, (thread_in_row == 0) & inside)
            for c in cutlass.range_constexpr(self.chunks):
                self.map(pieces[c : c + 1], constants)
                self.accumulate(sums, pieces[c], c, constants)
                if const_expr(self.stages == 1):
                    cute.arch.sync_warp()  # keeps reads of the chunk ahead of the copies that overwrite it
                    mine.prefetch(iteration + 1, c)
        if const_expr(self.delayed):
            receive(self.exchanged()[0], at_turn(exchange[0], iterations), place)  # before this block's memory is freed

        if const_expr(self.workspace):
            lead(self.overlap)
            self.write_partial_sums(sums, mine, scratch, team, teams, smem)

    def fold_ahead(self, mine: Successive, exchange: Exchange, iteration: Int32, zero: Uint32) -> tuple[Any, Any]:
        """Folds the row of an iteration and starts its exchange: its scalars, and the place of the warp."""
        scalars = mine.scalars()
        pieces, row_values, *_ = mine.at(iteration, scalars)
        mine.wait(iteration)
        own = self.reduce(pieces, row_values, (), zero)
        _, place = send(own, self.exchanged()[0], at_turn(exchange, iteration))
        return scalars, place


build = row_builder(Persistent)
