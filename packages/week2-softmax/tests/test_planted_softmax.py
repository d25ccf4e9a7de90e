"""The tests are tested: kernels with planted faults are refused by the assertions that the right ones pass."""

from __future__ import annotations

import re
from itertools import product

import pytest
import torch

from forge_core.cute import grid, online, warp
from forge_core.cute.monoid import Maximum, Sum
from forge_core.device import SPECS
from forge_core.op.launch import load
from forge_core.testing import assert_near_float64
from forge_core.testing.softmax_bounds import softmax_bound
from forge_week2_softmax.config import plan_forward
from forge_week2_softmax.kernels import held, program

H200 = SPECS["H200"]


def policy(got, x):
    wide = x.double()
    bound = softmax_bound(wide, 1, torch.float32)
    assert_near_float64(got, wide.softmax(1), x.softmax(1), floor=bound, what="softmax")


def max_ignored(self, chunks):
    """The maximum of a thread's elements is taken for zero."""
    return self.acc(0)


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


def a_lane_left_out_of_a_part(part, one, lanes=32, stride=1, *, repeated=False):
    """The same where the lanes find the row's maximum first."""
    if isinstance(one, Sum):
        part = one.dtype(held.cutlass.select_(held.cute.arch.lane_idx() % 2 == 1, one.dtype(0), part))
    return warp.reduce_part(part, one, lanes, stride, repeated=repeated)


def not_waited_for(monoid, slot, number):
    """A slot is read once, whatever is in it."""
    from forge_core.cute.memory import load_element

    return tuple(load_element(slot + part * 4, dtype) for part, dtype in enumerate(monoid.types))


FAULTS = {
    "row max ignored": (program.Program, "top", max_ignored),
    "no rescale": (online.MaxSum, "together", no_rescale),
    "a lane left out": (online.MaxSum, "together", a_lane_left_out),
    "a lane left out, maximum first": (program, "reduce_part", a_lane_left_out_of_a_part),
    "a slot not waited for": (grid, "_receive", not_waited_for),
}

#: Rows that are resident all at once, whose lanes find the maximum first; more than these, whose lanes merge pairs; ...
TOP_FIRST = (512, 256)
SHAPES = (TOP_FIRST, (9000, 256), (512, 4096), (64, 50257), (64, 131072), (1, 2**20))


def has(shape, owner):
    """Whether the kernel of a shape has what is replaced: a row that blocks share through slots is one alone."""
    return {grid: shape[0] == 1, program: shape == TOP_FIRST, online.MaxSum: shape != TOP_FIRST}.get(owner, True)


PLANTED = [(fault, shape) for fault, shape in product(FAULTS, SHAPES) if has(shape, FAULTS[fault][0])]


def ptx_of(shape):
    x = torch.empty(shape, device="meta")
    launch = plan_forward("softmax", x, x, (1,), None, H200)
    return load(launch.builder).compile(launch.config, arch="sm_90a").ptx


PATTERNS = (r"max\.NaN\.f32", r"ex2\.approx", r"shfl\.sync", r"selp", r"ld\.relaxed")


def instructions(ptx):
    return [len(re.findall(pattern, ptx)) for pattern in PATTERNS]


@pytest.mark.parametrize("fault", FAULTS)
def test_the_planted_kernels_have_their_faults(fault, monkeypatch):
    # On any machine: what a GPU is to refuse below is really another kernel.
    owner, name, wrong = FAULTS[fault]
    shape = next(shape for shape in reversed(SHAPES) if has(shape, owner))
    right = instructions(ptx_of(shape))
    monkeypatch.setattr(owner, name, wrong)
    assert instructions(ptx_of(shape)) != right
    monkeypatch.undo()
    assert instructions(ptx_of(shape)) == right


def launch(x):
    """Compiles the kernel for ``x`` past the cache, and runs it."""
    from forge_core.device import query

    out = torch.full_like(x, float("nan"))
    device = query(x.device)
    plan = plan_forward("softmax", out, x, (1,), None, device)
    # Nothing that an accumulator could be, nor a launch's number.
    scratch = torch.full((plan.workspace,), 255, dtype=torch.uint8, device=x.device)
    pointers = [tensor.data_ptr() for tensor in ((x, out, scratch) if plan.workspace else (x, out))]
    numbers = (7,) if plan.numbered else ()
    compiled = load(plan.builder).compile(plan.config, arch=device.arch)
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


def last_elements_lost(y):
    return torch.cat([y[:, :-3], torch.zeros_like(y[:, -3:])], 1)


def rows_exchanged(y):
    return y.flip(0)


def not_normalised(y):
    return y * 1.001


@pytest.mark.parametrize("wrong", [last_elements_lost, rows_exchanged, not_normalised])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_wrong_results_are_refused(wrong, device):
    x = torch.randn(16, 1000, device=device)
    policy(torch.softmax(x, 1), x)
    with pytest.raises(AssertionError, match="allowed"):
        policy(wrong(torch.softmax(x, 1)), x)
