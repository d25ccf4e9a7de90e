"""Sums over rows, for each index within a row: per thread in registers, per team in the workspace, then over teams.

    accumulate   row n, n + B, ...   -> rSum (vec, chunks)       each thread, over the rows of its team
    write        rSum                -> gSum (length) of a team  with lanes, after a reduction over the block's rows
    finish       gSum of all teams   -> (length)                 a second launch, in a fixed order

All sums are in the compute dtype, so that a 16-bit output is rounded once.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, const_expr

from forge_core.cute.copy import behind, registers, store_if
from forge_core.cute.exchange import FINISHED, Places, combine_places, finish_parts
from forge_core.cute.grid import follow
from forge_core.cute.memory import GLOBAL, elements_at, launch_bounds, name_kernel
from forge_core.cute.monoid import Each, Sum
from forge_core.dtypes import cute_dtype
from forge_core.rows.folds import masked
from forge_core.rows.kernel import SharedRowKernel
from forge_core.rows.successive import Successive
from forge_core.rows.values import Piece

#: Of the kernel that adds up the sums of teams: threads per block, loads in flight per thread.
FINISH_THREADS, AT_ONCE = 256, 8


class AccumulatingKernel(SharedRowKernel):
    """Mixin of configurations of kernels that accumulate sums over rows."""

    overlap: bool
    stages: int

    def sums(self) -> dict[str, cute.Tensor]:
        """A thread's sums, zeroed."""
        shape, compute = (self.vec, self.chunks), cute_dtype(self.binding.compute)
        return {name: registers(shape, compute, 0) for name in self.binding.operands.accumulates}

    def accumulate(self, sums: dict[str, cute.Tensor], v: Piece, c: int, constants: Any) -> None:
        """Adds the contributions of a thread's chunk ``c``."""
        terms = self.binding.program.accumulate(v, constants)
        for rSum, term in zip(sums.values(), terms, strict=True):
            own = term if self.sized else masked(v, term, term.dtype(0))  # of lanes past the last row nothing
            rSum[None, c].store(rSum[None, c].load() + own)

    def write_partial_sums(
        self, sums: dict[str, cute.Tensor], mine: Successive, scratch: Int64, team: Int32, teams: Int32, smem: Any
    ) -> None:
        """Writes a team's sums to the workspace."""
        length, thread = mine.arguments[1], cute.arch.thread_idx()[0]
        if const_expr(not self.sized):
            self._add_lanes(sums, behind(smem), thread)
        for k, rSum in enumerate(sums.values()):
            gSum = self._sums_of(scratch, k, team, teams, length)
            for c in range(self.chunks):
                inside = (thread < self.lanes if not self.sized else Boolean(True)) & (mine.begin(c) < Int32(length))
                mine.store(gSum, inside, c, rSum[None, c].load(), whole=Int32(0))

    def _add_lanes(self, sums: dict[str, cute.Tensor], start: Int32, thread: Int32) -> None:
        """Adds up the sums of all rows of a block, in the shared memory of the pipeline."""
        compute, width = cute_dtype(self.binding.compute), self.lanes * self.vec
        sSum = elements_at(start, compute, self.threads * self.vec, cute.AddressSpace.smem)
        if self.stages:
            cute.arch.cp_async_wait_group(0)
        rows = [thread % self.lanes * self.vec + r for r in range(self.vec)]
        places = Places(Int32(width), Int32(self.threads // self.lanes), thread * self.vec, rows, [])
        for rSum in sums.values():
            for c in range(self.chunks):
                cute.arch.sync_threads()
                combine_places([rSum[None, c]], [sSum], Sum(compute), places)

    def _sums_of(self, scratch: Int64, k: int, team: Any, teams: Any, length: Any) -> cute.Tensor:
        """The sums of a team, in the workspace: (length)."""
        compute = cute_dtype(self.binding.compute)
        start = scratch + (Int64(team) + Int64(k) * teams) * Int64(length) * (compute.width // 8)
        return cute.make_tensor(cute.make_ptr(compute, start, GLOBAL, assumed_align=8), cute.make_layout(length))

    def finish_sums(self, *args: Any) -> None:
        """Launches :meth:`finish`; ``args``: its arguments and the stream."""
        name_kernel(self.finish, f"{self.kernel_name}_finish")
        self.finish(*args[:-1]).launch(
            grid=((args[2] + FINISHED) // FINISHED, 1, 1),  # one at least
            block=(FINISH_THREADS, 1, 1),
            stream=args[-1],
            use_pdl=self.overlap,
            **launch_bounds(1),
            smem=FINISH_THREADS * len(self.binding.operands.accumulates) * self.binding.compute.itemsize + 64,
        )

    @cute.kernel
    def finish(self, pointers: tuple, scratch: Int64, length: Int32, dims: tuple, teams: Int32):
        """Adds up the sums of all teams."""
        names = self.binding.operands.accumulates
        monoid = Each((Sum(cute_dtype(self.binding.compute)),) * len(names))
        thread, index = cute.arch.thread_idx()[0], Int32(cute.arch.block_idx()[0]) * FINISHED
        index = index + thread % FINISHED
        inside = index < length
        own = Int32(cutlass.select_(inside, index, 0))
        gSum = []
        for k in cutlass.range_constexpr(len(names)):
            gTeam = self._sums_of(scratch, k, Int32(0), teams, length)
            gSum.append(cute.make_tensor(gTeam.iterator + own, cute.make_layout(teams, stride=Int64(length))))
        follow(self.overlap)
        totals = finish_parts(gSum, monoid, teams, FINISH_THREADS, AT_ONCE)
        g = self.row_of(pointers, length, dims, Int64(0))
        for name, total in zip(names, totals, strict=True):
            store_if(g[name], own, total, inside & (thread < FINISHED))
