"""How each kernel is configured for a problem, and which problems it cannot do.

Each function returns the configuration, or the reason why there is none as the end of a sentence that begins with
"it".  The tables hold the thresholds, each with the GPU it was measured on, the date and the gain; a new GPU that
wants others gets a table of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from forge_core.device import Device
from forge_week0_transpose.configs import (
    CHUNK,
    NaiveConfig,
    RealignedConfig,
    RowsConfig,
    ShiftedConfig,
    SkinnyConfig,
    TiledConfig,
    VectorizedConfig,
)
from forge_week0_transpose.problem import Dim, Matrix, Problem

__all__ = [
    "MAX_LINES",
    "MIN_FILL",
    "TILE_SIZES",
    "UNROLL",
    "count",
    "fills",
    "naive",
    "prefers_realigned",
    "realigned",
    "rows",
    "shifted",
    "skinny",
    "tiled",
    "vectorized",
    "widths",
]

#: Edges of the tiled kernel, in elements.
TILE_SIZES = (16, 32)

#: The longest short side that the skinny kernel takes; one kernel is compiled for each.
MAX_LINES = 8

#: Blocks of a grid.
MAX_BLOCKS = 2**31 - 1

#: Elements of a thread where nothing but the naive kernel is left: as many reads in flight.  H200, 2026-11-21: eight
#: read every second column of 16384x32768 fp32 20 % faster than one, and 20000 16x16 matrices 40 to 50 % faster.
UNROLL = 8

#: Share of a tile that a matrix must fill on average, below which elements by ``naive`` are faster: for a matrix that
#: is short both ways, and for one that is long one way, whose tiles at least follow one another.  H200, 2026-11-21:
#: 20000 fp32 matrices of 16x16 fill a quarter of the smallest tile, and both take 16 us; 4194304x8 bf16 fills an
#: eighth, and the tiles reach 0.47 of a copy, eager PyTorch 0.24.
MIN_FILL = 0.25
MIN_FILL_LONG = 0.0625


def fills(matrix: Matrix, config: VectorizedConfig | ShiftedConfig) -> bool:
    """Whether a matrix fills its tiles well enough for them to be worth it."""
    row_fill = matrix.rows / (-(-matrix.rows // config.tile_rows) * config.tile_rows)
    col_fill = matrix.cols / (-(-matrix.cols // config.tile_cols) * config.tile_cols)
    least = MIN_FILL_LONG if max(matrix.rows / config.tile_rows, matrix.cols / config.tile_cols) >= LONG else MIN_FILL
    return row_fill * col_fill >= least


#: Tiles along the longer side from which a matrix counts as long one way.
LONG = 8


def count(dims: tuple[Dim, ...]) -> int:
    """How many entries some dimensions have together."""
    entries = 1
    for dim in dims:
        entries *= dim.size
    return entries


def naive(problem: Problem, items: int = 1) -> NaiveConfig:
    """One thread an element, or for ``items`` of them; does every problem."""
    return NaiveConfig(problem.itemsize, len(problem.dims), wide_index=problem.numel >= 2**32, items=items)


def rows(problem: Problem) -> RowsConfig | str:
    """Rows by accesses as wide as every row's begin and end allow."""
    rows = problem.rows()
    if rows is None:
        return "copies rows that are contiguous on both sides, and these are not"
    size = problem.itemsize
    width = min(problem.src_vector([d.src for d in rows.outer]), problem.dst_vector([d.dst for d in rows.outer]))
    tail = 0
    if rows.length * size % width:
        if rows.outer:  # Ends inside a chunk at every row: narrower accesses beat a branch in each.
            width = _power_of_two(rows.length * size, width)
        else:
            tail = _power_of_two(rows.length * size, width)
    chunks = -(-rows.length * size // width) * count(rows.outer)
    return RowsConfig(width, len(rows.outer), tail, wide_index=chunks >= 2**32)


#: Bytes of a row from which ``realigned`` beats ``rows``, for each width that the alignment leaves.  H200, 2026-11-21:
#: 1 GiB at an odd element 1.59 of ``copy_`` against 0.32 (2-byte accesses), at an odd pair of fp32 1.02 against 0.80;
#: rows of 200 bytes by 8 are still 3 % faster by ``rows``, rows of 126 bytes by 2 already 2.4 times slower.
_MIN_REALIGNED: Mapping[int, int] = {1: 32, 2: 32, 4: 128, 8: 256}


def prefers_realigned(problem: Problem, config: RowsConfig) -> bool:
    """Whether shifting is faster than the narrow accesses that ``config`` would make."""
    rows = problem.rows()
    least = _MIN_REALIGNED.get(config.width)  # none: accesses of the full width have nothing to gain
    return rows is not None and least is not None and rows.length * problem.itemsize >= least


def realigned(problem: Problem) -> RealignedConfig | str:
    """Rows by aligned chunks wherever they begin."""
    rows = problem.rows()
    if rows is None:
        return "copies rows that are contiguous on both sides, and these are not"
    if problem.itemsize > 8:  # such elements lie on 16-byte boundaries
        return "takes elements of up to 8 bytes"
    chunks = -(-(rows.length * problem.itemsize + 2 * (CHUNK - 1)) // CHUNK) * count(rows.outer)
    return RealignedConfig(problem.itemsize, len(rows.outer), wide_index=chunks >= 2**32)


def _power_of_two(distance: int, limit: int) -> int:
    return min(distance & -distance, limit)


def tiled(problem: Problem, tile_size: int | None) -> TiledConfig | str:
    """An element a thread and step through a square tile; takes any strides."""
    matrix = problem.any_matrix()
    if tile_size is None:
        # Tiles of 32 fill whole 32-byte sectors at every width; 16 wastes less of a small matrix.
        tile_size = 32 if min(matrix.rows, matrix.cols) > 16 else 16
    if _tiles(matrix, tile_size, tile_size) > MAX_BLOCKS:
        return _TOO_MANY
    return TiledConfig(problem.itemsize, tile_size, len(matrix.batch))


#: The end of "it ..." where a grid cannot hold a block for each tile.
_TOO_MANY = f"needs more than {MAX_BLOCKS} tiles here"


def _tiles(matrix: Matrix, tile_rows: int, tile_cols: int) -> int:
    return -(-matrix.rows // tile_rows) * -(-matrix.cols // tile_cols) * count(matrix.batch)


def skinny(problem: Problem, matrix: Matrix) -> SkinnyConfig | str:
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
        if length >= config.tile:
            return config if -(-length // config.tile) * count(matrix.batch) <= MAX_BLOCKS else _TOO_MANY
    return (
        f"takes 2 to {MAX_LINES} rows (of a dense output) or columns (of a dense input) of at least one block's "
        "length, with elements of up to 8 bytes"
    )


def widths(problem: Problem, matrix: Matrix) -> tuple[int, int]:
    """Bytes of the widest access in which every row begins and ends, in the input and in the output."""
    return (
        problem.src_vector([matrix.src_pitch, matrix.cols, *(d.src for d in matrix.batch)]),
        problem.dst_vector([matrix.dst_pitch, matrix.rows, *(d.dst for d in matrix.batch)]),
    )


def vectorized(problem: Problem, matrix: Matrix, device: Device) -> VectorizedConfig | str:
    """The largest tile of which there are enough."""
    size = problem.itemsize
    src, dst = widths(problem, matrix)
    if min(src, dst) < max(4, size):
        return (
            f"needs rows that begin and end at multiples of {max(4, size)} bytes, "
            f"and the input's are at multiples of {src}, the output's of {dst}"
        )
    tiles = _NARROW_TILES if size == 1 and src < CHUNK else _VECTORIZED_TILES[size]
    for row_chunks, col_chunks, width, tiles_per_sm in tiles:
        chosen = VectorizedConfig(size, row_chunks, col_chunks, min(width, src), dst, len(matrix.batch))
        if _suits(chosen, matrix, device, tiles_per_sm):
            break
    return chosen if _tiles(matrix, chosen.tile_rows, chosen.tile_cols) <= MAX_BLOCKS else _TOO_MANY


#: For each element size, largest tile first: row_chunks, col_chunks, the widest load, and the tiles for each
#: multiprocessor below which the next entry is taken.  H200, 2026-11-21: 256 bytes by 256 bytes reach 0.97 to 0.99 of
#: a copy where there are enough of them; at 4096x4096 int8 (2 tiles each) half the size is worth 4 to 8 %, at
#: 1024x1024 2 to 5 %, and at 131072x64 bf16, whose rows are half a tile, 3 %.
_VECTORIZED_TILES: Mapping[int, tuple[tuple[int, int, int, int], ...]] = {
    1: ((16, 16, 16, 6), (8, 16, 8, 0), (8, 8, 8, 0)),
    2: ((16, 16, 16, 6), (8, 16, 16, 0), (8, 8, 16, 0)),
    4: ((16, 16, 16, 4), (16, 8, 16, 0), (8, 8, 16, 0)),
    8: ((16, 16, 16, 4), (16, 8, 16, 0), (8, 8, 16, 0)),
    16: ((16, 16, 16, 4), (16, 8, 16, 0), (8, 8, 16, 0)),
}

#: The same for bytes that can only be loaded by 8 or 4.  At 32768x1000 more columns are worth 2 to 3 %.
_NARROW_TILES = ((8, 32, 8, 4), (8, 16, 8, 0), (8, 8, 8, 0))


def _suits(config: VectorizedConfig | ShiftedConfig, matrix: Matrix, device: Device, tiles_per_sm: int) -> bool:
    """Whether a tile is small enough for the matrix and the device, and there are enough of them.

    A tile that is only taken where there are many must not reach over the matrix; a smaller one may, by its own size.
    """
    overhang = 1 if tiles_per_sm else 2
    return (
        config.tile_rows <= overhang * matrix.rows
        and config.tile_cols <= overhang * matrix.cols
        and _tiles(matrix, config.tile_rows, config.tile_cols) >= tiles_per_sm * device.sm_count
        and config.smem_bytes <= device.smem_per_block
    )


def shifted(problem: Problem, matrix: Matrix, device: Device) -> ShiftedConfig | str:
    """The largest tile of which there are enough, shifting the sides that need it."""
    size = problem.itemsize
    if size > 8:
        return "takes elements of up to 8 bytes"
    src, dst = widths(problem, matrix)
    if src < CHUNK and (matrix.src_pitch < matrix.cols or matrix.cols * size < CHUNK):
        return "needs input rows of at least 16 bytes that do not overlap"
    shifts = (src < CHUNK, dst < CHUNK)
    for row_chunks, col_chunks, blocks, tiles_per_sm in _SHIFTED_TILES[size, shifts[0]]:
        chosen = ShiftedConfig(size, *shifts, row_chunks, col_chunks, len(matrix.batch), blocks)
        if _suits(chosen, matrix, device, tiles_per_sm):
            break
    return chosen if _tiles(matrix, chosen.tile_rows, chosen.tile_cols) <= MAX_BLOCKS else _TOO_MANY


#: For each element size, and for shifted input rows or not, largest tile first: row_chunks, col_chunks, the blocks
#: that a multiprocessor must be able to hold, and the tiles for each below which the next entry is taken.
#: H200, 2026-11-21: at 8191x8193 int8, 240x128 elements reach 0.87 of a copy, twice as wide 0.86; at 50257x768, where
#: only output rows are shifted, longer tiles share fewer rows: 0.96 against 0.95 in fp32, 0.99 against 0.96 in bf16.
_SHIFTED_TILES: Mapping[tuple[int, bool], tuple[tuple[int, int, int, int], ...]] = {
    (1, True): ((16, 8, 3, 4), (8, 8, 4, 0)),
    (2, True): ((16, 8, 3, 4), (8, 8, 4, 0)),
    (4, True): ((16, 16, 3, 4), (16, 8, 3, 0), (8, 8, 4, 0)),
    (8, True): ((16, 8, 3, 4), (8, 8, 4, 0)),
    (1, False): ((32, 8, 3, 4), (16, 8, 3, 0), (8, 8, 4, 0)),
    (2, False): ((32, 16, 2, 4), (16, 8, 3, 0), (8, 8, 4, 0)),
    (4, False): ((32, 16, 2, 4), (16, 8, 3, 0), (8, 8, 4, 0)),
    (8, False): ((32, 16, 2, 4), (16, 8, 3, 0), (8, 8, 4, 0)),
}
