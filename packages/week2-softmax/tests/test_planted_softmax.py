"""The tests are tested: kernels with planted faults are refused by the assertions that the right ones pass."""

from __future__ import annotations

import re

import pytest
import torch

from forge_core.device import SPECS
from forge_core.device_code import online
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
    return across(acc[0], self._maximum), across(acc[1], lambda a, b: a + b)


def a_lane_left_out(self, acc, across):
    """The lanes with odd numbers do not take part in the sum."""
    top = across(acc[0], self._maximum)
    own = acc[1] * online.exponential(acc[0] - self.base(top))
    lane = held.cute.arch.lane_idx()
    own = self.dtype(held.cutlass.select_(lane % 2 == 1, self.dtype(0), own))
    return top, across(own, lambda a, b: a + b)


FAULTS = {
    "row max ignored": (program.Program, "top", max_ignored),
    "no rescale": (online.MaxSum, "together", no_rescale),
    "a lane left out": (online.MaxSum, "together", a_lane_left_out),
}


def ptx_of(shape):
    x = torch.empty(shape, device="meta")
    launch = plan_forward("softmax", x, x, (1,), None, H200)
    return load(launch.builder).compile(launch.config, arch="sm_90a").ptx


def instructions(ptx):
    return [len(re.findall(pattern, ptx)) for pattern in (r"max\.NaN\.f32", r"ex2\.approx", r"shfl\.sync", r"selp")]


@pytest.mark.parametrize("fault", FAULTS)
def test_the_planted_kernels_have_their_faults(fault, monkeypatch):
    # On any machine: what a GPU is to refuse below is really another kernel.
    owner, name, wrong = FAULTS[fault]
    right = instructions(ptx_of((4096, 4096)))
    monkeypatch.setattr(owner, name, wrong)
    assert instructions(ptx_of((4096, 4096))) != right
    monkeypatch.undo()
    assert instructions(ptx_of((4096, 4096))) == right


def launch(x):
    """Compiles the kernel for ``x`` past the cache, and runs it."""
    from forge_core.device import query

    out = torch.full_like(x, float("nan"))
    device = query(x.device)
    plan = plan_forward("softmax", out, x, (1,), None, device)
    assert plan.workspace == 0
    compiled = load(plan.builder).compile(plan.config, arch=device.arch)
    compiled.launch(x.data_ptr(), out.data_ptr(), *plan.arguments, torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    return out


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(512, 256), (512, 4096), (64, 50257), (64, 131072)], ids=str)
@pytest.mark.parametrize("fault", FAULTS)
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
