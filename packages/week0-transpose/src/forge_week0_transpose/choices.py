"""How each kernel is configured for a problem, and which problems it cannot do; ``tiling`` has those of large tiles.

Each function returns the configuration or a ``Refusal``.  The thresholds name the GPU they were measured on, the date
and the gain; a new GPU that wants others gets a table of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from forge_core.choice import Refusal
from forge_week0_transpose.configs import (
    CHUNK,
    NaiveConfig,
    RealignedConfig,
    RowsConfig,
    SkinnyConfig,
    TiledConfig,
)
from forge_week0_transpose.problem import Dim, Matrix, Problem

__all__ = [
    "MAX_BLOCKS",
    "MAX_LINES",
    "TILE_SIZES",
    "TOO_MANY",
    "UNROLL",
    "count",
    "naive",
    "prefers_realigned",
    "realigned",
    "rows",
    "skinny",
    "tile_count",
    "tiled",
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


def count(dims: tuple[Dim, ...]) -> int:
    """How many entries some dimensions have together."""
    entries = 1
    for dim in dims:
        entries *= dim.size
    return entries


def naive(problem: Problem, items: int = 1) -> NaiveConfig:
    """One thread an element, or for ``items`` of them; does every problem."""
    return NaiveConfig(problem.itemsize, len(problem.dims), wide_index=problem.numel >= 2**32, items=items)


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


def realigned(problem: Problem) -> RealignedConfig | Refusal:
    """Rows by aligned chunks wherever they begin."""
    rows = problem.rows()
    if rows is None:
        return Refusal("rows that are contiguous in input and output", "a permutation")
    if problem.itemsize > 8:  # such elements lie on 16-byte boundaries
        return Refusal("elements of at most 8 bytes", f"{problem.itemsize}")
    chunks = -(-(rows.length * problem.itemsize + 2 * (CHUNK - 1)) // CHUNK) * count(rows.outer)
    return RealignedConfig(problem.itemsize, len(rows.outer), wide_index=chunks >= 2**32)


def _power_of_two(distance: int, limit: int) -> int:
    return min(distance & -distance, limit)


def tiled(problem: Problem, tile_size: int | None) -> TiledConfig | Refusal:
    """An element a thread and step through a square tile; takes any strides."""
    matrix = problem.any_matrix()
    if tile_size is None:
        # Tiles of 32 fill whole 32-byte sectors at every width; 16 wastes less of a small matrix.
        tile_size = 32 if min(matrix.rows, matrix.cols) > 16 else 16
    if tile_count(matrix, tile_size, tile_size) > MAX_BLOCKS:
        return TOO_MANY
    return TiledConfig(problem.itemsize, tile_size, len(matrix.batch))


#: Where a grid cannot have a block for each tile.
TOO_MANY = Refusal(f"at most {MAX_BLOCKS} tiles, a block each", "more")


def tile_count(matrix: Matrix, tile_rows: int, tile_cols: int) -> int:
    """Tiles of a batch of matrices, the incomplete ones at the edges included."""
    return -(-matrix.rows // tile_rows) * -(-matrix.cols // tile_cols) * count(matrix.batch)


def skinny(problem: Problem, matrix: Matrix) -> SkinnyConfig | Refusal:
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
            return config if -(-length // config.tile) * count(matrix.batch) <= MAX_BLOCKS else TOO_MANY
    return Refusal(
        f"2 to {MAX_LINES} rows (of a dense output) or columns (of a dense input) of at least one block's length, with "
        "elements of at most 8 bytes",
        f"a matrix of {matrix.rows}x{matrix.cols}, elements of {size} bytes",
    )
