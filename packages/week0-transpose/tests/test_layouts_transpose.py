"""The kernels' own layouts: every byte of a tile once, whole sectors, bank conflicts as declared; and byte shuffles."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_core.profiling.layouts import Panel, of_steps
from forge_core.steps import CHUNK
from forge_core.testing.index_maps import check_aligned, check_coalesced, check_conflicts, check_once
from forge_week0_transpose.config import (
    LinesConfig,
    NaiveConfig,
    RealignedConfig,
    RowsConfig,
    ShiftedConfig,
    TiledConfig,
    VectorizedConfig,
)
from forge_week0_transpose.kernels import words

SIZES = (1, 2, 4, 8, 16)


def panels(config: Any) -> tuple[Panel, ...]:
    return of_steps(config).panels


@st.composite
def vectorized(draw: Any) -> VectorizedConfig:
    size, chunks = draw(st.sampled_from(SIZES)), st.sampled_from([8, 16])
    return VectorizedConfig(size, draw(chunks), draw(chunks), draw(st.sampled_from([8, 16] if size < 16 else [16])))


@settings(max_examples=60, deadline=None)
@given(vectorized())
def test_a_vectorized_tile(config: VectorizedConfig) -> None:
    loads, writes, reads, stores = panels(config)
    for panel in (loads, writes, reads, stores):
        check_once(panel.accesses, 0, config.smem_bytes, what=panel.title)
        check_aligned(panel.accesses, what=panel.title)
    check_coalesced((*loads.accesses, *stores.accesses))
    check_conflicts((*writes.accesses, *reads.accesses))


@pytest.mark.parametrize("shifts", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("size, row_chunks, col_chunks", [(1, 16, 8), (1, 32, 8), (2, 8, 8), (4, 32, 16), (8, 16, 8)])
def test_an_unaligned_tile(size: int, row_chunks: int, col_chunks: int, shifts: tuple[bool, bool]) -> None:
    config = ShiftedConfig(size, row_chunks, col_chunks, src_shift=shifts[0], dst_shift=shifts[1])
    loads, writes, reads, stores = panels(config)
    row = config.col_chunks * CHUNK
    for name, skipped in (("loads", 0), ("next", CHUNK))[: 1 + shifts[0]]:
        begins = {number * loads.row_bytes + skipped for number in range(config.loaded[0])}
        found = [place for access in loads.accesses if access.name.startswith(name) for place in access.places]
        assert sorted(found) == sorted(begin + place for begin in begins for place in range(0, row, CHUNK))
    # A row of the drawing may begin in the middle of a sector.
    check_coalesced(loads.accesses, more=64 // min(config.col_chunks, 32) if shifts[0] else 0)
    check_coalesced(stores.accesses, more=2 * max(32 // config.row_chunks, 1) if shifts[1] else 0)
    check_once(writes.accesses, 0, config.smem_bytes)
    check_conflicts((*writes.accesses, *reads.accesses))
    check_once([access for access in reads.accesses if access.name.startswith("reads")], 0, config.smem_bytes)
    check_once(stores.accesses, 0, config.tile[1] * stores.row_bytes)
    check_aligned((*loads.accesses, *stores.accesses))
    # A row's next chunk but that of its last thread, which stores nothing.
    for access, after in pairwise(reads.accesses[:: len(reads.accesses) // 2]) if shifts[1] else ():
        last = config.row_chunks - 1
        assert all(after.places[t] == access.places[t + 1] for t in range(config.threads) if t % (last + 1) != last)


#: Passes that conflicts add to the writes and to the reads of a whole tile, by element and edge; the others have none.
#: One element of padding is less than a word where elements are of 1 or 2 bytes, so down a column two rows can meet in
#: a bank; and a warp has two rows of a tile of 16, of which the second's last lane meets the first's first.
TILED_CONFLICTS = {(1, 16): (0, 8), (1, 32): (0, 24), (2, 16): (0, 8), (2, 32): (0, 16), (4, 16): (8, 8)}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("tile", [16, 32])
def test_a_tiled_tile(size: int, tile: int) -> None:
    loads, writes, reads, stores = panels(TiledConfig(size, tile))
    for panel in (loads, stores):
        check_once(panel.accesses, 0, tile * tile * size)
        check_coalesced(panel.accesses)
    for panel, extra in zip((writes, reads), TILED_CONFLICTS.get((size, tile), (0, 0)), strict=True):
        places = {place for access in panel.accesses for place in access.places}
        assert places == {(y * (tile + 1) + x) * size for y in range(tile) for x in range(tile)}
        check_conflicts(panel.accesses, extra=extra, what=panel.title)


@pytest.mark.parametrize("gather", [True, False])
@pytest.mark.parametrize("bits", range(4))
@pytest.mark.parametrize("size", SIZES)
def test_a_tile_of_lines(size: int, bits: int, gather: bool) -> None:
    for loads in (1, 2, 4, 8):
        config = LinesConfig(size, gather, bits, loads=loads)
        total = math.prod(config.steps[0].tile) * size
        for panel in panels(config):
            check_once(panel.accesses, 0, total, what=panel.title)
            check_aligned(panel.accesses, what=panel.title)
            (check_conflicts if panel.shared else check_coalesced)(panel.accesses, what=panel.title)


def test_kernels_without_a_tile() -> None:
    for width in SIZES:
        (panel,) = panels(RowsConfig(width))
        check_once(panel.accesses, 0, 128 * width)
        check_coalesced(panel.accesses)
    loads, stores = panels(RealignedConfig(2))
    check_once(stores.accesses, 0, 128 * CHUNK)
    check_coalesced(loads.accesses, more=1)  # the second chunks of a warp begin in the middle of a sector
    read, write = panels(NaiveConfig(4, 2))
    assert read.summary().startswith("32.00 sectors a request, 12 %")
    assert write.summary().startswith("4.00 sectors a request, 100 %")
    with pytest.raises(AssertionError, match="touches 32 sectors in 1 requests, where 4 hold its bytes"):
        check_coalesced(read.accesses)


# ---- planted -------------------------------------------------------------------------------------------------------


SWIZZLED = [VectorizedConfig(2), ShiftedConfig(2), *(LinesConfig(4, True, bits) for bits in (1, 2, 3))]


@pytest.mark.parametrize("config", SWIZZLED, ids=lambda config: config.kernel_name)
def test_a_tile_without_its_swizzle_has_conflicts(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # The kernel and the map take the swizzle from one place.
    check_conflicts(panels(config)[1].accesses)
    monkeypatch.setattr(type(config), "swizzle", (0, 4, 3))
    with pytest.raises(AssertionError, match="bank conflicts add"):
        check_conflicts(panels(config)[1].accesses)


def test_a_layout_that_skips_a_chunk_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = VectorizedConfig(4, 8, 8)
    *others, store = config.steps
    (threads, values), (places, steps) = store.layout
    skipping = replace(store, layout=((threads, values), ((places[0], 2 * places[1]), steps)))
    monkeypatch.setattr(VectorizedConfig, "steps", (*others, skipping))
    with pytest.raises(AssertionError, match=r"are not touched once|outside"):
        check_once(panels(config)[3].accesses, 0, config.smem_bytes)


# ---- shuffles of bytes ---------------------------------------------------------------------------------------------


def permute(a: int, b: int, selector: int) -> int:
    """PTX prmt.b32."""
    pool = a.to_bytes(4, "little") + b.to_bytes(4, "little")
    return int.from_bytes(bytes(pool[selector >> (4 * i) & 7] for i in range(4)), "little")


def to_words(data: bytes) -> list[int]:
    return [int.from_bytes(data[i : i + 4], "little") for i in range(0, len(data), 4)]


def to_bytes(chunks: list[list[int]]) -> list[bytes]:
    return [b"".join(word.to_bytes(4, "little") for word in chunk) for chunk in chunks]


@pytest.mark.parametrize("size, width", [(s, w) for s in SIZES for w in (4, 8, 16) if w >= s])
def test_register_transposition(size: int, width: int) -> None:
    v, each = CHUNK // size, {1: 2, 2: 1}.get(size, 0)
    rows, calls = [bytes((17 * r + b) % 256 for b in range(width)) for r in range(v)], []
    found = words.interleave([to_words(row) for row in rows], size, lambda *args: calls.append(args) or permute(*args))
    columns = [b"".join(row[c : c + size] for row in rows) for c in range(0, width, size)]
    assert to_bytes(found) == columns
    assert len(calls) == each * 4 * len(columns), "so many permutations a word"


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("lines", range(2, 9))
def test_interleaving_any_number_of_lines(size: int, lines: int) -> None:
    chunks = [bytes((16 * r + b) % 256 for b in range(CHUNK)) for r in range(lines)]
    run = words.interleave([to_words(chunk) for chunk in chunks], size, permute)
    assert b"".join(to_bytes(run)) == b"".join(chunk[c : c + size] for c in range(0, CHUNK, size) for chunk in chunks)


# ---- places --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(), (5,), (3, 4), (2, 3, 4), (2, 1, 3, 5), (2**33,)], ids=str)
def test_the_place_of_every_entry(sizes: tuple[int, ...]) -> None:
    cutlass = pytest.importorskip("cutlass", reason="the CuTe DSL is not installed (it exists for Linux only)")
    from forge_core.cute.strided import place

    for number in (cutlass.Uint32, cutlass.Int64):
        for entry in range(min(math.prod(sizes), 120)):
            found = [int(index.value) for index in place(number(entry), sizes)]
            assert sum(i * math.prod(sizes[:k]) for k, i in enumerate(found)) == entry * bool(sizes)
            assert all(i < size for i, size in zip(found, sizes, strict=True))
