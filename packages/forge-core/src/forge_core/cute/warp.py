"""A reduction among the lanes of a warp.

lane     0    1    2    3    4    5    6    7          lanes exchange with the one whose number differs in one
start    a    b    c    d    e    f    g    h          bit, the highest first
xor 4    ae   bf   cg   dh   ae   bf   cg   dh
xor 2    aecg bfdh ...                                 after log2(lanes) steps each lane holds the whole: the same
xor 1    aecgbfdh ...                                  tree, whatever the values, so the same bits every time

Where a monoid reduces its parts one after the other, a maximum of fp32 among a whole warp is one instruction,
``redux.sync``, in place of five steps: see :func:`warp_maximum`.
"""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Float32, Int32

from forge_core.cute.monoid import Maximum, Monoid

__all__ = ["WARP", "reduce_lanes", "reduce_part", "warp_maximum"]

WARP = 32


def reduce_lanes(
    acc: tuple[Any, ...], monoid: Monoid, lanes: int = WARP, stride: int = 1, *, repeated: bool = False
) -> tuple[Any, ...]:
    """Combines the accumulators of groups of lanes; every lane gets its group's.

    A monoid may have a method ``together(acc, across)``, which is then used instead of its ``combine``:
    ``across(part, one)`` reduces one part of the accumulator among the lanes, by a monoid of one part.

    All 32 lanes of the warp must arrive.

    Args:
        acc: this lane's.
        monoid: how to combine.
        lanes: lanes of a group, a power of two.
        stride: the distance of a group's lanes: 1 for neighbours; a power of two with ``lanes * stride <= 32``.
        repeated: every group of the warp holds the same accumulators, so that a maximum of all lanes is a group's.
    """
    together = getattr(monoid, "together", None)
    if together is None or lanes == 1:
        return _butterfly(acc, monoid.combine, lanes, stride)
    found: tuple[Any, ...] = together(acc, lambda part, one: reduce_part(part, one, lanes, stride, repeated=repeated))
    return found


def reduce_part(part: Any, one: Monoid, lanes: int = WARP, stride: int = 1, *, repeated: bool = False) -> Any:
    """The same for one scalar and a monoid of one part; a maximum of fp32 in a whole warp is one instruction."""
    whole = stride == 1 and (lanes == WARP or repeated)
    if whole and isinstance(one, Maximum) and one.dtype is Float32:
        return warp_maximum(part)
    return _butterfly((part,), one.combine, lanes, stride)[0]


def warp_maximum(x: Any) -> Any:
    """The largest fp32 of all 32 lanes, for every lane; NaN wins, and comes back as PTX's canonical one.

    ``redux.sync`` compares integers.  The bits of a float, with all but the sign flipped where that is set, are ordered
    as the floats are, NaN of positive sign above infinity; a second flip gives them back.  On an H200 a softmax of
    1 x 2^20, with two reductions one behind the other, takes 0.55 us less so (docs/week2.md).
    """
    flip = "shr.s32 sign, bits, 31;\n\tand.b32 sign, sign, 0x7FFFFFFF;\n\txor.b32 bits, bits, sign;\n\t"
    key = cute.arch.inline_ptx(
        # The maximum of a number and itself is that number, but for a NaN, which it makes canonical, without a sign.
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


def _butterfly(acc: tuple[Any, ...], combine: Any, lanes: int, stride: int) -> tuple[Any, ...]:
    step = lanes * stride // 2
    while step >= stride:
        other = tuple(cute.arch.shuffle_sync_bfly(part, offset=step) for part in acc)
        acc = combine(acc, other)
        step //= 2
    return acc
