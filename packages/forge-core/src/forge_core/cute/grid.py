"""Grid-wide reduction in a single cooperative launch, through slots in global memory.

    block b      thread 0 stores the accumulator of b, and the launch's number, to slot b
    every block  thread t polls slots t, t + threads, ... for the launch's number; a reduction of the block follows,
                 after which every thread of every block holds the total

    slot         [ part | part | number ]     16 bytes in one access, two parts of fp32 or one of fp64: a thread that
                                              reads the number reads the accumulator that was stored with it
                 [ part | part | number ] [ part | part | number ]     of an accumulator of more parts
    end of slot  [ number ]                   after the slot's block has read all others

A counter of arrived blocks would have to be zeroed by another launch.  Instead each launch has a unique number
(``Plan.numbered``), so stale data in a slot is never mistaken for this launch's.

A replayed CUDA graph repeats the number it captured.  Such a number is negative, and its launch clears the slots: each
block signs the end of its slot after it has read the others, and when all have signed, block 0 clears them
(:meth:`Slots.clear`), while its results are on their way to memory.

All blocks must be resident at once, or the resident ones would wait forever: the launch must be cooperative, and the
driver rejects one that does not fit.  A slot needs no fence, since it is a single access; its end is stored with
release and loaded with acquire.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Float64

from forge_core.cute import SLOT_BYTES
from forge_core.cute.memory import Int32, Int64, store_element
from forge_core.cute.monoid import Monoid, get, kept, put

#: Bytes of an access: 64 bits of the accumulator and the number.
_ACCESS = 16

#: Offset of the end of a slot.
_END = SLOT_BYTES - _ACCESS


def lead(when: bool = True) -> None:
    """Programmatic dependent launch: lets the next kernel start (``use_pdl``, sm_90 and newer)."""
    if when:
        cute.arch.griddepcontrol_launch_dependents()


def follow(when: bool = True) -> None:
    """Programmatic dependent launch: waits for the previous kernel; call it before reading what that writes."""
    if when:
        cute.arch.griddepcontrol_wait()


def _accesses(monoid: Monoid) -> int:
    """Accesses of 64 bits and the number that an accumulator takes."""
    return (sum(dtype.width for dtype in monoid.types) + 63) // 64


def _send(low: str, values: list[Any], address: Any, number: Any) -> None:
    """Stores 64 bits, the PTX operand ``low``, and the number in one access."""
    cute.arch.inline_ptx(
        f"{{\n\t.reg .b64 low; .reg .b128 slot;\n\tmov.b64 low, {low};\n\tmov.b128 slot, {{ low, {{$r1}} }};\n\t"
        f"st.relaxed.gpu.global.b128 [{{$r0}}], slot;\n\t}}",
        read_only_args=[Int64(address), Int64(number), *values],
    )


@cute.jit
def _publish(acc: tuple, monoid: cutlass.Constexpr, slot: Any, number: Any):
    if cute.arch.thread_idx()[0] == 0:
        if cutlass.const_expr(monoid.types[0] is Float32):
            for i in cutlass.range_constexpr(_accesses(monoid)):
                second = acc[2 * i + 1] if cutlass.const_expr(len(acc) > 2 * i + 1) else Float32(0)
                _send("{ {$r2}, {$r3} }", [acc[2 * i], second], slot + i * _ACCESS, number)
        else:
            for part in cutlass.range_constexpr(len(acc)):
                _send("{$r2}", [acc[part]], slot + part * _ACCESS, number)


def _receive(monoid: Monoid, slot: Any, number: Any) -> tuple[Any, ...]:
    """Polls a slot for the number, and returns its accumulator."""
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


def _await_end(slot: Any, number: Any) -> None:
    """Polls the end of a slot for the number."""
    cute.arch.inline_ptx(
        "{\n\t.reg .b64 seen; .reg .pred other;\n\tagain:\n\tld.acquire.gpu.global.b64 seen, [{$r0}];\n\t"
        "setp.ne.s64 other, seen, {$r1};\n\t@other bra again;\n\t}",
        read_only_args=[Int64(slot + _END), Int64(number)],
    )


def _clear(monoid: Monoid, slot: Any) -> None:
    """Clears the numbers in a slot and in its end."""
    for place in (*(part * _ACCESS + 8 for part in range(_accesses(monoid))), _END):
        store_element(Int64(0), slot + place, Int64)


@dataclass(frozen=True)
class Slots:
    """The slots of a row, for each block that shares it."""

    start: Any  # address of ``SLOT_BYTES`` of global memory for each block, a multiple of 16
    number: Any  # of the launch, 64 bits, not 0: either unique, or negative and cleared by :meth:`clear`
    block: Any  # index of this block among those that share the row
    blocks: Any  # number of blocks that share the row
    threads: Any  # of a block; static or dynamic

    def of(self, block: Any) -> Any:
        """Address of a block's slot."""
        return self.start + Int64(block) * SLOT_BYTES

    @cute.jit
    def gather(self, acc: tuple, monoid: cutlass.Constexpr):
        """Publishes a block's accumulator, and combines a thread's share of the accumulators of all blocks of the row.

        Called by all threads of the grid, whose blocks must all be resident.

        Args:
            acc: accumulator of the block, required of thread 0: up to 14 parts of fp32, or 7 of fp64.
            monoid: the reduction.

        Returns:
            A partial result; reduced over the block it is the total.

        Raises:
            ValueError: an accumulator that does not fit a slot, at trace time.
        """
        if cutlass.const_expr(set(monoid.types) not in ({Float32}, {Float64}) or _accesses(monoid) * _ACCESS > _END):
            raise ValueError(f"Slots.gather: expected up to 14 parts of fp32, or 7 of fp64, got {monoid.types}")
        _publish(acc, monoid, self.of(self.block), self.number)
        rAcc = kept(monoid, [monoid.identity()])
        for other in cutlass.range(cute.arch.thread_idx()[0], Int32(self.blocks), self.threads, unroll=1):
            put(rAcc, [monoid.combine(get(rAcc, 0), _receive(monoid, self.of(other), self.number))])
        return get(rAcc, 0)

    @cute.jit
    def sign(self):
        """Signs the end of this block's slot, if the number is negative.

        Call it after a reduction of the block, when all threads have read the slots.
        """
        if (self.number < 0) & (cute.arch.thread_idx()[0] == 0):
            cute.arch.inline_ptx(
                "st.release.gpu.global.b64 [{$r0}], {$r1};",
                read_only_args=[Int64(self.of(self.block) + _END), Int64(self.number)],
            )

    @cute.jit
    def clear(self, monoid: cutlass.Constexpr):
        """Clears the slots, if the number is negative, so that a replayed launch finds no number of its own.

        Called by all threads, after the block's results are written: block 0 waits here for the others' :meth:`sign`.
        """
        if (self.number < 0) & (self.block == 0):
            thread = cute.arch.thread_idx()[0]
            for other in cutlass.range(thread, Int32(self.blocks), self.threads, unroll=1):
                _await_end(self.of(other), self.number)
            cute.arch.sync_threads()
            for other in cutlass.range(thread, Int32(self.blocks), self.threads, unroll=1):
                _clear(monoid, self.of(other))
