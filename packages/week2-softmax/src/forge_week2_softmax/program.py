"""The arithmetic of week 2 as row programs.

    forward                   folds                                    map, or the result of a row
    softmax                   m = max x, s = sum exp(x - m)            y   = exp(x - m) * (1 / s)
    log_softmax               the same                                 y   = (x - m) - log(s)
    logsumexp                 the same                                 lse = m + log(s)

    backward
    softmax                   t = sum y * grad                         dx  = y * (grad - t)
    log_softmax               t = sum grad                             dx  = grad - exp(y) * t
    logsumexp                 none                                     dx  = grad * exp(x - lse)

The pairs (m, s) of parts of a row merge (online softmax: see ``forge_core.cute.online``), so the second fold may be
given the maximum of a part.  m is subtracted before the exponential, whose argument is then at most 0.  A row of
nothing but -inf, or a thread without elements, has m = -inf, for which 0 is subtracted: s is 0, the row's results NaN,
its logsumexp -inf.  m is NaN where any x is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forge_core.rows import Fold, Operands, RowProgram, exp, log, reciprocal, where

__all__ = ["LogsumexpBackward", "Softmax", "SoftmaxBackward"]

ELEMENTWISE, LSE = Operands(("x",), writes=("y",)), Operands(("x",), results=("lse",))
LSE_OF_ONE = Operands(("x",), writes=("lse",))


@dataclass(frozen=True)
class Softmax(RowProgram):
    """softmax, log_softmax or logsumexp of x.

    Exponentials are within 2.5 ulp for results of 32 bits; for 16 bits faster ones do, far below half an ulp of those.

    Attributes:
        op: ``"softmax"``, ``"log_softmax"`` or ``"logsumexp"``.
    """

    op: str = "softmax"

    merge = "max_sum"
    outside = float("-inf")

    @property
    def operands(self) -> Operands:
        """One tensor in, one out."""
        return LSE if self.op == "logsumexp" else ELEMENTWISE

    @property
    def folds(self) -> tuple[Fold, ...]:
        """The maximum, exact in the dtype of storage, then fp32; the sum of exp(x - maximum).

        Outside the row x is -inf, which adds nothing to either: nothing needs to be masked.
        """
        top = Fold("max", lambda v, row: v.stored("x"), masked=False)
        return top, Fold("sum", lambda v, row, m: exp(v.x - _base(m), exact=v.exact), masked=False)

    def of_one(self) -> SoftmaxOfOne:
        """Nothing is added up."""
        return SoftmaxOfOne(self.op)

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
        """The softmax or log_softmax of each element; logsumexp has none."""
        _, base, last = constants
        below = v.x - base
        return (exp(below, exact=v.exact) * last if self.op == "softmax" else below - last,)


@dataclass(frozen=True)
class SoftmaxOfOne(RowProgram):
    """softmax, log_softmax or logsumexp of rows of one element: 1, 0 or x; the former are NaN where x is not finite."""

    op: str = "softmax"

    @property
    def operands(self) -> Operands:
        """One tensor in, one out."""
        return LSE_OF_ONE if self.op == "logsumexp" else ELEMENTWISE

    def map(self, v: Any, constants: Any) -> tuple[Any, ...]:
        """The result of each element."""
        return (v.x if self.op == "logsumexp" else v.x - v.x + float(self.op == "softmax"),)


@dataclass(frozen=True)
class SoftmaxBackward(RowProgram):
    """The gradient of softmax, or of log_softmax, from its result.

    Attributes:
        op: ``"softmax"`` or ``"log_softmax"``.
    """

    op: str = "softmax"

    operands = Operands(("grad", "y"), writes=("dx",))
    takes_vectors = True

    @property
    def folds(self) -> tuple[Fold, ...]:
        """The sum of y * grad, or of grad; operands are 0 outside the row."""
        return (Fold("sum", lambda v, row: v.grad * v.y if self.op == "softmax" else v.grad, masked=False),)

    def map(self, v: Any, constants: Any) -> tuple[Any, ...]:
        """The gradient of each element."""
        (t,) = constants
        return (v.y * (v.grad - t) if self.op == "softmax" else v.grad - exp(v.y, exact=v.exact) * t,)


@dataclass(frozen=True)
class LogsumexpBackward(RowProgram):
    """The gradient of logsumexp, from its input and its result."""

    operands = Operands(("x",), scalars=("grad", "lse"), writes=("dx",))
    takes_vectors = True

    def constants(self, totals: tuple[Any, ...], row: Any) -> Any:
        """The gradient of the row's result, and the result."""
        return row.grad, row.lse

    def map(self, v: Any, constants: Any) -> tuple[Any, ...]:
        """The gradient of each element."""
        grad, lse = constants
        return (grad * exp(v.x - lse, exact=v.exact),)


def _base(m: Any) -> Any:
    """What is subtracted: m, or 0 where m is -inf."""
    lowest = type(m)(float("-inf"))
    return where(m == lowest, type(m)(0), m)
