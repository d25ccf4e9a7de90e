"""How each kernel is configured for a problem, and which problems it does not support.

Each function returns the configuration or a ``Refusal``.  The tables and thresholds name the GPU they were measured on,
the date and the gain; how many tiles there must be for the largest, and what else a GPU may want otherwise, is in
``thresholds``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from forge_core.choice import Refusal
from forge_core.device import Device
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
from forge_week0_transpose.problem import Dim, Matrix, Problem
from forge_week0_transpose.thresholds import COLUMNS_BESIDE, THRESHOLDS, UNALIGNED_TILES, large_tiles

__all__ = [
    "MAX_BLOCKS",
    "MAX_LINES",
    "MIN_FILL",
    "TILE_SIZES",
    "TOO_MANY",
    "UNROLL",
    "count",
    "fills",
    "naive",
    "prefers_realigned",
    "realigned",
    "rows",
    "skinny",
    "tiled",
    "unaligned",
    "vectorized",
    "widths",
]

#: Edges of the tiled kernel, in elements.
TILE_SIZES = (16, 32)

Tiles = TypeVar("Tiles", bound=VectorizedConfig)

#: The longest short side that the skinny kernel takes; one kernel is compiled for each.
MAX_LINES = 8

#: Blocks of a grid.
MAX_BLOCKS = 2**31 - 1

#: Elements of a thread where nothing but the naive kernel is left: as many reads in flight.  H200, 2026-11-21: eight
#: read every second column of 16384x32768 fp32 20 % faster than one, and 20000 16x16 matrices 40 to 50 % faster.
UNROLL = 8


def count(dims: tuple[Dim, ...]) -> int:
    """How many entries some dimensions have together."""
    entries = 1
    for dim in dims:
        entries *= dim.size
    return entries


def naive(problem: Problem, items: int = 1) -> NaiveConfig:
    """One thread an element, or for ``items`` of them; does every problem."""
    return NaiveConfig(problem.itemsize, max(len(problem.dims), 1), wide=problem.numel >= 2**32, items=items)


def rows(problem: Problem) -> RowsConfig | Refusal:
    """Rows by accesses as wide as every row's begin and end allow."""
    rows = problem.rows()
    if rows is None:
        return Refusal("rows that are contiguous in input and output", "a permutation")
    size = problem.itemsize
    width = min(problem.src_vector([d.src for d in rows.outer]), problem.dst_vector([d.dst for d in rows.outer]))
    tail = 0
    if rows.length * size % width:
        if rows.outer:  # Ends inside a chunk at every row: narrower accesses beat a branch in each.
            width = _power_of_two(rows.length * size, width)
        else:
            tail = _power_of_two(rows.length * size, width)
    chunks = -(-rows.length * size // width) * count(rows.outer)
    return RowsConfig(width, len(rows.outer), tail, wide=chunks >= 2**32)


#: Bytes of a row from which ``realigned`` beats ``rows``, for each width that the alignment leaves.  H200, 2026-11-21:
#: 1 GiB at an odd element 1.59 of ``copy_`` against 0.32 (2-byte accesses), at an odd pair of fp32 1.02 against 0.80;
#: rows of 200 bytes by 8 are still 3 % faster by ``rows``, rows of 126 bytes by 2 already 2.4 times slower.
_MIN_REALIGNED: Mapping[int, int] = {1: 32, 2: 32, 4: 128, 8: 256}


def prefers_realigned(problem: Problem, config: RowsConfig) -> bool:
    """Whether shifting is faster than the narrow accesses that ``config`` would make."""
    rows = problem.rows()
    least = _MIN_REALIGNED.get(config.width)  # none: accesses of the full width have nothing to gain
    return rows is not None and least is not None and rows.length * problem.itemsize >= least


def realigned(problem: Problem) -> RealignedConfig | Refusal:
    """Rows by aligned chunks wherever they begin."""
    rows = problem.rows()
    if rows is None:
        return Refusal("rows that are contiguous in input and output", "a permutation")
    if problem.itemsize > 8 and problem.numel:  # such elements lie on 16-byte boundaries
        return Refusal("elements of at most 8 bytes", f"{problem.itemsize}")
    chunks = -(-(rows.length * problem.itemsize + 2 * (CHUNK - 1)) // CHUNK) * count(rows.outer)
    return RealignedConfig(problem.itemsize, len(rows.outer), wide=chunks >= 2**32)


def _power_of_two(distance: int, limit: int) -> int:
    return min(distance & -distance, limit)


def tiled(problem: Problem, tile_size: int | None) -> TiledConfig | Refusal:
    """An element a thread and step through a square tile; takes any strides."""
    matrix = problem.any_matrix()
    if tile_size is None:
        # Tiles of 32 fill whole 32-byte sectors at every width; 16 wastes less of a small matrix.
        tile_size = 32 if min(matrix.rows, matrix.cols) > 16 else 16
    if tile_count(matrix, (tile_size, tile_size)) > MAX_BLOCKS:
        return TOO_MANY
    return TiledConfig(problem.itemsize, tile_size, len(matrix.batch))


#: Where a grid cannot have a block for each tile.
TOO_MANY = Refusal(f"at most {MAX_BLOCKS} tiles, a block each", "more")


def tile_count(matrix: Matrix, tile: tuple[int, int]) -> int:
    """Tiles of a batch of matrices, the incomplete ones at the edges included."""
    return -(-matrix.rows // tile[0]) * -(-matrix.cols // tile[1]) * count(matrix.batch)


def skinny(problem: Problem, matrix: Matrix, device: Device) -> SkinnyConfig | Refusal:
    """Few rows into a dense output, or few columns out of a dense input."""
    size = problem.itemsize
    batch_src, batch_dst = [d.src for d in matrix.batch], [d.dst for d in matrix.batch]
    for gather in (True, False):
        lines, length = (matrix.rows, matrix.cols) if gather else (matrix.cols, matrix.rows)
        run_pitch = matrix.dst_pitch if gather else matrix.src_pitch
        if not 2 <= lines <= MAX_LINES or run_pitch != lines or size > 8:
            continue
        if gather:
            line, run = problem.src_vector([matrix.src_pitch, *batch_src]), problem.dst_vector(batch_dst)
        else:
            line, run = problem.dst_vector([matrix.dst_pitch, *batch_dst]), problem.src_vector(batch_src)
        config = SkinnyConfig(size, lines, gather, line, run, len(matrix.batch))
        if length >= config.tile[1]:
            return config if -(-length // config.tile[1]) * count(matrix.batch) <= MAX_BLOCKS else TOO_MANY
    return Refusal(
        f"2 to {MAX_LINES} rows (of a dense output) or columns (of a dense input) of at least one block's length, with "
        "elements of at most 8 bytes",
        f"a matrix of {matrix.rows}x{matrix.cols}, elements of {size} bytes",
    )


#: Share of a tile that a matrix must fill on average, below which elements by ``naive`` are faster: for a matrix that
#: is short both ways, and for one that is long one way, whose tiles at least follow one another.  H200, 2026-11-21:
#: 20000 fp32 matrices of 16x16 fill a quarter of the smallest tile, and both take 16 us; 4194304x8 bf16 fills an
#: eighth, and the tiles reach 0.47 of a copy, eager PyTorch 0.24.
MIN_FILL = 0.25
MIN_FILL_LONG = 0.0625


def fills(matrix: Matrix, config: VectorizedConfig) -> bool:
    """Whether a matrix fills its tiles well enough for them to be worth it."""
    tiles = (matrix.rows / config.tile[0], matrix.cols / config.tile[1])
    fill = tiles[0] / math.ceil(tiles[0]) * tiles[1] / math.ceil(tiles[1])
    return fill >= (MIN_FILL_LONG if max(tiles) >= LONG else MIN_FILL)


#: Tiles along the longer side from which a matrix counts as long one way.
LONG = 8


def widths(problem: Problem, matrix: Matrix) -> tuple[int, int]:
    """Bytes of the widest access in which every row begins and ends, in the input and in the output."""
    return (
        problem.src_vector([matrix.src_pitch, matrix.cols, *(d.src for d in matrix.batch)]),
        problem.dst_vector([matrix.dst_pitch, matrix.rows, *(d.dst for d in matrix.batch)]),
    )


def vectorized(problem: Problem, matrix: Matrix, device: Device) -> VectorizedConfig | Refusal:
    """The largest tile of which there are enough."""
    size = problem.itemsize
    src, dst = widths(problem, matrix)
    if min(src, dst) < max(4, size):
        return Refusal(
            f"rows that begin and end at multiples of {max(4, size)} bytes",
            f"multiples of {src} in the input, of {dst} in the output",
        )
    tiles = _NARROW_TILES if size == 1 and src < CHUNK else _VECTORIZED_TILES[size]
    for row_chunks, col_chunks, width, stated in tiles:
        tiles_per_sm = THRESHOLDS.value(large_tiles(size), device) if stated is None else stated
        chosen = VectorizedConfig(size, row_chunks, col_chunks, min(width, src), dst, len(matrix.batch))
        if _suits(chosen, matrix, device, tiles_per_sm):
            break
    return _placed(chosen, matrix, device)


#: Entries of the second and of the third dimension of a grid.
MAX_OUTER = 65535

#: Bytes of a line of memory.
LINE = 128

#: Rows or columns from which places are 64-bit integers: a tile may reach over the matrix.
WIDE = 2**31 - 2**12


def _placed(config: Tiles, matrix: Matrix, device: Device) -> Tiles | Refusal:
    """How the blocks of a tile size find their places."""
    if tile_count(matrix, config.tile) > MAX_BLOCKS:
        return TOO_MANY
    by_columns = _by_columns(matrix, config, device)
    outer = -(-matrix.rows // config.tile[0]) if by_columns else -(-matrix.cols // config.tile[1])
    flat, wide = max(outer, count(matrix.batch)) > MAX_OUTER, max(matrix.rows, matrix.cols) >= WIDE
    return replace(config, by_columns=by_columns, flat=flat, wide=wide)


def _by_columns(matrix: Matrix, config: VectorizedConfig, device: Device) -> bool:
    """Whether blocks walk along the input's columns before they move down its rows.

    Down the rows, neighbours in time extend the same output rows.  But where the input's rows do not begin at lines of
    memory, tiles that stand beside one another share a line in each row, which is fetched again if the neighbour comes
    late.  H200, 2026-11-21: 32768x1000 0.95 against 0.92 (bf16), 0.94 against 0.92 (fp32), 0.94 against 0.90 (int8);
    262144x136 bf16 0.93 against 0.78; with 126 tiles in a row, at 16384x16008, 0.905 against 0.917, and 0.79 against
    0.90 at 8200x8200, where output rows share lines, too.
    """
    return (
        matrix.src_pitch * config.itemsize % LINE != 0
        and matrix.dst_pitch * config.itemsize % LINE == 0
        and 1 < -(-matrix.cols // config.tile[1]) <= THRESHOLDS.value(COLUMNS_BESIDE, device)
    )


#: For each element size, largest tile first: row_chunks, col_chunks, the widest load, and the tiles for each
#: multiprocessor below which the next entry is taken, None for the threshold.  H200, 2026-11-21: 256 bytes by 256
#: bytes reach 0.97 to 0.99 of a copy where there are enough of them; at 4096x4096 int8 (2 tiles each) half the size is
#: worth 4 to 8 %, at 4096x4096 bf16 (8 each) 3 %, at 2048x2048 fp32 (8 each) 3 %, at 131072x64 fp32 (16 each) 1 %; at
#: 1024x1024 bf16 twice the threads by half as wide loads 1 %.
_VECTORIZED_TILES: Mapping[int, tuple[tuple[int, int, int, int | None], ...]] = {
    1: ((16, 16, 16, None), (8, 16, 8, 0), (8, 8, 8, 0)),
    2: ((16, 16, 16, None), (8, 16, 16, 1), (8, 16, 8, 0), (8, 8, 16, 0)),
    4: ((16, 16, 16, None), (8, 16, 16, 0), (8, 8, 16, 0)),
    8: ((16, 16, 16, None), (16, 8, 16, 0), (8, 8, 16, 0)),
    16: ((16, 16, 16, None), (16, 8, 16, 0), (8, 8, 16, 0)),
}

#: The same for bytes that can only be loaded by 8 or 4.  At 32768x1000 more columns are worth 2 to 3 %.
_NARROW_TILES = ((8, 32, 8, 4), (8, 16, 8, 0), (8, 8, 8, 0))


def _suits(config: VectorizedConfig, matrix: Matrix, device: Device, tiles_per_sm: int) -> bool:
    """Whether a tile is small enough for the matrix and the device, and there are enough of them.

    A tile that is only taken where there are many must not reach over the matrix; a smaller one may, by its own size.
    """
    overhang = 1 if tiles_per_sm > 1 else 2
    return (
        config.tile[0] <= overhang * matrix.rows
        and config.tile[1] <= overhang * matrix.cols
        and tile_count(matrix, config.tile) >= tiles_per_sm * device.sm_count
        and config.smem_bytes <= device.smem_per_block
    )


def unaligned(problem: Problem, matrix: Matrix, device: Device) -> UnalignedConfig | Refusal:
    """The largest tile of which there are enough, shifting the sides that need it."""
    size = problem.itemsize
    if size > 8:
        return Refusal("elements of at most 8 bytes", f"{problem.itemsize}")
    src, dst = widths(problem, matrix)
    if src < CHUNK and (matrix.src_pitch < matrix.cols or matrix.cols * size < CHUNK):
        return Refusal("input rows of at least 16 bytes that do not overlap", f"{matrix.cols * size} bytes")
    shifts = (src < CHUNK, dst < CHUNK)
    for row_chunks, col_chunks, blocks, stated in _UNALIGNED_TILES[size, shifts[0]]:
        tiles_per_sm = THRESHOLDS.value(UNALIGNED_TILES, device) if stated is None else stated
        # Before Hopper the 64 registers that two blocks leave are too few for 2-byte elements.
        room = 1 if size == 2 and blocks == 2 and device.capability < (9, 0) else blocks
        chosen = UnalignedConfig(
            size,
            row_chunks,
            col_chunks,
            batch_rank=len(matrix.batch),
            src_shift=shifts[0],
            dst_shift=shifts[1],
            room=room,
        )
        if _suits(chosen, matrix, device, tiles_per_sm):
            break
    return _placed(chosen, matrix, device)


#: For each element size, and for shifted input rows or not, largest tile first: row_chunks, col_chunks, the blocks
#: that a multiprocessor must be able to hold, and the tiles for each below which the next entry is taken, None for the
#: threshold. H200, 2026-11-21: at 8191x8193 int8, 240x128 elements reach 0.87 of a copy, twice as wide 0.86; at
#: 50257x768, where only output rows are shifted, longer tiles share fewer rows: 0.96 against 0.95 in fp32, 0.99
#: against 0.96 in bf16.
_UNALIGNED_TILES: Mapping[tuple[int, bool], tuple[tuple[int, int, int, int | None], ...]] = {
    (1, True): ((16, 8, 3, None), (8, 8, 4, 0)),
    (2, True): ((16, 8, 5, None), (8, 8, 4, 0)),
    (4, True): ((16, 16, 3, None), (16, 8, 3, 0), (8, 8, 4, 0)),
    (8, True): ((16, 8, 3, None), (8, 8, 4, 0)),
    (1, False): ((32, 8, 3, None), (16, 8, 3, 0), (8, 8, 4, 0)),
    (2, False): ((32, 16, 2, None), (16, 8, 3, 0), (8, 8, 4, 0)),
    (4, False): ((32, 16, 2, None), (16, 8, 3, 0), (8, 8, 4, 0)),
    (8, False): ((32, 16, 2, None), (16, 8, 3, 0), (8, 8, 4, 0)),
}
