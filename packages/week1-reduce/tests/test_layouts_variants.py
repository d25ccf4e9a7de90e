"""The index maps of week 1's other kernels: by element, by parts of a row, by shifted columns, and the second pass."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import forge_week1_reduce as week1
from forge_core.profiling.layouts import Access, coalescing, conflicts
from forge_core.testing.index_maps import check_aligned, check_coalesced, check_conflicts, check_once
from forge_week1_reduce import index_maps, layouts
from forge_week1_reduce.arithmetic import Arithmetic
from forge_week1_reduce.configs import (
    ColumnConfig,
    Config,
    FinishConfig,
    NaiveConfig,
    SharedConfig,
    ShuffleConfig,
)

DTYPES = (torch.int8, torch.bfloat16, torch.float32, torch.float64)


def sums(dtype):
    return Arithmetic.of("sum", dtype, dtype if dtype.is_floating_point else torch.int64, None)


def test_every_kernel_has_a_map():
    assert set(layouts.LAYOUTS) == set(Config.__args__)


def test_the_maps_have_the_kernels_figures():
    pytest.importorskip("cutlass", reason="the CuTe DSL is not installed (it exists for Linux only)")
    from forge_week1_reduce.kernels import finish

    assert index_maps.FINISH_THREADS == finish.THREADS


@settings(max_examples=30, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    kind=st.sampled_from([SharedConfig, ShuffleConfig]),
    threads=st.sampled_from([32, 64, 256]),
    length=st.integers(1, 3000),
)
def test_rows_by_element_are_read_once(dtype, kind, threads, length):
    reads = index_maps.element_reads(kind(sums(dtype), 1, 1, threads=threads), length)
    check_once(reads, 0, length * dtype.itemsize)
    check_aligned(reads)
    check_coalesced(reads)


@settings(max_examples=20, deadline=None)
@given(dtype=st.sampled_from(DTYPES), length=st.integers(1, 40), rows=st.integers(1, 256))
def test_a_thread_a_row_reads_once_and_wastes_sectors(dtype, length, rows):
    config, size = NaiveConfig(sums(dtype), 1, 1), dtype.itemsize
    along = index_maps.naive_reads(config, length, rows, row_step=length * size, step=size)
    check_once(along, 0, length * rows * size)
    # Reduced over the first dimension, the same walk reads neighbours together.
    down = index_maps.naive_reads(config, length, rows, row_step=size, step=rows * size)
    check_once(down, 0, length * rows * size)
    check_coalesced(down, more=1)
    if length * size >= 32 and rows >= 32:
        full = [Access(a.name, a.places[:32], a.width) for a in along]
        assert all(coalescing(access).sectors == 32 for access in full), "a sector for each lane, as declared"


@pytest.mark.parametrize("threads", [32, 64, 256])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_halves_meet_without_conflicts_and_take_each_accumulator_once(dtype, threads):
    config = SharedConfig(sums(dtype), 1, 1, threads=threads)
    write, *pairs = index_maps.halving(config)
    size = config.arithmetic.acc.itemsize
    check_once([write], 0, threads * size)
    check_conflicts([write, *pairs], what="halves")
    others = [access for access in pairs if access.name.endswith("other")]
    # All accumulators but the first are the other one of a pair, once.
    check_once(others, size, threads * size)


@settings(max_examples=40, deadline=None)
@given(
    dtype=st.sampled_from([torch.bfloat16, torch.float32]),
    groups=st.sampled_from([8, 16]),
    rows=st.integers(1, 50),
    cols=st.integers(1, 700),
)
def test_columns_of_shifted_rows_are_read_once_a_tile(dtype, groups, rows, cols):
    size = dtype.itemsize
    shifts = 16 // size // max(1, min(cols & -cols, 16 // size))
    if shifts < 2:
        return
    config = ColumnConfig(sums(dtype), lanes=32, groups=groups, shifts=shifts)
    for tile in range(-(-cols // config.tile)):
        reads = index_maps.column_reads(config, rows, cols, tile)
        check_aligned(reads)
        begin, end = tile * config.tile, min((tile + 1) * config.tile, cols)
        touched = {}
        for access in reads:
            for place in access.places:
                for byte in range(place, place + access.width) if place is not None else ():
                    touched[byte] = touched.get(byte, 0) + 1
        # No element is read twice by a tile, and those of its columns are; a chunk of each row is a neighbour's.
        assert set(touched.values()) == {1}
        own = {(row * cols + column) * size for row in range(rows) for column in range(begin, end)}
        assert own <= set(touched)
        assert max(touched) < rows * cols * size


@pytest.mark.parametrize("shift", range(8))
def test_accumulators_of_shifted_rows_are_written_once(shift):
    config = ColumnConfig(sums(torch.bfloat16), lanes=32, groups=8, shifts=8)
    writes, reads = index_maps.column_slots(config, shift=shift)
    check_once(writes, 0, config.threads // 32 * config.tile * 4)
    check_once(reads, 0, config.threads // 32 * config.tile * 4)
    # Lanes write words 32 bytes apart, so eight of 32 meet in a bank; of those at the edges one less takes part.
    found = sum(conflicts(access).extra for access in writes)
    assert found == config.vector * 8 * 7 - 8 * sum(conflicts(each).worst < 8 for each in writes)
    check_conflicts(reads, what="reads")


@settings(max_examples=30, deadline=None)
@given(threads=st.sampled_from([1, 32, 128, 256]), parts=st.integers(1, 1100), rows=st.integers(1, 128))
def test_the_second_pass_reads_each_accumulator_once(threads, parts, rows):
    config = FinishConfig(sums(torch.float32), threads, 1)
    if threads > 1:
        reads = index_maps.finish_reads(config, parts, 1, part_step=4, row_step=parts * 4)
        check_once(reads, 0, parts * 4)
        check_coalesced(reads)
    else:
        parts = min(parts, 40)
        # Of columns: the accumulators of a part lie side by side.
        reads = index_maps.finish_reads(config, parts, rows, part_step=rows * 4, row_step=4)
        check_once(reads, 0, parts * rows * 4)
        check_coalesced(reads, more=1)


@pytest.mark.parametrize("variant", week1.reduce_sum.variants())
def test_every_variant_can_be_drawn(variant):
    shapes = {"short": ((4096, 64), 1), "column": ((4096, 1024), 0)}
    shape, dim = shapes.get(variant, ((4096, 2**17), 1))
    config = week1.reduce_sum.explain(torch.empty(shape, device="meta"), dim, variant=variant, arch="sm_90a").config
    drawing = layouts.LAYOUTS[type(config)](config)
    for panel in drawing.panels:
        if panel.shared and not isinstance(config, ColumnConfig):
            check_conflicts(panel.accesses, what=panel.title)
        elif not panel.shared and not isinstance(config, NaiveConfig):
            check_coalesced(panel.accesses, what=panel.title)


# ---- planted -------------------------------------------------------------------------------------------------------


def test_a_walk_that_skips_a_turn_is_refused():
    config = ShuffleConfig(sums(torch.float32), 1, 1, threads=64)
    reads = index_maps.element_reads(config, 1000)
    with pytest.raises(AssertionError, match="first byte 256: 0 times"):
        check_once([reads[0], *reads[2:]], 0, 4000)


def test_halves_that_are_interleaved_have_conflicts():
    # Pairs 2 i and 2 i + 1, which is how one might write it first.
    apart = Access("own", tuple(2 * thread * 4 for thread in range(32)), 4, "shared")
    with pytest.raises(AssertionError, match="bank conflicts add 1 passes, declared 0"):
        check_conflicts([apart])
