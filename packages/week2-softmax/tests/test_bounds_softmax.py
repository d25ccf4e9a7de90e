"""The error bounds that follow from the models: right for any kernel, and near enough that a fault passes none."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from forge_core.device import SPECS
from forge_core.errors import UnsupportedError
from forge_core.testing.softmax_bounds import softmax_bound, softmax_gradient_bound
from forge_core.testing.trees import Tree, error_bound
from forge_core.testing.trees import sums as rounded_sums
from forge_week2_softmax.config import VARIANTS, plan_backward, plan_forward
from forge_week2_softmax.configs import HeldConfig, PartsConfig, SweepConfig
from forge_week2_softmax.roundings import counts, sum_error
from forge_week2_softmax.steps import Pairs, Sums
from forge_week2_softmax.trees import row

F32 = np.float32
H200 = SPECS["H200"]
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def planned(variant, length, *, rows=3, dtype=torch.float32, backward=None):
    """What is launched for rows, or for columns by ``column``; None where the variant cannot do it."""
    shape, dim = ((length, rows), 0) if variant == "column" else ((rows, length), 1)
    x = torch.empty(shape, dtype=dtype, device="meta")
    try:
        if backward:
            return plan_backward(backward, x, x, (x,), (dim,), H200, variant)
        return plan_forward("softmax", x, x, (dim,), None, H200, variant)
    except UnsupportedError:
        return None


def parts_of(plan):
    return plan.arguments[1] if isinstance(plan.config, PartsConfig) else 1


@settings(max_examples=150, deadline=None)
@given(
    variant=st.sampled_from(list(VARIANTS)),
    length=st.one_of(st.integers(1, 70), st.integers(1, 70_000)),
    rows=st.sampled_from([1, 3, 64, 5000]),
    dtype=st.sampled_from(FLOATS),
    backward=st.sampled_from([None, "softmax", "log_softmax"]),
)
def test_every_kernel_has_a_bound(variant, length, rows, dtype, backward):
    plan = planned(variant, length, rows=rows, dtype=dtype, backward=backward)
    assume(plan is not None)  # a variant that cannot do the problem
    found = sum_error(plan.config, length, parts_of(plan))
    # No tree is flatter than a balanced one, and none deeper than one addition after the other.
    least = math.ceil(math.log2(length)) / 2
    most = (length + 2) / 2 + (0 if backward else 1.5 * math.log(length) + 2.5 * (length + 8))
    assert least <= found <= most


AMPLIFIED = 2.0**-12


def amplified(a, b):
    """An addition of two that exist that is too large by a known factor."""
    return np.where((a > 0) & (b > 0), (a + b) * (1 + AMPLIFIED), a + b)


@pytest.mark.parametrize("length", [1, 2, 5, 33, 257, 1000, 4099])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_depth_is_the_longest_way_of_an_element(variant, length):
    plan = planned(variant, length, backward="log_softmax")
    if plan is None:
        whole = length % 4 == 0 or length < 8
        assert length == 1 or (variant == "grid" and not whole), "a row of one element is no row to most of these"
        return
    tree = Tree(amplified, 0, np.float64)
    found = set()
    for place in range(0, length, max(length // 300, 1)):
        terms = np.full(length, 1e-300)
        terms[place] = 1
        total = row(Sums(tree, terms), length, plan.config, parts=parts_of(plan))[0]
        found.add(round(math.log(total) / math.log1p(AMPLIFIED)))
    depth, _ = counts(plan.config, length, parts_of(plan))
    assert max(found) <= depth
    assert max(found) == depth or length > 300, "every element was tried"


def test_the_exponentials_of_known_kernels():
    def of(variant, length, rows=3):
        plan = planned(variant, length, rows=rows)
        return plan.config, counts(plan.config, length, parts_of(plan))[1]

    assert of("naive", 5000)[1] == 1, "the maximum is known before the first"
    lane, few = of("single_pass", 4)
    assert (lane.lanes, few) == (1, 1)
    lanes, few = of("single_pass", 100)
    assert lanes.lanes > 1 and few == 1, "the lanes find the maximum first"
    lanes, few = of("single_pass", 60, rows=40000)
    assert lanes.lanes > 1 and few == 2, "an element's own, and its lane's to the row's maximum"
    assert of("single_pass", 4096)[1] == 3, "and its warp's"
    config, few = of("online", 50257)
    assert isinstance(config, SweepConfig)
    turns = math.ceil(50257 / (config.threads * config.unroll * config.vector))
    assert few == 1 + (turns - 1) + 2 or few == 1 + turns + 2
    config, few = of("cluster", 65536)
    assert isinstance(config, HeldConfig) and few == 2 + (config.threads // 32 * config.blocks > 32) + 1


ROWS = {
    "random": lambda rng, n: rng.standard_normal(n) * 3,
    "rising": lambda rng, n: np.sort(rng.standard_normal(n) * 20),
    "falling": lambda rng, n: -np.sort(rng.standard_normal(n) * 20),
    "rising_slowly": lambda rng, n: np.arange(n) / n,
    "constant": lambda rng, n: np.full(n, -0.1),
    "one_largest": lambda rng, n: np.where(np.arange(n) == n - 1, 0.0, -15.0 - rng.random(n) / 8),
    "with_-inf": lambda rng, n: np.where(rng.random(n) < 0.7, -np.inf, rng.standard_normal(n)),
}


def exponential(x):
    return np.exp2((x * F32(np.log2(np.e))).astype(F32)).astype(F32)


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("length", [7, 100, 1000, 8191, 50257])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_sum_of_a_forward_pass_is_within_its_bound(variant, length, kind):
    plan = planned(variant, length)
    if plan is None:
        pytest.skip(f"{variant} does no row of {length} elements")
    x = ROWS[kind](np.random.default_rng(length), length).astype(F32)
    x[0] = 0 if np.isinf(x).all() else x[0]
    top, total = row(Pairs(x, exponential), length, plan.config, parts=parts_of(plan))
    assert top == x.max()
    exact = np.exp(x.astype(np.float64) - np.float64(top)).sum()
    allowed = sum_error(plan.config, length, parts_of(plan)) * np.finfo(F32).eps
    assert abs(float(total) - exact) <= allowed * exact
    # So near that half of an element of weight 1, lost on the way, is seen.
    assert allowed < 0.5 / exact or exact > 2000


#: Sums that lose as much as they can: one after the other each small one is rounded away, or up.
SUMS = {
    "random": lambda rng, n: rng.standard_normal(n),
    "cancelling": lambda rng, n: np.concatenate([x := rng.standard_normal(n // 2), -x[::-1], np.zeros(n % 2)]),
    "rounded_away": lambda rng, n: np.where(np.arange(n) == 0, 1.0, 2.0**-24 * 0.99),
    "rounded_up": lambda rng, n: np.where(np.arange(n) == 0, 1.0, 2.0**-24 * 1.01),
    "many_magnitudes": lambda rng, n: rng.standard_normal(n) * 2.0 ** rng.integers(-12, 12, n),
}


@pytest.mark.parametrize("kind", SUMS)
@pytest.mark.parametrize("length", [7, 100, 1000, 8191, 50257])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_sum_of_a_backward_pass_is_within_its_bound(variant, length, kind):
    plan = planned(variant, length, backward="log_softmax")
    if plan is None:
        pytest.skip(f"{variant} does no row of {length} elements")
    x = SUMS[kind](np.random.default_rng(length), length).astype(F32)
    total = row(Sums(rounded_sums(F32), x), length, plan.config, parts=parts_of(plan))[0]
    exact, magnitude = x.astype(np.float64).sum(), np.abs(x.astype(np.float64)).sum()
    depth, _ = counts(plan.config, length, parts_of(plan))
    assert sum_error(plan.config, length, parts_of(plan)) >= depth / 2
    assert abs(float(total) - exact) <= error_bound(depth, magnitude, F32)


def test_a_model_never_loosens_a_bound():
    x = torch.randn(3, 1000, dtype=torch.float64)
    y = x.softmax(1)
    for bound in (
        lambda model: softmax_bound(x, 1, torch.float32, model),
        lambda model: softmax_gradient_bound(x, y, 1, torch.float32, model),
    ):
        assert torch.equal(bound(1e9), bound(None))
        assert (bound(3.0) < bound(None)).all()
