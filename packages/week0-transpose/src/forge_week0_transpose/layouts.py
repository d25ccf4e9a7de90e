"""Where the threads of a block read and write, for ``forge-cute layout`` and for checks without a GPU.

Every access is computed from the layouts of ``configs`` by which the kernels partition a tile, of one that lies inside
the matrix; where rows begin between 16-byte boundaries, they are drawn from their first chunk on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from forge_core.profiling.layouts import Access, Drawing, Panel, swizzle
from forge_week0_transpose.configs import (
    CHUNK,
    Layout,
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


def _offsets(shape: Sequence[int], stride: Sequence[int]) -> list[int]:
    """Where a layout puts 0, 1, 2, ...: the first mode is the fastest, as in CuTe."""
    found = [0]
    for size, step in zip(shape, stride, strict=True):
        found = [place + i * step for i in range(size) for place in found]
    return found


def _accesses(
    what: str,
    config: Any,
    layout: Layout,
    memory: tuple[int, int],
    width: int,
    swizzled: tuple[int, int, int] | None = None,
    rows: int = 0,
) -> tuple[Access, ...]:
    """The accesses of ``width`` bytes by a thread-value layout of a tile, whose strides in memory are ``memory``.

    Args:
        what: names the accesses.
        config: the kernel's.
        layout: ((threads, values), (their strides)), to places in the tile.
        memory: elements from one row of the tile to the next, and from one column.
        width: bytes of an access.
        swizzled: the swizzle of shared memory; None in global memory.
        rows: of the tile; threads in others have no access.
    """
    (threads, values), (thread_stride, value_stride) = layout
    tile_rows = getattr(config, "loaded", None) or config.tile
    tile_rows = tile_rows if isinstance(tile_rows, int) else tile_rows[0]
    place = swizzle(*(swizzled or PLAIN))

    def at(index: int) -> int | None:
        m, n = index % tile_rows, index // tile_rows
        return place((m * memory[0] + n * memory[1]) * config.itemsize) if m < (rows or tile_rows) else None

    begins = _offsets(values, value_stride)[:: width // config.itemsize]
    return tuple(
        Access(
            f"{what} {i}",
            tuple(at(thread + begin) for thread in _offsets(threads, thread_stride)),
            width,
            "global" if swizzled is None else "shared",
        )
        for i, begin in enumerate(begins)
    )


def _panel(
    title: str,
    config: Any,
    row: int,
    layout: Layout,
    memory: tuple[int, int],
    width: int,
    swizzled: tuple[int, int, int] | None = None,
) -> Panel:
    """The accesses by a layout, drawn in rows of ``row`` elements."""
    return Panel(
        title, row * config.itemsize, _accesses(title.rsplit(maxsplit=1)[-1], config, layout, memory, width, swizzled)
    )


def _vectorized(config: VectorizedConfig) -> Drawing:
    """Accesses of input rows and output rows; the tile passes through swizzled shared memory."""
    (rows, cols), kept, line = config.loaded, config.tile[0], config.shared_layout[1]
    if isinstance(config, UnalignedConfig) and config.src_shift:
        cols += config.vec
    loads = _panel("global memory, input rows: loads", config, cols, config.load_layout, (cols, 1), config.src_width)
    write = ("shared memory, transposed: writes", config, rows, config.put_layout, line, CHUNK)
    read = ("shared memory, output rows: reads", config, rows, config.store_layout, line, config.dst_width)
    reads = _panel(*read, config.swizzle)
    stores = _accesses("stores", config, config.store_layout, (1, kept), config.dst_width, rows=kept)
    if cols > config.loaded[1]:
        following = (tuple(p + CHUNK for p in a.places if p is not None) for a in loads.accesses)
        both = (*loads.accesses, *(Access(f"next {i}", places, CHUNK) for i, places in enumerate(following)))
        loads = replace(loads, accesses=both)
    if config.halo:
        # Each thread reads its neighbor's chunk too; the last one of a row stores nothing.
        own = [t + (t % config.row_chunks < config.row_chunks - 1) for t in range(config.threads)]
        after = (tuple(a.places[t] for t in own) for a in reads.accesses)
        both = (*reads.accesses, *(Access(f"next {i}", places, CHUNK, "shared") for i, places in enumerate(after)))
        reads = replace(reads, accesses=both)
    title = f"{config.kernel_name}: {kept} x {config.tile[1]} elements of {config.itemsize} B"
    out = Panel("global memory, output rows: stores", kept * config.itemsize, stores)
    return Drawing(title, (loads, _panel(*write, config.swizzle), reads, out))


def _tiled(config: TiledConfig) -> Drawing:
    """An element a thread and step, through a tile with a column of padding."""
    size, tile, shared = config.itemsize, config.tile, config.shared_layout[1]
    return Drawing(
        f"{config.kernel_name}: {tile} x {tile} elements of {size} B, padded to {tile + 1}",
        (
            _panel("global memory, input: loads", config, tile, config.load_layout, (tile, 1), size),
            _panel("shared memory, rows: writes", config, tile + 1, config.load_layout, shared, size, PLAIN),
            _panel("shared memory, columns: reads", config, tile + 1, config.store_layout, shared, size, PLAIN),
            _panel("global memory, output: stores", config, tile, config.store_layout, (1, tile), size),
        ),
    )


def _skinny(config: SkinnyConfig) -> Drawing:
    """A chunk of each line a thread, and neighboring chunks of the run; the lines are drawn one below the other."""
    (n, row), run, swizzled = config.tile, (1, config.lines), config.swizzle
    ways = ("loads", "stores") if config.gather else ("stores", "loads")
    panels = (
        _panel(f"global memory, {n} lines: {ways[0]}", config, row, config.line_layout, (row, 1), config.line_width),
        _panel("shared memory: a thread's own chunks", config, row, config.own_layout, run, CHUNK, swizzled),
        _panel("shared memory: neighboring chunks", config, row, config.run_layout, run, CHUNK, swizzled),
        _panel(f"global memory, the run: {ways[1]}", config, row, config.run_layout, run, config.run_width),
    )
    title = f"{config.kernel_name}: {n} lines of {row} elements of {config.itemsize} B"
    return Drawing(title, panels if config.gather else panels[::-1])


def _line(threads: int, width: int, step: int, what: str, first: int = 0) -> Access:
    """An access of each thread, ``step`` bytes from the next one's."""
    return Access(what, tuple(first + thread * step for thread in range(threads)), width)


