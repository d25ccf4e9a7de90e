"""The index maps of the row kernels, for any configuration, length and shift: each element once, aligned, coalesced."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_core.cli import main
from forge_core.commands import layout
from forge_core.device import SPECS
from forge_core.errors import ArgumentError
from forge_core.op import Explanation
from forge_core.profiling.drawing import to_svg
from forge_core.profiling.row_layouts import LAYOUTS, column_accesses, held_accesses, stream_accesses
from forge_core.rows import Binding, Fold, Operands, RowProgram, configurations
from forge_core.rows.arguments import tiling
from forge_core.rows.config import ColumnConfig, HeldConfig, StreamConfig
from forge_core.rows.plan import select
from forge_core.rows.problem import Problem
from forge_core.testing.index_maps import check_aligned, check_coalesced, check_conflicts, check_once

BF16, FP32, FP64 = torch.bfloat16, torch.float32, torch.float64
DTYPES = st.sampled_from((torch.uint8, BF16, FP32, FP64))
ALIGNS = st.sampled_from(("whole", "shifted", "element"))


@dataclass(frozen=True)
class Centered(RowProgram):
    operands = Operands(rows=("x",), writes=("y",))
    folds = (Fold("sum", lambda v, row: v.x),)

    def map(self, v, totals):
        return (v.x - totals[0],)


@dataclass(frozen=True)
class Total(RowProgram):
    operands = Operands(rows=("x",), results=("y",))
    folds = (Fold("sum", lambda v, row: v.x),)

    def results(self, totals, row):
        return totals


def binding(dtype, out=None):
    return Binding(Centered(), (dtype, out or dtype), FP64 if dtype is FP64 else FP32)


def a_row(draw, config, longest):
    """A length up to ``longest`` vectors that the configuration's alignment allows, and a shift."""
    vec, shifted = config.vec, config.align == "shifted"
    length = draw(st.integers(2 * vec, max(2, longest) * vec)) if shifted else draw(st.integers(1, longest)) * vec
    return length, draw(st.integers(0, vec - 1)) if shifted else 0


def check(accesses, length, size, shift=0, *, more=0):
    check_once(accesses, shift * size, (shift + length) * size)
    check_aligned(accesses)
    check_coalesced([a for a in accesses if a.name != "head and tail"], more=more)


