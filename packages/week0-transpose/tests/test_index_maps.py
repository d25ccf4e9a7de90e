"""The kernels' index arithmetic, proven on models: every byte written once, with the right value, without conflicts."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from forge_week0_transpose.configs import RealignedConfig, ShiftedConfig, SkinnyConfig, TiledConfig, VectorizedConfig
from forge_week0_transpose.kernels import words


def _models() -> ModuleType:
    # Tests are not a package, so what stands beside them is loaded by path.
    spec = importlib.util.spec_from_file_location("week0_index_models", Path(__file__).with_name("models.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


models = _models()
Case, Machine, CHUNK = models.Case, models.Machine, words.CHUNK

SIZES = (1, 2, 4, 8, 16)


def data(rows: int, pitch: int, seed: int = 1) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, rows * pitch, dtype=np.uint8)


def expected(src: np.ndarray[Any, Any], case: Any, size: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The output's bytes, and which of them belong to it."""
    length = (case.cols - 1) * case.dst_pitch + case.rows * size
    out, mask = np.zeros(length, np.uint8), np.zeros(length, np.int32)
    for c in range(case.cols):
        for r in range(case.rows):
            at, of = c * case.dst_pitch + r * size, r * case.src_pitch + c * size
            out[at : at + size] = src[of : of + size]
            mask[at : at + size] = 1
    return out, mask


def run_matrix(model: Any, config: Any, case: Any, *, src_base: int = 0, dst_base: int = 0) -> Any:
    size = config.itemsize
    src = data(case.rows, case.src_pitch)[: (case.rows - 1) * case.src_pitch + case.cols * size]
    out, mask = expected(src, case, size)
    machine = Machine(src, len(out), src_base, dst_base, config.smem_bytes)
    model(config, case, machine)
    np.testing.assert_array_equal(machine.written, mask)
    np.testing.assert_array_equal(machine.dst * mask.astype(np.uint8), out)
    return machine


# ---- words ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_funnels_take_the_bytes_at_an_offset(size: int) -> None:
    pair = random.Random(1).randbytes(2 * CHUNK)
    low, high = models.to_words(pair[:CHUNK]), models.to_words(pair[CHUNK:])
    for offset in range(0, CHUNK, size):
        right = words.funnel_right(low, high, offset, size, models.select, models.shift_right)
        left = words.funnel_left(low, high, offset, size, models.select, models.shift_left)
        assert models.to_bytes(right) == pair[offset : offset + CHUNK]
        assert models.to_bytes(left) == pair[CHUNK - offset : 2 * CHUNK - offset]


