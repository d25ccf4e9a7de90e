"""A spill planted into a kernel is refused, and every configuration has a declaration."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import forge_week2_softmax as week2
from forge_core.device import SPECS
from forge_core.testing.expectations import assert_choices_as_declared, compiled_for, violations
from forge_core.testing.inputs import matrix_to_plan
from forge_week2_softmax import backward
from forge_week2_softmax.config import plan_forward
from forge_week2_softmax.configs import Config, HeldConfig
from forge_week2_softmax.expected import EXPECTED

pytest.importorskip("cutlass", reason="the CuTe DSL is not installed (it exists for Linux only)")

H200 = SPECS["H200"]


def launch(length=8192):
    x = torch.empty(4096, length, device="meta")
    return plan_forward("softmax", x, x, (1,), None, H200, "single_pass")


def test_every_configuration_has_a_declaration():
    assert set(EXPECTED) == set(Config.__args__)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120a"])
def test_a_spill_brought_in(arch):
    right = launch()
    assert isinstance(right.config, HeldConfig) and right.config.resident
    # Four times the row in as many registers: they cannot hold it.
    crowded = replace(right.config, chunks=4 * right.config.chunks)
    made = compiled_for(right.builder, crowded, arch)
    found = {each.figure: each for each in violations(made, EXPECTED, crowded, arch)}
    assert found.keys() == {"bytes spilled"}
    assert int(found["bytes spilled"].got) >= 32
    assert found["bytes spilled"].config == crowded


FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def a_call(choose):
    x, dim = matrix_to_plan(choose, choose.choice(FLOATS)), choose.choice((-1, -1, 0))
    kind = choose.choice(("softmax", "log_softmax", "logsumexp", "backward", "backward"))
    if kind == "backward":
        operator = choose.choice((backward.softmax_backward, backward.log_softmax_backward))
        options = {"input_dtype": choose.choice(FLOATS)} if choose.random() < 0.3 else {}
        return operator, (x, torch.empty_like(x), dim), options
    rounds = kind != "logsumexp" and choose.random() < 0.3
    return getattr(week2, kind), (x, dim), {"dtype": choose.choice(FLOATS)} if rounds else {}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_what_is_chosen_for_any_matrix_is_as_declared(seed):
    assert_choices_as_declared(a_call, EXPECTED, seed=seed, count=30)
