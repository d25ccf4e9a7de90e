"""The machine that runs a kernel's host side.

Symptom where this is missing from a key: "illegal instruction" in a process that loads an object which another machine
compiled.  Cause: the compiler makes the code that launches a kernel for the processor it runs on, AVX and all.
Invariant kept here: an object carries the level of the processor it was made on, and is loaded at that level or above.
"""

from __future__ import annotations

import functools
import platform
import sys
from collections.abc import Collection
from pathlib import Path

__all__ = ["host_levels", "levels_of"]

# Levels of each processor family, lowest first, with the flags that the kernel of the operating system reports for
# each.  Those of x86-64 are the levels of its psABI; flags that every such processor has are left out.
_LEVELS: dict[str, tuple[tuple[str, frozenset[str]], ...]] = {
    "x86_64": (
        ("v1", frozenset()),
        ("v2", frozenset({"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"})),
        ("v3", frozenset({"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"})),
        ("v4", frozenset({"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"})),
    ),
    "aarch64": (
        ("base", frozenset()),
        ("sve", frozenset({"sve"})),
        ("sve2", frozenset({"sve2"})),
    ),
}


def levels_of(machine: str, flags: Collection[str]) -> tuple[str, ...]:
    """The levels that a processor has, lowest first.

    Args:
        machine: ``platform.machine()``.
        flags: the processor's, as Linux names them.
    """
    levels = []
    for name, needed in _LEVELS.get(machine, ((platform.processor() or "base", frozenset[str]()),)):
        if not needed <= set(flags):
            break
        levels.append(f"{sys.platform}-{machine}-{name}")
    return tuple(levels)


@functools.cache
def host_levels() -> tuple[str, ...]:
    """The levels of this machine, lowest first: an object made at any of them can be loaded here."""
    flags: set[str] = set()
    info = Path("/proc/cpuinfo")
    if info.exists():
        with info.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip().lower() in ("flags", "features"):
                    flags = set(value.split())
                    break
    return levels_of(platform.machine(), flags)
