"""PyTorch's own OpInfo samples for softmax, log_softmax and logsumexp: forward and gradient."""

from __future__ import annotations

import pytest
import torch

import forge_week2_softmax as week2
from forge_core.testing import opinfo

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
OURS = {"softmax": week2.softmax, "log_softmax": week2.log_softmax, "logsumexp": week2.logsumexp}
#: Both entries of softmax and of log_softmax: without and with ``dtype``.
INFOS = {key: (OURS[key[0]], info) for key, info in opinfo.entries(OURS, ("", "with_dtype")).items()}
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
#: Integers without a dtype are an error of softmax and log_softmax.
PAIRS = [(key, dtype) for key in INFOS for dtype in FLOATS]
PAIRS += [(key, dtype) for key in INFOS for dtype in INTEGERS if key[1] == "with_dtype" or key[0] == "logsumexp"]

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


def test_every_entry_is_there():
    assert len(INFOS) == 5


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("key, dtype", PAIRS, ids=str)
def test_forward(key, dtype, device):
    opinfo.check_forward(*INFOS[key], device, dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("key", INFOS, ids=str)
def test_gradient(key, dtype, device):
    opinfo.check_gradient(*INFOS[key], device, dtype, tolerances={})


@pytest.mark.usefixtures("dispatched")
@pytest.mark.parametrize("key", INFOS, ids=str)
def test_gradient_by_the_dispatcher(key):
    opinfo.check_gradient(*INFOS[key], "cpu", torch.float64, tolerances={})
