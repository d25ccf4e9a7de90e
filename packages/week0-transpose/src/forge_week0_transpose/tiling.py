"""The large tiles: which of them ``vectorized`` and ``shifted`` take, and in which order their blocks walk.

The tables here hold the tiles, each with the GPU it was measured on, the date and the gain; how many there must be
for the largest, and what else a GPU may want otherwise, is in ``thresholds``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from forge_core.choice import Refusal
from forge_core.device import Device
from forge_week0_transpose.choices import MAX_BLOCKS, TOO_MANY, count, tile_count
from forge_week0_transpose.configs import CHUNK, ShiftedConfig, VectorizedConfig
from forge_week0_transpose.problem import Matrix, Problem
from forge_week0_transpose.thresholds import COLUMNS_BESIDE, SHIFTED_TILES, THRESHOLDS, large_tiles

__all__ = ["MIN_FILL", "fills", "shifted", "vectorized", "widths"]

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
    if tile_count(matrix, chosen.tile_rows, chosen.tile_cols) > MAX_BLOCKS:
        return TOO_MANY
    if max(-(-matrix.rows // chosen.chunk_items), matrix.cols * size // chosen.src_width) >= 2**32:
        return Refusal("fewer than 2^32 vectors a row and a column", f"a matrix of {matrix.rows}x{matrix.cols}")
    row_tiles, col_tiles = -(-matrix.rows // chosen.tile_rows), -(-matrix.cols // chosen.tile_cols)
    by_columns = _by_columns(matrix, size, chosen, device)
    outer = row_tiles if by_columns else col_tiles
    return replace(
        chosen,
        by_columns=by_columns,
        flat=max(outer, count(matrix.batch)) > MAX_OUTER,
    )


#: Entries of the second and of the third dimension of a grid.
MAX_OUTER = 65535

#: Bytes of a line of memory.
LINE = 128


def _by_columns(matrix: Matrix, itemsize: int, config: VectorizedConfig | ShiftedConfig, device: Device) -> bool:
    """Whether blocks walk along the input's columns before they move down its rows.

    Down the rows, neighbours in time extend the same output rows.  But where the input's rows do not begin at lines of
    memory, tiles that stand beside one another share a line in each row, which is fetched again if the neighbour comes
    late.  H200, 2026-11-21: 32768x1000 0.95 against 0.92 (bf16), 0.94 against 0.92 (fp32), 0.94 against 0.90 (int8);
    262144x136 bf16 0.93 against 0.78; with 126 tiles in a row, at 16384x16008, 0.905 against 0.917, and 0.79 against
    0.90 at 8200x8200, where output rows share lines, too.
    """
    return (
        matrix.src_pitch * itemsize % LINE != 0
        and matrix.dst_pitch * itemsize % LINE == 0
        and 1 < -(-matrix.cols // config.tile_cols) <= THRESHOLDS.value(COLUMNS_BESIDE, device)
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


def _suits(config: VectorizedConfig | ShiftedConfig, matrix: Matrix, device: Device, tiles_per_sm: int) -> bool:
    """Whether a tile is small enough for the matrix and the device, and there are enough of them.

    A tile that is only taken where there are many must not reach over the matrix; a smaller one may, by its own size.
    """
    overhang = 1 if tiles_per_sm > 1 else 2
    return (
        config.tile_rows <= overhang * matrix.rows
        and config.tile_cols <= overhang * matrix.cols
        and tile_count(matrix, config.tile_rows, config.tile_cols) >= tiles_per_sm * device.sm_count
        and config.smem_bytes <= device.smem_per_block
    )


def shifted(problem: Problem, matrix: Matrix, device: Device) -> ShiftedConfig | Refusal:
    """The largest tile of which there are enough, shifting the sides that need it."""
    size = problem.itemsize
    if size > 8:
        return Refusal("elements of at most 8 bytes", f"{problem.itemsize}")
    src, dst = widths(problem, matrix)
    if src < CHUNK and (matrix.src_pitch < matrix.cols or matrix.cols * size < CHUNK):
        return Refusal("input rows of at least 16 bytes that do not overlap", f"{matrix.cols * size} bytes")
    shifts = (src < CHUNK, dst < CHUNK)
    for row_chunks, col_chunks, blocks, stated in _SHIFTED_TILES[size, shifts[0]]:
        tiles_per_sm = THRESHOLDS.value(SHIFTED_TILES, device) if stated is None else stated
        # Before Hopper the 64 registers that two blocks leave are too few for 2-byte elements.
        room = 1 if size == 2 and blocks == 2 and device.capability < (9, 0) else blocks
        chosen = ShiftedConfig(size, *shifts, row_chunks, col_chunks, len(matrix.batch), room)
        if _suits(chosen, matrix, device, tiles_per_sm):
            break
    if tile_count(matrix, chosen.tile_rows, chosen.tile_cols) > MAX_BLOCKS:
        return TOO_MANY
    return replace(chosen, by_columns=_by_columns(matrix, size, chosen, device))


#: For each element size, and for shifted input rows or not, largest tile first: row_chunks, col_chunks, the blocks
#: that a multiprocessor must be able to hold, and the tiles for each below which the next entry is taken, None for the
#: threshold. H200, 2026-11-21: at 8191x8193 int8, 240x128 elements reach 0.87 of a copy, twice as wide 0.86; at
#: 50257x768, where only output rows are shifted, longer tiles share fewer rows: 0.96 against 0.95 in fp32, 0.99
#: against 0.96 in bf16.
_SHIFTED_TILES: Mapping[tuple[int, bool], tuple[tuple[int, int, int, int | None], ...]] = {
    (1, True): ((16, 8, 3, None), (8, 8, 4, 0)),
    (2, True): ((16, 8, 3, None), (8, 8, 4, 0)),
    (4, True): ((16, 16, 3, None), (16, 8, 3, 0), (8, 8, 4, 0)),
    (8, True): ((16, 8, 3, None), (8, 8, 4, 0)),
    (1, False): ((32, 8, 3, None), (16, 8, 3, 0), (8, 8, 4, 0)),
    (2, False): ((32, 16, 2, None), (16, 8, 3, 0), (8, 8, 4, 0)),
    (4, False): ((32, 16, 2, None), (16, 8, 3, 0), (8, 8, 4, 0)),
    (8, False): ((32, 16, 2, None), (16, 8, 3, 0), (8, 8, 4, 0)),
}
