"""Timing of calls.

``interleave`` runs contenders launch by launch under one timer: ``events`` (CUDA events behind a backlog of GPU work,
the default), ``graph`` (the same events inside a CUDA graph), ``cupti`` (the hardware's trace), or ``host``'s
``WallTimer`` for the CPU.  ``host`` also times the calling thread, ``l2`` prepares the cache before each launch,
``streams`` detects work on another stream, ``result`` holds the samples and rejects times below the roofline,
``accuracy`` measures the timers themselves.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from forge_core.timing.cupti import CuptiTimer
from forge_core.timing.events import EventTimer
from forge_core.timing.graph import GraphTimer
from forge_core.timing.host import WallTimer, host_times, import_times
from forge_core.timing.interleave import Contender, Interleaved, Policy, Timer, time_interleaved
from forge_core.timing.l2 import sets_for
from forge_core.timing.result import Timing, check_floor, floor_ms
from forge_core.timing.streams import check_stream

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
    "host_times",
    "import_times",
    "sets_for",
    "time_interleaved",
]

#: The timers of a GPU, by name.
TIMERS: dict[str, Callable[[torch.device], Timer]] = {"events": EventTimer, "graph": GraphTimer, "cupti": CuptiTimer}
