"""Where the threads of a block read and write, for ``forge-cute layout`` and for checks without a GPU.

Every access is computed from the layouts of ``configs`` by which the kernels partition a tile, of one that lies inside
the matrix; where rows begin between 16-byte boundaries, they are drawn from their first chunk on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


def _vectorized(config: VectorizedConfig) -> Drawing:
    """Accesses of input rows and output rows; the tile passes through swizzled shared memory."""
    rows, cols = config.loaded
    in_shared = (config.shared_layout[1], CHUNK, config.swizzle)
    loads = ("global memory, input rows: loads", cols, ("load",))
    out = rows
    if isinstance(config, UnalignedConfig):
        # Each chunk of a shifted row is followed by its neighbor; what belongs to the next tile is not stored.
        loads = (loads[0], cols + config.vec * config.src_shift, ("first load", "second load")[: 1 + config.src_shift])
        out = config.tile[0]
    reads = _accesses("read", config, config.store_layout, in_shared[0], config.dst_width, config.swizzle)
    if config.halo:
        chunks = config.row_chunks
        following = (reads[i].places for i in range(len(reads)))
        reads += tuple(
            Access(f"next read {i}", tuple(p[t + (t % chunks < chunks - 1)] for t in range(len(p))), CHUNK, "shared")
            for i, p in enumerate(following)
        )
    loaded = tuple(
        Access(a.name, tuple(p + CHUNK * i for p in a.places if p is not None), a.width)
        for i, name in enumerate(loads[2])
        for a in _accesses(name, config, config.load_layout, (loads[1], 1), config.src_width)
    )
    stores = _accesses("store", config, config.store_layout, (1, out), config.dst_width, rows=out)
    line, size = rows * config.itemsize, config.itemsize
    writes = _accesses("write", config, config.put_layout, *in_shared)
    return Drawing(
        f"{config.kernel_name}: {config.tile[0]} x {config.tile[1]} elements of {size} B",
        (
            Panel(loads[0], loads[1] * size, loaded),
            Panel("shared memory: writes of transposed chunks", line, writes),
            Panel("shared memory: reads of output rows", line, reads),
            Panel("global memory, output rows: stores", out * size, stores),
        ),
    )


def _tiled(config: TiledConfig) -> Drawing:
    """An element a thread and step, through a tile with a column of padding."""
    size, tile, shared = config.itemsize, config.tile, config.shared_layout[1]
    panels = (
        ("global memory, input: loads", tile, "load", config.load_layout, (tile, 1), None),
        ("shared memory: writes of rows", tile + 1, "write", config.load_layout, shared, PLAIN),
        ("shared memory: reads of columns", tile + 1, "read", config.store_layout, shared, PLAIN),
        ("global memory, output: stores", tile, "store", config.store_layout, (1, tile), None),
    )
    return Drawing(
        f"{config.kernel_name}: {tile} x {tile} elements of {size} B, padded to {tile + 1}",
        tuple(
            Panel(title, row * size, _accesses(name, config, layout, memory, size, swizzled))
            for title, row, name, layout, memory, swizzled in panels
        ),
    )


def _skinny(config: SkinnyConfig) -> Drawing:
    """A chunk of each line a thread, and neighboring chunks of the run; the lines are drawn one below the other."""
    (n, length), run = config.tile, (1, config.lines)
    ways = ("loads", "stores") if config.gather else ("stores", "loads")
    panels = (
        (f"global memory, {n} lines: {ways[0]}", "line", config.line_layout, (length, 1), config.line_width, None),
        ("shared memory: a thread's own chunks of the run", "own", config.own_layout, run, CHUNK, config.swizzle),
        ("shared memory: neighboring chunks", "chunk", config.run_layout, run, CHUNK, config.swizzle),
        (f"global memory, the run: {ways[1]}", "run", config.run_layout, run, config.run_width, None),
    )
    drawn = [Panel(title, length * config.itemsize, _accesses(name, config, *how)) for title, name, *how in panels]
    title = f"{config.kernel_name}: {n} lines of {length} elements of {config.itemsize} B"
    return Drawing(title, tuple(drawn if config.gather else drawn[::-1]))


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
