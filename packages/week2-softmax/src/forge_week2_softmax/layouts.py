"""Which bytes the threads of the ladder's kernels access, for `forge-cute layout`; the engine draws its own kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from forge_core.profiling.layouts import Drawing, Panel, thread_value
from forge_week2_softmax.config import NaiveConfig, OnlineConfig, SinglePassConfig

__all__ = ["LAYOUTS"]


def _draw(config: Any) -> Drawing:
    """A row, of which a thread has every ``threads``-th vector, or element."""
    width = 16 if isinstance(config, SinglePassConfig) else config.dtype.itemsize * getattr(config, "vec", 1)
    threads, chunks = getattr(config, "lanes", 0) or config.threads, getattr(config, "chunks", 1)
    accesses = thread_value("accesses", (((threads,), (chunks,)), ((width,), (threads * width,))), width)
    return Drawing(config.kernel_name, (Panel("global memory: a row, read and written", 32 * width, accesses),))


#: The drawing of each configuration.
LAYOUTS: Mapping[type, Callable[[Any], Drawing]] = dict.fromkeys((NaiveConfig, OnlineConfig, SinglePassConfig), _draw)
