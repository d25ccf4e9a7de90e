"""The index maps of week 0, for any configuration: each byte once, whole sectors, bank conflicts as declared."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_core.profiling.layouts import Access
from forge_core.testing.index_maps import check_aligned, check_coalesced, check_conflicts, check_once
from forge_week0_transpose import layouts
from forge_week0_transpose.configs import RowsConfig, TiledConfig, VectorizedConfig
from forge_week0_transpose.kernels import words

SIZES = st.sampled_from([1, 2, 4, 8, 16])


def _models() -> Any:
    # Tests are not a package, so what stands beside them is loaded by path.
    spec = importlib.util.spec_from_file_location("week0_property_models", Path(__file__).with_name("models.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


models = _models()


@st.composite
def vectorized(draw: Any) -> VectorizedConfig:
    size = draw(SIZES)
    widths = [width for width in (4, 8, 16) if width >= size]
    return VectorizedConfig(
        size,
        draw(st.sampled_from([8, 16])),
        draw(st.sampled_from([8, 16])),
        draw(st.sampled_from(widths)),
        draw(st.sampled_from(widths)),
    )


@settings(max_examples=60, deadline=None)
@given(vectorized())
def test_a_vectorized_tile(config: VectorizedConfig) -> None:
    loads, writes, reads, stores = layouts.vectorized(config).panels
    tile = config.tile_rows * config.tile_cols * config.itemsize
    for panel in (loads, writes, reads, stores):
        check_once(panel.accesses, 0, tile, what=panel.title)
        check_aligned(panel.accesses, what=panel.title)
    check_coalesced(loads.accesses, what="loads")
    check_coalesced(stores.accesses, what="stores")
    check_conflicts(writes.accesses, what="writes")
    check_conflicts(reads.accesses, what="reads")


#: Passes that conflicts add to the writes and to the reads of a whole tile, by element and edge; the others have none.
#: One element of padding is less than a word where elements are of 1 or 2 bytes, so down a column two rows can meet in
#: a bank; and a warp has two rows of a tile of 16, of which the second's last lane meets the first's first.
TILED_CONFLICTS = {(1, 16): (0, 8), (1, 32): (0, 24), (2, 16): (0, 8), (2, 32): (0, 16), (4, 16): (8, 8)}


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("tile", [16, 32])
def test_a_tiled_tile(size: int, tile: int) -> None:
    config = TiledConfig(size, tile)
    loads, writes, reads, stores = layouts.tiled(config).panels
    for panel in (loads, stores):
        check_once(panel.accesses, 0, tile * tile * size)
        check_coalesced(panel.accesses)
    for panel in (writes, reads):
        touched = {place for access in panel.accesses for place in access.places}
        assert touched == {(y * (tile + 1) + x) * size for y in range(tile) for x in range(tile)}
    for panel, extra in zip((writes, reads), TILED_CONFLICTS.get((size, tile), (0, 0)), strict=True):
        check_conflicts(panel.accesses, extra=extra, what=panel.title)


@settings(max_examples=20, deadline=None)
@given(width=SIZES, threads=st.sampled_from([32, 128, 256]))
def test_rows(width: int, threads: int) -> None:
    (panel,) = layouts.rows(RowsConfig(width, threads=threads)).panels
    check_once(panel.accesses, 0, threads * width)
    check_coalesced(panel.accesses)


@settings(max_examples=25, deadline=None)
@given(config=vectorized(), extra=st.tuples(st.integers(1, 40), st.integers(1, 40)), pads=st.integers(0, 3))
def test_any_matrix_is_written_once(config: VectorizedConfig, extra: tuple[int, int], pads: int) -> None:
    size = config.itemsize
    rows, cols = extra[0] * config.dst_width // size, extra[1] * config.src_width // size
    case = models.Case(rows, cols, cols * size + pads * config.src_width, rows * size + pads * config.dst_width)
    src = np.random.default_rng(1).integers(0, 256, (rows - 1) * case.src_pitch + cols * size, dtype=np.uint8)
    machine = models.Machine(src, (cols - 1) * case.dst_pitch + rows * size, shared_bytes=config.smem_bytes)
    models.vectorized(config, case, machine)
    whole = np.zeros(rows * case.src_pitch, np.uint8)
    whole[: len(src)] = src
    matrix = whole.reshape(rows, case.src_pitch)[:, : cols * size].reshape(rows, cols, size)
    for c in range(cols):
        begin = c * case.dst_pitch
        np.testing.assert_array_equal(machine.dst[begin : begin + rows * size], matrix[:, c].reshape(-1))
        assert (machine.written[begin : begin + rows * size] == 1).all()
    assert machine.written.sum() == rows * cols * size
    assert set(machine.conflicts().values()) == {0}


# ---- planted -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_tile_without_its_swizzle_is_refused(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # The kernel and the map take the swizzle from one place.
    config = VectorizedConfig(size)
    check_conflicts(layouts.vectorized(config).panels[1].accesses)
    monkeypatch.setattr(words, "swizzle", lambda chunk, key: chunk)
    with pytest.raises(AssertionError, match="bank conflicts add"):
        check_conflicts(layouts.vectorized(config).panels[1].accesses)


def test_a_swizzle_that_skips_a_chunk_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    right = words.swizzle
    monkeypatch.setattr(words, "swizzle", lambda chunk, key: right(chunk, key) | 1)
    config = VectorizedConfig(4, 8, 8)
    with pytest.raises(AssertionError, match="are not touched once; first byte 0: 0 times"):
        check_once(layouts.vectorized(config).panels[1].accesses, 0, config.smem_bytes)


def test_columns_read_without_a_tile_are_refused() -> None:
    down = Access("load", tuple(lane * 1024 for lane in range(32)), 4)
    with pytest.raises(AssertionError, match="touches 32 sectors in 1 requests, where 4 hold its bytes"):
        check_coalesced([down])
