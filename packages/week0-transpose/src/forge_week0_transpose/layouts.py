"""Where the threads of a block read and write, for ``forge-cute layout`` and for checks without a GPU.

Every access is computed from the layouts of ``configs`` by which the kernels partition a tile, of one that lies inside
the matrix; where rows begin between 16-byte boundaries, they are drawn from their first chunk on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from forge_core.profiling.layouts import Drawing, Layout, Panel, swizzle, thread_value
from forge_week0_transpose.configs import (
    CHUNK,
    NaiveConfig,
    RealignedConfig,
    RowsConfig,
    SkinnyConfig,
    TiledConfig,
    UnalignedConfig,
    VectorizedConfig,
)

__all__ = ["LAYOUTS"]

#: No swizzle.
PLAIN = (0, 4, 3)


def _panel(
    config: Any,
    tile_rows: int,
    title: str,
    row: int,
    layout: Layout,
    memory: tuple[int, int],
    width: int,
    swizzled: tuple[int, int, int] | None = None,
    kept: int | None = None,
) -> Panel:
    """The accesses by a thread-value layout of a tile.

    Args:
        config: the kernel's.
        tile_rows: rows of the tile that the layout indexes.
        title: in words, of which the last one names the accesses.
        row: elements of a row of the drawing.
        layout: from threads and values to places in the tile, m + n * tile_rows.
        memory: elements from one row of the tile to the next, and from one column.
        width: bytes of an access.
        swizzled: the swizzle of shared memory; None in global memory.
        kept: rows of the tile that are accessed; by default all.
    """
    space, place = "global" if swizzled is None else "shared", swizzle(*(swizzled or PLAIN))

    def address(index: int) -> int | None:
        m, n = index % tile_rows, index // tile_rows
        return place((m * memory[0] + n * memory[1]) * config.itemsize) if kept is None or m < kept else None

    name, vec = title.rsplit(maxsplit=1)[-1], width // config.itemsize
    accesses = thread_value(name, layout, width, vec=vec, address=address, space=space)
    return Panel(title, row * config.itemsize, accesses)


def _and_next(panel: Panel, following: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> Panel:
    """A panel in which each access is made again at the following places."""
    again = [replace(a, name=f"next {i}", places=following(a.places)) for i, a in enumerate(panel.accesses)]
    return replace(panel, accesses=(*panel.accesses, *again))


def _vectorized(config: VectorizedConfig) -> Drawing:
    """Accesses of input rows and output rows; the tile passes through swizzled shared memory."""
    (rows, cols), kept, (_, line) = config.loaded, config.tile[0], config.shared_layout
    shifted = isinstance(config, UnalignedConfig) and config.src_shift
    cols += config.vec if shifted else 0
    panel, swizzled = partial(_panel, config, rows), config.swizzle
    loads = panel("global memory, input rows: loads", cols, config.load_layout, (cols, 1), config.src_width)
    writes = panel("shared memory, transposed: writes", rows, config.put_layout, line, CHUNK, swizzled)
    reads = panel("shared memory, output rows: reads", rows, config.store_layout, line, config.dst_width, swizzled)
    stores = panel(
        "global memory, output rows: stores", kept, config.store_layout, (1, kept), config.dst_width, kept=kept
    )
    if shifted:
        loads = _and_next(loads, lambda places: tuple(place + CHUNK for place in places))
    if config.halo:
        # Each thread reads its neighbor's chunk too; the last one of a row stores nothing.
        own = [t + (t % config.row_chunks < config.row_chunks - 1) for t in range(config.threads)]
        reads = _and_next(reads, lambda places: tuple(places[t] for t in own))
    title = f"{config.kernel_name}: {kept} x {config.tile[1]} elements of {config.itemsize} B"
    return Drawing(title, (loads, writes, reads, stores))


def _tiled(config: TiledConfig) -> Drawing:
    """An element a thread and step, through a tile with a column of padding."""
    size, tile, (_, shared) = config.itemsize, config.tile, config.shared_layout
    panel = partial(_panel, config, tile)
    return Drawing(
        f"{config.kernel_name}: {tile} x {tile} elements of {size} B, padded to {tile + 1}",
        (
            panel("global memory, input: loads", tile, config.load_layout, (tile, 1), size),
            panel("shared memory, rows: writes", tile + 1, config.load_layout, shared, size, PLAIN),
            panel("shared memory, columns: reads", tile + 1, config.store_layout, shared, size, PLAIN),
            panel("global memory, output: stores", tile, config.store_layout, (1, tile), size),
        ),
    )


def _skinny(config: SkinnyConfig) -> Drawing:
    """A chunk of each line a thread, and neighboring chunks of the run; the lines are drawn one below the other."""
    (n, row), run, swizzled = config.tile, (1, config.lines), config.swizzle
    panel = partial(_panel, config, n)
    first, last = ("loads", "stores") if config.gather else ("stores", "loads")
    panels = (
        panel(f"global memory, {n} lines: {first}", row, config.line_layout, (row, 1), config.line_width),
        panel("shared memory: a thread's own chunks", row, config.own_layout, run, CHUNK, swizzled),
        panel("shared memory: neighboring chunks", row, config.run_layout, run, CHUNK, swizzled),
        panel(f"global memory, the run: {last}", row, config.run_layout, run, config.run_width),
    )
    title = f"{config.kernel_name}: {n} lines of {row} elements of {config.itemsize} B"
    return Drawing(title, panels if config.gather else panels[::-1])


#: The input's row that the drawing of ``naive`` assumes, in bytes: longer than any line of memory.
NAIVE_ROW = 1024


def _line(title: str, row: int, threads: int, step: int, width: int, count: int = 1) -> Panel:
    """Accesses of threads ``step`` bytes apart: of each thread ``count``, one behind the other."""
    layout = ((threads,), (count,)), ((step,), (width,))
    return Panel(title, row, thread_value("access", layout, width))


def _naive(config: NaiveConfig) -> Drawing:
    """One thread an element, for a transposition: a warp writes a row and reads down a column."""
    size = config.itemsize
    panels = (
        _line(f"global memory, input rows of {NAIVE_ROW} bytes: the warp's loads", NAIVE_ROW, 32, NAIVE_ROW, size),
        _line("global memory, an output row: its stores", 32 * size, 32, size, size),
    )
    return Drawing(f"{config.kernel_name}: a warp of a transposition, elements of {size} B", panels)


def _rows(config: RowsConfig) -> Drawing:
    """One chunk a thread, the same place on both sides."""
    width, threads = config.width, config.threads
    panel = _line("global memory, loads and stores alike", 32 * width, threads, width, width)
    return Drawing(f"{config.kernel_name}: {threads} threads, {width} B each", (panel,))


def _realigned(config: RealignedConfig) -> Drawing:
    """An aligned chunk of the output a thread, from the two aligned chunks of the input that hold its bytes."""
    row, threads = 32 * CHUNK, config.threads
    panels = (
        _line("global memory, input: loads of neighboring chunks", row, threads, CHUNK, CHUNK, count=2),
        _line("global memory, output: stores of whole chunks", row, threads, CHUNK, CHUNK),
    )
    return Drawing(f"{config.kernel_name}: {threads} threads, a chunk each", panels)


#: The drawing of each configuration.
LAYOUTS: Mapping[type, Callable[[Any], Drawing]] = {
    NaiveConfig: _naive,
    RealignedConfig: _realigned,
    RowsConfig: _rows,
    SkinnyConfig: _skinny,
    TiledConfig: _tiled,
    UnalignedConfig: _vectorized,
    VectorizedConfig: _vectorized,
}