@settings(max_examples=80, deadline=None)
@given(dtype=DTYPES, align=ALIGNS, lanes=st.sampled_from((0, 4, 32)), chunks=st.integers(1, 6), data=st.data())
def test_a_row_that_is_held_is_read_once(dtype, align, lanes, chunks, data):
    blocks = 1 if lanes else data.draw(st.sampled_from((1, 2, 16) if align == "element" else (0, 1, 2, 16)))
    config = HeldConfig(binding(dtype), align, 128 if lanes else 96, chunks, 24, lanes=lanes, blocks=blocks)
    threads, size = lanes or data.draw(st.sampled_from((32, 64, 96))), dtype.itemsize
    length, shift = a_row(data.draw, config, threads * chunks * (blocks or 3))
    ranks = range(blocks or -(-(length // config.vec) // (threads * chunks)))
    found = [a for rank in ranks for a in held_accesses(config, length, size, threads=threads, shift=shift, rank=rank)]
    check(found, length, size, shift, more=1)


@settings(max_examples=60, deadline=None)
@given(dtype=DTYPES, align=ALIGNS, chunks=st.integers(1, 4), parts=st.sampled_from((1, 2, 7)), data=st.data())
def test_a_row_that_is_streamed_is_read_once_a_pass(dtype, align, chunks, parts, data):
    config = StreamConfig(binding(dtype), align, 64, chunks, 24, parted=parts > 1)
    (length, shift), size = a_row(data.draw, config, 900), dtype.itemsize
    found = [a for p in range(parts) for a in stream_accesses(config, length, size, shift=shift, part=p, parts=parts)]
    check(found, length, size, shift, more=1)


@settings(max_examples=200, deadline=None)
@given(
    dtype=DTYPES, length=st.integers(2, 700), rows=st.integers(2, 300), shift=st.integers(0, 7), writes=st.booleans()
)
def test_neighboring_rows_are_read_once(dtype, length, rows, shift, writes):
    """By the configuration that selection takes: all tiles, all parts of them, of rows that begin anywhere."""
    program, size = Centered() if writes else Total(), dtype.itemsize
    x = torch.empty(shift + length * rows, dtype=dtype)[shift:].view(length, rows)
    y = x if writes else torch.empty(rows, dtype=dtype)
    problem = Problem.of(program.operands, (x, y), x.shape, (0,))
    bound = Binding.of(program, (dtype, dtype), FP64 if dtype is FP64 else FP32)
    _, config, _ = select("any", bound, problem, SPECS["H200"], "column")
    tiles, shift = tiling(config, problem, SPECS["H200"]), 0
    if config.align in ("shifted", "skewed"):
        shift = x.data_ptr() % 16 // size
    assert tiles.threads <= config.threads and tiles.threads * config.vec % tiles.width == 0
    assert tiles.tiles * tiles.rows >= rows
    blocks = [(tile, part) for tile in range(tiles.tiles) for part in range(tiles.parts)]
    found = [
        access
        for tile, part in blocks
        for access in column_accesses(config, length, rows, size, tiles, shift=shift, tile=tile, part=part)
    ]
    check_once(found, shift * size, (shift + length * rows) * size)
    check_aligned(found)


def test_neighboring_rows_are_read_by_whole_sectors():
    """Where they are contiguous memory, however many they are."""
    for rows in (15, 16, 23, 242, 300):
        x = torch.empty(100000, rows, dtype=BF16, device="meta")
        problem = Problem.of(Centered().operands, (x, x), x.shape, (0,))
        _, config, _ = select("any", binding(BF16), problem, SPECS["H200"])
        assert isinstance(config, ColumnConfig)
        tiles = tiling(config, problem, SPECS["H200"])
        assert config.align == ("whole" if rows == 16 else "shifted") and tiles.threads > 200
        check_coalesced(column_accesses(config, 2000, rows, 2, replace(tiles, parts=1)), more=1)


def test_an_operand_of_wider_elements_is_read_in_several_accesses():
    config = HeldConfig(binding(FP32, BF16), "shifted", 128, 2, 24, lanes=32)
    found = held_accesses(config, 500, 4, shift=3)
    check_once(found, 12, 2012)
    check_aligned(found)
    assert [a.width for a in found] == [16, 16, 16, 16, 4]


def test_a_map_that_skips_an_element_is_refused():
    config = HeldConfig(binding(FP32), "shifted", 128, 2, 24, lanes=32)
    found = held_accesses(config, 201, 4, shift=3)
    check_once(found, 12, 816)
    with pytest.raises(AssertionError, match="4 of 804 bytes are not touched once"):
        check_once([a for a in found if a.name != "head and tail"], 12, 816)


@pytest.mark.parametrize("dtype", [BF16, FP32, FP64])
def test_every_listed_configuration_is_drawn_and_coalesces(dtype):
    for config in configurations(binding(dtype), SPECS["H200"]):
        for panel in LAYOUTS[type(config)](config).panels:
            if panel.shared:
                check_conflicts(panel.accesses, what=panel.title)
            else:
                # Of skewed rows the ends of each tile are apart from one another.
                found = [a for a in panel.accesses if config.align != "skewed" or a.name != "head and tail"]
                check_coalesced(found, more=2 * (config.align in ("shifted", "skewed")), what=panel.title)


def test_the_command_draws_a_row_kernel_of_any_package(monkeypatch, tmp_path):
    config, out = configurations(binding(BF16), SPECS["H200"])[0], tmp_path / "row.svg"
    told = Explanation("any::centered", "kernel", "held", config, "", "sm_90a", 0, 0, None)
    monkeypatch.setattr(layout, "explained", lambda name, **options: told)
    result = CliRunner().invoke(
        main, ["layout", "kernel", "c", "--shape", "64x16", "--dtype", "bf16", "--out", str(out)]
    )
    assert result.exit_code == 0 and f"{config.kernel_name}: 128 threads, {config.chunks} vectors each" in result.output
    assert "global memory: x, y: 1.00 sectors a request, 100 % of them used" in result.output
    assert out.read_text() == to_svg(LAYOUTS[HeldConfig](config))
    with pytest.raises(ArgumentError, match=r"HeldConfig, StreamConfig, ColumnConfig, got.*LAYOUTS of the package's"):
        layout.kernel_drawing(object(), "mine")
