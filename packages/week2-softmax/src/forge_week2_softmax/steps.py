"""What the models of ``trees`` need to know of a computation: what an accumulator is, and how two become one.

    Sums      the sum of a backward pass: of terms, or of products, which the compiler fuses with their additions
    Pairs     the (max, sum) pair of a forward pass, with the exponentials that are given

NumPy is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from forge_core.testing import trees
from forge_core.testing.trees import Array, Tree

__all__ = ["STRANDS", "Acc", "Pairs", "Places", "Steps", "Sums", "fused"]

#: Running sums of a thread; that of ``kernels/program.py``, which imports the DSL.
STRANDS = 4

#: An accumulator: arrays of one shape, one for each of its parts; axis 0 counts threads.
Acc = tuple[Array, ...]

#: Which elements of a row some threads have: axis 0 counts those of a thread, -1 is none.
Places = Array


MAXIMA = Tree(np.maximum, -np.inf, np.float32)


class Steps(Protocol):
    """What the models need to know of a computation, for one row."""

    def nothing(self, threads: int) -> Acc:
        """Accumulators that have seen no element."""
        ...

    def of(self, groups: list[Places]) -> Acc:
        """The accumulators of threads from their elements, in the groups in which they wait: one, or up to three."""
        ...

    def combine(self, a: Acc, b: Acc) -> Acc:
        """Two accumulators become one."""
        ...

    def across(self, acc: Acc, lanes: int) -> Acc:
        """``lanes`` neighbouring accumulators become one, which all of them get."""
        ...

    def together(self, groups: list[Places], lanes: int) -> Acc:
        """The accumulator of neighbours from their elements, of which they find the maximum first; each gets it."""
        ...

    def many(self, accs: list[Acc]) -> Acc:
        """What a lane has received from a cluster becomes one."""
        ...

    def in_two_passes(self, turns: list[Places], threads: int) -> Acc:
        """The block's accumulator by one pass for each of its parts; only of what has several."""
        ...


class Sums:
    """The sum of a backward pass.

    Args:
        tree: what is done at each node.
        terms: what each element adds, in their order; or two arrays whose products they are.
        product: where there are two arrays, ``(a, b, c)`` to ``a * b + c`` with one rounding, as the compiler makes it
            of a running sum: the first product is added to the second, which is rounded, and the others to that.  None
            where products are exact, and one rounding and two are the same.
    """

    def __init__(
        self, tree: Tree, *terms: Array, product: Callable[[Array, Array, Array], Array] | None = None
    ) -> None:
        self.tree, self.terms, self.product = tree, terms, product

    def nothing(self, threads: int) -> Acc:
        """Accumulators that have seen no element."""
        return (self.tree.nothing(threads),)

    def _own(self, places: Places) -> list[Array]:
        return [np.where(places < 0, self.tree.empty, terms[places]).astype(self.tree.dtype) for terms in self.terms]

    def of(self, groups: list[Places]) -> Acc:
        """The accumulators of threads' elements."""
        found = [self._strands(self._own(places)) for places in groups]
        return (trees.halves(self.tree, found),)

    def _strands(self, factors: list[Array]) -> Array:
        if len(factors) == 1:
            return trees.strand_sum(self.tree, factors[0], STRANDS)
        if self.product is None:
            return trees.strand_sum(self.tree, factors[0] * factors[1], STRANDS)
        a, b = factors
        if len(a) < 2 * STRANDS:
            raise ValueError(f"expected {2 * STRANDS} products or more, so that each running sum has two, got {len(a)}")
        sums = [self.product(a[i], b[i], a[i + STRANDS] * b[i + STRANDS]) for i in range(STRANDS)]
        for i in range(2 * STRANDS, len(a)):
            sums[i % STRANDS] = self.product(a[i], b[i], sums[i % STRANDS])
        return trees.strand_sum(self.tree, np.stack(sums), STRANDS)

    def combine(self, a: Acc, b: Acc) -> Acc:
        """Two become one."""
        return (self.tree.add(a[0], b[0]),)

    def across(self, acc: Acc, lanes: int) -> Acc:
        """Neighbours become one, and each gets it."""
        return (trees.butterfly(self.tree, acc[0], lanes),)

    def together(self, groups: list[Places], lanes: int) -> Acc:
        """As :meth:`of` and :meth:`across`: a sum has no maximum."""
        return self.across(self.of(groups), lanes)

    def many(self, accs: list[Acc]) -> Acc:
        """What a lane has received becomes one."""
        return (trees.one_by_one(self.tree, np.stack([acc[0] for acc in accs])),)

    def in_two_passes(self, turns: list[Places], threads: int) -> Acc:
        """Raises ValueError: there is one part, and it takes one pass."""
        raise ValueError("a sum has one part, and takes one pass")


