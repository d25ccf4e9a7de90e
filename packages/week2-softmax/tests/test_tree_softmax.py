"""The trees of week 2's sums, modelled in NumPy from the configurations; on a GPU the kernels give the models' bits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import forge_week2_softmax as week2
from forge_core.device import SPECS, query
from forge_core.testing import trees
from forge_week2_softmax import layouts
from forge_week2_softmax import steps as week2_steps
from forge_week2_softmax.config import plan_backward, plan_forward
from forge_week2_softmax.configs import HeldConfig
from forge_week2_softmax.trees import held_sum

H200 = SPECS["H200"]
FP32 = trees.sums(np.float32)

#: Rows of some lanes, of a block, of a cluster; those of the second line begin and end inside a chunk.
LENGTHS = (8, 64, 256, 4096, 8192, 65536, 7, 257, 1003, 8191, 50257)


def config_of(length, *, backward=True, rows=4096, device=H200):
    x = torch.empty(rows, length, device="meta")
    if backward:
        return plan_backward("log_softmax", x, x, (x,), (1,), device).config
    return plan_forward("softmax", x, x, (1,), None, device).config


def shifts_of(config):
    return (0, 1, config.vector - 1) if config.edges else (0,)


def test_the_lengths_meet_lanes_blocks_and_clusters():
    configs = [config_of(length) for length in LENGTHS]
    assert all(isinstance(config, HeldConfig) for config in configs)
    assert {config.blocks > 1 for config in configs} == {config.edges for config in configs} == {True, False}
    assert {config.lanes > 32 for config in configs} == {True, False}


def test_the_models_have_the_kernels_figures():
    pytest.importorskip("cutlass", reason="the CuTe DSL is not installed (it exists for Linux only)")
    from forge_core.cute import warp
    from forge_week2_softmax.kernels import program, split

    assert (layouts.LINE, week2_steps.STRANDS) == (split.LINE_CHUNKS, program.STRANDS)
    assert trees.WARP == layouts.WARP == warp.WARP


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("length", LENGTHS)
def test_every_term_is_counted_once(length, backward):
    config = config_of(length, backward=backward)
    marks = (np.arange(length) % 61).astype(np.float32)
    for shift in shifts_of(config):
        assert held_sum(FP32, marks, config, shift=shift) == marks.astype(np.int64).sum()


@pytest.mark.parametrize("length", LENGTHS)
def test_the_error_is_within_the_depth_and_the_depth_within_the_tolerances(length):
    config = config_of(length, backward=False)
    x = np.random.default_rng(length).random(length).astype(np.float32)
    exact = x.astype(np.float64).sum()
    for shift in shifts_of(config):
        depth = int(held_sum(trees.DEPTH, np.zeros(length, np.int64), config, shift=shift))
        got = held_sum(FP32, x, config, shift=shift)
        assert abs(float(got) - exact) <= trees.error_bound(depth, exact, np.float32)
        # The tolerances take log2 N additions, each of a whole eps, which is two roundings.
        assert depth <= 2 * math.ceil(math.log2(length))


def test_a_tree_that_drops_a_strand_is_refused(monkeypatch):
    config = config_of(4096)
    x = np.random.default_rng(0).random(4096).astype(np.float32)
    exact = x.astype(np.float64).sum()
    bound = trees.error_bound(40, exact, np.float32)
    assert abs(float(held_sum(FP32, x, config)) - exact) <= bound
    right = trees.strand_sum
    monkeypatch.setattr(trees, "strand_sum", lambda tree, terms, strands: right(tree, terms[:-1], strands))
    assert abs(float(held_sum(FP32, x, config)) - exact) > bound


@pytest.mark.gpu
@pytest.mark.parametrize("length", LENGTHS)
def test_the_kernels_give_the_models_bits(length):
    # Where the output is 0 everywhere, the gradient of log_softmax is g - exp(0) * sum(g), and exp(0) is 1: only
    # additions are left, which round alike everywhere.
    rows = 4096
    grad = torch.randn(rows, length, generator=torch.Generator().manual_seed(length))
    on_gpu = grad.cuda()
    config = config_of(length, rows=rows, device=query(on_gpu.device))
    got = week2.log_softmax_backward(on_gpu, torch.zeros_like(on_gpu), 1).cpu().numpy()
    if not isinstance(config, HeldConfig):
        assert torch.cuda.get_device_capability() < (9, 0), f"without clusters only, got {config}"
        return
    for row in range(4):
        own = grad[row].numpy()
        total = held_sum(FP32, own, config, shift=row * length % config.vector if config.edges else 0)
        np.testing.assert_array_equal(got[row], own - total)
