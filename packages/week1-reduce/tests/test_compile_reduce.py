"""Every kernel that week 1 launches compiles for every architecture, without a GPU, as it is declared to."""

from __future__ import annotations

import re

import pytest
import torch

import forge_week1_reduce as week1
from forge_core.device import ARCHES, SPECS
from forge_core.profiling.cubin import read_cubin
from forge_core.rows import Binding, configurations
from forge_core.testing.expectations import compiled_for
from forge_core.testing.rows_expected import assert_listed_as_declared
from forge_week1_reduce.config import LADDER
from forge_week1_reduce.program import FOLDS, ComplexProduct, Reduce

BF16, FP32, FP64 = torch.bfloat16, torch.float32, torch.float64


def config_of(variant, dtype=FP32, arch="sm_90a", op=week1.reduce_sum, shape=(4096, 8192), dim=-1):
    return op.explain(torch.empty(shape, dtype=dtype, device="meta"), dim, variant=variant, arch=arch)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("variant", LADDER)
def test_the_ladder_for_every_architecture(variant, arch):
    for dtype in (FP32, BF16):
        told = config_of(variant, dtype, arch)
        made = compiled_for(told.builder, told.config, arch)
        assert f".target {arch}" in made.ptx
        assert [kernel.stack_bytes for kernel in read_cubin(made.cubin)] == [0]
        # The order in which sums are added must not depend on which block is first: no atomics, of any type.
        assert not re.search(r"\b(atom|red)\.", made.ptx)


def test_what_each_step_adds_and_leaves_out():
    ptx = {name: compiled_for(t.builder, t.config, "sm_90a").ptx for name in LADDER for t in [config_of(name)]}
    shuffles = {name: len(re.findall(r"shfl\.sync\.bfly", text)) for name, text in ptx.items()}
    barriers = {name: len(re.findall(r"\bbar(rier)?\.sync", text)) for name, text in ptx.items()}
    assert (shuffles["naive"], barriers["naive"]) == (0, 0)
    assert (shuffles["shared"], barriers["shared"]) == (0, 8)  # log2(256)
    assert (shuffles["shuffle"], barriers["shuffle"]) == (5 + 3, 1)  # a warp's lanes, 8 warps
    assert (shuffles["vectorized"], barriers["vectorized"]) == (5 + 3, 1)
    assert len(re.findall(r"ld\.global(\.[\w:]+)*\.v4\.[bfu]32", ptx["vectorized"])) == 4


@pytest.mark.slow
@pytest.mark.parametrize("op, dtype", [("sum", BF16), ("sum", FP32), ("mean", FP64), ("amax", BF16), ("prod", FP32)])
@pytest.mark.parametrize("gpu", ["A100", "H200", "B200"])
def test_all_listed_kernels_are_as_declared(gpu, op, dtype):
    program = Reduce(op)
    binding = Binding(program, (dtype, dtype), program.compute((dtype,), None))
    assert_listed_as_declared(configurations(binding, SPECS[gpu]), SPECS[gpu])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [FP32, FP64], ids=str)
@pytest.mark.parametrize("gpu", ["A100", "H200", "B200"])
def test_all_kernels_of_complex_products_are_as_declared(gpu, dtype):
    """Parts of complex numbers are two elements apart, so that they are read by element."""
    program = ComplexProduct()
    binding = Binding(program, (dtype,) * 4, program.compute((dtype,), None))
    listed = [config for config in configurations(binding, SPECS[gpu]) if config.align == "element"]
    assert_listed_as_declared(listed, SPECS[gpu])


def test_a_complex_product_multiplies_alike_in_either_order():
    for variant in ("stream", "split", "column"):
        told = config_of(variant, torch.complex64, op=week1.prod, dim=0)
        ptx = compiled_for(told.builder, told.config, "sm_90a").ptx
        assert re.search(r"\bmul\.rn\.f32", ptx) and not re.search(r"\b(fma\.rn|mul)\.f32", ptx)


def test_nan_wins_in_one_instruction():
    for op, name in ((week1.amax, "max.NaN.f32"), (week1.amin, "min.NaN.f32")):
        told = config_of("auto", op=op)
        assert name in compiled_for(told.builder, told.config, "sm_90a").ptx


def test_truth_values_are_those_of_the_elements():
    """The DSL's conversion of a vector to truth values is true of 0."""
    for dtype, wanted in ((FP32, r"setp\.neu\.f32"), (torch.int32, r"setp\.ne\.[bs]32")):
        x = torch.empty(64, 1000, dtype=dtype, device="meta")
        told = week1.reduce_sum.explain(x, dtype=torch.bool, arch="sm_90a")
        assert told.config.binding.program.op == "amax"
        assert re.search(wanted, compiled_for(told.builder, told.config, "sm_90a").ptx)


def test_another_shape_compiles_no_other_kernel():
    keys = {
        week1.reduce_sum.explain(torch.empty(rows, cols, device="meta"), dim, arch="sm_90a").key
        for rows in range(500, 40000, 977)
        for cols in range(500, 40000, 977)
        for dim in (-1, 0)
    }
    assert len(keys) <= 48, f"{len(keys)} kernels for 3362 problems"
    assert set(FOLDS) == {"sum", "mean", "prod", "amax", "amin"}