@pytest.mark.parametrize("size, width", [(s, w) for s in SIZES for w in (4, 8, 16) if w >= s])
def test_register_transposition(size: int, width: int) -> None:
    rows = [random.Random(k).randbytes(width) for k in range(CHUNK // size)]
    columns = words.transpose_chunks([models.to_words(row) for row in rows], size, models.permute)
    assert len(columns) == width // size
    for c, column in enumerate(columns):
        assert models.to_bytes(column) == b"".join(row[c * size : (c + 1) * size] for row in rows)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("lines", range(2, 9))
def test_interleaving_and_its_inverse(size: int, lines: int) -> None:
    chunks = [random.Random(k).randbytes(CHUNK) for k in range(lines)]
    run = b"".join(chunk[i : i + size] for i in range(0, CHUNK, size) for chunk in chunks)
    forward = words.interleave([models.to_words(chunk) for chunk in chunks], size, models.permute)
    assert b"".join(map(models.to_bytes, forward)) == run
    back = words.deinterleave(
        [models.to_words(run[i : i + CHUNK]) for i in range(0, len(run), CHUNK)], size, models.permute
    )
    assert [models.to_bytes(chunk) for chunk in back] == chunks


@pytest.mark.parametrize(("size", "each"), [(1, 2), (2, 1), (4, 0), (8, 0), (16, 0)])
def test_transposition_costs_so_many_permutations_a_word(size: int, each: int) -> None:
    calls: list[int] = []

    def count(a: int, b: int, selector: int) -> int:
        calls.append(selector)
        return a + b

    words.transpose_chunks([[0] * 4 for _ in range(CHUNK // size)], size, count)
    assert len(calls) == each * 4 * CHUNK // size


def test_swizzle_is_a_permutation_of_each_line() -> None:
    for chunks in (8, 16, 24, 32):
        for key in range(64):
            assert sorted(words.swizzle(c, key) for c in range(chunks)) == list(range(chunks))


@pytest.mark.parametrize("lines", range(2, 9))
def test_run_places_are_a_permutation(lines: int) -> None:
    chunks = 32 * lines
    assert sorted(words.run_place(c, lines) for c in range(chunks)) == list(range(chunks))


# ---- vectorized ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("row_chunks, col_chunks, by_columns", [(8, 8, False), (16, 8, True), (8, 16, False)])
def test_vectorized(size: int, row_chunks: int, col_chunks: int, by_columns: bool) -> None:
    config = VectorizedConfig(size, row_chunks, col_chunks, by_columns=by_columns)
    v = config.chunk_items
    case = Case(rows := config.tile_rows + 3 * v, cols := config.tile_cols + v, cols * size, rows * size)
    machine = run_matrix(models.vectorized, config, case)
    assert set(machine.conflicts().values()) == {0}


@pytest.mark.parametrize(
    "size, src_width, dst_width", [(1, 4, 16), (1, 8, 4), (2, 8, 8), (2, 16, 4), (4, 4, 8), (4, 8, 4), (8, 8, 8)]
)
def test_vectorized_by_narrower_accesses(size: int, src_width: int, dst_width: int) -> None:
    config = VectorizedConfig(size, 8, 8, src_width, dst_width)
    rows = config.tile_rows + 5 * dst_width // size
    cols = config.tile_cols + 3 * src_width // size
    machine = run_matrix(models.vectorized, config, Case(rows, cols, cols * size + src_width, rows * size + dst_width))
    assert set(machine.conflicts().values()) == {0}


@pytest.mark.parametrize("rows", [8, 64, 72, 128, 136])
@pytest.mark.parametrize("cols", [8, 64, 72])
def test_vectorized_around_its_tiles(rows: int, cols: int) -> None:
    config = VectorizedConfig(2, 8, 8)
    assert (config.tile_rows, config.tile_cols) == (64, 64)
    run_matrix(models.vectorized, config, Case(rows, cols, cols * 2, rows * 2))


# ---- shifted -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("src_shift, dst_shift", [(True, True), (True, False), (False, True), (False, False)])
def test_shifted(size: int, src_shift: bool, dst_shift: bool) -> None:
    config = ShiftedConfig(size, src_shift, dst_shift, 8, 8, by_columns=not dst_shift)
    v = config.chunk_items
    rows = config.tile_rows + (3 * v + 1 if dst_shift else 3 * v)
    cols = config.tile_cols + (2 * v - 1 if src_shift else v)
    machine = run_matrix(models.shifted, config, Case(rows, cols, cols * size, rows * size))
    assert set(machine.conflicts().values()) == {0}


@pytest.mark.parametrize("src_base", [0, 2, 6, 14])
@pytest.mark.parametrize("dst_base", [0, 4, 14])
def test_shifted_from_and_to_any_address(src_base: int, dst_base: int) -> None:
    config = ShiftedConfig(2, True, True, 8, 8)
    run_matrix(models.shifted, config, Case(61, 67, 134, 122), src_base=src_base, dst_base=dst_base)


@pytest.mark.parametrize("rows", [2, 7, 8, 15, 16, 48, 49, 55, 56, 57, 63, 64, 65, 112, 113])
def test_shifted_around_its_row_tiles(rows: int) -> None:
    config = ShiftedConfig(2, True, True, 8, 8)
    assert config.tile_rows == 56
    run_matrix(models.shifted, config, Case(rows, 19, 38, rows * 2), dst_base=6)
    run_matrix(models.shifted, config, Case(rows, 19, 38, rows * 2 + 2), src_base=2)


@pytest.mark.parametrize("cols", [8, 9, 57, 63, 64, 65, 70, 71, 72, 73, 79])
def test_shifted_around_its_column_tiles(cols: int) -> None:
    # The last, incomplete chunk of the tensor can reach over the edge of a tile.
    config = ShiftedConfig(2, True, True, 8, 8)
    assert config.tile_cols == 64
    for src_base in (0, 6):
        run_matrix(models.shifted, config, Case(11, cols, cols * 2, 22), src_base=src_base)


# ---- skinny --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("lines", range(2, 9))
@pytest.mark.parametrize("gather", [True, False])
def test_skinny(size: int, lines: int, gather: bool) -> None:
    config = SkinnyConfig(size, lines, gather)
    length = 2 * config.tile + 7
    pitch = length * size + (-length * size) % CHUNK
    short = lines * size
    case = Case(lines, length, pitch, short) if gather else Case(length, lines, short, pitch)
    machine = run_matrix(lambda c, k, m: models.skinny(c, length, pitch, m), config, case)
    assert set(machine.conflicts().values()) == {0}


@pytest.mark.parametrize("line_width, run_width", [(2, 16), (16, 2), (4, 8)])
@pytest.mark.parametrize("gather", [True, False])
def test_skinny_by_narrower_accesses(line_width: int, run_width: int, gather: bool) -> None:
    config = SkinnyConfig(2, 3, gather, line_width, run_width)
    length = config.tile + 1
    pitch = length * 2 + (-length * 2) % CHUNK + line_width
    case = Case(3, length, pitch, 6) if gather else Case(length, 3, 6, pitch)
    line_base, run_base = 16 + line_width, 16 + run_width
    bases = (line_base, run_base) if gather else (run_base, line_base)
    run_matrix(lambda c, k, m: models.skinny(c, length, pitch, m), config, case, src_base=bases[0], dst_base=bases[1])


# ---- tiled ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("tile", [16, 32])
def test_tiled(size: int, tile: int) -> None:
    config = TiledConfig(size, tile)
    case = Case(rows := 2 * tile + 3, cols := tile + 5, cols * size, rows * size)
    run_matrix(models.tiled, config, case)


@pytest.mark.parametrize("size", [4, 8, 16])
def test_padding_frees_a_tile_of_32_from_conflicts(size: int) -> None:
    config = TiledConfig(size, 32)
    machine = run_matrix(models.tiled, config, Case(32, 32, 32 * size, 32 * size))
    assert set(machine.conflicts().values()) == {0}


# ---- realigned -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("src_items", range(4))
@pytest.mark.parametrize("dst_items", [0, 1, 3])
def test_realigned(size: int, src_items: int, dst_items: int) -> None:
    config = RealignedConfig(size, 1)
    for cols in (1, 2, 15, 16, 17, 40, 65):
        src_pitch, dst_pitch = (cols + 3) * size, (cols + 1) * size
        src = data(5, src_pitch)[: 4 * src_pitch + cols * size]
        machine = Machine(src, 4 * dst_pitch + cols * size, src_items * size, dst_items * size)
        models.realigned(config, Case(5, cols, src_pitch, dst_pitch), machine)
        for row in range(5):
            at, of = row * dst_pitch, row * src_pitch
            np.testing.assert_array_equal(machine.dst[at : at + cols * size], src[of : of + cols * size])
            assert set(machine.written[at : at + cols * size]) == {1}
        assert machine.written.sum() == 5 * cols * size


# ---- coalescing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_a_warp_of_the_vectorized_kernel_stores_whole_lines(size: int) -> None:
    config = VectorizedConfig(size, 16, 16)
    lanes = np.arange(32)
    per_line = config.line_bytes // config.dst_width
    part, line = lanes % per_line, lanes // per_line
    for own in np.unique(line):
        begin = np.sort(part[line == own]) * config.dst_width
        assert begin[0] == 0 and len(begin) * config.dst_width == 256
        assert set(np.diff(begin)) == {config.dst_width}
    chunk = lanes % config.col_chunks
    assert sorted(chunk[:16]) == list(range(16)), "16 lanes load 256 contiguous bytes of an input row"
