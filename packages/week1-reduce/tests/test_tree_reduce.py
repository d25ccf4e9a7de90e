"""The trees of the kernels, modelled in NumPy: what is added to what, in which order, in fp32.

On the CPU the models show that every element is counted once, that the error is a tree's, and that the policy of
tolerances refuses a tree with a fault.  On a GPU the kernels give the models' very bits.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import forge_week1_reduce as week1
from forge_core.errors import UnsupportedError
from forge_core.testing import assert_near_float64, tree_bound, trees
from forge_week1_reduce import index_maps
from forge_week1_reduce import trees as week1_trees
from forge_week1_reduce.configs import ColumnConfig, Config, SplitConfig
from forge_week1_reduce.trees import MODELS

VECTOR = 4  # fp32 in 16 bytes
FP32 = trees.sums(np.float32)

COUNTS = {
    "naive": (1, 5, 128, 129, 1000, 4097),
    "shared": (1, 5, 255, 1000, 4097),
    "shuffle": (1, 5, 255, 1000, 4097),
    "vectorized": (4, 8, 128, 1000, 4096, 20000, 5, 127, 4097, 50257),
    "short": (2, 3, 4, 8, 64, 100, 256, 1000, 1024),
    "cluster": (2**16, 2**18, 2**17 + 1),
    "split": (2**16, 2**18 + 3),
}
CASES = [(variant, count) for variant, counts in COUNTS.items() for count in counts]

#: Matrices whose columns are added up: one block a tile, a cluster, a second pass, a thread a column.
COLUMNS = ((7, 64), (300, 132), (4096, 64), (4096, 1024), (2**17, 8), (1000, 37))


def told_of(variant, count, rows=3):
    return week1.reduce_sum.explain(torch.empty(rows, count, device="meta"), variant=variant, arch="sm_90a")


def told_of_columns(shape, device="meta"):
    arch = {"arch": "sm_90a"} if device == "meta" else {}
    return week1.reduce_sum.explain(torch.empty(shape, device=device), 0, variant="column", **arch)


def parts_of(told):
    """The parts that a launch cuts a row, or a column, into."""
    if isinstance(told.config, SplitConfig):
        return told.arguments[1]
    return told.arguments[2] if isinstance(told.config, ColumnConfig) else 1


def model(told, x, tree=FP32, misaligned=0):
    return MODELS[type(told.config)](tree, x, told.config, parts_of(told), misaligned)


def depth(told, shape):
    """The largest number of additions on an element's way into a result."""
    return int(np.max(model(told, np.zeros(shape, np.int64), trees.DEPTH)))


def test_the_models_have_the_kernels_figures():
    pytest.importorskip("cutlass", reason="the CuTe DSL is not installed (it exists for Linux only)")
    from forge_core.cute import warp
    from forge_week1_reduce.kernels import elementwise, naive, sweep

    assert set(MODELS) == set(Config.__args__)
    assert (week1_trees.RUN, week1_trees.STRANDS) == (naive.RUN, elementwise.STRANDS)
    assert week1_trees.LINE_CHUNKS == index_maps.LINE_CHUNKS == sweep.LINE_CHUNKS
    assert trees.WARP == index_maps.WARP == warp.WARP


def test_the_columns_meet_every_kind_of_column_kernel():
    configs = [told_of_columns(shape).config for shape in COLUMNS]
    assert any(config.blocks > 1 for config in configs)
    assert any(config.finish is not None for config in configs)
    assert any(config.blocks == 1 and config.finish is None for config in configs)


@pytest.mark.parametrize("variant, count", CASES)
def test_every_element_is_counted_once(variant, count):
    told = told_of(variant, count)
    # Up to 2^24, whole numbers add up exactly in fp32; with a number of its own for each place, no other set of
    # elements of this size has this sum and this sum of squares.
    assert model(told, np.ones(count, np.float32)) == count
    marks = (np.arange(count) % 61).astype(np.float32)
    assert model(told, marks) == marks.astype(np.int64).sum()


@pytest.mark.parametrize("shape", COLUMNS, ids=str)
def test_every_element_of_a_column_is_counted_once(shape):
    marks = (np.arange(shape[0] * shape[1]) % 61).astype(np.float32).reshape(shape)
    np.testing.assert_array_equal(model(told_of_columns(shape), marks), marks.astype(np.int64).sum(0))


@pytest.mark.parametrize("misaligned", [0, 1, 2, 3])
def test_rows_that_begin_anywhere(misaligned):
    for count in (2, 3, 5, 127, 4099):
        told = told_of("vectorized", count)
        if told.config.peel:
            assert model(told, np.ones(count, np.float32), misaligned=misaligned) == count


