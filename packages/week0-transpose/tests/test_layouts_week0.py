"""The index maps that `forge-cute layout` draws are those by which the models move bytes."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from forge_week0_transpose import layouts
from forge_week0_transpose.configs import NaiveConfig, RowsConfig, TiledConfig, VectorizedConfig


@pytest.fixture(scope="module")
def models():
    spec = importlib.util.spec_from_file_location("forge_week0_models", Path(__file__).with_name("models.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def logged(machine, kind):
    """The model's accesses to shared memory: for each step, the place of each thread."""
    steps = {}
    for step, thread, place, width in machine.log:
        if step.startswith(kind):
            steps.setdefault(int(step.split()[1]), {})[thread] = (place, width)
    return [[steps[i][t] for t in sorted(steps[i])] for i in sorted(steps)]


def drawn(panel):
    return [[(place, access.width) for place in access.places] for access in panel.accesses]


def run(models, model, config, rows, cols):
    src = np.zeros(rows * cols * config.itemsize, np.uint8)
    machine = models.Machine(src, len(src), shared_bytes=config.smem_bytes)
    model(config, models.Case(rows, cols, cols * config.itemsize, rows * config.itemsize), machine)
    return machine


@pytest.mark.parametrize(
    "config",
    [VectorizedConfig(1), VectorizedConfig(2), VectorizedConfig(4, 8, 16), VectorizedConfig(2, 8, 8, 8, 4)],
    ids=lambda c: c.kernel_name,
)
def test_vectorized(models, config):
    machine = run(models, models.vectorized, config, config.tile_rows, config.tile_cols)
    drawing = layouts.vectorized(config)
    _, writes, reads, _ = drawing.panels
    assert drawn(writes) == logged(machine, "write")
    assert drawn(reads) == logged(machine, "read")
    assert "no bank conflicts" in writes.summary() and "no bank conflicts" in reads.summary()


@pytest.mark.parametrize(
    "config", [TiledConfig(1, 32), TiledConfig(2, 16), TiledConfig(4, 32)], ids=lambda c: c.kernel_name
)
def test_tiled(models, config):
    machine = run(models, models.tiled, config, config.tile, config.tile)
    _, writes, reads, _ = layouts.tiled(config).panels
    assert drawn(writes) == logged(machine, "write")
    assert drawn(reads) == logged(machine, "read")


@pytest.mark.parametrize(
    "config", [VectorizedConfig(2), TiledConfig(4, 32), RowsConfig(16)], ids=lambda c: c.kernel_name
)
def test_a_tile_in_global_memory_is_touched_byte_by_byte_once(config):
    drawing = layouts.LAYOUTS[type(config)](config)
    for panel in (panel for panel in drawing.panels if not panel.shared):
        touched = sorted(p + i for a in panel.accesses for p in a.places for i in range(a.width))
        assert touched == list(range(len(touched)))


def test_the_naive_kernel_reads_a_sector_a_lane():
    read, write = layouts.naive(NaiveConfig(4, 2)).panels
    assert read.summary().startswith("32.00 sectors a request, 12 %")
    assert write.summary().startswith("4.00 sectors a request, 100 %")
