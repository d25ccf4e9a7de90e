"""Models of reductions in NumPy: what is added to what, in which order, rounded as the accumulator rounds.

A kernel's tree is made of a few steps, from the thread outwards:

    in_turn        a thread adds its pieces one after the other
    collapse       a thread's accumulators become one, halves onto halves
    butterfly      lanes of a warp, or slots of a block or cluster, exchange: numbers that differ in one bit
    block          the warps of a block: a butterfly of each, and one over the warps
    strand_sum     terms of a thread that do not wait for each other: running sums, and a tree of those
    halves         that tree: the first half gets the second
    one_by_one     accumulators in their order: warps of a tile, blocks of a cluster, parts of a second pass

The same steps over another :class:`Tree` say how deep each leads: over :data:`DEPTH` a model gives the largest number
of roundings on an element's way into the result, and so a bound of its error that is proven for any values.  Where a
kernel only adds, a GPU gives the model's very bits.

NumPy is needed here, and nowhere else in this package.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = [
    "DEPTH",
    "WARP",
    "Tree",
    "block",
    "butterfly",
    "collapse",
    "error_bound",
    "halves",
    "in_turn",
    "one_by_one",
    "strand_sum",
    "sums",
]

WARP = 32

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Tree:
    """What is done at each node.

    Attributes:
        add: two arrays of accumulators to one, element by element.
        empty: the accumulator of nothing.
        dtype: the accumulators'.
    """

    add: Callable[[Array, Array], Array]
    empty: Any
    dtype: Any

    def nothing(self, *shape: int) -> Array:
        """Accumulators that have seen no element."""
        return np.full(shape, self.empty, self.dtype)


def sums(dtype: Any) -> Tree:
    """Sums that are rounded to ``dtype`` at every addition, as an IEEE adder of that type does."""
    return Tree(np.add, 0, dtype)


def _deeper(a: Array, b: Array) -> Array:
    # Adding nothing is exact.
    return np.where(a < 0, b, np.where(b < 0, a, np.maximum(a, b) + 1))


#: Roundings on the way: elements are 0, nothing is -1, and each addition is one more than the deeper of its two.
DEPTH = Tree(_deeper, -1, np.int64)


def in_turn(tree: Tree, acc: Array, pieces: Array) -> Array:
    """Piece p goes to accumulator ``p % len(acc)``, in order; axis 0 counts accumulators and pieces."""
    acc = acc.copy()
    for start in range(0, len(pieces), len(acc)):
        some = pieces[start : start + len(acc)]
        acc[: len(some)] = tree.add(acc[: len(some)], some)
    return acc


def collapse(tree: Tree, lanes: Array) -> Array:
    """A thread's accumulators, the last axis, become one: the second half is added to the first until one is left."""
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = tree.add(lanes[..., :half], lanes[..., half:])
    return lanes[..., 0]


def butterfly(tree: Tree, values: Array, lanes: int, stride: int = 1) -> Array:
    """Lanes, axis 0, exchange with the one whose number differs in one bit, the highest of the group first."""
    index = np.arange(len(values))
    step = lanes * stride // 2
    while step >= stride:
        values = tree.add(values, values[index ^ step])
        step //= 2
    return values


def block(tree: Tree, threads: Array) -> Array:
    """The accumulators of a block's threads, axis 0, become one."""
    warps = len(threads) // WARP
    slots = np.stack([butterfly(tree, threads[w * WARP : (w + 1) * WARP], WARP)[0] for w in range(warps)])
    return np.asarray(butterfly(tree, slots, warps)[0])


def one_by_one(tree: Tree, values: Array) -> Array:
    """Accumulators, axis 0, one after the other, the first one first."""
    return np.asarray(in_turn(tree, tree.nothing(1, *values.shape[1:]), values)[0])


def strand_sum(tree: Tree, terms: Array, strands: int) -> Array:
    """Term i, axis 0, goes to running sum ``i % strands``, which begins with its first; then the sums become one."""
    parts = list(terms[:strands])
    for i in range(len(parts), len(terms)):
        parts[i % strands] = tree.add(parts[i % strands], terms[i])
    return halves(tree, parts)


def halves(tree: Tree, parts: list[Array]) -> Array:
    """Many become one: the first with the one half as far as there are, until one is left."""
    while len(parts) > 1:
        half = (len(parts) + 1) // 2
        parts = [tree.add(parts[i], parts[i + half]) if i + half < len(parts) else parts[i] for i in range(half)]
    return np.asarray(parts[0])


def error_bound(depth: int, magnitude: float, dtype: Any) -> float:
    """What a sum with ``depth`` roundings on the way can be off.

    Each rounding is at most half an ulp, u = eps / 2, and d of them together at most d u / (1 - d u), relative to the
    sum of the absolute values (Higham, Accuracy and Stability of Numerical Algorithms, lemma 3.1).

    Args:
        depth: what the model gives over :data:`DEPTH`.
        magnitude: the sum of the absolute values.
        dtype: the accumulators'.
    """
    u = float(np.finfo(dtype).eps) / 2
    return depth * u / (1 - depth * u) * magnitude