def policy(got, x, what):
    row = torch.from_numpy(x)
    floor = tree_bound(row.double().abs().sum(), len(x), torch.float32)
    value = torch.tensor(float(got), dtype=torch.float32)
    assert_near_float64(value, row.double().sum(), row.sum(), floor=floor, what=what)


def values(count, kind):
    rng = np.random.default_rng(count)
    x = rng.standard_normal(count).astype(np.float32)
    if kind == "positive":
        x = np.abs(x) + np.float32(0.1)
    if kind == "constant":
        x = np.full(count, 0.1, np.float32)
    if kind == "cancelling":
        x[count // 2 :] = -x[: count - count // 2][::-1]
    return x


def assert_within_its_depth(told, got, x, shape):
    exact, magnitude = x.astype(np.float64).sum(0), np.abs(x.astype(np.float64)).sum(0)
    assert (np.abs(got - exact) <= trees.error_bound(depth(told, shape), 1.0, np.float32) * magnitude).all()


@pytest.mark.parametrize("kind", ["normal", "positive", "constant", "cancelling"])
@pytest.mark.parametrize("variant, count", CASES)
def test_the_error_is_a_tree_s(variant, count, kind):
    x, told = values(count, kind), told_of(variant, count)
    got = model(told, x)
    if (variant, kind) != ("naive", "constant"):
        # Serial sums of equal numbers round in the same direction each time, which only their own depth bounds.
        policy(got, x, f"{variant} {count} {kind}")
    assert_within_its_depth(told, got, x, count)


@pytest.mark.parametrize("shape", COLUMNS, ids=str)
def test_the_error_of_columns_is_a_tree_s(shape):
    told = told_of_columns(shape)
    x = values(shape[0] * shape[1], "positive").reshape(shape)
    got = model(told, x)
    assert_within_its_depth(told, got, x, shape)
    for column in range(0, shape[1], 7):
        policy(got[column], np.ascontiguousarray(x[:, column]), f"column {column} of {shape}")


def test_the_depth_of_the_trees():
    # One after the other through runs of 128; wide loads, a tree of 4 places, 32 lanes and the warps.
    assert depth(told_of("naive", 4096), 4096) == 127 + 31
    wide = told_of("vectorized", 2**16)
    assert depth(wide, 2**16) == 2**16 // (wide.config.threads * VECTOR) - 1 + 2 + 5 + 4
    assert depth(told_of("short", 64), 64) <= 7


def without_the_last_warp(monkeypatch):
    right = trees.block

    def block(tree, threads):
        threads = threads.copy()
        threads[-trees.WARP :] = tree.empty
        return right(tree, threads)

    monkeypatch.setattr(trees, "block", block)


@pytest.mark.parametrize("fault", ["drop_tail", "drop_warp"])
def test_a_tree_with_a_fault_is_refused(fault, monkeypatch):
    count = 50257
    x = np.random.default_rng(0).standard_normal(count).astype(np.float32) + np.float32(1)
    told = told_of("vectorized", count)
    assert told.config.peel
    policy(model(told, x), x, "right")
    if fault == "drop_warp":
        without_the_last_warp(monkeypatch)
        got = model(told, x)
    else:
        cut = x.copy()
        cut[-(count % VECTOR) :] = 0
        got = model(told, cut)
    with pytest.raises(AssertionError, match="allowed"):
        policy(got, x, fault)


@pytest.mark.gpu
@pytest.mark.parametrize("variant, count", CASES)
def test_the_kernels_give_the_models_bits(variant, count):
    rows = 3
    x = torch.randn(rows, count, generator=torch.Generator().manual_seed(count))
    on_gpu = x.cuda()
    if variant == "cluster" and torch.cuda.get_device_capability() < (9, 0):
        with pytest.raises(UnsupportedError, match="sm_90"):
            week1.reduce_sum(on_gpu, variant=variant)
        return
    told = week1.reduce_sum.explain(on_gpu, variant=variant)
    got = week1.reduce_sum(on_gpu, variant=variant).cpu()
    for row in range(rows):
        want = model(told, x[row].numpy(), misaligned=row * count % VECTOR)
        assert got[row].item() == float(want), f"{variant} {count}, row {row}"


@pytest.mark.gpu
@pytest.mark.parametrize("shape", COLUMNS, ids=str)
def test_the_column_kernels_give_the_models_bits(shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(shape[0]))
    told = told_of_columns(shape, "cuda")
    got = week1.reduce_sum(x.cuda(), 0, variant="column").cpu().numpy()
    np.testing.assert_array_equal(got, model(told, x.numpy()))
