"""Reduction among the lanes of a warp, a butterfly of shuffles.

lane     0    1    2    3    4    5    6    7
start    a    b    c    d    e    f    g    h
xor 4    ae   bf   cg   dh   ae   bf   cg   dh
xor 2    aecg bfdh ...
xor 1    aecgbfdh ...                                  log2(lanes) steps in a fixed order, so deterministic

A maximum of fp32 over a full warp is one instruction, ``redux.sync``, instead of five steps: see :func:`warp_maximum`.
"""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Float32, Int32

from forge_core.cute.monoid import Maximum, Monoid

WARP = 32


def reduce_lanes(acc: tuple[Any, ...], monoid: Monoid, lanes: int = WARP, *, repeated: bool = False) -> tuple[Any, ...]:
    """Reduces the accumulators of each group of adjacent lanes, and returns the total of its group to each lane.

    Called by all 32 lanes.  If the monoid has a method ``together(acc, across)``, it replaces ``combine``:
    ``across(part, one)`` reduces one part of the accumulator over the lanes, by a monoid of one part.

    Args:
        acc: accumulator of this lane.
        monoid: the reduction.
        lanes: lanes of a group, a power of two.
        repeated: all groups hold the same accumulators, so that a maximum over the warp is that of a group.
    """
    together = getattr(monoid, "together", None)
    if together is None or lanes == 1:
        return _butterfly(acc, monoid.combine, lanes)
    found: tuple[Any, ...] = together(acc, lambda part, one: reduce_part(part, one, lanes, repeated=repeated))
    return found


def reduce_part(part: Any, one: Monoid, lanes: int = WARP, *, repeated: bool = False) -> Any:
    """:func:`reduce_lanes` for a scalar and a monoid of one part."""
    if (lanes == WARP or repeated) and isinstance(one, Maximum) and one.dtype is Float32:
        return warp_maximum(part)
    return _butterfly((part,), one.combine, lanes)[0]


def warp_maximum(x: Any) -> Any:
    """The maximum of fp32 over all 32 lanes; propagates NaN, as PTX's canonical NaN.

    ``redux.sync`` compares integers.  The bits of a float are ordered like the float once all bits but the sign of a
    negative one are flipped, with a positive NaN above infinity; a second flip restores them.  This saves 0.55 us of a
    softmax of 1 x 2^20, which has two dependent reductions, on an H200 (docs/week2.md).
    """
    flip = "shr.s32 sign, bits, 31;\n\tand.b32 sign, sign, 0x7FFFFFFF;\n\txor.b32 bits, bits, sign;\n\t"
    key = cute.arch.inline_ptx(
        # max(x, x) is x, and canonicalizes NaN, whose sign it clears.
        "{\n\t.reg .f32 quiet; .reg .b32 bits, sign;\n\tmax.NaN.f32 quiet, {$r0}, {$r0};\n\tmov.b32 bits, quiet;\n\t"
        + flip
        + "mov.b32 {$w0}, bits;\n\t}",
        write_only_types=[Int32],
        read_only_args=[x],
    )
    top = cute.arch.warp_redux_sync(key, "max")
    return cute.arch.inline_ptx(
        "{\n\t.reg .b32 bits, sign;\n\tmov.b32 bits, {$r0};\n\t" + flip + "mov.b32 {$w0}, bits;\n\t}",
        write_only_types=[Float32],
        read_only_args=[top],
    )


def _butterfly(acc: tuple[Any, ...], combine: Any, lanes: int) -> tuple[Any, ...]:
    step = lanes // 2
    while step:
        other = tuple(cute.arch.shuffle_sync_bfly(part, offset=step) for part in acc)
        acc = combine(acc, other)
        step //= 2
    return acc
