"""What an index map must do, whatever it maps: touch every byte once, in whole sectors, without bank conflicts.

An index map is a plain function of a configuration that gives the accesses of a block, thread by thread
(``forge_core.profiling.layouts.Access``).  These checks take the accesses of all blocks together:

    check_once          every byte of a region is touched by exactly one access: nothing skipped, nothing twice
    check_aligned       every access begins at a multiple of its width
    check_coalesced     a warp's requests touch no more sectors than the bytes need, and so many more at its ends
    check_conflicts     shared memory: exactly the declared number of passes more than the fewest
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from forge_core.profiling.layouts import Access, coalescing, conflicts

__all__ = ["check_aligned", "check_coalesced", "check_conflicts", "check_once"]


def check_once(accesses: Iterable[Access], begin: int, end: int, *, what: str = "the map") -> None:
    """Fails unless every byte from ``begin`` to ``end`` is touched by one access, and no other byte by any.

    Args:
        accesses: all of them.
        begin: the region's first byte.
        end: the byte after its last.
        what: names the map in the message.

    Raises:
        AssertionError: a byte is skipped, or touched more than once, or lies outside.
    """
    touched = [0] * (end - begin)
    for access in accesses:
        for thread, place in enumerate(access.places):
            if place is None:
                continue
            if place < begin or place + access.width > end:
                raise AssertionError(
                    f"{what}: {access.name} of thread {thread} touches bytes {place} to {place + access.width}, "
                    f"outside {begin} to {end}"
                )
            for byte in range(place - begin, place - begin + access.width):
                touched[byte] += 1
    wrong = [byte for byte, times in enumerate(touched) if times != 1]
    if wrong:
        raise AssertionError(
            f"{what}: {len(wrong)} of {end - begin} bytes are not touched once; "
            f"first byte {begin + wrong[0]}: {touched[wrong[0]]} times"
        )


def check_aligned(accesses: Iterable[Access], *, what: str = "the map") -> None:
    """Fails unless every access begins at a multiple of its width.

    Raises:
        AssertionError: one does not.
    """
    for access in accesses:
        wrong = next((p for p in access.places if p is not None and p % access.width), None)
        if wrong is not None:
            raise AssertionError(f"{what}: {access.name} of {access.width} bytes begins at byte {wrong}")


def check_coalesced(accesses: Iterable[Access], *, more: int = 0, what: str = "the map") -> None:
    """Fails where a warp's requests touch more sectors than hold their bytes.

    Args:
        accesses: to global memory.
        more: sectors that a request may touch on top of the fewest: 1 where it begins between two sectors.
        what: names the map in the message.

    Raises:
        AssertionError: an access touches more.
    """
    for access in accesses:
        found = coalescing(access)
        if found.sectors > found.ideal + more * found.requests:
            raise AssertionError(
                f"{what}: {access.name} touches {found.sectors} sectors in {found.requests} requests, "
                f"where {found.ideal} hold its bytes and {more} more a request are allowed"
            )


def check_conflicts(accesses: Sequence[Access], *, extra: int = 0, what: str = "the map") -> None:
    """Fails unless bank conflicts cost exactly as many passes as declared.

    Args:
        accesses: to shared memory.
        extra: passes that conflicts add to all accesses together.
        what: names the map in the message.

    Raises:
        AssertionError: they cost more, or fewer: a declaration that is no longer true is none.
    """
    found = [conflicts(access) for access in accesses]
    got = sum(each.extra for each in found)
    if got != extra:
        worst = max(range(len(found)), key=lambda i: found[i].extra)
        raise AssertionError(
            f"{what}: bank conflicts add {got} passes, declared {extra}; "
            f"{accesses[worst].name} is the worst, {found[worst].worst} words of one bank"
        )
