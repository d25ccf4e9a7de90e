"""The folds of a program in device code: their monoids, and the reduction of a vector."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean

from forge_core.cute.moments import Moments
from forge_core.cute.monoid import ComplexProduct, Each, Maximum, Minimum, Monoid, Product, Sum
from forge_core.cute.online import MaxSum
from forge_core.rows.program import Fold, RowProgram
from forge_core.rows.values import Piece, Row

#: By fold: its monoid, and the reduction of a vector.
FOLDS: dict[str, tuple[Any, Any]] = {
    "sum": (Sum, cute.ReductionOp.ADD),
    "prod": (Product, cute.ReductionOp.MUL),
    "max": (Maximum, cute.ReductionOp.MAX),
    "min": (Minimum, cute.ReductionOp.MIN),
    "count": (Sum, cute.ReductionOp.ADD),
}

#: By merge: the folds that it requires, in order, and its monoid.
_MERGED: dict[str, tuple[tuple[str, ...], Any]] = {
    "max_sum": (("max", "sum"), MaxSum),
    "moments": (("count", "sum", "sum"), Moments),
    "complex_prod": (("prod", "prod"), ComplexProduct),
}


def identity(fold: Fold, dtype: Any) -> Any:
    """The identity of a fold in a dtype."""
    return FOLDS[fold.op][0](dtype).identity()[0]


def merge_of(program: RowProgram, compute: Any) -> Monoid:
    """The monoid that combines all totals of a program at once.

    Raises:
        ValueError: the program's folds are not those that its merge combines.
    """
    ops = tuple(fold.op for fold in program.folds)
    if program.merge not in _MERGED:
        return Each(tuple(FOLDS[op][0](compute) for op in ops))
    expected, monoid = _MERGED[program.merge]
    if ops != expected:
        raise ValueError(f"merge {program.merge!r}: expected folds {expected}, got {ops}")
    merged: Monoid = monoid(compute)
    return merged


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


def masked(v: Piece, term: Any, neutral: Any) -> Any:
    """A vector of terms, with a neutral value for elements outside the row."""
    inside = v.inside if isinstance(v.inside, cute.TensorSSA) else cute.full(term.shape, v.inside, Boolean)
    return cute.where(inside, term, cute.full_like(term, neutral))


def across(fold: Fold, term: Any, compute: Any) -> Any:
    """Reduces a vector to one element of the compute dtype."""
    if term.dtype.is_float:
        return _scalar(term.reduce(FOLDS[fold.op][1], identity(fold, term.dtype), 0), term.dtype, compute)
    # The DSL reduces integer vectors by sums and products only.
    each = [(_scalar(term[k], term.dtype, compute),) for k in range(cute.size(term.shape))]
    return reduce(FOLDS[fold.op][0](compute).combine, each)[0]


def jointly(folds: Sequence[Fold], pieces: Sequence[Piece], row: Row, monoid: Monoid) -> tuple[Any, ...]:
    """Folds pieces by a monoid of which each fold has a part, an element at a time."""
    found = []
    for v in pieces:
        terms = [fold.term(v, row) for fold in folds]
        for k in range(cute.size(terms[0].shape)):
            inside = v.inside[k] if isinstance(v.inside, cute.TensorSSA) else v.inside
            parts = zip(terms, monoid.types, monoid.identity(), strict=True)
            found.append(tuple(t(cutlass.select_(inside, _scalar(x[k], x.dtype, t), one)) for x, t, one in parts))
    return reduce(monoid.combine, found)


def _scalar(x: Any, dtype: Any, compute: Any) -> Any:
    """Converts a scalar to the compute dtype."""
    x = dtype(x)
    return x if dtype is compute else x.to(compute)
