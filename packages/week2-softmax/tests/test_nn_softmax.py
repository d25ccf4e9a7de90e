"""The modules beside those of torch.nn."""

from __future__ import annotations

import copy
import io

import pytest
import torch

from forge_week2_softmax import nn

MODULES = {"softmax": (nn.Softmax, torch.nn.Softmax), "log_softmax": (nn.LogSoftmax, torch.nn.LogSoftmax)}


@pytest.mark.usefixtures("dispatched")
@pytest.mark.parametrize("name", MODULES)
def test_it_is_torchs_module(name: str) -> None:
    ours, theirs = MODULES[name]
    x = torch.randn(3, 4, 5, requires_grad=True)
    for module, expected in ((ours(), theirs(-1)), (ours(0), theirs(0)), (ours(dim=1), theirs(dim=1))):
        assert isinstance(module, theirs) and repr(module) == repr(expected)
        y = module(x)
        torch.testing.assert_close(y, expected(x))
        assert f"forge_week2_{name}_" in type(y.grad_fn).__name__


@pytest.mark.parametrize("name", MODULES)
def test_it_is_saved_copied_and_compiled(name: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), MODULES[name][0](0))
    x = torch.randn(3, 5)
    stored = io.BytesIO()
    torch.save(model, stored)
    stored.seek(0)
    for other in (copy.deepcopy(model), torch.load(stored, weights_only=False), torch.compile(model, fullgraph=True)):
        torch.testing.assert_close(other(x), model(x))
