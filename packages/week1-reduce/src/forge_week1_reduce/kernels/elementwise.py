"""How a block that reads element by element walks along its row; ``shared`` and ``shuffle`` have it in common."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from forge_core.cute.memory import Int64, Uint32, entry_offsets

__all__ = ["STRANDS", "walk"]

#: Elements of a thread in flight, each with an accumulator of its own.
STRANDS = 4


@cute.jit
def walk(values: cutlass.Constexpr, config: cutlass.Constexpr, row: Any, reduced: tuple, thread: Any, rAcc: Any):
    """Adds the elements ``thread``, ``thread + threads``, ... of a row to ``STRANDS`` accumulators in turn.

    Args:
        values: the computation.
        config: has ``threads`` and ``wide``.
        row: the address of the row's first element.
        reduced: the number of elements, then size and step in bytes of each dimension, innermost first.
        thread: this thread's number in the block.
        rAcc: ``STRANDS`` accumulators in registers.
    """
    monoid = values.monoid
    step = config.threads * STRANDS
    for turn in cutlass.range((reduced[0] + (step - 1)) // step):
        for strand in cutlass.range_constexpr(STRANDS):
            entry = turn * step + Int64(strand * config.threads) + Int64(thread)
            if entry < reduced[0]:
                place = entry if cutlass.const_expr(config.wide) else Uint32(entry)
                (offset,) = entry_offsets(place, reduced, 1)
                rAcc[strand] = monoid.combine((rAcc[strand],), (values.load(row + offset),))[0]
