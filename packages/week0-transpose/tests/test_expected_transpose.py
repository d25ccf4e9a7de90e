"""Faults planted into the kernels themselves: what compiles to worse code than declared is refused, and named."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

import forge_week0_transpose as week0
from forge_core.testing.expectations import Violation, assert_choices_as_declared, compiled_for, violations
from forge_core.testing.inputs import matrix_to_plan
from forge_week0_transpose import config as choice
from forge_week0_transpose.configs import UnalignedConfig, VectorizedConfig
from forge_week0_transpose.expected import EXPECTED

pytest.importorskip("cutlass", reason="the CuTe DSL is not installed (it exists for Linux only)")

import cutlass.cute as cute  # after the check that it is there

from forge_week0_transpose.kernels import vectorized

ARCH = "sm_90a"


def found(kernel: str, compiled: Any, declared: Any = None) -> dict[str, Violation]:
    made = compiled_for(f"forge_week0_transpose.kernels.{kernel}:build", compiled, ARCH)
    return {each.figure: each for each in violations(made, EXPECTED, declared or compiled, ARCH)}


def test_every_configuration_has_a_declaration() -> None:
    assert set(EXPECTED) == set(choice.Config.__args__)  # type: ignore[attr-defined]


@pytest.mark.parametrize("narrow", [VectorizedConfig(4, 8, 8, 8, 16), VectorizedConfig(4, 8, 8, 16, 4)], ids=str)
def test_a_narrowed_access(narrow: VectorizedConfig) -> None:
    assert not found("vectorized", narrow)
    wide = replace(narrow, src_width=16, dst_width=16)
    figure = "widths of loads" if narrow.src_width < 16 else "widths of stores"
    violation = found("vectorized", narrow, declared=wide)[figure]
    assert (violation.declared, violation.arch) == ("16 bytes", ARCH)
    assert violation.got == f"{min(narrow.src_width, narrow.dst_width)} bytes"


def test_one_more_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    right = vectorized.interleave

    def shuffle_and_wait(*args: Any) -> Any:
        cute.arch.sync_threads()
        return right(*args)

    monkeypatch.setattr(vectorized, "interleave", shuffle_and_wait)
    assert found("vectorized", VectorizedConfig(4)).keys() == {"barriers"}


def test_a_spill_brought_in() -> None:
    right = UnalignedConfig(1)
    # Twice the blocks on a multiprocessor leave a thread half the registers, which cannot hold its elements.
    crowded = replace(right, room=4 * right.room)
    violation = found("unaligned", crowded)["bytes spilled"]
    assert int(violation.got) > 0
    assert (violation.declared, violation.config) == ("at most 0", crowded)


def a_call(choose: random.Random) -> Any:
    dtype = choose.choice((torch.int8, torch.bfloat16, torch.float32, torch.float64, torch.complex128))
    return choose.choice((week0.transpose, week0.transpose, week0.copy)), (matrix_to_plan(choose, dtype),), {}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_what_is_chosen_for_any_matrix_is_as_declared(seed: int) -> None:
    assert_choices_as_declared(a_call, EXPECTED, seed=seed, count=30)
