"""The moments (n, s, q) of a set of numbers: how many, their sum, and their squared deviations from their mean.

    n = |X|        s = sum of x        q = sum of (x - s / n)^2        variance = q / n

With m the mean of a union of sets, the moments of the union are

    n = sum of n_i        s = sum of s_i        q = sum of (q_i + n_i (s_i / n_i - m)^2)

*Proof.*  In a part, the sum of (x - m)^2 is that of ((x - m_i) + (m_i - m))^2; the sum of x - m_i is 0, so it is
q_i + n_i (m_i - m)^2.  (0, 0, 0) adds nothing.  This is the merge of Chan, Golub and LeVeque, of any number of parts.

*In floating point.*  All terms of q are positive, so none cancels, however large the mean is beside the deviations: a
sum of squares, less the square of the sum, would lose all digits of a variance below 2^-24 mean^2.  A mean is off by
at most k 2^-24 of the mean magnitude, after k additions, and moves q by n times the square of that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import cutlass

from forge_core.cute.monoid import Sum
from forge_core.cute.online import reciprocal

__all__ = ["Moments"]


@dataclass(frozen=True)
class Moments:
    """The moments of a union.

    Attributes:
        dtype: the DSL's type of all parts: fp32, in which the count is exact up to 2^24, or fp64.
    """

    dtype: Any

    @property
    def types(self) -> tuple[Any, ...]:
        """The type of each part: count, sum, squared deviations."""
        return (self.dtype,) * 3

    def identity(self) -> tuple[Any, ...]:
        """The moments of nothing."""
        return (self.dtype(0),) * 3

    def combine(self, a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
        """Those of two sets."""
        return self.many([a, b])

    def many(self, parts: list[tuple[Any, ...]]) -> tuple[Any, ...]:
        """Those of some sets, with one mean for all of them."""
        count, total = (reduce(add, [part[i] for part in parts]) for i in (0, 1))
        mean = self._mean(count, total)
        return count, total, reduce(add, [self._about(mean, part) for part in parts])

    def together(self, acc: tuple[Any, ...], across: Any) -> tuple[Any, ...]:
        """Those of many lanes, with one mean for all of them."""
        count, total = (across(part, Sum(self.dtype)) for part in acc[:2])
        return count, total, across(self._about(self._mean(count, total), acc), Sum(self.dtype))

    def _mean(self, count: Any, total: Any) -> Any:
        """The mean; 0 of nothing."""
        return total * reciprocal(self.dtype(cutlass.select_(count > self.dtype(1), count, self.dtype(1))))

    def _about(self, mean: Any, part: tuple[Any, ...]) -> Any:
        """The squared deviations of a set from some number."""
        count, total, squares = part
        off = self._mean(count, total) - mean
        return squares + count * off * off
