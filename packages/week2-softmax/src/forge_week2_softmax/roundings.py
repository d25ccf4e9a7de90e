"""How often a row's sum is rounded on the way, by the models of ``trees``, and what it can be off by therefore.

Every element of a forward pass comes to its row's sum by some additions and some exponentials: its own, and one for
each merge that brings a sum to a larger maximum.  With d how far it is below the largest of the row, its exponentials
have exponents that add up to d, since each takes it from one maximum to the next; in units of the accumulator's eps

    an exponential     (1.5 d' + 2): rounding the exponent, and the instruction's own error; d' its share of d
    a merge's product  1/2
    an addition        1/2

The mean of d over a row, by the weight of its elements, is at most ln N.  NumPy is needed.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from forge_core.testing import trees
from forge_core.testing.trees import DEPTH
from forge_week2_softmax.holding import independent
from forge_week2_softmax.steps import STRANDS, Acc, Places, Sums
from forge_week2_softmax.trees import row

__all__ = ["Counts", "counts", "sum_error"]


class Counts:
    """The steps of a forward pass, counted; an accumulator is its additions and its exponentials, -1 for nothing."""

    def nothing(self, threads: int) -> Acc:
        """Accumulators that have seen no element."""
        return np.full(threads, -1), np.full(threads, -1)

    def of(self, groups: list[Places]) -> Acc:
        """The accumulators of threads' elements."""
        found = [trees.strand_sum(DEPTH, np.where(places < 0, -1, 0), STRANDS) for places in groups]
        additions = trees.halves(DEPTH, found)
        return additions, np.where(additions < 0, -1, 1)

    def combine(self, a: Acc, b: Acc) -> Acc:
        """Two become one."""
        # Merging with nothing is exact; else either may be the one that is brought to the other's maximum.
        both = (a[0] >= 0) & (b[0] >= 0)
        return DEPTH.add(a[0], b[0]), np.maximum(a[1], b[1]) + both

    def across(self, acc: Acc, lanes: int) -> Acc:
        """Neighbours become one, and each gets it."""
        if lanes == 1:
            return acc
        most = trees.butterfly(trees.Tree(np.maximum, -1, np.int64), acc[1] + (acc[1] >= 0), lanes)
        return trees.butterfly(DEPTH, acc[0], lanes), most

    def together(self, groups: list[Places], lanes: int) -> Acc:
        """Neighbours' elements, each with one exponential."""
        additions = trees.butterfly(DEPTH, self.of(groups)[0], lanes)
        return additions, np.where(additions < 0, -1, 1)

    def many(self, accs: list[Acc]) -> Acc:
        """What a lane has received becomes one."""
        most = np.max([acc[1] for acc in accs], axis=0)
        return trees.strand_sum(DEPTH, np.stack([acc[0] for acc in accs]), len(accs)), most + (most >= 0)

    def in_two_passes(self, turns: list[Places], threads: int) -> Acc:
        """A pass for each part."""
        acc = self.nothing(threads)[0]
        for places in turns:
            acc = DEPTH.add(acc, self.of([places])[0])
        total = trees.block(DEPTH, acc).reshape(1)
        return total, np.where(total < 0, -1, 1)


@functools.lru_cache(maxsize=4096)
def counts(config: Any, length: int, parts: int = 1, shift: int = 0) -> tuple[int, int]:
    """The largest number of additions, and of exponentials, on an element's way into its row's sum.

    A backward pass has no exponentials; its products count as an addition where they are rounded.

    Args:
        config: the kernel's.
        length: elements of the row.
        parts: how many its launch cuts a row into.
        shift: elements by which the row begins after a chunk's first.
    """
    if config.arithmetic.backward:
        steps = Sums(DEPTH, np.zeros(max(length, 1), np.int64))
        (additions,) = row(steps, length, config, parts=parts, shift=shift)
        return max(int(additions), 0) + (config.arithmetic.op == "softmax"), 0
    additions, exponentials = row(Counts(), length, config, parts=parts, shift=shift)
    return max(int(additions), 0), max(int(exponentials), 0)


def sum_error(config: Any, length: int, parts: int = 1) -> float:
    """What a row's sum can be off by, in eps of the accumulator, wherever the row begins.

    Relative to the sum, and for a backward pass to the sum of the absolute values.

    Args:
        config: the kernel's.
        length: elements of the row.
        parts: how many its launch cuts a row into.
    """
    if independent(config.arithmetic):
        return 0.0  # nothing is added
    row_config = getattr(config, "row", config)
    shifts = range(row_config.vector) if getattr(row_config, "edges", False) else (0,)
    found = [counts(config, length, parts, shift) for shift in shifts]
    additions, exponentials = max(each[0] for each in found), max(each[1] for each in found)
    if config.arithmetic.backward:
        return additions / 2
    merges = max(exponentials - 1, 0)
    return 1.5 * math.log(max(length, 1)) + 2 * exponentials + (merges + additions) / 2
