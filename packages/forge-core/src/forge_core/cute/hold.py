"""Loads whose lines the L2 is asked to evict last.

Symptom: a kernel that reads and writes as fast as it can stays some percent behind what the memory can do.

Cause, as far as it is known: an L2 that fills with the lines of a stream gives up lines of which only a part has been
read yet, and fetches them again.  It is inferred from what wins and loses on an H200, rows read once and written once:
loads whose lines are to be evicted last gain up to 4 % of a copy's bandwidth in 43 of 48 cases, loads that are to be
evicted first lose 2 to 9 %, and so do loads past the L1, up to a fifth (docs/week2.md).

Invariant: the policy changes when a line leaves the L2 and nothing else.  It needs sm_80.
"""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32, Uint64

__all__ = ["await_stage", "hold_policy", "load_held", "load_held_if", "stage_held_if"]


def hold_policy() -> Any:
    """The L2's policy for lines to evict last, for the loads of this module."""
    return cute.arch.inline_ptx("createpolicy.fractional.L2::evict_last.b64 {$w0}, 1.0;", write_only_types=[Uint64])


def _vector(names: list[str]) -> tuple[str, str]:
    """How PTX says so many words: the suffix of the instruction, and the operand."""
    return (f".v{len(names)}", "{ " + ", ".join(names) + " }") if len(names) > 1 else ("", names[0])


def load_held(address: Any, rWords: Any, width: int, policy: Any) -> None:
    """Loads ``width`` bytes (4, 8 or 16) of global memory into words of registers."""
    count = width // 4
    suffix, targets = _vector([f"{{$w{i}}}" for i in range(count)])
    words = cute.arch.inline_ptx(
        f"ld.global.L2::cache_hint{suffix}.b32 {targets}, [{{$r0}}], {{$r1}};",
        write_only_types=[Uint32] * count,
        read_only_args=[Int64(address), policy],
    )
    for i, word in enumerate(words if count > 1 else (words,)):
        rWords[i] = word


def _where(ahead: int, *instructions: str) -> str:
    """Instructions with a predicate ``inside``: whether place + ahead, as an unsigned number, is below the limit.

    Operands ``$r2`` and ``$r3`` are the place and the limit.
    """
    lines = (
        ".reg .pred inside; .reg .b32 place;",
        f"add.s32 place, {{$r2}}, {ahead};",
        "setp.lt.u32 inside, place, {$r3};",
        *instructions,
    )
    return "{\n\t" + "\n\t".join(lines) + "\n\t}"


def load_held_if(place: Any, ahead: int, limit: Any, address: Any, offset: int, rWords: Any, policy: Any) -> None:
    """Loads all of some words of registers where 0 <= place + ahead < limit; elsewhere they stay as they are.

    One predicated instruction, without a branch: the compiler keeps loads that follow each other together, and spends
    no registers on the two ways through each, nor on the outcomes of the comparisons.

    Args:
        place: a number of 32 bits.
        ahead: what is added to it, known when the kernel is compiled.
        limit: a number of 32 bits, not negative.
        address: in global memory, in bytes; a multiple of the words' bytes.
        offset: bytes beyond the address, known when the kernel is compiled: it costs no register.
        rWords: 1, 2 or 4 words.
        policy: that of :func:`hold_policy`.
    """
    count = cute.size(rWords)
    names = [f"held{i}" for i in range(count)]
    suffix, targets = _vector(names)
    words = cute.arch.inline_ptx(
        _where(
            ahead,
            f".reg .b32 {', '.join(names)};",
            # Through names of their own: the compiler may give a result the register of an operand.
            *(f"mov.b32 {name}, {{$r{4 + i}}};" for i, name in enumerate(names)),
            f"@inside ld.global.L2::cache_hint{suffix}.b32 {targets}, [{{$r0}}+{offset}], {{$r1}};",
            *(f"mov.b32 {{$w{i}}}, {name};" for i, name in enumerate(names)),
        ),
        write_only_types=[Uint32] * count,
        read_only_args=[Int64(address), policy, Int32(place), Int32(limit), *(rWords[i] for i in range(count))],
    )
    for i, word in enumerate(words if count > 1 else (words,)):
        rWords[i] = word


def stage_held_if(
    place: Any, ahead: int, limit: Any, address: Any, offset: int, slot: Any, rWords: Any, policy: Any
) -> None:
    """Asks for 16 bytes of global memory into a slot of shared memory where :func:`load_held_if` would load them.

    Elsewhere it writes words into the slot.  The copy is asynchronous: the thread that asked finds the bytes there
    after :func:`await_stage`.  It goes through the L1: past it (``.cg``) up to a fifth of the bandwidth was lost, as
    is inferred by lines that were fetched more than once.

    Args:
        place: as of :func:`load_held_if`, with ``ahead`` and ``limit``.
        ahead: as there.
        limit: as there.
        address: in global memory, in bytes; a multiple of 16.
        offset: bytes beyond the address, known when the kernel is compiled.
        slot: an address in shared memory, a multiple of 16.
        rWords: four words, for where nothing is loaded.
        policy: that of :func:`hold_policy`.
    """
    cute.arch.inline_ptx(
        _where(
            ahead,
            f"@inside cp.async.ca.shared.global.L2::cache_hint [{{$r4}}], [{{$r0}}+{offset}], 16, {{$r1}};",
            "@!inside st.shared.v4.b32 [{$r4}], { {$r5}, {$r6}, {$r7}, {$r8} };",
        ),
        read_only_args=[
            *(Int64(address), policy, Int32(place), Int32(limit), Int32(slot)),
            *(rWords[i] for i in range(4)),
        ],
    )


def await_stage() -> None:
    """Waits for all that this thread has asked for by :func:`stage_held_if`."""
    cute.arch.inline_ptx("cp.async.wait_all;")
