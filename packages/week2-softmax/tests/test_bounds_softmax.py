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
FAULTS = {
    **{fault.__name__: fault(softmax) for fault in (small_results_zeroed, small_results_doubled)},
    **{fault.__name__: fault(softmax) for fault in (one_row_scaled, rounded_twice)},
    "below a thousandth zeroed": lambda x, dim: softmax(x, dim).masked_fill(softmax(x, dim) < 1e-3, 0),
    "below half a thousandth doubled": lambda x, dim: softmax(x, dim) * (1 + (softmax(x, dim) < 5e-4)),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_right_softmax_is_accepted_and_a_fault_refused_in_every_sample(dtype):
    for args in [args for args in SOFTMAX.samples(torch.device("cpu")) if args[0].dtype == dtype]:
        share = SOFTMAX.judge(softmax(*args), args, {}, "softmax")
        # The reference of fp64 is the same function.
        assert share == 0 if dtype is torch.float64 else 0.01 < share <= 1
        for name, wrong in FAULTS.items():
            with pytest.raises(AssertionError, match=f"{name}: .* results are off"):
                SOFTMAX.judge(wrong(*args), args, {}, name)
