"""Where the threads of a block read and write, for ``forge-cute layout`` and for checks without a GPU.

Drawn is a tile that lies inside the matrix; where rows begin between 16-byte boundaries, from their first chunk on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from forge_core.profiling.layouts import Access, Drawing, Panel, swizzle, thread_value
from forge_week0_transpose.config import KERNELS
from forge_week0_transpose.configs import CHUNK, PLAIN, Step

#: Bytes of a drawn row of what has none.
RUN = 512


def _panel(size: int, step: Step) -> Panel:
    """A step whose elements have ``size`` bytes."""
    row, place = max(step.strides), swizzle(*(step.swizzle or PLAIN))

    def accesses(name: str, more: int = 0) -> tuple[Access, ...]:
        def address(index: int) -> int | None:
            m, n = index % step.tile[0], index // step.tile[0]
            first = m * step.strides[0] + n * step.strides[1]
            if step.strides[0] == 1 and m >= row:
                return None
            return place(first * size + (more if first % row * size + more < row * size else 0))

        return thread_value(name, step.layout, step.width, vec=step.width // size, address=address, space=space)

    space = "global" if step.swizzle is None else "shared"
    found = accesses(step.title.rsplit(maxsplit=1)[-1]) + (accesses("next", CHUNK) if step.shifted else ())
    return Panel(f"{space} memory, {step.title}", RUN if step.run else row * size, found)


def _draw(config: Any) -> Drawing:
    panels = tuple(_panel(config.itemsize, step) for step in config.steps)
    return Drawing(f"{config.kernel_name}: {config.threads} threads", panels)


#: The drawing of each configuration.
LAYOUTS: Mapping[type, Callable[[Any], Drawing]] = {kernel.config: _draw for kernel in KERNELS}
