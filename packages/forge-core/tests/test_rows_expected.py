"""What the row engine compiles is as declared, on every architecture and for any matrix; and a spill is found."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pytest
import torch

from forge_core.device import SPECS
from forge_core.errors import UnsupportedError
from forge_core.rows import Binding, Fold, Operands, RowProgram, configurations, rsqrt
from forge_core.rows.operator import row_operator, row_output
from forge_core.rows.plan import VARIANTS
from forge_core.rows.teams import persistent_configurations
from forge_core.testing.expectations import assert_as_declared, assert_choices_as_declared, compiled_for, violations
from forge_core.testing.inputs import matrix_to_plan
from forge_core.testing.rows_expected import EXPECTED

pytest.importorskip("cutlass", reason="the CuTe DSL is not installed (it exists for Linux only)")

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
BUILT = ["sm_80", "sm_90a", *(pytest.param(arch, marks=pytest.mark.slow) for arch in ("sm_100a", "sm_120a"))]
OPTIONS = "int dim=-1, *, str variant='auto') -> Tensor"


@dataclass(frozen=True)
class Normed(RowProgram):
    """Two exchanges, and the weight in the map alone."""

    operands = Operands(rows=("x",), columns=("weight",), writes=("y",))
    folds = (
        Fold("sum", lambda v, row: v.x),
        Fold("sum", lambda v, row, total: below(v, row, total) * below(v, row, total)),
    )

    def map(self, v, totals):
        return (v.x * rsqrt(totals[1]) * v.weight,)


@dataclass(frozen=True)
class First(RowProgram):
    """A result for each row, and a gather."""

    operands = Operands(rows=("x",), results=("y",))
    folds = (Fold("max", lambda v, row: v.stored("x"), masked=False),)
    outside = float("-inf")

    def results(self, totals, row):
        return (totals[0] - row.at("x", 0),)


def below(v, row, total):
    return v.x - total / row.count


@row_operator(f"forge_test_expected::normed(Tensor x, Tensor weight, {OPTIONS}", program=Normed(), reference=None)
def normed(x, weight, dim=-1, *, variant="auto"):
    return row_output("normed", Normed(), x=x, weight=weight, dim=dim)


@row_operator(f"forge_test_expected::first(Tensor x, {OPTIONS}", program=First(), reference=None)
def first(x, dim=-1, *, variant="auto"):
    return row_output("first", First(), x=x, dim=dim)


def a_call(choose):
    x, dim = matrix_to_plan(choose, choose.choice((BF16, FP16, FP32, FP64))), choose.choice((-1, -1, 0))
    if choose.random() < 0.3:
        return first, (x, dim), {}
    weight = torch.empty(x.shape[dim], dtype=x.dtype if x.dtype is FP64 else FP32, device="meta")
    return normed, (x, weight, dim), {}


def test_every_configuration_has_a_declaration():
    binding = Binding(Normed(), (BF16, FP32, BF16), FP32)
    listed = (*configurations(binding, SPECS["H200"]), *persistent_configurations(binding, SPECS["H200"]))
    assert set(EXPECTED) == {type(config) for config in listed}


@pytest.mark.parametrize("arch", BUILT)
def test_a_spill_brought_in(arch):
    told = normed.explain(
        torch.empty(32768, 1024, dtype=BF16, device="meta"), torch.empty(1024, device="meta"), arch=arch
    )
    crowded = replace(told.config, chunks=16 * told.config.chunks)
    found = violations(compiled_for(told.builder, crowded, arch), EXPECTED, crowded, arch)
    assert len(found) == 1
    assert int(re.search(r": bytes spilled: declared at most 0, got (\d+);", found[0])[1]) >= 8


@pytest.mark.parametrize("arch", BUILT)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_kernel_is_as_declared(variant, arch):
    compiled = []
    for operator, dtypes in ((normed, (BF16, FP32)), (first, (FP32,))):
        for shape, dim in (((4, 16001), -1), ((4, 16384), -1), ((512, 64), 0)):
            x, *more = (torch.empty(n, dtype=t, device="meta") for n, t in zip((shape, shape[dim]), dtypes))  # noqa: B905
            try:
                told = operator.explain(x, *more, dim, variant=variant, arch=arch)
            except UnsupportedError:
                continue
            assert_as_declared(compiled_for(told.builder, told.config, arch), EXPECTED, told.config, arch)
            compiled.append(told.config)
    assert bool(compiled) == ((variant, arch) != ("grid", "sm_80"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_what_is_chosen_for_any_matrix_is_as_declared(seed):
    assert_choices_as_declared(a_call, EXPECTED, seed=seed, count=30)
