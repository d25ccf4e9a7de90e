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

__all__ = ["TIMERS"]

#: The timers of a GPU, by name.
TIMERS: dict[str, Callable[[torch.device], EventTimer]] = {
    "events": EventTimer,
    "graph": GraphTimer,
    "cupti": CuptiTimer,
}
