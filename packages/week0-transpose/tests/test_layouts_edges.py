"""The index maps of the kernels for rows that begin anywhere and for few rows or columns, for any configuration."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_core.profiling.layouts import Access, Panel
from forge_core.testing.index_maps import check_aligned, check_coalesced, check_conflicts, check_once
from forge_week0_transpose import config as choice
from forge_week0_transpose import layouts
from forge_week0_transpose.configs import RealignedConfig, ShiftedConfig, SkinnyConfig
from forge_week0_transpose.kernels import words

CHUNK = words.CHUNK


def _models() -> Any:
    # Tests are not a package, so what stands beside them is loaded by path.
    spec = importlib.util.spec_from_file_location("week0_edge_models", Path(__file__).with_name("models.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


models = _models()


def logged(machine: Any, kind: str) -> list[tuple[int, ...]]:
    """The model's accesses to shared memory: for each step, the place of each thread."""
    steps: dict[int, dict[int, int]] = {}
    for step, thread, place, _ in machine.log:
        if step.startswith(kind):
            steps.setdefault(int(step.split()[1]), {})[thread] = place
    return [tuple(steps[i][t] for t in sorted(steps[i])) for i in sorted(steps)]


def drawn(panel: Panel) -> list[tuple[int | None, ...]]:
    return [access.places for access in panel.accesses]


def named(panel: Panel, name: str) -> list[Access]:
    return [access for access in panel.accesses if access.name.startswith(name)]


def moved(accesses: list[Access], by: int) -> list[Access]:
    places = [tuple(None if p is None else p - by for p in access.places) for access in accesses]
    return [Access(a.name, p, a.width, a.space) for a, p in zip(accesses, places, strict=True)]


def test_every_kernel_has_a_map() -> None:
    assert set(layouts.LAYOUTS) == set(choice.Config.__args__)  # type: ignore[attr-defined]


# ---- shifted -------------------------------------------------------------------------------------------------------


@st.composite
def shifted(draw: Any) -> ShiftedConfig:
    return ShiftedConfig(
        draw(st.sampled_from([1, 2, 4, 8])),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.sampled_from([8, 16, 32])),
        draw(st.sampled_from([8, 16])),
    )


