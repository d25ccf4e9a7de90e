"""PyTorch's own OpInfo samples for softmax, log_softmax and logsumexp: forward and gradient."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import forge_week2_softmax as week2

with warnings.catch_warnings():
    # PyTorch's testing module imports whatever else is installed, with the warnings of those packages.
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
OURS = {"softmax": week2.softmax, "log_softmax": week2.log_softmax, "logsumexp": week2.logsumexp}
#: Both entries of softmax and of log_softmax: without and with ``dtype``.
INFOS = {(info.name, info.variant_test_name): info for info in op_db if info.name in OURS}
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


def call(key: tuple[str, str], sample: Any) -> Any:
    """The sample's arguments, under our names."""
    assert set(sample.kwargs) <= {"dim", "keepdim", "dtype"}
    return lambda x: OURS[key[0]](x, *sample.args, **sample.kwargs)


def samples(key: tuple[str, str], device: str, dtype: torch.dtype, *, grad: bool) -> list[Any]:
    found = list(INFOS[key].sample_inputs(device, dtype, requires_grad=grad))
    assert found
    return found


def test_every_entry_is_there() -> None:
    assert set(INFOS) == {
        ("softmax", ""),
        ("softmax", "with_dtype"),
        ("log_softmax", ""),
        ("log_softmax", "with_dtype"),
        ("logsumexp", ""),
    }


def takes(key: tuple[str, str], dtype: torch.dtype) -> bool:
    """Integers without a dtype are an error of softmax and log_softmax, which test_errors_softmax.py covers."""
    return dtype in FLOATS or key[1] == "with_dtype" or key[0] == "logsumexp"


PAIRS = [(key, dtype) for key in INFOS for dtype in (*FLOATS, *INTEGERS) if takes(key, dtype)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("key, dtype", PAIRS, ids=str)
def test_forward(key: tuple[str, str], dtype: torch.dtype, device: str) -> None:
    for sample in samples(key, device, dtype, grad=False):
        want = INFOS[key].op(sample.input, *sample.args, **sample.kwargs)
        torch.testing.assert_close(call(key, sample)(sample.input), want, equal_nan=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("key", INFOS, ids=str)
def test_gradient(key: tuple[str, str], dtype: torch.dtype, device: str) -> None:
    done = 0
    for sample in samples(key, device, dtype, grad=True):
        x = sample.input.detach().clone().requires_grad_()
        y = sample.input.detach().clone().requires_grad_()
        want = INFOS[key].op(x, *sample.args, **sample.kwargs)
        got = call(key, sample)(y)
        weight = torch.randn_like(want)
        torch.testing.assert_close(
            torch.autograd.grad(got, y, weight)[0], torch.autograd.grad(want, x, weight)[0], equal_nan=True
        )
        done += 1
    assert done


@pytest.mark.usefixtures("dispatched")
@pytest.mark.parametrize("key", INFOS, ids=str)
def test_gradient_by_the_dispatcher(key: tuple[str, str]) -> None:
    test_gradient(key, torch.float64, "cpu")
