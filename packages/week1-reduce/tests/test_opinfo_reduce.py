"""PyTorch's own OpInfo samples for sum, mean, amax, amin and prod: forward and gradient."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import forge_week1_reduce as week1
from forge_core.dtypes import COMPLEX
from forge_week1_reduce.ops import DTYPES

with warnings.catch_warnings():
    # PyTorch's testing module imports whatever else is installed, with the warnings of those packages.
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
OURS = {"sum": week1.reduce_sum, "mean": week1.mean, "amax": week1.amax, "amin": week1.amin, "prod": week1.prod}
INFOS = {info.name: info for info in op_db if info.name in OURS and not info.variant_test_name}

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


def call(op: Any, sample: Any) -> Any:
    """The sample's arguments, with PyTorch's default of all dimensions."""
    dim = sample.args[0] if sample.args else sample.kwargs.get("dim")
    keepdim = sample.args[1] if len(sample.args) > 1 else sample.kwargs.get("keepdim", False)
    rest = {key: value for key, value in sample.kwargs.items() if key not in ("dim", "keepdim")}
    assert set(rest) <= {"dtype"}
    return lambda x: op(x, dim, keepdim, **rest)


def samples(name: str, device: str, dtype: torch.dtype, *, grad: bool) -> list[Any]:
    found = list(INFOS[name].sample_inputs(device, dtype, requires_grad=grad))
    assert found
    return found


def test_every_operator_has_samples() -> None:
    assert set(INFOS) == set(OURS)


#: A mean of integers is an error, which test_errors_reduce.py covers.
PAIRS = [(name, dtype) for name in OURS for dtype in DTYPES if name != "mean" or dtype.is_floating_point]
PAIRS += [(name, dtype) for name in ("sum", "mean", "prod") for dtype in COMPLEX]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name, dtype", PAIRS, ids=str)
def test_forward(name: str, dtype: torch.dtype, device: str) -> None:
    for sample in samples(name, device, dtype, grad=False):
        want = INFOS[name].op(sample.input, *sample.args, **sample.kwargs)
        torch.testing.assert_close(call(OURS[name], sample)(sample.input), want, equal_nan=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", OURS)
def test_gradient(name: str, dtype: torch.dtype, device: str) -> None:
    done = 0
    for sample in samples(name, device, dtype, grad=True):
        x = sample.input.detach().clone().requires_grad_()
        y = sample.input.detach().clone().requires_grad_()
        want = INFOS[name].op(x, *sample.args, **sample.kwargs)
        got = call(OURS[name], sample)(y)
        weight = torch.randn_like(want)
        torch.testing.assert_close(
            torch.autograd.grad(got, y, weight)[0], torch.autograd.grad(want, x, weight)[0], equal_nan=True
        )
        done += 1
    assert done


@pytest.mark.usefixtures("dispatched")
@pytest.mark.parametrize("name", OURS)
def test_gradient_by_the_dispatcher(name: str) -> None:
    test_gradient(name, torch.float64, "cpu")