@settings(max_examples=40, deadline=None)
@given(shifted())
def test_a_shifted_tile(config: ShiftedConfig) -> None:
    loads, writes, reads, stores = layouts.shifted(config).panels
    row, rows = config.col_chunks * CHUNK, config.lines
    # Each chunk of a row but the last is a thread's first; where rows are shifted, each but the first its second.
    for name, skipped in (("first load", 0), ("second load", CHUNK)):
        found = named(loads, name)
        assert bool(found) == (skipped == 0 or config.src_shift)
        begins = {row_number * loads.row_bytes + skipped for row_number in range(rows)} if found else set()
        assert {p for a in found for p in a.places} == {b + c for b in begins for c in range(0, row, CHUNK)}
        assert sum(len(a.places) for a in found) == len(begins) * config.col_chunks
    check_aligned(loads.accesses)
    # A row of the drawing may begin in the middle of a sector.
    check_coalesced(loads.accesses, more=2 * 32 // min(config.col_chunks, 32) if config.src_shift else 0)
    check_once(writes.accesses, 0, config.smem_bytes, what=writes.title)
    check_conflicts(writes.accesses, what=writes.title)
    check_conflicts(reads.accesses, what=reads.title)
    each = reads.accesses[:: 1 + config.dst_shift]
    check_once(each, 0, config.smem_bytes, what=reads.title)
    check_once(stores.accesses, 0, config.tile_cols * stores.row_bytes, what=stores.title)
    check_aligned(stores.accesses)
    check_coalesced(stores.accesses, more=2 * max(32 // config.row_chunks, 1) if config.dst_shift else 0)


@settings(max_examples=12, deadline=None)
@given(shifted())
def test_the_map_of_a_shifted_tile_is_the_models(config: ShiftedConfig) -> None:
    size = config.itemsize
    rows, cols = config.tile_rows - config.reach, config.tile_cols
    pads = [size if shift else 0 for shift in (config.src_shift, config.dst_shift)]
    if not config.dst_shift:
        rows = config.tile_rows
    # Pitches that shift every row, or none.
    src_pitch, dst_pitch = cols * size + pads[0], -(-rows * size // CHUNK) * CHUNK + pads[1]
    src = np.zeros((rows - 1) * src_pitch + cols * size, np.uint8)
    machine = models.Machine(src, (cols - 1) * dst_pitch + rows * size, shared_bytes=config.smem_bytes)
    models.shifted(config, models.Case(rows, cols, src_pitch, dst_pitch), machine)
    _, writes, reads, _ = layouts.shifted(config).panels
    assert drawn(writes) == logged(machine, "write")
    assert drawn(reads) == logged(machine, "read")


# ---- skinny --------------------------------------------------------------------------------------------------------


@st.composite
def skinny(draw: Any) -> SkinnyConfig:
    size = draw(st.sampled_from([1, 2, 4, 8]))
    widths = [width for width in (1, 2, 4, 8, 16) if width >= size]
    return SkinnyConfig(
        size,
        draw(st.integers(2, 8)),
        draw(st.booleans()),
        draw(st.sampled_from(widths)),
        draw(st.sampled_from(widths)),
        threads=draw(st.sampled_from([32, 64])),
    )


@settings(max_examples=60, deadline=None)
@given(skinny())
def test_a_skinny_tile(config: SkinnyConfig) -> None:
    panels = layouts.skinny(config).panels
    tile = config.lines * config.tile * config.itemsize
    for panel in panels:
        check_once(panel.accesses, 0, tile, what=panel.title)
        check_aligned(panel.accesses, what=panel.title)
    for panel in panels[1:3]:
        check_conflicts(panel.accesses, what=panel.title)
    for panel in (panels[0], panels[3]):
        # A thread moves its 16 bytes by as many accesses as it takes, and each of them touches all of their sectors.
        check_coalesced(panel.accesses, more=16 - panel.accesses[0].width, what=panel.title)
        if panel.accesses[0].width == CHUNK:
            check_coalesced(panel.accesses, what=panel.title)


@settings(max_examples=30, deadline=None)
@given(skinny())
def test_the_map_of_a_skinny_tile_is_the_models(config: SkinnyConfig) -> None:
    size, length, n = config.itemsize, config.tile, config.lines
    pitch = length * size
    machine = models.Machine(np.zeros(n * pitch, np.uint8), n * pitch, shared_bytes=config.smem_bytes)
    models.skinny(config, length, pitch, machine)
    first, second = layouts.skinny(config).panels[1:3]
    assert drawn(first) == logged(machine, "write")
    assert drawn(second) == logged(machine, "read")


# ---- realigned -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [32, 128, 256])
def test_realigned_chunks(threads: int) -> None:
    loads, stores = layouts.realigned(RealignedConfig(2, threads=threads)).panels
    check_once(stores.accesses, 0, threads * CHUNK)
    check_coalesced(stores.accesses)
    check_once(named(loads, "first"), 0, threads * CHUNK)
    check_once(moved(named(loads, "second"), CHUNK), 0, threads * CHUNK)
    # The second chunks of a warp begin in the middle of a sector.
    check_coalesced(loads.accesses, more=1)


# ---- planted -------------------------------------------------------------------------------------------------------


def test_a_skinny_tile_without_its_swizzle_has_conflicts(monkeypatch: pytest.MonkeyPatch) -> None:
    # The kernel and the map take the place from one function.
    config = SkinnyConfig(4, 4, gather=True)
    check_conflicts(layouts.skinny(config).panels[1].accesses)
    monkeypatch.setattr(words, "run_place", lambda chunk, lines: chunk)
    with pytest.raises(AssertionError, match="bank conflicts add"):
        check_conflicts(layouts.skinny(config).panels[1].accesses)


def test_a_shifted_tile_without_its_swizzle_has_conflicts(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ShiftedConfig(2, src_shift=True, dst_shift=True)
    check_conflicts(layouts.shifted(config).panels[1].accesses)
    monkeypatch.setattr(words, "swizzle", lambda chunk, key: chunk)
    with pytest.raises(AssertionError, match="bank conflicts add"):
        check_conflicts(layouts.shifted(config).panels[1].accesses)


def test_a_run_that_skips_a_chunk_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = SkinnyConfig(2, 3, gather=False)
    right = words.run_place
    monkeypatch.setattr(words, "run_place", lambda chunk, lines: right(max(chunk, 1), lines))
    with pytest.raises(AssertionError, match="are not touched once"):
        check_once(layouts.skinny(config).panels[1].accesses, 0, config.smem_bytes)
