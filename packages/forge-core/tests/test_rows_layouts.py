"""The thread-value layouts of the row kernels, tilings of neighboring rows, and the command that draws them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_core.commands import layout
from forge_core.device import SPECS
from forge_core.errors import ArgumentError
from forge_core.op import Explanation
from forge_core.profiling.layouts import to_svg
from forge_core.rows import Binding, Fold, Operands, RowProgram, configurations
from forge_core.rows.arguments import tiling
from forge_core.rows.problem import Problem
from forge_core.rows.selection import select
from forge_core.testing.index_maps import check_aligned, check_coalesced, check_once

BF16, FP32, FP64 = torch.bfloat16, torch.float32, torch.float64


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


@pytest.mark.parametrize("dtypes", [(BF16, BF16), (FP32, FP32), (FP64, FP64), (BF16, FP32)], ids=str)
def test_every_listed_configuration_is_drawn_and_coalesces(dtypes):
    for config in configurations(binding(*dtypes), SPECS["H200"]):
        drawing = layout.kernel_drawing(config, "held")
        assert sum(panel.title.count(name) for panel in drawing.panels for name in (": x", ", y", ": y")) == 2
        for panel in drawing.panels:
            check_aligned(panel.accesses, what=panel.title)
            several = panel.accesses[0].width < panel.row_bytes // 32  # accesses of a vector, which share its sectors
            check_coalesced(panel.accesses, more=16 * several, what=panel.title)
            if getattr(config, "blocks", 1) <= 1:
                each = config.chunks * (getattr(config, "lanes", 0) or config.threads)
                check_once(panel.accesses, 0, each * panel.row_bytes // 32, what=panel.title)


@settings(max_examples=200, deadline=None)
@given(
    dtype=st.sampled_from((torch.uint8, BF16, FP32, FP64)),
    length=st.integers(2, 700),
    rows=st.integers(2, 300),
    shift=st.integers(0, 7),
    writes=st.booleans(),
)
def test_tiles_have_every_row(dtype, length, rows, shift, writes):
    """Of the configuration that selection takes for neighboring rows that begin anywhere."""
    program = Centered() if writes else Total()
    x = torch.empty(shift + length * rows, dtype=dtype)[shift:].view(length, rows)
    y = x if writes else torch.empty(rows, dtype=dtype)
    problem = Problem.of(program.operands, (x, y), x.shape, (0,))
    bound = Binding.of(program, (dtype, dtype), FP64 if dtype is FP64 else FP32)
    _, config, _ = select("any", bound, problem, SPECS["H200"], "column")
    tiles = tiling(config, problem, SPECS["H200"])
    assert tiles.threads <= config.threads and tiles.threads * config.vec % tiles.width == 0
    assert tiles.tiles * tiles.rows >= rows


@settings(max_examples=300, deadline=None)
@given(
    length=st.integers(1, 5000), rows=st.integers(2, 9000), batch=st.integers(1, 3), dtype=st.sampled_from((BF16, FP64))
)
def test_tiles_that_are_transposed_fit_shared_memory(length, rows, batch, dtype):
    x = torch.empty(batch, length, rows, dtype=dtype, device="meta").transpose(1, 2)
    y = torch.empty(x.shape, dtype=dtype, device="meta")
    problem = Problem.of(Centered().operands, (x, y), tuple(x.shape), (2,))
    for gpu in ("H200", "A100"):
        for config in (c for c in configurations(binding(dtype), SPECS[gpu]) if getattr(c, "transposes", False)):
            parts, width, each, threads, tiles, groups = tiling(config, problem, SPECS[gpu])
            assert (each, threads) == (width, width * groups) and threads <= config.threads
            assert tiles * width >= batch * rows > (tiles - batch) * width
            # Totals of all blocks of a cluster, and the elements of an iteration with a gap behind each row.
            assert not config.held or parts == 1 or parts * width <= config.exchange_partials // 2
            outputs = dtype.itemsize * width * (groups * config.chunks + 1)
            assert outputs <= config.shared(config.threads) - replace(config, transposes=False).shared(config.threads)


@pytest.mark.parametrize(
    ("program", "shape", "dtype", "align"),
    [
        # Vectors of unaligned rows would take several rows of a thread.
        (Total(), (22, 3001), BF16, "element"),
        (Total(), (700, 101), FP32, "element"),
        (Total(), (4000, 10001), FP32, "skewed"),
        (Centered(), (1000, 4099), BF16, "element"),
        (Centered(), (1025, 4099), BF16, "skewed"),
        # Aligned ones do not.
        (Total(), (22, 3000), BF16, "whole"),
        (Centered(), (1000, 4096), BF16, "whole"),
    ],
    ids=str,
)
def test_tiles_of_few_elements_are_read_by_element(program, shape, dtype, align):
    x = torch.empty(shape, dtype=dtype, device="meta")
    problem = Problem.of(program.operands, (x, x if program.operands.writes else x[0]), x.shape, (0,))
    _, config, _ = select("any", Binding.of(program, (dtype, dtype), FP32), problem, SPECS["H200"])
    assert config.align == align


@pytest.mark.parametrize("rows", [15, 16, 23, 242, 300])
def test_neighboring_rows_of_contiguous_memory_have_most_threads(rows):
    x = torch.empty(1_000_000, rows, dtype=BF16, device="meta")
    problem = Problem.of(Centered().operands, (x, x), x.shape, (0,))
    _, config, _ = select("any", binding(BF16), problem, SPECS["H200"])
    assert config.align == ("whole" if rows == 16 else "shifted")
    assert tiling(config, problem, SPECS["H200"]).threads > 200


def test_the_command_draws_a_row_kernel_of_any_package(forge, monkeypatch, tmp_path):
    config, out = configurations(binding(BF16), SPECS["H200"])[0], tmp_path / "row.svg"
    told = Explanation("any::centered", "kernel", "held", config, "", "sm_90a", 0, 0, None)
    monkeypatch.setattr(layout, "explained", lambda **call: told)
    result = forge("layout", "kernel", "c", "--shape", "64x16", "--dtype", "bf16", "--out", out)
    assert result.exit_code == 0 and f"{config.kernel_name}: 128 threads, {config.chunks} vectors each" in result.output
    assert "global memory: x, y: 1.00 sectors a request, 100 % of them used" in result.output
    assert out.read_text() == to_svg(layout.kernel_drawing(config, "held"))
    with pytest.raises(
        ArgumentError, match=r"with steps, .* HeldConfig, StreamConfig, ColumnConfig, .*got 'mine'.*forge_core.steps"
    ):
        layout.kernel_drawing(object(), "mine")
