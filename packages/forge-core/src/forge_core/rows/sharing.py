"""Reductions over the threads that share a row on chip: lanes of a warp, a block, a cluster or the grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutlass import Uint32

from forge_core.cute.exchange import Exchange, reduce_row
from forge_core.cute.monoid import Monoid
from forge_core.cute.warp import reduce_lanes, reduce_part
from forge_core.rows.kernel import RowKernel
from forge_core.rows.program import Fold
from forge_core.rows.values import Piece, Row


class SharedRowKernel(RowKernel):
    """Mixin of configurations of kernels whose threads share rows on chip.

    Attributes:
        lanes: lanes per row; 0 for all threads of one or several blocks.
    """

    lanes: int

    def exchanged(self) -> tuple[Monoid, ...]:
        """The monoid of each exchange; none with lanes, which use shuffles."""
        folds = [fold for fold in self.binding.program.folds if self.sized and (self.merges or fold.op != "count")]
        return (self.merge(),) if self.merges and folds else tuple(map(self.monoid, folds))

    def of_lanes(self, total: Any, fold: Fold) -> Any:
        """Reduces over the lanes of a row."""
        return reduce_part(total, self.monoid(fold), self.lanes)

    def reduce(self, pieces: list[Piece], row: Row, exchange: Sequence[Exchange], zero: Uint32) -> tuple[Any, ...]:
        """The totals of a row, in all threads that share it.

        With a merge (``merges``), folds see the totals of the thread's own elements, and one exchange follows the last
        fold.  Lanes reduce each total before the next fold instead, without an exchange.

        Args:
            pieces: the thread's elements.
            row: values of the row.
            exchange: an exchange for each monoid of :meth:`exchanged`.
            zero: 0, of which the compiler knows only that it is 0 or 1.
        """
        program = self.binding.program
        totals: tuple[Any, ...] = ()
        if program.joint:
            totals, monoid = self.fold_each(program.folds, pieces, row, totals), self.merge()
            return reduce_row(totals, monoid, exchange[0]) if self.sized else reduce_lanes(totals, monoid, self.lanes)
        merged, exchanges = self.merges and self.sized and len(program.folds) > 0, iter(exchange)
        for i, fold in enumerate(program.folds):
            if i > 0 and program.folds[i - 1].op != "count":
                self.drop_conversions(pieces, totals, zero << i)
            total = self.fold(fold, pieces, row, totals)
            if not merged and fold.op == "count":
                total = row.count
            elif not self.sized:
                total = self.of_lanes(total, fold)
            elif not merged:
                (total,) = reduce_row((total,), self.monoid(fold), next(exchanges))
            totals = (*totals, total)
        return reduce_row(totals, self.merge(), exchange[0]) if merged else totals
