"""PyTorch's own OpInfo samples for sum, mean, amax, amin and prod: forward and gradient."""

from __future__ import annotations

import pytest
import torch

import forge_week1_reduce as week1
from forge_core.dtypes import COMPLEX
from forge_core.testing import opinfo
from forge_week1_reduce.ops import DTYPES

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))


def over_all(op):
    """The operator with PyTorch's default of all dimensions."""
    return lambda x, dim=None, keepdim=False, **rest: op(x, dim, keepdim, **rest)


OURS = {"sum": week1.reduce_sum, "mean": week1.mean, "amax": week1.amax, "amin": week1.amin, "prod": week1.prod}
INFOS = {name: (over_all(OURS[name]), info) for (name, _), info in opinfo.entries(OURS).items()}
#: A mean of integers is an error.
PAIRS = [(name, dtype) for name in OURS for dtype in DTYPES if name != "mean" or dtype.is_floating_point]
PAIRS += [(name, dtype) for name in ("sum", "mean", "prod") for dtype in COMPLEX]

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name, dtype", PAIRS, ids=str)
def test_forward(name, dtype, device):
    opinfo.check_forward(*INFOS[name], device, dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", OURS)
def test_gradient(name, dtype, device):
    opinfo.check_gradient(*INFOS[name], device, dtype, tolerances={})


@pytest.mark.usefixtures("dispatched")
@pytest.mark.parametrize("name", OURS)
def test_gradient_by_the_dispatcher(name):
    opinfo.check_gradient(*INFOS[name], "cpu", torch.float64, tolerances={})


def test_errors():
    """Of mean alone: the samples of amax and amin have calls without a dim and an ``out``, which ours do not take."""
    opinfo.check_errors(*INFOS["mean"])
