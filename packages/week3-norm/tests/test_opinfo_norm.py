"""PyTorch's own OpInfo samples for rms_norm and layer_norm: forward, gradient and errors."""

from __future__ import annotations

import pytest
import torch

import forge_week3_norm as week3
from forge_core.testing import opinfo

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
OURS = {"nn.functional.rms_norm": week3.rms_norm, "nn.functional.layer_norm": week3.layer_norm}
INFOS = [pytest.param(OURS[name], info, id=name) for (name, _), info in opinfo.entries(OURS).items()]

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("op, info", INFOS)
def test_forward(op, info, dtype, device):
    opinfo.check_forward(op, info, device, dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("op, info", INFOS)
def test_gradient(op, info, dtype, device):
    opinfo.check_gradient(op, info, device, dtype)


@pytest.mark.parametrize("op, info", [each for each in INFOS if each.values[1].error_inputs_func])
def test_errors(op, info):
    opinfo.check_errors(op, info)
