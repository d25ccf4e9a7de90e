"""Which bytes the threads of the ladder's kernels read, for `forge-cute layout`; the engine draws its own kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from forge_core.profiling.layouts import Drawing, Panel, thread_value
from forge_week1_reduce.config import NaiveConfig, SharedConfig, ShuffleConfig, VectorizedConfig

__all__ = ["LAYOUTS"]

#: Elements of a row that is drawn for ``naive``, whose threads have a row each.
LENGTH = 64


def _draw(config: Any) -> Drawing:
    """A row, of which a thread has every ``threads``-th vector, or element; of ``naive`` a row for each thread."""
    width = 16 if isinstance(config, VectorizedConfig) else config.dtype.itemsize
    title, stride = "global memory: a row", (width, config.threads * width)
    if type(config) is NaiveConfig:
        title, stride = f"global memory: rows of {LENGTH} elements", (LENGTH * width, width)
    layout = ((config.threads,), (getattr(config, "chunks", 4),)), ((stride[0],), (stride[1],))
    return Drawing(config.kernel_name, (Panel(title, 32 * width, thread_value("loads", layout, width)),))


#: The drawing of each configuration.
LAYOUTS: Mapping[type, Callable[[Any], Drawing]] = dict.fromkeys(
    (NaiveConfig, SharedConfig, ShuffleConfig, VectorizedConfig), _draw
)
