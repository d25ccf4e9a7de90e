"""The thread-value layouts of the row kernels, for ``forge-cute layout``.

Each thread has ``chunks`` vectors: of a row, one for each ``threads`` of them (``held``, ``stream``), or of as many
elements of neighboring rows (``column``).  Drawn are whole vectors of a row that begins where its configuration's
alignment lets it; head, tail and tiles of skewed rows differ by single elements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from forge_core.profiling.layouts import WARP, Drawing, Panel, thread_value
from forge_core.rows.config import ColumnConfig, HeldConfig, StreamConfig
from forge_core.rows.problem import ACCESS
from forge_core.rows.teams import PersistentConfig

__all__ = ["LAYOUTS"]


def _draw(config: Any) -> Drawing:
    """The operands of each element size."""
    binding, vec = config.binding, config.vec
    # Of a cluster's blocks, which take turns along the row, the first one.
    threads = getattr(config, "lanes", 0) or config.threads
    turn = threads * max(getattr(config, "blocks", 1), 1)
    sizes: dict[int, list[str]] = {}
    for name in binding.moving:
        sizes.setdefault(binding.dtype(name).itemsize, []).append(name)
    panels = []
    for size, names in sorted(sizes.items()):
        vector = vec * size
        width = min(vector, ACCESS)
        layout = ((threads,), (vector // width, config.chunks)), ((vector,), (width, turn * vector))
        accesses = thread_value("vectors", layout, width)
        panels.append(Panel(f"global memory: {', '.join(names)}", WARP * vector, accesses))
    return Drawing(f"{config.kernel_name}: {config.threads} threads, {config.chunks} vectors each", tuple(panels))


#: The drawing of each configuration.
LAYOUTS: Mapping[type, Callable[[Any], Drawing]] = dict.fromkeys(
    (HeldConfig, StreamConfig, ColumnConfig, PersistentConfig), _draw
)
