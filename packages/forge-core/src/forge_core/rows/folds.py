"""The folds of a program in device code: their monoids, and the reduction of a vector."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import cutlass
import cutlass.cute as cute

from forge_core.cute.moments import Moments
from forge_core.cute.monoid import ComplexProduct, Each, Maximum, Minimum, Monoid, Product, Sum
from forge_core.cute.online import MaxSum
from forge_core.rows.program import Fold, RowProgram
from forge_core.rows.values import Piece, Row, bound, scalar

#: By fold: its monoid, the reduction of a vector, and the identity.
FOLDS: dict[str, tuple[Any, Any, float]] = {
    "sum": (Sum, cute.ReductionOp.ADD, 0),
    "prod": (Product, cute.ReductionOp.MUL, 1),
    "max": (Maximum, cute.ReductionOp.MAX, float("-inf")),
    "min": (Minimum, cute.ReductionOp.MIN, float("inf")),
    "count": (Sum, cute.ReductionOp.ADD, 0),
}

#: Folds that a merge requires, in order.
_MERGED = {"max_sum": ("max", "sum"), "moments": ("count", "sum", "sum"), "complex_prod": ("prod", "prod")}


def merge_of(program: RowProgram, compute: Any) -> Monoid:
    """The monoid that combines all totals of a program at once.

    Raises:
        ValueError: the program's folds are not those that its merge combines.
    """
    ops = tuple(fold.op for fold in program.folds)
    if ops != _MERGED.get(program.merge, ops):
        raise ValueError(f"merge {program.merge!r}: expected folds {_MERGED[program.merge]}, got {ops}")
    if program.merge == "max_sum":
        return MaxSum(compute)
    if program.merge == "moments":
        return Moments(compute)
    if program.merge == "complex_prod":
        return ComplexProduct(compute)
    return Each(tuple(FOLDS[op][0](compute) for op in ops))


def counted(pieces: Sequence[Piece], compute: Any) -> Any:
    """The number of elements of pieces that are inside the row."""
    found = compute(0)
    for v in pieces:
        if isinstance(v.inside, cute.TensorSSA):
            for i in range(cute.size(v.inside.shape)):
                found = found + compute(cutlass.select_(v.inside[i], compute(1), compute(0)))
        else:
            found = found + compute(cutlass.select_(v.inside, compute(v.size), compute(0)))
    return found


def across(fold: Fold, term: Any, compute: Any) -> Any:
    """Reduces a vector to one element of the compute dtype."""
    _, op, identity = FOLDS[fold.op]
    if term.dtype.is_float:
        return scalar(term.reduce(op, bound(term.dtype, identity), 0), term.dtype, compute)
    # The DSL reduces integer vectors by sums and products only.
    each = [(scalar(term[k], term.dtype, compute),) for k in range(cute.size(term.shape))]
    return reduce(FOLDS[fold.op][0](compute).combine, each)[0]


def jointly(folds: Sequence[Fold], pieces: Sequence[Piece], row: Row, monoid: Monoid) -> tuple[Any, ...]:
    """Folds pieces by a monoid of which each fold has a part, an element at a time."""
    found = []
    for v in pieces:
        terms = [fold.term(v, row) for fold in folds]
        for k in range(cute.size(terms[0].shape)):
            inside = v.inside[k] if isinstance(v.inside, cute.TensorSSA) else v.inside
            parts = zip(terms, monoid.types, monoid.identity(), strict=True)
            found.append(tuple(t(cutlass.select_(inside, scalar(x[k], x.dtype, t), one)) for x, t, one in parts))
    return reduce(monoid.combine, found)
