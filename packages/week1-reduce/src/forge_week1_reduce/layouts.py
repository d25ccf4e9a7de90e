"""Which bytes the threads of the ladder's kernels read, for `forge-cute layout`; the engine draws its own kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from forge_core.profiling.layouts import Access, Drawing, Panel
from forge_week1_reduce.config import NaiveConfig, SharedConfig, ShuffleConfig, VectorizedConfig

__all__ = ["LAYOUTS"]

#: Elements of a row that is drawn for ``naive``, whose threads have a row each.
LENGTH = 64


def _draw(config: Any) -> Drawing:
    """A row, of which a thread has every ``threads``-th vector, or element; of ``naive`` a row for each thread."""
    size, title = config.dtype.itemsize, "global memory: a row"
    width, apart, steps = 16 if isinstance(config, VectorizedConfig) else size, 1, getattr(config, "chunks", 4)
    if type(config) is NaiveConfig:
        apart, title = LENGTH, f"global memory: rows of {LENGTH} elements"
    turn = 1 if apart > 1 else config.threads
    turns = [tuple((thread * apart + c * turn) * width for thread in range(config.threads)) for c in range(steps)]
    accesses = tuple(Access(f"from {places[0] // width}", places, width) for places in turns)
    return Drawing(config.kernel_name, (Panel(title, 32 * width, accesses),))


#: The drawing of each configuration.
LAYOUTS: Mapping[type, Callable[[Any], Drawing]] = dict.fromkeys(
    (NaiveConfig, SharedConfig, ShuffleConfig, VectorizedConfig), _draw
)
