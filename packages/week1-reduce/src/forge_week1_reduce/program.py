"""The arithmetic of week 1: one value a row, as a row program (``forge_core.rows``).

stored dtype --convert--> dtype= --exactly--> accumulator ... combine ... --finish--> result

sum, mean, prod    fp16, bf16, fp32 accumulate in fp32, fp64 in fp64, integers and bool in int64; complex by parts
amax, amin         in a dtype that holds every value exactly: fp32, fp64, int32 or int64
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from forge_core.rows import Fold, Operands, RowProgram, reciprocal

__all__ = ["FOLDS", "ComplexProduct", "Convert", "Reduce"]

#: The fold of each operator, and what adds nothing to it.
FOLDS: dict[str, tuple[str, float]] = {
    "sum": ("sum", 0.0),
    "mean": ("sum", 0.0),
    "prod": ("prod", 1.0),
    "amax": ("max", float("-inf")),
    "amin": ("min", float("inf")),
}


@dataclass(frozen=True)
class Convert(RowProgram):
    """Whatever is reduced of one element: the element, in the dtype of the result."""

    operands = Operands(rows=("x",), writes=("y",))
    linear = True

    def compute(self, dtypes: Sequence[torch.dtype], via: torch.dtype | None) -> torch.dtype:
        """One that holds every element."""
        return _accumulator(via or dtypes[0])

    def map(self, v: Any, constants: Any) -> tuple[Any, ...]:
        """The element."""
        return (v.x,)


@dataclass(frozen=True)
class Reduce(RowProgram):
    """A sum, mean, product or extreme of x.

    Attributes:
        op: one of ``FOLDS``.
    """

    op: str = "sum"

    operands = Operands(rows=("x",), results=("y",))

    @classmethod
    def of(cls, op: str, x: torch.dtype, via: torch.dtype | None) -> Reduce:
        """The program of an operator: of truth values a sum is "any", and a product is "all"."""
        if op in ("sum", "prod") and (via or x) is torch.bool and via is not None:
            op = "amax" if op == "sum" else "amin"
        return cls(op)

    @property
    def folds(self) -> tuple[Fold, ...]:
        """Extremes in the dtype of storage, in which two of 16 bits are compared at once."""
        extreme = self.op in ("amax", "amin")
        return (Fold(FOLDS[self.op][0], lambda v, row: v.stored("x") if extreme else v.x, masked=False),)

    @property
    def outside(self) -> float:
        """What adds nothing."""
        return FOLDS[self.op][1]

    def compute(self, dtypes: Sequence[torch.dtype], via: torch.dtype | None) -> torch.dtype:
        """The accumulator's dtype."""
        x = via or dtypes[0]
        extreme = self.op in ("amax", "amin") and not x.is_floating_point and x is not torch.int64
        return torch.int32 if extreme else _accumulator(x)

    @property
    def linear(self) -> bool:
        """Sums and means of complex numbers are those of their parts."""
        return self.op in ("sum", "mean")

    def of_one(self) -> Convert:
        """Nothing is combined."""
        return Convert()

    def of_parts(self) -> ComplexProduct | None:
        """Of complex numbers."""
        return ComplexProduct() if self.op == "prod" else None

    def results(self, totals: tuple[Any, ...], row: Any) -> tuple[Any, ...]:
        """The total; of a mean divided by the number of elements."""
        return (totals[0] * reciprocal(row.count) if self.op == "mean" else totals[0],)


@dataclass(frozen=True)
class ComplexProduct(RowProgram):
    """A product of complex numbers."""

    operands = Operands(rows=("real", "imag"), results=("y_real", "y_imag"), paired=True)
    folds = (Fold("prod", lambda v, row: v.real), Fold("prod", lambda v, row, *_: v.imag))
    merge = "complex_prod"

    def results(self, totals: tuple[Any, ...], row: Any) -> tuple[Any, ...]:
        """Both parts."""
        return totals


def _accumulator(x: torch.dtype) -> torch.dtype:
    """What elements of a dtype are added up in."""
    if x.is_floating_point:
        return torch.float64 if x is torch.float64 else torch.float32
    return torch.int64
