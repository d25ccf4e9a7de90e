"""A reduction among the blocks of a grid that are resident all at once, through slots in global memory.

    block b      thread 0 writes b's accumulator, and the launch's number, into slot b
    every block  thread t reads slot t, t + threads, ... until the launch's number is in it, and then a block's
                 reduction: every thread of every block holds the whole

    slot         [ part | part | number ]     16 bytes of fp32, which are written and read at once: whoever sees the
                                              number sees the accumulator that was written with it
                 [ part | part | number ] [ part | part | number ]     of more parts; of fp64 one in each 16 bytes
    its end      [ number ]                   once the block of the slot has read all the others

Symptom: a row that several blocks share takes two launches, of which the second waits for the first one's end, for its
accumulators to be read, and for nothing else.  Cause: a block cannot know when another one has written.  A counter in
global memory would tell it, but has to be 0 before: a third launch.  Invariant: *the number is no other launch's*, so
that whatever was in a slot before, it is not taken for this launch's.  The caller passes it (``Launch.numbered``).

A graph that is replayed launches with the number that it recorded, so a number that comes again is negative, and such a
launch leaves no slot with its number behind: a block signs the end of its slot when it has read the others, and when
all have, block 0 empties them (:func:`empty_slots`), while its results are on their way to memory.  What else writes
there between two replays, in a workspace that others get in the meantime, does not matter.

All blocks of the grid must be resident at once, or those that are would wait forever for those that are not: the launch
is to be cooperative.  The driver refuses that where they do not fit the GPU, and begins it where all find room.  No
fence is needed for a slot, which is one access; its end is released, and acquired before it is emptied.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Float64

from forge_core.cute.memory import Int32, Int64, store_element
from forge_core.cute.monoid import Monoid

__all__ = ["SLOT_BYTES", "empty_slots", "follow", "gather_grid", "lead", "sign_slot"]

#: Bytes from one slot to the next.  Every block reads all slots over and over, so neighbours in one line would be read
#: by one slice of the L2: on an H200 a gradient of 1 x 2^20 takes 8.06 us with 16 bytes, 7.87 with 32, 7.73
#: with 128.
SLOT_BYTES = 128

#: Bytes of an access: a word of 64 bits and the number.
_ACCESS = 16

#: Where the end of a slot is signed.
_END = SLOT_BYTES - _ACCESS


def lead(when: bool = True) -> None:
    """The launch behind may begin (``use_pdl``, sm_90 or newer): it waits for all that this one writes."""
    if when:
        cute.arch.griddepcontrol_launch_dependents()


def follow(when: bool = True) -> None:
    """Waits until the launch before, which may still run, has ended: called before what it writes is read."""
    if when:
        cute.arch.griddepcontrol_wait()


def _accesses(monoid: Monoid) -> int:
    """Accesses of an accumulator: of 64 bits each, and the number."""
    return (sum(dtype.width for dtype in monoid.types) + 63) // 64


def _fits_slot(monoid: Monoid) -> bool:
    """Whether a slot has room for an accumulator."""
    return set(monoid.types) in ({Float32}, {Float64}) and _accesses(monoid) * _ACCESS <= _END


def _send(low: str, values: list[Any], address: Any, number: Any) -> None:
    """Writes 64 bits, which PTX makes in ``low``, and the number, in one access."""
    cute.arch.inline_ptx(
        f"{{\n\t.reg .b64 low; .reg .b128 slot;\n\tmov.b64 low, {low};\n\tmov.b128 slot, {{ low, {{$r1}} }};\n\t"
        f"st.relaxed.gpu.global.b128 [{{$r0}}], slot;\n\t}}",
        read_only_args=[Int64(address), Int64(number), *values],
    )


@cute.jit
def _publish(acc: tuple, monoid: cutlass.Constexpr, slot: Any, number: Any, thread: Any):
    if thread == 0:
        if cutlass.const_expr(monoid.types[0] is Float32):
            for i in cutlass.range_constexpr(_accesses(monoid)):
                second = acc[2 * i + 1] if cutlass.const_expr(len(acc) > 2 * i + 1) else Float32(0)
                _send("{ {$r2}, {$r3} }", [acc[2 * i], second], slot + i * _ACCESS, number)
        else:
            for part in cutlass.range_constexpr(len(acc)):
                _send("{$r2}", [acc[part]], slot + part * _ACCESS, number)


def _receive(monoid: Monoid, slot: Any, number: Any) -> tuple[Any, ...]:
    """What a slot holds, once the number is in it."""
    narrow = monoid.types[0] is Float32
    found: list[Any] = []
    for part in range(_accesses(monoid)):
        values = cute.arch.inline_ptx(
            "{\n\t.reg .b64 low, seen; .reg .b128 slot; .reg .pred other;\n\tagain:\n\t"
            "ld.relaxed.gpu.global.b128 slot, [{$r0}];\n\tmov.b128 { low, seen }, slot;\n\t"
            "setp.ne.s64 other, seen, {$r1};\n\t@other bra again;\n\t"
            f"mov.b64 {'{ {$w0}, {$w1} }' if narrow else '{$w0}'}, low;\n\t}}",
            write_only_types=[Float32, Float32] if narrow else [Float64],
            read_only_args=[Int64(slot + part * _ACCESS), Int64(number)],
        )
        found += values if narrow else [values]
    return tuple(found[: len(monoid.types)])


@cute.jit
def sign_slot(slots: Any, number: Any, block: Any, thread: Any):
    """Says that this block has read the slots, which all its threads have behind a reduction of the block.

    Args:
        slots: the address of the row's slots.
        number: the launch's; nothing is done unless it is negative.
        block: this block's number among those that share the row.
        thread: this thread's number in the block.
    """
    if (number < 0) & (thread == 0):
        end = slots + Int64(block) * SLOT_BYTES + _END
        cute.arch.inline_ptx("st.release.gpu.global.b64 [{$r0}], {$r1};", read_only_args=[Int64(end), Int64(number)])


def _await_end(slot: Any, number: Any) -> None:
    """Waits until the block of a slot has read the others."""
    cute.arch.inline_ptx(
        "{\n\t.reg .b64 seen; .reg .pred other;\n\tagain:\n\tld.acquire.gpu.global.b64 seen, [{$r0}];\n\t"
        "setp.ne.s64 other, seen, {$r1};\n\t@other bra again;\n\t}",
        read_only_args=[Int64(slot + _END), Int64(number)],
    )


def _forget(monoid: Monoid, slot: Any) -> None:
    """Takes the number out of a slot, and out of its end."""
    for place in (*(part * _ACCESS + 8 for part in range(_accesses(monoid))), _END):
        store_element(Int64(0), slot + place, Int64)


@cute.jit
def empty_slots(
    monoid: cutlass.Constexpr,
    threads: Any,
    slots: Any,
    number: Any,
    block: Any,
    blocks: Any,
    thread: Any,
):
    """Leaves no slot of a row with a number that comes again; to be called behind :func:`gather_grid`, by all threads.

    Best called when the block's results are written: block 0 waits here for what the others sign before they write.

    Args:
        monoid: that of :func:`gather_grid`, as ``threads``, ``slots``, ``number``, ``block``, ``blocks`` and
            ``thread``.
        threads: as there.
        slots: as there.
        number: as there; nothing is done unless it is negative.
        block: as there.
        blocks: as there.
        thread: as there.
    """
    if (number < 0) & (block == 0):
        for other in cutlass.range(thread, Int32(blocks), threads, unroll=1):
            _await_end(slots + Int64(other) * SLOT_BYTES, number)
        cute.arch.sync_threads()
        for other in cutlass.range(thread, Int32(blocks), threads, unroll=1):
            _forget(monoid, slots + Int64(other) * SLOT_BYTES)


@cute.jit
def gather_grid(
    acc: tuple,
    monoid: cutlass.Constexpr,
    threads: Any,
    slots: Any,
    number: Any,
    block: Any,
    blocks: Any,
    thread: Any,
):
    """Publishes a block's accumulator, and gives each of its threads a share of those of all blocks of the row.

    All threads of all blocks of the grid must arrive, and all blocks must be resident at once.

    Args:
        acc: this block's, held by its thread 0 at least; of fp32, up to 14 parts, or of fp64, up to 7.
        monoid: how to combine.
        threads: threads of a block; a compile-time constant or an argument of the launch.
        slots: the address of ``SLOT_BYTES`` of global memory for each block that shares the row, a multiple of 16.
        number: the launch's, 64 bits, not 0.  No launch before has written it into these slots; or it is negative, and
            every launch that does calls :func:`empty_slots`.
        block: this block's number among those that share the row.
        blocks: how many there are.
        thread: this thread's number in the block.

    Returns:
        An accumulator; a reduction of the block makes the whole of them.

    Raises:
        ValueError: an accumulator of another kind, when the kernel is traced.
    """
    if cutlass.const_expr(not _fits_slot(monoid)):
        raise ValueError(f"gather_grid: expected up to 14 parts of fp32, or 7 of fp64, got {monoid.types}")
    _publish(acc, monoid, slots + Int64(block) * SLOT_BYTES, number, thread)
    rAcc = [cute.make_rmem_tensor(1, dtype) for dtype in monoid.types]
    identity = monoid.identity()
    for part in cutlass.range_constexpr(len(monoid.types)):
        rAcc[part][0] = identity[part]
    for other in cutlass.range(thread, Int32(blocks), threads, unroll=1):
        found = monoid.combine(tuple(r[0] for r in rAcc), _receive(monoid, slots + Int64(other) * SLOT_BYTES, number))
        for part in cutlass.range_constexpr(len(monoid.types)):
            rAcc[part][0] = found[part]
    return tuple(r[0] for r in rAcc)
