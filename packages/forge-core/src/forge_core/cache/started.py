"""The start time of this process."""

from __future__ import annotations

import os
import time
from pathlib import Path

__all__ = ["process_start_ns"]


def process_start_ns() -> int:
    """Start time of this process, in ns since the epoch.

    On Linux it is read from ``/proc``, which counts clock ticks of 10 ms, and rounded up by one tick.  Rounded down, a
    file written just before the start would look newer than the process.  Rounding up misses no change, since an
    interpreter takes longer than a tick to import its first module.  On other systems it is the time of the call, so
    a change between an earlier import and the call is missed.

    A forked process has a later start time than the modules that it inherits.  So Forge calls this once, when it is
    imported, and forks inherit the result.
    """
    now = time.time_ns()
    try:
        # Field 22 is the start, in ticks since boot; fields are counted from the end of the name in parentheses, which
        # may itself contain spaces and parentheses.
        ticks = int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19])
        # Not btime in /proc/stat, which has whole seconds: a file written up to a second before the start would look
        # newer than the process.
        # Of several readings the latest is right: a process that waits between the two clocks computes an earlier time.
        booted = max(time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME) for _ in range(8))
        return booted + (ticks + 1) * 10**9 // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return now
