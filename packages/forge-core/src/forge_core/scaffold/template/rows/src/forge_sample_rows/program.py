"""The arithmetic, as a row program: ``forge_core.rows.program`` says all that a program may have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forge_core.rows import Fold, Operands, RowProgram, rsqrt


@dataclass(frozen=True)
class SampleNorm(RowProgram):
    """``y = x * rsqrt(mean(x^2) + eps)``."""

    operands = Operands(rows=("x",), writes=("y",), numbers=("eps",))
    # masked=False: elements outside the row are read as 0, which adds nothing to a sum of squares.
    folds = (Fold("sum", lambda v, row: v.x * v.x, masked=False),)

    def constants(self, totals: tuple[Any, ...], row: Any) -> Any:
        """Once a row: the reciprocal root of the mean square."""
        return rsqrt(totals[0] / row.count + row.eps)

    def map(self, v: Any, constants: Any) -> tuple[Any, ...]:
        """For each vector of elements: what is written."""
        return (v.x * constants,)
