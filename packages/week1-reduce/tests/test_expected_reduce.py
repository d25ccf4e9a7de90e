"""Faults planted into the kernels themselves: what compiles to worse code than declared is refused, and named."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import forge_week1_reduce as week1
from forge_core.testing.expectations import assert_choices_as_declared, compiled_for, violations
from forge_core.testing.inputs import matrix_to_plan
from forge_week1_reduce.config import VARIANTS
from forge_week1_reduce.configs import Config
from forge_week1_reduce.expected import EXPECTED

pytest.importorskip("cutlass", reason="the CuTe DSL is not installed (it exists for Linux only)")

import cutlass.cute as cute  # after the check that it is there

from forge_core.cute.memory import load_element
from forge_week1_reduce.kernels import vectorized
from forge_week1_reduce.kernels.values import Values

ARCH = "sm_90a"


def config():
    x = torch.empty(4096, 8192, device="meta")
    return week1.reduce_sum.explain(x, variant="vectorized", arch=ARCH).config


def found(compiled, declared=None):
    made = compiled_for(VARIANTS["vectorized"].path, compiled, ARCH)
    return {violation.figure: violation for violation in violations(made, EXPECTED, declared or compiled, ARCH)}


def test_every_configuration_has_a_declaration():
    assert set(EXPECTED) == set(Config.__args__)


def test_a_narrowed_load(monkeypatch):
    def fetch(self, address, chunk, **how):
        for i in range(cute.size(chunk)):
            chunk[i] = load_element(address + i * self.size, self.src)

    monkeypatch.setattr(Values, "fetch", fetch)
    violation = found(config())["widths of loads"]
    assert (violation.declared, violation.got) == ("16 bytes", "4 bytes")
    assert violation.kernel.startswith("sum_float32_vectorized")
    assert (violation.arch, violation.config) == (ARCH, config())


def test_one_more_barrier(monkeypatch):
    right = vectorized.reduce_block

    def twice(*args):
        cute.arch.sync_threads()
        return right(*args)

    monkeypatch.setattr(vectorized, "reduce_block", twice)
    assert found(config()).keys() == {"barriers"}


def test_a_configuration_that_reads_less_at_once():
    narrow = replace(config(), width=8, once=False)
    assert not found(narrow)
    assert found(narrow, declared=config()).keys() == {"widths of loads"}


def a_call(choose):
    name = choose.choice(("sum", "sum", "mean", "amax", "amin", "prod"))
    numbers = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    others = () if name == "mean" else (torch.bool, torch.int8, torch.int32, torch.int64)
    x = matrix_to_plan(choose, choose.choice((*numbers, *others)))
    return getattr(week1, "reduce_sum" if name == "sum" else name), (x, choose.choice((-1, -1, 0))), {}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_what_is_chosen_for_any_matrix_is_as_declared(seed):
    assert_choices_as_declared(a_call, EXPECTED, seed=seed, count=30)
