"""A reduction among the lanes of a warp.

lane     0    1    2    3    4    5    6    7          lanes exchange with the one whose number differs in one
start    a    b    c    d    e    f    g    h          bit, the highest first
xor 4    ae   bf   cg   dh   ae   bf   cg   dh
xor 2    aecg bfdh ...                                 after log2(lanes) steps each lane holds the whole: the same
xor 1    aecgbfdh ...                                  tree, whatever the values, so the same bits every time
"""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute

from forge_core.device_code.monoid import Monoid

__all__ = ["WARP", "reduce_lanes"]

WARP = 32


def reduce_lanes(acc: tuple[Any, ...], monoid: Monoid, lanes: int = WARP, stride: int = 1) -> tuple[Any, ...]:
    """Combines the accumulators of groups of lanes; every lane gets its group's.

    A monoid may have a method ``together(acc, across)``, which is then used instead of its ``combine``:
    ``across(part, combine)`` reduces one part of the accumulator among the lanes.

    All 32 lanes of the warp must arrive.

    Args:
        acc: this lane's.
        monoid: how to combine.
        lanes: lanes of a group, a power of two.
        stride: the distance of a group's lanes: 1 for neighbours; a power of two with ``lanes * stride <= 32``.
    """
    together = getattr(monoid, "together", None)
    if together is None or lanes == 1:
        return _butterfly(acc, monoid.combine, lanes, stride)

    def across(part: Any, combine: Any) -> Any:
        return _butterfly((part,), lambda a, b: (combine(a[0], b[0]),), lanes, stride)[0]

    found: tuple[Any, ...] = together(acc, across)
    return found


def _butterfly(acc: tuple[Any, ...], combine: Any, lanes: int, stride: int) -> tuple[Any, ...]:
    step = lanes * stride // 2
    while step >= stride:
        other = tuple(cute.arch.shuffle_sync_bfly(part, offset=step) for part in acc)
        acc = combine(acc, other)
        step //= 2
    return acc
