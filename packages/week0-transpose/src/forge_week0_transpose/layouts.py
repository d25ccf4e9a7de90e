"""Where the threads of a block read and write, for ``forge-cute layout`` and for counting without a GPU.

The index maps of a full tile, one function a kernel, over byte offsets within the tile.  They repeat the kernels'
address arithmetic and share with it what decides where a chunk lies (the configurations, ``words.swizzle``); a test
holds them against the models that move bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from forge_core.profiling.layouts import Access, Drawing, Panel
from forge_week0_transpose.configs import (
    NaiveConfig,
    RealignedConfig,
    RowsConfig,
    ShiftedConfig,
    SkinnyConfig,
    TiledConfig,
    VectorizedConfig,
)
from forge_week0_transpose.kernels import words

__all__ = ["LAYOUTS", "naive", "realigned", "rows", "shifted", "skinny", "tiled", "vectorized"]

CHUNK = words.CHUNK


def _accesses(
    name: str, steps: int, threads: int, width: int, space: str, place: Callable[[int, int], int]
) -> tuple[Access, ...]:
    return tuple(
        Access(f"{name} {step}", tuple(place(thread, step) for thread in range(threads)), width, space)
        for step in range(steps)
    )


def vectorized(config: VectorizedConfig) -> Drawing:
    """16 bytes a thread on both sides; the tile passes through swizzled shared memory."""
    items = config.src_width // config.itemsize
    per_line = config.line_bytes // config.dst_width
    row_bytes = config.col_chunks * config.src_width

    def load(thread: int, k: int) -> int:
        chunk, block = thread % config.col_chunks, thread // config.col_chunks
        return (block * config.chunk_items + k) * row_bytes + chunk * config.src_width

    def put(thread: int, j: int) -> int:
        chunk, block = thread % config.col_chunks, thread // config.col_chunks
        return int((chunk * items + j) * config.line_bytes + words.swizzle(block, chunk) * CHUNK)

    def line_of(thread: int, i: int) -> tuple[int, int]:
        return thread // per_line + i * (config.threads // per_line), thread % per_line * config.dst_width

    def get(thread: int, i: int) -> int:
        line, inside = line_of(thread, i)
        return int(line * config.line_bytes + words.swizzle(inside // CHUNK, line // items) * CHUNK + inside % CHUNK)

    def store(thread: int, i: int) -> int:
        line, inside = line_of(thread, i)
        return line * config.line_bytes + inside

    threads = config.threads
    return Drawing(
        f"{config.kernel_name}: {config.tile_rows} x {config.tile_cols} elements of {config.itemsize} B",
        (
            Panel(
                "global memory, input rows: loads",
                row_bytes,
                _accesses("load", config.chunk_items, threads, config.src_width, "global", load),
            ),
            Panel(
                "shared memory: writes of transposed chunks",
                config.line_bytes,
                _accesses("write", items, threads, CHUNK, "shared", put),
            ),
            Panel(
                "shared memory: reads of output rows",
                config.line_bytes,
                _accesses("read", config.stores, threads, config.dst_width, "shared", get),
            ),
            Panel(
                "global memory, output rows: stores",
                config.line_bytes,
                _accesses("store", config.stores, threads, config.dst_width, "global", store),
            ),
        ),
    )


def tiled(config: TiledConfig) -> Drawing:
    """An element a thread and step, through a tile with a column of padding."""
    size, tile = config.itemsize, config.tile

    def place(thread: int, i: int) -> int:
        return (thread // tile + i * config.lines) * tile * size + thread % tile * size

    def put(thread: int, i: int) -> int:
        return ((thread // tile + i * config.lines) * (tile + 1) + thread % tile) * size

    def get(thread: int, i: int) -> int:
        return (thread % tile * (tile + 1) + thread // tile + i * config.lines) * size

    steps, threads, pitch = config.steps, config.threads, (tile + 1) * size
    return Drawing(
        f"{config.kernel_name}: {tile} x {tile} elements of {size} B, padded to {tile + 1}",
        (
            Panel("global memory, input: loads", tile * size, _accesses("load", steps, threads, size, "global", place)),
            Panel("shared memory: writes of rows", pitch, _accesses("write", steps, threads, size, "shared", put)),
            Panel("shared memory: reads of columns", pitch, _accesses("read", steps, threads, size, "shared", get)),
            Panel(
                "global memory, output: stores", tile * size, _accesses("store", steps, threads, size, "global", place)
            ),
        ),
    )


#: The input's row that the drawing of ``naive`` assumes, in bytes: longer than any line of memory.
NAIVE_ROW = 1024


def naive(config: NaiveConfig) -> Drawing:
    """One thread an element, for a transposition: a warp writes a row and reads down a column."""
    size = config.itemsize
    read = _accesses("load", 1, 32, size, "global", lambda thread, _: thread * NAIVE_ROW)
    write = _accesses("store", 1, 32, size, "global", lambda thread, _: thread * size)
    return Drawing(
        f"{config.kernel_name}: a warp of a transposition, elements of {size} B",
        (
            Panel(f"global memory, input rows of {NAIVE_ROW} bytes: the warp's loads", NAIVE_ROW, read),
            Panel("global memory, an output row: its stores", 32 * size, write),
        ),
    )


def rows(config: RowsConfig) -> Drawing:
    """One chunk a thread, the same place on both sides."""
    moved = _accesses("chunk", 1, config.threads, config.width, "global", lambda thread, _: thread * config.width)
    title = f"{config.kernel_name}: {config.threads} threads, {config.width} B each"
    return Drawing(title, (Panel("global memory, loads and stores alike", 32 * config.width, moved),))


def realigned(config: RealignedConfig) -> Drawing:
    """An aligned chunk of the output a thread, from the two aligned chunks of the input that hold its bytes."""
    threads = config.threads
    loads = (
        *_accesses("first load", 1, threads, CHUNK, "global", lambda thread, _: thread * CHUNK),
        *_accesses("second load", 1, threads, CHUNK, "global", lambda thread, _: (thread + 1) * CHUNK),
    )
    stores = _accesses("store", 1, threads, CHUNK, "global", lambda thread, _: thread * CHUNK)
    return Drawing(
        f"{config.kernel_name}: {threads} threads, a chunk each",
        (
            Panel("global memory, input: loads of neighbouring chunks", 32 * CHUNK, loads),
            Panel("global memory, output: stores of whole chunks", 32 * CHUNK, stores),
        ),
    )


def shifted(config: ShiftedConfig) -> Drawing:
    """Aligned chunks on both sides; of a tile inside the matrix, whose rows are drawn from their first chunk on."""
    v, threads, cc = config.chunk_items, config.threads, config.col_chunks
    first_row = (cc + config.src_shift) * CHUNK
    out_row = (config.row_chunks - config.halo_chunks) * CHUNK

    def load(thread: int, k: int) -> int:
        return (thread // cc * v + k) * first_row + thread % cc * CHUNK

    def put(thread: int, j: int) -> int:
        chunk, block = thread % cc, thread // cc
        return int((chunk * v + j) * config.line_bytes + words.swizzle(block, chunk) * CHUNK)

    def line_of(thread: int, i: int) -> int:
        return thread // config.row_chunks + i * cc

    def get(thread: int, step: int) -> int:
        # Where output rows are shifted, each chunk is followed by its neighbour.
        reads = 1 + config.dst_shift
        line, part = line_of(thread, step // reads), thread % config.row_chunks
        part = min(part + step % reads, config.row_chunks - 1)
        return int(line * config.line_bytes + words.swizzle(part, line // v) * CHUNK)

    loads = _accesses("first load", v, threads, CHUNK, "global", load)
    if config.src_shift:
        loads += _accesses("second load", v, threads, CHUNK, "global", lambda thread, k: load(thread, k) + CHUNK)
    stores = tuple(
        Access(
            f"store {i}",
            tuple(
                line_of(thread, i) * out_row + thread % config.row_chunks * CHUNK
                if thread % config.row_chunks < config.row_chunks - config.halo_chunks
                else None
                for thread in range(threads)
            ),
            CHUNK,
        )
        for i in range(v)
    )
    return Drawing(
        f"{config.kernel_name}: {config.tile_rows} x {config.tile_cols} elements of {config.itemsize} B",
        (
            Panel("global memory, input rows: loads of aligned chunks", first_row, loads),
            Panel(
                "shared memory: writes of transposed chunks",
                config.line_bytes,
                _accesses("write", v, threads, CHUNK, "shared", put),
            ),
            Panel(
                "shared memory: reads of output rows",
                config.line_bytes,
                _accesses("read", v * (1 + config.dst_shift), threads, CHUNK, "shared", get),
            ),
            Panel("global memory, output rows: stores of aligned chunks", out_row, stores),
        ),
    )


def skinny(config: SkinnyConfig) -> Drawing:
    """A chunk of each line a thread, and neighbouring chunks of the run; the lines are drawn one below the other."""
    n, threads = config.lines, config.threads
    line_bytes = threads * CHUNK

    def lines(name: str) -> tuple[Access, ...]:
        parts = CHUNK // config.line_width
        return _accesses(
            name,
            n * parts,
            threads,
            config.line_width,
            "global",
            lambda thread, i: i // parts * line_bytes + thread * CHUNK + i % parts * config.line_width,
        )

    def run(name: str) -> tuple[Access, ...]:
        parts = CHUNK // config.run_width
        return _accesses(
            name,
            n * parts,
            threads,
            config.run_width,
            "global",
            lambda thread, i: (thread + i // parts * threads) * CHUNK + i % parts * config.run_width,
        )

    def own(name: str) -> tuple[Access, ...]:
        return _accesses(
            name, n, threads, CHUNK, "shared", lambda thread, j: words.run_place(thread * n + j, n) * CHUNK
        )

    def neighbours(name: str) -> tuple[Access, ...]:
        return _accesses(
            name, n, threads, CHUNK, "shared", lambda thread, j: words.run_place(thread + j * threads, n) * CHUNK
        )

    panels = (
        Panel(f"global memory, {n} lines: {'loads' if config.gather else 'stores'}", line_bytes, lines("line")),
        Panel("shared memory: a thread's own chunks of the run", line_bytes, own("own chunk")),
        Panel("shared memory: neighbouring chunks", line_bytes, neighbours("chunk")),
        Panel(f"global memory, the run: {'stores' if config.gather else 'loads'}", line_bytes, run("run")),
    )
    title = f"{config.kernel_name}: {n} lines of {config.tile} elements of {config.itemsize} B"
    return Drawing(title, panels if config.gather else panels[::-1])


#: The drawing of each configuration that has one.
LAYOUTS: Mapping[type, Callable[[Any], Drawing]] = {
    NaiveConfig: naive,
    RealignedConfig: realigned,
    RowsConfig: rows,
    ShiftedConfig: shifted,
    SkinnyConfig: skinny,
    TiledConfig: tiled,
    VectorizedConfig: vectorized,
}
