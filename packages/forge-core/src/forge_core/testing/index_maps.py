"""Checks of an index map: every byte once, in whole sectors, without bank conflicts.

An index map is a function of a configuration that returns a block's accesses (``forge_core.profiling.layouts.Access``).
Each check raises AssertionError; ``what`` names the map in its message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from forge_core.profiling.layouts import Access, coalescing, conflicts


def check_once(accesses: Iterable[Access], begin: int, end: int, *, what: str = "the map") -> None:
    """Exactly the bytes from ``begin`` to ``end`` are accessed, each once."""
    touched = Counter(
        byte
        for access in accesses
        for place in access.places
        if place is not None
        for byte in range(place, place + access.width)
    )
    if touched and not begin <= min(touched) <= max(touched) < end:
        raise AssertionError(f"{what}: touches bytes {min(touched)} to {max(touched) + 1}, outside {begin} to {end}")
    wrong = [byte for byte in range(begin, end) if touched[byte] != 1]
    if wrong:
        raise AssertionError(
            f"{what}: {len(wrong)} of {end - begin} bytes are not touched once; "
            f"first byte {wrong[0]}: {touched[wrong[0]]} times"
        )


def check_aligned(accesses: Iterable[Access], *, what: str = "the map") -> None:
    """Every access begins at a multiple of its width."""
    for access in accesses:
        wrong = next((p for p in access.places if p is not None and p % access.width), None)
        if wrong is not None:
            raise AssertionError(f"{what}: {access.name} of {access.width} bytes begins at byte {wrong}")


def check_coalesced(accesses: Iterable[Access], *, more: int = 0, what: str = "the map") -> None:
    """A request to global memory touches at most ``more`` sectors beyond the fewest that hold its bytes."""
    for access in accesses:
        found = coalescing(access)
        if found.sectors > found.ideal + more * found.requests:
            raise AssertionError(
                f"{what}: {access.name} touches {found.sectors} sectors in {found.requests} requests, "
                f"where {found.ideal} hold its bytes and {more} more a request are allowed"
            )


def check_conflicts(accesses: Sequence[Access], *, extra: int = 0, what: str = "the map") -> None:
    """Bank conflicts in shared memory add exactly ``extra`` wavefronts to all accesses together."""
    found = [conflicts(access) for access in accesses]
    got = sum(each.extra for each in found)
    if got != extra:
        worst = max(range(len(found)), key=lambda i: found[i].extra)
        raise AssertionError(
            f"{what}: bank conflicts add {got} passes, declared {extra}; "
            f"{accesses[worst].name} is the worst, {found[worst].worst} words of one bank"
        )
