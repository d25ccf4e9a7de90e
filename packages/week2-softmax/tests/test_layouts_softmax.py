"""The index maps of week 2, for any configuration and shape: each element once, coalesced, conflicts as declared."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_core.profiling.layouts import Access
from forge_core.testing.index_maps import check_aligned, check_coalesced, check_conflicts, check_once
from forge_week2_softmax import layouts
from forge_week2_softmax.arithmetic import Arithmetic
from forge_week2_softmax.configs import ColumnConfig, HeldConfig, SweepConfig

DTYPES = (torch.bfloat16, torch.float32, torch.float64)


def softmax(dtype):
    return Arithmetic.forward("softmax", dtype, dtype, None)


@settings(max_examples=60, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    lanes=st.sampled_from([1, 2, 8, 32, 128]),
    chunks=st.integers(1, 8),
    blocks=st.sampled_from([1, 2, 16]),
    data=st.data(),
)
def test_a_row_that_is_held_is_read_and_written_once(dtype, lanes, chunks, blocks, data):
    if lanes < 32:
        blocks = 1
    vector = 16 // dtype.itemsize
    shift = data.draw(st.integers(0, vector - 1))
    room = lanes * chunks * blocks * vector
    length = data.draw(st.integers(1, max(room - shift, 1)))
    config = HeldConfig(softmax(dtype), vector, True, 1, (False,), lanes=lanes, threads=max(lanes, 32), chunks=chunks)
    config = HeldConfig(**{**vars(config), "blocks": blocks})
    accesses = [a for rank in range(blocks) for a in layouts.held_accesses(config, length, shift=shift, rank=rank)]
    size = dtype.itemsize
    check_once(accesses, shift * size, (shift + length) * size)
    check_aligned(accesses)
    check_coalesced(accesses, more=2)


@settings(max_examples=40, deadline=None)
@given(dtype=st.sampled_from(DTYPES), length=st.integers(1, 9000), shift=st.integers(0, 7))
def test_a_row_that_is_swept_is_read_once_a_pass(dtype, length, shift):
    vector = 16 // dtype.itemsize
    shift %= vector
    config = SweepConfig(softmax(dtype), vector, True, 1, (False,), threads=128)
    accesses = layouts.sweep_accesses(config, length, shift=shift)
    check_once(accesses, shift * dtype.itemsize, (shift + length) * dtype.itemsize)
    check_aligned(accesses)


@settings(max_examples=40, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    lanes=st.sampled_from([1, 4, 8]),
    groups=st.sampled_from([32, 64]),
    length=st.integers(1, 200),
    loads=st.integers(1, 20),
)
def test_neighbouring_rows_are_read_and_written_once(dtype, lanes, groups, length, loads):
    vector = 16 // dtype.itemsize
    config = ColumnConfig(softmax(dtype), vector, lanes, groups, 4, False, 0, 1)
    rows = loads * vector
    tiles = -(-rows // config.tile)
    accesses = [a for tile in range(tiles) for a in layouts.column_accesses(config, length, rows, tile)]
    check_once(accesses, 0, length * rows * dtype.itemsize)
    check_aligned(accesses)
    check_coalesced(accesses, more=32 // lanes)


@pytest.mark.parametrize("dtype, lanes, extra", [(torch.float32, 8, 0), (torch.bfloat16, 8, 64), (torch.float32, 4, 0)])
def test_conflicts_of_neighbouring_rows_are_as_declared(dtype, lanes, extra):
    # Eight lanes write words 16 bytes apart in fp32, all in banks of their own; in 16 bits 32 bytes apart, two in one
    # bank, which costs each of 8 warps a pass for each of 8 rows.
    config = ColumnConfig(softmax(dtype), 16 // dtype.itemsize, lanes, 256 // lanes, 8, False, 0, 1)
    writes, reads = layouts.column_slots(config)
    check_conflicts(writes, extra=extra, what="writes")
    check_once(writes, 0, 8 * config.tile * 4)
    assert all(set(access.places) <= set(range(0, 8 * config.tile * 4, 4)) for access in reads)


def test_a_map_that_skips_an_element_is_refused():
    config = HeldConfig(softmax(torch.float32), 4, True, 1, (False,), lanes=32, threads=32, chunks=2)
    accesses = layouts.held_accesses(config, 201, shift=3)
    check_once(accesses, 12, 816)
    without_ends = [access for access in accesses if not access.name.startswith("ends")]
    with pytest.raises(AssertionError, match="4 of 804 bytes are not touched once"):
        check_once(without_ends, 12, 816)


def test_a_bank_conflict_is_refused():
    config = ColumnConfig(softmax(torch.float32), 4, 8, 32, 8, False, 0, 1)
    writes, _ = layouts.column_slots(config)
    check_conflicts(writes)
    shuffled = [Access(a.name, tuple(p and p * 32 for p in a.places), a.width, a.space) for a in writes]
    with pytest.raises(AssertionError, match="declared 0"):
        check_conflicts(shuffled)
