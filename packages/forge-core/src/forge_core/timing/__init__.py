"""How long a call takes, and how that was measured.

`interleave` runs contenders launch by launch under one of two timers: `events` (CUDA events behind a backlog of GPU
work) or `wall` (perf_counter, for the CPU).  `host` times what the caller's thread pays for an eager call, `floor`
refuses times that no memory could deliver, `result` holds the samples.
"""

from __future__ import annotations

from forge_core.timing.floor import check_floor, floor_ms
from forge_core.timing.host import host_time, host_times, import_times
from forge_core.timing.interleave import Contender, Interleaved, Policy, Timer, launch_order, sets_for, time_interleaved
from forge_core.timing.result import Timing, quantile
from forge_core.timing.wall import WallTimer

__all__ = [
    "Contender",
    "Interleaved",
    "Policy",
    "Timer",
    "Timing",
    "WallTimer",
    "check_floor",
    "floor_ms",
    "host_time",
    "host_times",
    "import_times",
    "launch_order",
    "quantile",
    "sets_for",
    "time_interleaved",
]
