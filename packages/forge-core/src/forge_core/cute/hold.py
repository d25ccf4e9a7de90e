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
from cutlass import Int32, Int64, Uint64

__all__ = ["hold_policy", "once_policy", "stage_held_if"]


def hold_policy() -> Any:
    """The L2's policy for lines to evict last."""
    return cute.arch.inline_ptx("createpolicy.fractional.L2::evict_last.b64 {$w0}, 1.0;", write_only_types=[Uint64])


def once_policy() -> Any:
    """The L2's policy for lines to evict first: what it gains is at ``forge_core.rows.kernel.READ_ONCE``."""
    return cute.arch.inline_ptx("createpolicy.fractional.L2::evict_first.b64 {$w0}, 1.0;", write_only_types=[Uint64])


def stage_held_if(inside: Any, source: Any, slot: Any, rWords: Any, policy: Any) -> None:
    """Asks for 16 bytes of global memory into a slot of shared memory where ``inside`` holds; writes words elsewhere.

    The copy is asynchronous: the thread that asked finds the bytes there once it has waited for its ``cp.async`` group.
    It goes through the L1: past it (``.cg``) up to a fifth of the bandwidth was lost, as is inferred by lines that were
    fetched more than once.  Inline PTX, because the DSL's copy drops the policy, and fills with zeros where its
    predicate does not hold.

    Args:
        inside: whether to copy.
        source: an address in global memory, a multiple of 16.
        slot: an address in shared memory, a multiple of 16.
        rWords: four words, for where nothing is loaded.
        policy: that of :func:`hold_policy`.
    """
    cute.arch.inline_ptx(
        "{\n\t.reg .pred inside;\n\tsetp.ne.b32 inside, {$r0}, 0;\n\t"
        "@inside cp.async.ca.shared.global.L2::cache_hint [{$r2}], [{$r1}], 16, {$r3};\n\t"
        "@!inside st.shared.v4.b32 [{$r2}], { {$r4}, {$r5}, {$r6}, {$r7} };\n\t}",
        read_only_args=[Int32(inside), Int64(source), Int32(slot), policy, *(rWords[i] for i in range(4))],
    )
