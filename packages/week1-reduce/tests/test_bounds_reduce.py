"""The depths that bound the errors of week 1's sums: right for any kernel, and never looser than a balanced tree's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import forge_week1_reduce as week1
from forge_core.device import SPECS
from forge_core.errors import UnsupportedError
from forge_core.testing import tree_bound, trees
from forge_week1_reduce.arithmetic import Arithmetic
from forge_week1_reduce.config import plan
from forge_week1_reduce.configs import ColumnConfig, SplitConfig
from forge_week1_reduce.problem import Problem, normalize_dims, result_shape
from forge_week1_reduce.trees import MODELS, depth

VARIANTS = tuple(week1.reduce_sum.variants())
FP32 = trees.sums(np.float32)
AMPLIFIED = 2.0**-12


def planned(variant, length, *, rows=3, dtype=torch.float32):
    """What is launched for rows, or for columns by ``column``; None where the variant cannot do it."""
    shape, dim = ((length, rows), 0) if variant == "column" else ((rows, length), 1)
    x = torch.empty(shape, dtype=dtype, device="meta")
    out = torch.empty(result_shape(shape, (dim,), False), dtype=dtype, device="meta")
    problem = Problem.of(x, normalize_dims("f", (dim,), 2), out, False)
    try:
        return plan("reduce_sum", problem, Arithmetic.of("sum", dtype, dtype, None), SPECS["H200"], variant)
    except UnsupportedError:
        return None


def parts_of(launch):
    place = {SplitConfig: 1, ColumnConfig: 2}.get(type(launch.config))
    return 1 if place is None else launch.arguments[place]


def model(launch, tree, x):
    shaped = x[:, None] if isinstance(launch.config, ColumnConfig) else x
    found = MODELS[type(launch.config)](tree, shaped, launch.config, parts_of(launch), 0)
    return float(np.ravel(found)[0])


@settings(max_examples=80, deadline=None)
@given(
    variant=st.sampled_from(VARIANTS),
    length=st.one_of(st.integers(1, 70), st.integers(1, 70_000)),
    rows=st.sampled_from([1, 3, 64, 5000]),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
)
def test_every_kernel_has_a_depth(variant, length, rows, dtype):
    launch = planned(variant, length, rows=rows, dtype=dtype)
    assume(launch is not None)  # a variant that cannot do the problem
    # No tree is flatter than a balanced one, and none deeper than one addition after the other.
    assert math.ceil(math.log2(length)) <= depth(launch.config, length, parts_of(launch)) <= max(length - 1, 0)


def amplified(a, b):
    """An addition of two that exist that is too large by a known factor."""
    return np.where((a > 0) & (b > 0), (a + b) * (1 + AMPLIFIED), a + b)


@pytest.mark.parametrize("length", [1, 2, 5, 33, 257, 1000, 4099])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_depth_is_the_longest_way_of_an_element(variant, length):
    launch = planned(variant, length)
    if launch is None:
        assert variant in ("short", "cluster", "split") or length == 1, "a row of one element is no row to them"
        return
    tree = trees.Tree(amplified, 0, np.float64)
    found = set()
    for place in range(0, length, max(length // 300, 1)):
        terms = np.full(length, 1e-300)
        terms[place] = 1
        found.add(round(math.log(model(launch, tree, terms)) / math.log1p(AMPLIFIED)))
    deepest = depth(launch.config, length, parts_of(launch))
    assert max(found) <= deepest
    # The depth holds for any begin of a row; this is one of them.
    assert max(found) >= deepest - 1 or length > 300


SUMS = {
    "rounded_away": lambda rng, n: np.where(np.arange(n) == 0, 1.0, 2.0**-24 * 0.99),
    "rounded_up": lambda rng, n: np.where(np.arange(n) == 0, 1.0, 2.0**-24 * 1.01),
    "many_magnitudes": lambda rng, n: rng.standard_normal(n) * 2.0 ** rng.integers(-12, 12, n),
}


@pytest.mark.parametrize("kind", SUMS)
@pytest.mark.parametrize("length", [7, 1000, 50257])
@pytest.mark.parametrize("variant", VARIANTS)
def test_sums_that_lose_what_they_can_are_within_their_bound(variant, length, kind):
    launch = planned(variant, length)
    if launch is None:
        pytest.skip(f"{variant} does no row of {length} elements")
    x = SUMS[kind](np.random.default_rng(length), length).astype(np.float32)
    exact, magnitude = x.astype(np.float64).sum(), np.abs(x.astype(np.float64)).sum()
    allowed = trees.error_bound(depth(launch.config, length, parts_of(launch)), magnitude, np.float32)
    assert abs(model(launch, FP32, x) - exact) <= allowed


def test_a_model_never_loosens_a_bound():
    magnitude = torch.rand(5, dtype=torch.float64)
    balanced = tree_bound(magnitude, 1000, torch.float32)
    assert torch.equal(tree_bound(magnitude, 1000, torch.float32, 999), balanced)
    assert (tree_bound(magnitude, 1000, torch.float32, 12) < balanced).all()
    assert torch.equal(tree_bound(magnitude, 1, torch.float32, 0), 0 * magnitude)
