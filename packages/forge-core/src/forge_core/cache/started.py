"""When this process started."""

from __future__ import annotations

import os
import time
from pathlib import Path

__all__ = ["process_start_ns"]


def process_start_ns() -> int:
    """The start of this process in ns since the epoch.

    Read from ``/proc`` on Linux, which counts in ticks of 10 ms.  It is rounded up: what was written just before the
    process is older, and no interpreter imports a project's module within its first tick.  Elsewhere it is the time of
    the call, which is too late for what was imported before.

    A fork has a start of its own, later than what it holds was imported.  So this is called once, when Forge is
    imported, and forks inherit the result.
    """
    now = time.time_ns()
    try:
        # The name in parentheses may hold anything; the start is the 22nd field, in ticks since the system was booted.
        ticks = int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19])
        # /proc/stat tells the time of booting in whole seconds, which is too coarse: a program that writes a module and
        # starts a process that imports it would be suspected.
        booted = now - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        return min(now, booted + (ticks + 1) * 10**9 // os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError, AttributeError):
        return now
