"""The arithmetic of week 2 as row programs.

    forward                   folds                                    map, or the result of a row
    softmax                   m = max x, s = sum exp(x - m)            y   = exp(x - m) / s
    log_softmax               the same                                 y   = (x - m) - log(s)
    logsumexp                 the same                                 lse = m + log(s)

    backward
    softmax                   t = sum y * dy                           dx  = y * (dy - t)
    log_softmax               t = sum dy                               dx  = dy - exp(y) * t
    logsumexp                 none                                     dx  = dlse * exp(x - lse)

The pairs (m, s) of parts of a row merge (see ``forge_core.cute.online``), so the second fold may be given the maximum
of a part.  m is subtracted before the exponential, whose argument is then at most 0.  A row that is all -inf has
m = -inf, for which 0 is subtracted instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forge_core.rows import Fold, Operands, RowProgram, exp, log, reciprocal, where

__all__ = ["LogsumexpBackward", "Softmax", "SoftmaxBackward"]


@dataclass(frozen=True)
class Softmax(RowProgram):
    """softmax, log_softmax or logsumexp of x.

    Attributes:
        op: which.
        exact: exponentials within 2.5 ulp, for results of 32 bits; otherwise faster ones, whose error is far below half
            an ulp of 16 bits.
    """

    op: str = "softmax"
    exact: bool = False

    merge = "max_sum"
    outside = float("-inf")

    @property
    def operands(self) -> Operands:
        """One tensor in, one out."""
        return Operands(("x",), results=("lse",)) if self.op == "logsumexp" else Operands(("x",), writes=("y",))

    @property
    def folds(self) -> tuple[Fold, ...]:
        """The maximum, in the dtype of storage; the sum of exp(x - maximum)."""
        top = Fold("max", lambda v, row: v.stored("x"), masked=False)
        return top, Fold("sum", lambda v, row, m: exp(v.x - _base(m), exact=self.exact), masked=False)

    def constants(self, totals: tuple[Any, ...], row: Any) -> Any:
        """What is subtracted, and the factor or the logarithm of the sum."""
        m, s = totals
        return m, _base(m), reciprocal(s) if self.op == "softmax" else log(s)

    def results(self, constants: Any, row: Any) -> tuple[Any, ...]:
        """logsumexp: m itself where it is infinite."""
        m, base, log_sum = constants
        infinite = type(m)(float("inf"))
        return (where((m == infinite) | (m == -infinite), m, base + log_sum),)

    def map(self, v: Any, constants: Any) -> tuple[Any, ...]:
        """The softmax or log_softmax of each element."""
        _, base, last = constants
        below = v.x - base
        return (exp(below, exact=self.exact) * last if self.op == "softmax" else below - last,)


@dataclass(frozen=True)
class SoftmaxBackward(RowProgram):
    """The gradient of softmax, or of log_softmax, from its result.

    Attributes:
        op: which.
        exact: as of :class:`Softmax`.
    """

    op: str = "softmax"
    exact: bool = False

    operands = Operands(("dy", "y"), writes=("dx",))

    @property
    def folds(self) -> tuple[Fold, ...]:
        """The sum of y * dy, or of dy."""
        return (Fold("sum", lambda v, row: v.dy * v.y if self.op == "softmax" else v.dy, masked=False),)

    def map(self, v: Any, constants: Any) -> tuple[Any, ...]:
        """The gradient of each element."""
        (t,) = constants
        return (v.y * (v.dy - t) if self.op == "softmax" else v.dy - exp(v.y, exact=self.exact) * t,)


@dataclass(frozen=True)
class LogsumexpBackward(RowProgram):
    """The gradient of logsumexp, from its input and its result.

    Attributes:
        exact: as of :class:`Softmax`.
    """

    exact: bool = False

    operands = Operands(("x",), scalars=("dlse", "lse"), writes=("dx",))

    def constants(self, totals: tuple[Any, ...], row: Any) -> Any:
        """The gradient of the row's result, and the result."""
        return row.dlse, row.lse

    def map(self, v: Any, constants: Any) -> tuple[Any, ...]:
        """The gradient of each element."""
        dlse, lse = constants
        return (dlse * exp(v.x - lse, exact=self.exact),)


def _base(m: Any) -> Any:
    """What is subtracted: m, or 0 where m is -inf."""
    lowest = type(m)(float("-inf"))
    return where(m == lowest, type(m)(0), m)
