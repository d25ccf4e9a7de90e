"""A reduction among the threads of a block.

32 lanes a warp      shuffles                    every lane of warp w holds w's accumulator
lane 0 of warp w     -> shared[w]                one barrier
every warp           <- shared[lane % warps]     and shuffles again: every thread holds the block's
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from forge_core.cute.memory import SHARED, load_element, store_element
from forge_core.cute.monoid import Monoid
from forge_core.cute.warp import WARP, reduce_lanes

__all__ = ["SLOTS_BYTES", "load_slot", "reduce_block", "store_slot"]

#: Bytes between the parts of an accumulator in shared memory: 32 slots of the widest type.
PART_BYTES = WARP * 8

#: Shared memory that a reduction of an accumulator with one part needs; several parts need as many times that.
SLOTS_BYTES = PART_BYTES


def store_slot(acc: tuple[Any, ...], monoid: Monoid, shared: Any, slot: Any) -> None:
    """Writes an accumulator into one of 32 slots of shared memory."""
    for part, (value, dtype) in enumerate(zip(acc, monoid.types, strict=True)):
        store_element(value, shared + part * PART_BYTES + slot * (dtype.width // 8), dtype, SHARED)


def load_slot(monoid: Monoid, shared: Any, slot: Any) -> tuple[Any, ...]:
    """Reads an accumulator from a slot."""
    return tuple(
        load_element(shared + part * PART_BYTES + slot * (dtype.width // 8), dtype, SHARED)
        for part, dtype in enumerate(monoid.types)
    )


@cute.jit
def _publish(acc: tuple, monoid: cutlass.Constexpr, shared: Any, thread: Any):
    if thread % WARP == 0:
        store_slot(acc, monoid, shared, thread // WARP)


def reduce_block(acc: tuple[Any, ...], monoid: Monoid, threads: int, shared: Any, thread: Any) -> tuple[Any, ...]:
    """Combines the accumulators of all threads of a block; every thread gets the whole.

    All threads must arrive.  The slots may be written again only after another barrier.

    Args:
        acc: this thread's.
        monoid: how to combine.
        threads: threads of the block: 32 times a power of two, up to 1024.
        shared: the address of ``SLOTS_BYTES`` of shared memory for each part of an accumulator.
        thread: this thread's number in the block.
    """
    acc = reduce_lanes(acc, monoid)
    warps = threads // WARP
    if warps == 1:
        return acc
    _publish(acc, monoid, shared, thread)
    cute.arch.sync_threads()
    return reduce_lanes(load_slot(monoid, shared, thread % warps), monoid, warps, repeated=True)
