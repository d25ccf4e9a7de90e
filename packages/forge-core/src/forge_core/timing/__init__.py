"""How long a call takes, and how that was measured.

`interleave` runs contenders launch by launch under one timer: `events` (CUDA events behind a backlog of GPU work, the
default), `graph` (the same events inside a CUDA graph), `cupti` (the hardware's trace), or `wall` (perf_counter, for
the CPU).  `l2` says what state the cache is in before each launch, `streams` finds out a call that works on another
stream, `host` times what the caller's thread pays for an eager call, `floor` refuses times that no memory could
deliver, `result` holds the samples, and `accuracy` shows how far the timers themselves can be trusted.
"""

from __future__ import annotations

from forge_core.timing.floor import check_floor, floor_ms
from forge_core.timing.host import host_time, host_times, import_times
from forge_core.timing.interleave import Contender, Interleaved, Policy, Timer, launch_order, sets_for, time_interleaved
from forge_core.timing.result import Timing, quantile
from forge_core.timing.streams import check_stream
from forge_core.timing.wall import WallTimer

__all__ = [
    "TIMERS",
    "Contender",
    "Interleaved",
    "Policy",
    "Timer",
    "Timing",
    "WallTimer",
    "check_floor",
    "check_stream",
    "floor_ms",
    "host_time",
    "host_times",
    "import_times",
    "launch_order",
    "quantile",
    "sets_for",
    "time_interleaved",
]

#: The timers of the GPU by name: where each lives.
TIMERS = {
    "events": "forge_core.timing.events:EventTimer",
    "graph": "forge_core.timing.graph:GraphTimer",
    "cupti": "forge_core.timing.cupti:CuptiTimer",
}
