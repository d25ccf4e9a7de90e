"""The monoid of moments (n, s, q): count, sum, and sum of squared deviations from the mean.

    n = |X|        s = sum of x        q = sum of (x - s / n)^2        variance = q / n

With m the mean of a union of sets, the moments of the union are

    n = sum of n_i        s = sum of s_i        q = sum of (q_i + n_i (s_i / n_i - m)^2)

*Proof.*  In a part, the sum of (x - m)^2 is that of ((x - m_i) + (m_i - m))^2; the sum of x - m_i is 0, so it is
q_i + n_i (m_i - m)^2.  The identity is (0, 0, 0).  This is the merge of Chan, Golub and LeVeque, for several
parts.

*In floating point.*  All terms of q are positive, so none cancels, however large the mean is relative to the
deviations; sum(x^2) - sum(x)^2 / n would lose all digits of a variance below 2^-24 mean^2.  After k additions the error
of the mean is at most k 2^-24 of the mean magnitude; q changes by n times its square.
"""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

import cutlass

from forge_core.cute.monoid import Sum, Uniform
from forge_core.cute.online import reciprocal


class Moments(Uniform):
    """The moments of a union, of fp32, whose count is exact up to 2^24, or fp64."""

    parts = 3

    def identity(self) -> tuple[Any, ...]:
        return (self.dtype(0),) * 3

    def combine(self, a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
        return self.many([a, b])

    def many(self, parts: list[tuple[Any, ...]]) -> tuple[Any, ...]:
        """Combines several accumulators, computing the mean of the union once."""
        count, total = (reduce(add, [part[i] for part in parts]) for i in (0, 1))
        mean = self._mean(count, total)
        return count, total, reduce(add, [self._about(mean, part) for part in parts])

    def together(self, acc: tuple[Any, ...], across: Any) -> tuple[Any, ...]:
        """Reduces over lanes, computing the mean of the union once."""
        count, total = (across(part, Sum(self.dtype)) for part in acc[:2])
        return count, total, across(self._about(self._mean(count, total), acc), Sum(self.dtype))

    def _mean(self, count: Any, total: Any) -> Any:
        """The mean; 0 of the empty set."""
        return total * reciprocal(self.dtype(cutlass.select_(count > self.dtype(1), count, self.dtype(1))))

    def _about(self, mean: Any, part: tuple[Any, ...]) -> Any:
        """The sum of squared deviations of a set from ``mean``."""
        count, total, squares = part
        off = self._mean(count, total) - mean
        return squares + count * off * off