#: The input's row that the drawing of ``naive`` assumes, in bytes: longer than any line of memory.
NAIVE_ROW = 1024


def _naive(config: NaiveConfig) -> Drawing:
    """One thread an element, for a transposition: a warp writes a row and reads down a column."""
    size = config.itemsize
    panels = (
        Panel(
            f"global memory, input rows of {NAIVE_ROW} bytes: the warp's loads",
            NAIVE_ROW,
            (_line(32, size, NAIVE_ROW, "load"),),
        ),
        Panel("global memory, an output row: its stores", 32 * size, (_line(32, size, size, "store"),)),
    )
    return Drawing(f"{config.kernel_name}: a warp of a transposition, elements of {size} B", panels)


def _rows(config: RowsConfig) -> Drawing:
    """One chunk a thread, the same place on both sides."""
    moved = (_line(config.threads, config.width, config.width, "chunk"),)
    title = f"{config.kernel_name}: {config.threads} threads, {config.width} B each"
    return Drawing(title, (Panel("global memory, loads and stores alike", 32 * config.width, moved),))


def _realigned(config: RealignedConfig) -> Drawing:
    """An aligned chunk of the output a thread, from the two aligned chunks of the input that hold its bytes."""
    loads = tuple(
        _line(config.threads, CHUNK, CHUNK, f"{name} load", CHUNK * i) for i, name in enumerate(("first", "second"))
    )
    stores = (_line(config.threads, CHUNK, CHUNK, "store"),)
    return Drawing(
        f"{config.kernel_name}: {config.threads} threads, a chunk each",
        (
            Panel("global memory, input: loads of neighboring chunks", 32 * CHUNK, loads),
            Panel("global memory, output: stores of whole chunks", 32 * CHUNK, stores),
        ),
    )


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
