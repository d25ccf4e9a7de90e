"""The tests are tested: kernels with planted faults are refused by the assertions that the right ones pass."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product

import pytest
import torch

from forge_core.cache import builder_at
from forge_core.cute import grid, online
from forge_core.cute.monoid import Maximum, Sum
from forge_core.device import SPECS, query
from forge_core.rows import held
from forge_core.rows.plan import plan_call
from forge_core.testing import assert_near_float64
from forge_core.testing.planted import one_row_scaled, rounded_twice, small_results_doubled, small_results_zeroed
from forge_week2_softmax import program
from forge_week2_softmax.bounds import softmax_bound
from forge_week2_softmax.program import Softmax
from forge_week2_softmax.proofs import DTYPES, PROOFS


def policy(got, x):
    wide = x.double()
    bound = softmax_bound(wide, 1, torch.float32)
    assert_near_float64(got, wide.softmax(1), x.softmax(1), floor=bound, what="softmax")


def max_ignored(m):
    """Nothing is subtracted."""
    return type(m)(0)


def no_rescale(self, acc, across):
    """Sums that are relative to different maxima are added up as they are."""
    return across(acc[0], Maximum(self.dtype)), across(acc[1], Sum(self.dtype))


def a_lane_left_out(self, acc, across):
    """The lanes with odd numbers do not take part in the sum."""
    top = across(acc[0], Maximum(self.dtype))
    own = acc[1] * online.exponential(acc[0] - self.base(top))
    lane = held.cute.arch.lane_idx()
    own = self.dtype(held.cutlass.select_(lane % 2 == 1, self.dtype(0), own))
    return top, across(own, Sum(self.dtype))


reduce_part = held.reduce_part


def a_lane_left_out_of_a_part(part, one, lanes=32):
    """The same where the lanes find the row's maximum first."""
    if isinstance(one, Sum):
        part = one.dtype(held.cutlass.select_(held.cute.arch.lane_idx() % 2 == 1, one.dtype(0), part))
    return reduce_part(part, one, lanes)


def not_waited_for(monoid, slot, number):
    """A slot is read once, whatever is in it."""
    from forge_core.cute.memory import load_element

    return tuple(load_element(slot + part * 4, dtype) for part, dtype in enumerate(monoid.types))


FAULTS = {
    "row max ignored": (program, "_base", max_ignored),
    "no rescale": (online.MaxSum, "together", no_rescale),
    "a lane left out": (online.MaxSum, "together", a_lane_left_out),
    "a lane left out, maximum first": (held, "reduce_part", a_lane_left_out_of_a_part),
    "a slot not waited for": (grid, "_receive", not_waited_for),
}

#: Rows of lanes, which find the maximum first; of a block, of clusters, of the grid.
LANES = (512, 256)
SHAPES = (LANES, (512, 4096), (64, 50257), (64, 131072), (1, 2**20))


def has(shape, owner):
    """Whether the kernel of a shape has what is replaced: a row that blocks share through slots is one alone."""
    return {grid: shape[0] == 1, held: shape == LANES, online.MaxSum: shape != LANES}.get(owner, True)


PLANTED = [(fault, shape) for fault, shape in product(FAULTS, SHAPES) if has(shape, FAULTS[fault][0])]


def planned(x, out, device):
    return plan_call("softmax", Softmax(), {"x": x, "y": out}, (1,), device)


def instructions(shape):
    x = torch.empty(shape, device="meta")
    launch = planned(x, x, SPECS["H200"])
    ptx = builder_at(launch.builder).compile(launch.config, arch="sm_90a").ptx
    patterns = (r"max\.NaN\.f32", r"\bsub\.", r"ex2\.approx", r"shfl\.sync", r"selp", r"ld\.relaxed")
    return [len(re.findall(pattern, ptx)) for pattern in patterns]


@pytest.mark.parametrize("fault", FAULTS)
def test_the_planted_kernels_have_their_faults(fault, monkeypatch):
    # On any machine: what a GPU is to refuse below is really another kernel.
    owner, name, wrong = FAULTS[fault]
    shape = next(shape for shape in reversed(SHAPES) if has(shape, owner))
    right = instructions(shape)
    monkeypatch.setattr(owner, name, wrong)
    assert instructions(shape) != right
    monkeypatch.undo()
    assert instructions(shape) == right


def launch(x):
    """Compiles the kernel for ``x`` past the cache, and runs it."""
    out = torch.full_like(x, float("nan"))
    device = query(x.device)
    plan = planned(x, out, device)
    # Nothing that an accumulator could be, nor a launch's number.
    scratch = torch.full((plan.workspace,), 255, dtype=torch.uint8, device=x.device)
    pointers = [tensor.data_ptr() for tensor in ((x, out, scratch) if plan.workspace else (x, out))]
    numbers = (7,) if plan.numbered else ()
    compiled = builder_at(plan.builder).compile(plan.config, arch=device.arch)
    compiled.launch(*pointers, *plan.arguments, *numbers, torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    return out


@pytest.mark.gpu
@pytest.mark.parametrize("fault, shape", PLANTED, ids=str)
def test_planted_kernels_are_refused(fault, shape, monkeypatch):
    # So wide that exponentials overflow without the maximum; a lane that is left out has many a row's largest element.
    x = torch.randn(shape, device="cuda", generator=torch.Generator("cuda").manual_seed(0)) * 40 + 30
    policy(launch(x), x)
    owner, name, wrong = FAULTS[fault]
    monkeypatch.setattr(owner, name, wrong)
    with pytest.raises(AssertionError, match=r"allowed|NaN|nan"):
        policy(launch(x), x)


# -------------------------------------------------------------------------------------- results, with the derived bound


def softmax(x, dim):
    """Computed in fp32 or fp64 and rounded once, along contiguous rows, as the kernels do."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32)).movedim(dim, -1).contiguous()
    return torch.softmax(wide, -1).to(x.dtype).movedim(-1, dim).contiguous()


def unlike(x, dim):
    """A reference in float64 alone, so that nothing is accepted for being equal to PyTorch's result."""
    return softmax(x, dim) if x.dtype is torch.float64 else torch.full_like(x, float("nan"))


SOFTMAX = replace(next(s for s in PROOFS.subjects if s.name == "softmax"), operator=softmax, reference=unlike)
WRONG = {
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
        for name, wrong in WRONG.items():
            with pytest.raises(AssertionError, match=f"{name}: .* results are off"):
                SOFTMAX.judge(wrong(*args), args, {}, name)
