"""Kernels that split rows: for each pass a launch that computes partial results, and one that combines them.

    pass p       a block per part         -> its total, in the workspace
    finish p     a block per eight rows   -> the total of all parts, stored behind theirs
    write        a block per part         <- the totals of all passes

A program without outputs of row length has no launch to write: the last finish computes its results.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

from forge_core.cute.copy import store_if
from forge_core.cute.exchange import FINISHED, finish_parts
from forge_core.cute.grid import follow, lead
from forge_core.cute.memory import GLOBAL, launch_bounds, name_kernel
from forge_core.cute.monoid import Monoid
from forge_core.rows.kernel import RowKernel
from forge_core.rows.program import Fold

ALL = -1
"""Instead of the index of a pass: a launch that runs all of them."""


class PartedKernel(RowKernel):
    """Mixin of configurations of kernels that split rows."""

    overlap: bool
    kernel: Any  # of a pass: see :meth:`launch_all`

    @property
    def passes(self) -> tuple[tuple[tuple[Fold, ...], Monoid], ...]:
        """The folds and the monoid of each pass over a row that is streamed."""
        folds = self.binding.program.folds
        if self.binding.program.merge and folds:
            return ((folds, self.merge()),)
        return tuple(((fold,), self.monoid(fold)) for fold in folds)

    @property
    def launches(self) -> tuple[int, ...]:
        """The ``pass_index`` of each launch: of the passes, their number for the one that writes; or ``ALL``."""
        return tuple(range(len(self.passes) + bool(self.binding.operands.writes))) if self.workspace else (ALL,)

    def partials(self, scratch: Int64, p: int, rows: Any, row: Int64, parts: Any) -> list[cute.Tensor]:
        """Partial results of pass ``p`` of a row, in the workspace: (parts) for each element of an accumulator.

        Each takes 8 bytes; neighboring rows are contiguous.
        """
        before = sum(len(monoid.types) for _, monoid in self.passes[:p])
        found = []
        for k, dtype in enumerate(self.passes[p][1].types):
            start = scratch + 8 * ((before + k) * Int64(parts) * rows + row)
            layout = cute.make_layout(Int32(parts), stride=rows * (8 // (dtype.width // 8)))
            found.append(cute.make_tensor(cute.make_ptr(dtype, start, GLOBAL, assumed_align=8), layout))
        return found

    def launch_all(self, own: tuple[Any, ...], row: tuple[Any, ...], parts: Int32, stream: Any, **shape: Any) -> None:
        """Launches the kernel for each pass with the arguments ``own``, and :meth:`finish` after it with ``row``.

        ``shape`` is the grid, the block and other arguments of the kernel's launches.
        """
        for pass_index in self.launches:
            name_kernel(self.kernel, f"{self.kernel_name}_pass{pass_index}" if self.workspace else self.kernel_name)
            overlap = self.overlap and pass_index > 0
            self.kernel(*own, pass_index).launch(
                **shape, **self.resources(self.threads), stream=stream, use_pdl=overlap
            )
            if ALL < pass_index < len(self.passes):
                name_kernel(self.finish, f"{self.kernel_name}_finish{pass_index}")
                self.finish(*row, parts, pass_index).launch(
                    grid=(Int32((self.rows_of(row[3]) + (FINISHED - 1)) // FINISHED), 1, 1),
                    block=(self.threads, 1, 1),
                    stream=stream,
                    use_pdl=self.overlap,
                    **launch_bounds(1),
                    smem=self.threads * sum(dtype.width // 8 for dtype in self.passes[pass_index][1].types) + 64,
                )

    @cute.kernel
    def finish(
        self,
        pointers: tuple,
        scratch: Int64,
        length: Int64,
        dims: tuple,
        numbers: tuple,
        parts: Int32,
        pass_index: cutlass.Constexpr,
    ):
        """Combines the partial results of a pass."""
        program, rows, ends = self.binding.program, self.rows_of(dims), pass_index + 1 == len(self.launches)
        thread, monoid = cute.arch.thread_idx()[0], self.passes[pass_index][1]
        lead(self.overlap and not ends)
        row = Int64(cute.arch.block_idx()[0]) * FINISHED + thread % FINISHED
        inside = row < rows
        row = Int64(cutlass.select_(inside, row, Int64(0)))
        gAcc = [self.partials(scratch, p, rows, row, parts + 1) for p in range(pass_index + 1)]
        follow(self.overlap)
        total = finish_parts(gAcc[pass_index], monoid, parts, self.threads)
        inside = inside & (thread < FINISHED)
        if const_expr(ends):
            g = self.row_of(pointers, length, dims, row)
            row_values = self.row_values(g, length, numbers)
            before = [one[parts] for each in gAcc[:pass_index] for one in each]
            self.write_results(g, program.constants((*before, *total), row_values), row_values, inside)
        else:
            for k in cutlass.range_constexpr(len(total)):
                store_if(gAcc[pass_index][k], parts, total[k], inside)
