"""The index maps of week 2's other kernels: parts of a row, rows by any number of blocks, by element, and exchanges."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_core.device import SPECS
from forge_core.testing.index_maps import check_aligned, check_coalesced, check_conflicts, check_once
from forge_week2_softmax import holding, layouts
from forge_week2_softmax.arithmetic import Arithmetic
from forge_week2_softmax.config import VARIANTS, plan_backward, plan_forward
from forge_week2_softmax.configs import ColumnConfig, Config, HeldConfig, SweepConfig

DTYPES = (torch.bfloat16, torch.float32, torch.float64)
H200 = SPECS["H200"]


def softmax(dtype):
    return Arithmetic.forward("softmax", dtype, dtype, None)


def test_every_kernel_has_a_map():
    assert set(layouts.LAYOUTS) == set(Config.__args__)


def test_the_maps_have_the_kernels_figures():
    pytest.importorskip("cutlass", reason="the CuTe DSL is not installed (it exists for Linux only)")
    from forge_core.cute.memory import CHUNK
    from forge_week2_softmax.kernels import split

    assert (layouts.LINE, holding.CHUNK) == (split.LINE_CHUNKS, CHUNK)


@settings(max_examples=40, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    length=st.integers(1, 9000),
    shift=st.integers(0, 7),
    parts=st.sampled_from([1, 2, 3, 16, 70]),
)
def test_the_parts_of_a_row_are_read_and_written_once(dtype, length, shift, parts):
    vector = 16 // dtype.itemsize
    shift %= vector
    config = SweepConfig(softmax(dtype), vector, True, 1, (False,), threads=64)
    accesses = [
        access
        for part in range(parts)
        for access in layouts.sweep_accesses(config, length, shift=shift, part=part, parts=parts)
    ]
    check_once(accesses, shift * dtype.itemsize, (shift + length) * dtype.itemsize)
    check_aligned(accesses)
    # An edge's elements are single accesses of its thread, in a sector of theirs.
    check_coalesced([a for a in accesses if ", element" not in a.name], more=1)


@settings(max_examples=30, deadline=None)
@given(dtype=st.sampled_from(DTYPES), length=st.integers(1, 3000), threads=st.sampled_from([32, 256]))
def test_rows_by_element_are_read_and_written_once(dtype, length, threads):
    config = SweepConfig(softmax(dtype), 1, False, 1, (False,), idea="naive", threads=threads, reduced_rank=1)
    accesses = layouts.sweep_accesses(config, length)
    check_once(accesses, 0, length * dtype.itemsize)
    check_coalesced(accesses)


@settings(max_examples=25, deadline=None)
@given(dtype=st.sampled_from(DTYPES), length=st.integers(1, 20_000), shift=st.integers(0, 7))
def test_rows_by_any_number_of_blocks_are_read_and_written_once(dtype, length, shift):
    vector = 16 // dtype.itemsize
    shift %= vector
    backward = Arithmetic.backward_of("logsumexp", (dtype, dtype, dtype), dtype)
    config = HeldConfig(backward, vector, True, 1, (False, False, False), lanes=256, threads=256, chunks=4, blocks=0)
    chunks = -(-(length + shift) // vector)
    blocks = -(-chunks // 1024)
    accesses = [a for rank in range(blocks) for a in layouts.held_accesses(config, length, shift=shift, rank=rank)]
    check_once(accesses, shift * dtype.itemsize, (shift + length) * dtype.itemsize)
    check_aligned(accesses)
    check_coalesced(accesses, more=2)


def drawings():
    for variant in VARIANTS:
        for dtype in DTYPES:
            for op, backward in (("softmax", False), ("softmax", True), ("log_softmax", True)):
                shape, dim = (
                    ((3000, 256), 0) if variant == "column" else ((64, 2**15 if variant == "cluster" else 4096), 1)
                )
                x = torch.empty(shape, dtype=dtype, device="meta")
                if backward:
                    yield plan_backward(op, x, x, (x,), (dim,), H200, variant).config
                else:
                    yield plan_forward(op, x, x, (dim,), None, H200, variant).config


def test_every_variant_can_be_drawn_and_coalesces():
    drawn = 0
    for config in drawings():
        for panel in layouts.LAYOUTS[type(config)](config).panels:
            if not panel.shared:
                check_coalesced(panel.accesses, what=panel.title)
            elif not isinstance(config, ColumnConfig):
                check_conflicts(panel.accesses, what=panel.title)
            drawn += 1
    assert drawn >= 60


def test_a_part_that_overlaps_its_neighbour_is_refused(monkeypatch):
    config = SweepConfig(softmax(torch.float32), 4, False, 1, (False,), threads=32)

    def reads():
        return [a for part in range(4) for a in layouts.sweep_accesses(config, 1024, part=part, parts=4)]

    check_once(reads(), 0, 4096)
    right = layouts.part_of

    def one_early(own, length, part, parts, *, shift=0):
        begin, end = right(own, length, part, parts, shift=shift)
        return begin - (part > 0), end

    monkeypatch.setattr(layouts, "part_of", one_early)
    with pytest.raises(AssertionError, match="are not touched once"):
        check_once(reads(), 0, 4096)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_part_of_a_long_row_waits_in_shared_memory(dtype):
    x = torch.empty(4096, 2**17 * 4 // dtype.itemsize * 2, dtype=dtype, device="meta")
    config = plan_backward("softmax", x, x, (x,), (1,), H200).config
    assert isinstance(config, HeldConfig) and config.staged == 4
    slots = layouts.held_slots(config)
    check_once(slots, 0, 2 * config.staged * config.threads * holding.CHUNK)
    check_conflicts(slots)


def test_a_slot_that_two_threads_share_is_refused():
    config = HeldConfig(softmax(torch.float32), 4, False, 1, (False,), chunks=4, blocks=2, staged=2)
    slots = layouts.held_slots(config)
    check_once(slots, 0, 2 * 128 * holding.CHUNK)
    shared = [replace(access, places=(access.places[1], *access.places[1:])) for access in slots]
    with pytest.raises(AssertionError, match="are not touched once"):
        check_once(shared, 0, 2 * 128 * holding.CHUNK)


def test_a_cluster_whose_blocks_begin_too_late_is_refused():
    config = HeldConfig(softmax(torch.float32), 4, False, 1, (False,), lanes=64, threads=64, chunks=2, blocks=2)
    length = 64 * 2 * 2 * 4
    accesses = [a for rank in range(2) for a in layouts.held_accesses(config, length, rank=rank)]
    check_once(accesses, 0, length * 4)
    late = layouts.held_accesses(replace(config, chunks=1), length, rank=1)
    with pytest.raises(AssertionError, match="are not touched once"):
        check_once([*layouts.held_accesses(config, length, rank=0), *late], 0, length * 4)