class Pairs:
    """The (max, sum) pair of a forward pass, of fp32.

    Args:
        x: the row's elements, fp32.
        exponential: of an array; the kernel's own has another last bit than NumPy's.
    """

    def __init__(self, x: Array, exponential: Callable[[Array], Array]) -> None:
        self.x, self.exponential = x, exponential
        self.tree = trees.sums(np.float32)

    def nothing(self, threads: int) -> Acc:
        """Accumulators that have seen no element."""
        return np.full(threads, -np.inf, np.float32), np.zeros(threads, np.float32)

    def _own(self, places: Places) -> Array:
        return np.where(places < 0, np.float32(-np.inf), self.x[places])

    def _below(self, top: Array, x: Array) -> Array:
        """exp(x - top), with 0 for a maximum of nothing but -inf."""
        return self.exponential(x - np.where(top == -np.inf, np.float32(0), top))

    def of(self, groups: list[Places]) -> Acc:
        """The accumulators of threads' elements."""
        own = [self._own(places) for places in groups]
        top = np.max([x.max(0) for x in own], axis=0)
        found = [trees.strand_sum(self.tree, self._below(top, x), STRANDS) for x in own]
        return top, trees.halves(self.tree, found)

    def combine(self, a: Acc, b: Acc) -> Acc:
        """Two become one."""
        first = a[0] >= b[0]
        high, low = np.where(first, a[0], b[0]), np.where(first, b[0], a[0])
        high_sum, low_sum = np.where(first, a[1], b[1]), np.where(first, b[1], a[1])
        same = low == high
        apart = np.where(same, np.float32(0), low - np.where(same, np.float32(0), high))
        factor = np.where(same, np.float32(1), self.exponential(apart))
        return high, fused(low_sum, factor, high_sum)

    def across(self, acc: Acc, lanes: int) -> Acc:
        """Neighbours become one, and each gets it."""
        if lanes == 1:
            return acc
        top = trees.butterfly(MAXIMA, acc[0], lanes)
        return top, trees.butterfly(self.tree, acc[1] * self._below(top, acc[0]), lanes)

    def together(self, groups: list[Places], lanes: int) -> Acc:
        """The row's maximum, and one exponential an element below it."""
        own = [self._own(places) for places in groups]
        top = trees.butterfly(MAXIMA, np.max([x.max(0) for x in own], axis=0), lanes)
        found = [trees.strand_sum(self.tree, self._below(top, x), STRANDS) for x in own]
        return top, trees.butterfly(self.tree, trees.halves(self.tree, found), lanes)

    def many(self, accs: list[Acc]) -> Acc:
        """What a lane has received becomes one."""
        top = np.max([acc[0] for acc in accs], axis=0)
        return top, trees.strand_sum(self.tree, np.stack([s * self._below(top, m) for m, s in accs]), len(accs))

    def in_two_passes(self, turns: list[Places], threads: int) -> Acc:
        """A pass for each part."""
        top = self.x.max() if len(self.x) else np.float32(-np.inf)
        total = np.zeros(threads, np.float32)
        for places in turns:
            total = total + trees.strand_sum(self.tree, self._below(np.asarray(top), self._own(places)), STRANDS)
        return np.full(1, top, np.float32), trees.block(self.tree, total).reshape(1)


def fused(a: Array, b: Array, c: Array) -> Array:
    """``a * b + c`` of fp32 with one rounding.

    The product is exact in fp64.  The sum is rounded there to the neighbour with an odd last bit, so that rounding it
    to fp32 does not round twice.
    """
    p, c = a.astype(np.float64) * b, np.asarray(c, np.float64)
    with np.errstate(invalid="ignore"):
        s = p + c
        back = s - p
        lost = (p - (s - back)) + (c - back)
        even = s.view(np.int64) % 2 == 0
    toward = np.nextafter(s, np.where(lost > 0, np.inf, -np.inf))
    return np.asarray(np.where(even & np.isfinite(s) & (lost != 0), toward, s), np.float32)
