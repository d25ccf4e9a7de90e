"""How a block reads its part of a row in wide loads; ``vectorized``, ``cluster`` and ``split`` have it in common.

A row is one contiguous run, or several with any distance between them:

    one run, at any address          head |  16 B   16 B   16 B   ...   16 B  | tail
                                     by element         by chunk               by element
    several runs                     chunks numbered through all runs, each a multiple of the load's width

Turn by turn each thread issues ``unroll`` loads, and only then adds: that many are in flight at once.  The last turn
is guarded, load by load, but where a row is known to be whole turns (``whole``), or a single one (``exact``): a block
that lives for one turn is as fast as its code is short, since the code has to come from memory, too.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from forge_core.cute.hold import hold_policy
from forge_core.cute.memory import CHUNK, Int32, Int64, Uint32, Uint64, entry_offsets

__all__ = ["part_chunks", "sweep"]

#: Parts of a row begin at multiples of this many chunks, so that two blocks do not share a line of memory.
LINE_CHUNKS = 8


def part_chunks(vector: int, length: Any, outer: Any, parts: Any) -> Any:
    """Chunks of a part of a row, by the most that a row can have: before the launch, as a thread would divide for long.

    Args:
        vector: elements of a load.
        length: elements of a run.
        outer: the number of runs, and where they are.
        parts: how many the row is cut into.
    """
    step = parts * LINE_CHUNKS
    return (length // vector * outer[0] + (step - 1)) // step * LINE_CHUNKS


@cute.jit
def _run(
    values: cutlass.Constexpr,
    config: cutlass.Constexpr,
    start: Any,
    count: Any,
    first: Any,
    outer: tuple,
    per_run: Any,
    thread: Any,
    rAcc: Any,
):
    """Adds ``count`` chunks; where there are several runs, ``start`` is the row's and ``first`` the first chunk."""
    threads, unroll, width = config.threads, config.unroll, config.width
    rChunks = values.new_chunks(unroll, width)
    policy = hold_policy() if cutlass.const_expr(config.held) else None
    turns = Int32(Uint32(count) // (threads * unroll))
    for turn in cutlass.range(turns):
        place = turn * (threads * unroll) + thread
        address = start + Int64(place) * width
        for u in cutlass.range_constexpr(unroll):
            own = _address(config, start, address, place, u * threads, first, outer, per_run)
            values.fetch(own, rChunks[(u, None)], once=config.once, policy=policy)
        for u in cutlass.range_constexpr(unroll):
            values.add(rChunks[(u, None)], rAcc)
    done = turns * (threads * unroll)
    if done < count:
        place = done + thread
        address = start + Int64(place) * width
        for u in cutlass.range_constexpr(unroll):
            values.clear(rChunks[(u, None)])
            if place + u * threads < count:
                own = _address(config, start, address, place, u * threads, first, outer, per_run)
                values.fetch(own, rChunks[(u, None)], once=config.once, policy=policy)
        for u in cutlass.range_constexpr(unroll):
            values.add(rChunks[(u, None)], rAcc)


def _address(
    config: Any, start: Any, address: Any, place: Any, ahead: int, first: Any, outer: Any, per_run: Any
) -> Any:
    """Where the chunk lies that is ``ahead`` of the one at ``place``, whose address is given if the row is one run."""
    if config.outer_rank == 0:
        return address + ahead * config.width
    chunk = Uint32(first) + Uint32(place + ahead)
    (offset,) = entry_offsets(chunk // per_run, outer, 1)
    return start + offset + Int64(chunk % per_run) * config.width


@cute.jit
def sweep(
    values: cutlass.Constexpr,
    config: cutlass.Constexpr,
    row: Any,
    length: Any,
    outer: tuple,
    part: Any,
    span: Any,
    thread: Any,
    rAcc: Any,
):
    """Adds one part of a row to a thread's accumulators.

    Args:
        values: the computation.
        config: a ``VectorizedConfig``.
        row: the address of the row's first element.
        length: elements of a run.
        outer: the number of runs, then size and step in bytes of each dimension around them, innermost first.
        part: which part.
        span: chunks of a part, as of :func:`part_chunks`; None where the row is not cut.
        thread: this thread's number in the block.
        rAcc: its accumulators.
    """
    if cutlass.const_expr(config.exact):
        _once(values, config, row, thread, rAcc)
    elif cutlass.const_expr(config.whole):
        _turns(values, config, row + part * span * config.width, Int32(span), thread, rAcc)
    else:
        _any(values, config, row, length, outer, part, span, thread, rAcc)


@cute.jit
def _once(values: cutlass.Constexpr, config: cutlass.Constexpr, row: Any, thread: Any, rAcc: Any):
    """Adds a row of one turn."""
    rChunks = values.new_chunks(config.unroll, config.width)
    policy = hold_policy() if cutlass.const_expr(config.held) else None
    for u in cutlass.range_constexpr(config.unroll):
        place = thread + u * config.threads
        values.fetch(row + Int64(place * config.width), rChunks[(u, None)], once=config.once, policy=policy)
    for u in cutlass.range_constexpr(config.unroll):
        values.add(rChunks[(u, None)], rAcc)


@cute.jit
def _turns(values: cutlass.Constexpr, config: cutlass.Constexpr, start: Any, count: Any, thread: Any, rAcc: Any):
    """Adds ``count`` chunks, which are whole turns."""
    threads, unroll, width = config.threads, config.unroll, config.width
    rChunks = values.new_chunks(unroll, width)
    policy = hold_policy() if cutlass.const_expr(config.held) else None
    for turn in cutlass.range(Int32(Uint32(count) // (threads * unroll))):
        address = start + Int64(turn * (threads * unroll) + thread) * width
        for u in cutlass.range_constexpr(unroll):
            values.fetch(address + u * (threads * width), rChunks[(u, None)], once=config.once, policy=policy)
        for u in cutlass.range_constexpr(unroll):
            values.add(rChunks[(u, None)], rAcc)


@cute.jit
def _any(
    values: cutlass.Constexpr,
    config: cutlass.Constexpr,
    row: Any,
    length: Any,
    outer: tuple,
    part: Any,
    span: Any,
    thread: Any,
    rAcc: Any,
):
    """Adds a part of a row of any length; the arguments are those of :func:`sweep`."""
    vector = values.vector(config.width)
    # Lengths are not negative: as numbers without a sign they are divided by a shift.
    start, chunks = row, Int64(Uint64(length) // vector) * outer[0]
    if cutlass.const_expr(config.peel):
        head = cutlass.min(Int64(Uint64((-row) & (CHUNK - 1)) // values.size), length)
        chunks = Int64(Uint64(length - head) // vector)
        start = row + head * values.size
        tail = length - head - chunks * vector
        if part == 0:
            if thread < head:
                values.add_element(row + Int64(thread) * values.size, rAcc)
            if (thread >= CHUNK) & (thread < tail + CHUNK):
                values.add_element(row + (length - tail + Int64(thread - CHUNK)) * values.size, rAcc)
    first, count = Int64(0), Int32(chunks)
    if cutlass.const_expr(span is not None):
        first = Int64(part) * span
        count = Int32(cutlass.max(cutlass.min(chunks - first, span), Int64(0)))
    if cutlass.const_expr(config.outer_rank == 0):
        _run(values, config, start + first * config.width, count, first, outer, Uint32(0), thread, rAcc)
    else:
        _run(values, config, start, count, first, outer, Uint32(length // vector), thread, rAcc)
