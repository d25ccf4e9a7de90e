"""The derived bound of softmax accepts a right result and refuses each fault, in every sample and dtype."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from forge_core.testing.planted import one_row_scaled, rounded_twice, small_results_doubled, small_results_zeroed
from forge_week2_softmax.proofs import DTYPES, PROOFS


def softmax(x, dim):
    """Computed in fp32 or fp64 and rounded once, along contiguous rows, as the kernels do."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32)).movedim(dim, -1).contiguous()
    return torch.softmax(wide, -1).to(x.dtype).movedim(-1, dim).contiguous()


def unlike(x, dim):
    """A reference in float64 alone, so that nothing is accepted for being equal to PyTorch's result."""
    return softmax(x, dim) if x.dtype is torch.float64 else torch.full_like(x, float("nan"))


SOFTMAX = replace(next(s for s in PROOFS.subjects if s.name == "softmax"), operator=softmax, reference=unlike)


def below_a_thousandth_zeroed(right):
    def wrong(x, dim):
        y = right(x, dim)
        return y.masked_fill(y < 1e-3, 0)

    return wrong


def below_half_a_thousandth_doubled(right):
    def wrong(x, dim):
        y = right(x, dim)
        return torch.where(y < 5e-4, 2 * y, y)

    return wrong


FAULTS = (
    small_results_zeroed,
    small_results_doubled,
    one_row_scaled,
    rounded_twice,
    below_a_thousandth_zeroed,
    below_half_a_thousandth_doubled,
)


def samples(dtype):
    return [args for args in SOFTMAX.samples(torch.device("cpu")) if args[0].dtype == dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_right_softmax_is_accepted(dtype):
    for args in samples(dtype):
        share = SOFTMAX.judge(softmax(*args), args, {}, "softmax")
        # The reference of fp64 is the same function.
        assert share == 0 if dtype is torch.float64 else 0.01 < share <= 1


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_fault_is_refused_in_every_sample(dtype, fault):
    wrong = fault(softmax)
    for args in samples(dtype):
        with pytest.raises(AssertionError, match="results are off"):
            SOFTMAX.judge(wrong(*args), args, {}, "softmax")
