"""Dims of an elementwise kernel with an input and an output of any strides: canonical form and launch integers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from forge_core.rows import problem as rows


class Dim(NamedTuple):
    """One dimension: its size, and its strides in elements on both sides."""

    size: int
    src: int
    dst: int


def canonical(dims: Iterable[Dim]) -> tuple[Dim, ...]:
    """Without dims of size 1, ordered by the output's stride, ties by the source's, and merged where both allow it."""
    found = rows.canonical([rows.Dim(d.size, (d.src, d.dst)) for d in dims])
    return tuple(Dim(d.size, *d.strides) for d in found)


def entries(dims: Iterable[Dim]) -> int:
    """The number of entries of all dims together."""
    return math.prod(dim.size for dim in dims)


def flatten(dims: Sequence[Dim], unit: int = 1) -> tuple[int, ...]:
    """What ``forge_core.cute.strided`` takes: the count, then of each dim, innermost first, its size and both strides.

    Args:
        dims: outermost first.
        unit: elements in which strides are counted.
    """
    return (entries(dims), *(n for d in reversed(dims) for n in (d.size, d.src // unit, d.dst // unit)))
