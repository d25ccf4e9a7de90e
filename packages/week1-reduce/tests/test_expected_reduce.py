"""Faults planted into the kernels themselves: what compiles to worse code than declared is refused, and named."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import forge_week1_reduce as week1
from forge_core.testing.expectations import compiled_for, violations
from forge_week1_reduce.config import VARIANTS
from forge_week1_reduce.configs import Config
from forge_week1_reduce.expected import EXPECTED

pytest.importorskip("cutlass", reason="the CuTe DSL is not installed (it exists for Linux only)")

import cutlass.cute as cute  # after the check that it is there

from forge_core.device_code.memory import load_element
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
    def fetch(self, address, chunk, *, once=False):
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
