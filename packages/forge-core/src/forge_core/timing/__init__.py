"""Timing of calls.

``interleave`` runs contenders launch by launch under one timer: ``events`` (CUDA events behind a backlog of GPU work,
the default), ``graph`` (the same events inside a CUDA graph), ``cupti`` (the hardware's trace), or ``wall``
(perf_counter, for the CPU).  ``l2`` prepares the cache before each launch, ``streams`` detects work on another stream,
``host`` times the caller's thread, ``result`` holds the samples and refuses times below the roofline, ``accuracy``
measures the timers themselves.
"""

from __future__ import annotations

from forge_core.timing.host import host_time, host_times, import_times
from forge_core.timing.interleave import Contender, Interleaved, Policy, Timer, launch_order, sets_for, time_interleaved
from forge_core.timing.result import Timing, check_floor, floor_ms, quantile
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
