"""The index maps of week 1, for any configuration and shape: all is read once, coalesced, conflicts as declared."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import forge_week1_reduce as week1
from forge_core.profiling.layouts import Access
from forge_core.testing.index_maps import check_aligned, check_coalesced, check_conflicts, check_once
from forge_week1_reduce import index_maps
from forge_week1_reduce.arithmetic import Arithmetic
from forge_week1_reduce.configs import ColumnConfig, ShortConfig, VectorizedConfig

DTYPES = (torch.int8, torch.bfloat16, torch.float32, torch.float64)


def sums(dtype):
    return Arithmetic.of("sum", dtype, dtype if dtype.is_floating_point else torch.int64, None)


@settings(max_examples=60, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    threads=st.sampled_from([32, 64, 256]),
    length=st.integers(1, 6000),
    misaligned=st.integers(0, 15),
    parts=st.sampled_from([1, 2, 7, 16]),
)
def test_a_row_that_begins_anywhere_is_read_once(dtype, threads, length, misaligned, parts):
    config = VectorizedConfig(sums(dtype), peel=True, threads=threads)
    size = dtype.itemsize
    misaligned %= 16 // size
    reads = [
        access
        for part in range(parts)
        for access in index_maps.row_reads(config, length, misaligned=misaligned, part=part, parts=parts)
    ]
    check_once(reads, misaligned * size, (misaligned + length) * size)
    check_aligned(reads)
    # A row's first whole chunk may be the second half of a sector.
    check_coalesced(reads, more=1)


@settings(max_examples=30, deadline=None)
@given(dtype=st.sampled_from(DTYPES), width=st.sampled_from([8, 16]), chunks=st.integers(1, 2000))
def test_an_aligned_row_is_read_once_and_in_whole_sectors(dtype, width, chunks):
    config = VectorizedConfig(sums(dtype), width=width, threads=128)
    reads = index_maps.row_reads(config, chunks * width // dtype.itemsize)
    check_once(reads, 0, chunks * width)
    check_coalesced(reads)


@settings(max_examples=40, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    lanes=st.sampled_from([1, 2, 4, 8, 16, 32]),
    unroll=st.integers(1, 4),
    group=st.integers(1, 4),
    data=st.data(),
)
def test_short_rows_are_read_once(dtype, lanes, unroll, group, data):
    config = ShortConfig(sums(dtype), lanes=lanes, unroll=unroll, rows=group)
    chunks = data.draw(st.integers(1, lanes * unroll))
    config = replace(config, exact=chunks == lanes * unroll)
    rows = data.draw(st.integers(1, config.rows_per_block))
    length = chunks * 16 // dtype.itemsize
    reads = index_maps.short_reads(config, length, rows)
    check_once(reads, 0, rows * chunks * 16)
    check_aligned(reads)
    if config.exact and unroll == 1:
        check_coalesced(reads)


@settings(max_examples=40, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    lanes=st.sampled_from([1, 2, 8, 32]),
    groups=st.sampled_from([1, 4, 32]),
    rows=st.integers(1, 100),
    loads=st.integers(1, 40),
    parts=st.sampled_from([1, 3, 4]),
)
def test_columns_are_read_once(dtype, lanes, groups, rows, loads, parts):
    config = ColumnConfig(sums(dtype), lanes=lanes, groups=groups)
    parts = parts if groups > 1 else 1
    cols = loads * config.vector
    tiles = -(-cols // config.tile)
    reads = [
        access
        for tile in range(tiles)
        for part in range(parts)
        for access in index_maps.column_reads(config, rows, cols, tile, part=part, parts=parts)
    ]
    check_once(reads, 0, rows * cols * dtype.itemsize)
    check_aligned(reads)
    # Each row of the matrix that a warp reads may begin and end between two sectors.
    check_coalesced(reads, more=2 * max(32 // lanes, 1))


def test_columns_that_are_no_whole_loads_are_read_once():
    config = ColumnConfig(sums(torch.float32), lanes=8, groups=4)
    reads = [access for tile in range(2) for access in index_maps.column_reads(config, 9, 37, tile)]
    check_once(reads, 0, 9 * 37 * 4)


def conflicts_of(config):
    """Passes that conflicts add to the writes of a tile's accumulators.

    A warp's ``lanes`` threads write words ``vector * size`` bytes apart, so a bank has every 128 / that of them.
    """
    size, warps = config.arithmetic.acc.itemsize, max(config.threads // 32, 1)
    apart = config.vector * size
    together = min(32 * 4 // max(size, 4), config.lanes)
    met = -(-together // max(128 // apart, 1))
    return config.vector * warps * (met - 1) * (config.lanes // together)


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_conflicts_of_columns_are_as_declared(dtype, lanes):
    config = ColumnConfig(sums(dtype), lanes=lanes, groups=256 // lanes)
    writes, reads = index_maps.column_slots(config)
    check_conflicts(writes, extra=conflicts_of(config), what="writes")
    check_conflicts(reads, what="reads")
    warps = config.threads // 32
    check_once(writes, 0, warps * config.tile * config.arithmetic.acc.itemsize)


@pytest.mark.parametrize("shape", [(4096, 1024), (2**20, 64), (300, 10_000), (5000, 48)], ids=str)
def test_conflicts_of_the_tiles_that_are_chosen_are_as_declared(shape):
    config = week1.reduce_sum.explain(torch.empty(shape, device="meta"), 0, arch="sm_90a").config
    writes, reads = index_maps.column_slots(config)
    check_conflicts(writes, extra=conflicts_of(config), what="writes")
    check_conflicts(reads, what="reads")


# ---- planted -------------------------------------------------------------------------------------------------------


def shift_lane(access, lane, by):
    places = list(access.places)
    places[lane] += by
    return Access(access.name, tuple(places), access.width, access.space)


def test_a_map_that_skips_an_element_is_refused():
    config = VectorizedConfig(sums(torch.float32), threads=64)
    reads = index_maps.row_reads(config, 1024)
    check_once(reads, 0, 4096)
    with pytest.raises(AssertionError, match=r"16 of 4096 bytes are not touched once; first byte 4080: 0 times"):
        check_once([*reads[:-1], Access("last", (*reads[-1].places[:-1], None), 16)], 0, 4096)
    with pytest.raises(AssertionError, match="first byte 48: 0 times"):
        check_once([shift_lane(reads[0], 3, 16), *reads[1:]], 0, 4096)
    with pytest.raises(AssertionError, match="outside 0 to 4096"):
        check_once(index_maps.row_reads(config, 1028), 0, 4096)


def test_a_map_that_does_not_coalesce_is_refused():
    config = VectorizedConfig(sums(torch.float32), threads=64)
    (right,) = index_maps.row_reads(config, 256)
    apart = Access("apart", tuple(place * 2 for place in right.places), 16)
    with pytest.raises(AssertionError, match="touches 64 sectors in 2 requests, where 32 hold"):
        check_coalesced([apart])
    with pytest.raises(AssertionError, match="of 16 bytes begins at byte 8"):
        check_aligned([shift_lane(right, 0, 8)])


def test_a_bank_conflict_is_refused():
    config = ColumnConfig(sums(torch.float32), lanes=8, groups=32)
    writes, _ = index_maps.column_slots(config)
    check_conflicts(writes)
    stretched = [Access(a.name, tuple(p and p * 8 for p in a.places), a.width, a.space) for a in writes]
    with pytest.raises(AssertionError, match=r"bank conflicts add \d+ passes, declared 0"):
        check_conflicts(stretched)
    with pytest.raises(AssertionError, match="add 0 passes, declared 4"):
        check_conflicts(writes, extra=4)
