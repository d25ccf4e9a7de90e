"""The folds of a program on the GPU: their monoids, a vector's total, and how the totals of two parts become one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import cutlass
import cutlass.cute as cute

from forge_core.cute.moments import Moments
from forge_core.cute.monoid import Each, Maximum, Minimum, Monoid, Product, Sum
from forge_core.cute.online import MaxSum
from forge_core.rows.program import Fold, RowProgram
from forge_core.rows.values import Piece, bound, scalar

__all__ = ["FOLDS", "across", "counted", "merge_of"]

#: A fold's monoid, how a vector becomes one element, and what adds nothing.
FOLDS: dict[str, tuple[Any, Any, float]] = {
    "sum": (Sum, cute.ReductionOp.ADD, 0),
    "prod": (Product, cute.ReductionOp.MUL, 1),
    "max": (Maximum, cute.ReductionOp.MAX, float("-inf")),
    "min": (Minimum, cute.ReductionOp.MIN, float("inf")),
    "count": (Sum, cute.ReductionOp.ADD, 0),
}

#: What the folds must be, in order, where a merge takes more than each of them alone.
_MERGED = {"max_sum": ("max", "sum"), "moments": ("count", "sum", "sum")}


def merge_of(program: RowProgram, compute: Any) -> Monoid:
    """How all totals of a program are combined at once.

    Raises:
        ValueError: its folds are not those that its merge combines, when the kernel is traced.
    """
    ops = tuple(fold.op for fold in program.folds)
    if ops != _MERGED.get(program.merge, ops):
        raise ValueError(f"merge {program.merge!r}: expected folds {_MERGED[program.merge]}, got {ops}")
    if program.merge == "max_sum":
        return MaxSum(compute)
    if program.merge == "moments":
        return Moments(compute)
    return Each(tuple(FOLDS[op][0](compute) for op in ops))


def counted(pieces: Sequence[Piece], compute: Any) -> Any:
    """How many elements of some pieces are inside the row."""
    found = compute(0)
    for v in pieces:
        if isinstance(v.inside, cute.TensorSSA):
            for i in range(cute.size(v.inside.shape)):
                found = found + compute(cutlass.select_(v.inside[i], compute(1), compute(0)))
        else:
            found = found + compute(cutlass.select_(v.inside, compute(v.size), compute(0)))
    return found


def across(fold: Fold, term: Any, compute: Any) -> Any:
    """The total of a vector."""
    _, op, nothing = FOLDS[fold.op]
    if term.dtype.is_float:
        return scalar(term.reduce(op, bound(term.dtype, nothing), 0), term.dtype, compute)
    # The DSL's maximum and minimum of a vector are of floats.
    each = [(scalar(term[k], term.dtype, compute),) for k in range(cute.size(term.shape))]
    return reduce(FOLDS[fold.op][0](compute).combine, each)[0]
