"""Moments of rows: the merge on numbers, and programs that use it in every kernel of the engine."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from forge_core.device import SPECS
from forge_core.profiling.compiled import compile_to_look_at
from forge_core.rows import Binding, Fold, Operands, RowProgram, configurations, rsqrt
from forge_core.rows.operator import row_operator, row_output
from forge_core.rows.plan import VARIANTS, plan_call
from forge_core.testing.battery import battery
from forge_core.testing.expectations import assert_as_declared, compiled_for
from forge_core.testing.rows import row_subject
from forge_core.testing.rows_expected import assert_listed_as_declared

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
H200 = SPECS["H200"]
CAN_COMPILE = pytest.mark.usefixtures("dsl")

MOMENTS = (
    Fold("count"),
    Fold("sum", lambda v, row, count: v.x, masked=False),
    Fold("sum", lambda v, row, count, total: (v.x - total / count) * (v.x - total / count)),
)


@dataclass(frozen=True)
class Variance(RowProgram):
    """The biased variance of a row."""

    operands = Operands(rows=("x",), results=("y",))
    folds = MOMENTS
    merge = "moments"

    def results(self, totals, row):
        return (totals[2] / row.count,)


@dataclass(frozen=True)
class LayerNorm(RowProgram):
    """The norm without weight and bias, which runs along any dims."""

    operands = Operands(rows=("x",), writes=("y",), numbers=("eps",))
    folds = MOMENTS
    merge = "moments"

    def constants(self, totals, row):
        return totals[1] / row.count, rsqrt(totals[2] / row.count + row.eps)

    def map(self, v, constants):
        mean, rstd = constants
        return ((v.x - mean) * rstd,)


@dataclass(frozen=True)
class AffineLayerNorm(LayerNorm):
    """With weight and bias, and results beside what is written."""

    operands = Operands(("x",), columns=("weight", "bias"), writes=("y",), results=("mean", "rstd"), numbers=("eps",))

    def results(self, constants, row):
        return constants

    def map(self, v, constants):
        mean, rstd = constants
        return ((v.x - mean) * rstd * v.weight + v.bias,)


def variance_of(x, dim=-1):
    wide = torch.promote_types(x.dtype, FP32)
    return (x.to(wide) - x.to(wide).mean(dim, keepdim=True)).square().mean(dim).to(x.dtype)


def normed(x, dim=-1, eps=1e-5):
    wide = x.to(torch.promote_types(x.dtype, FP32))
    centered = wide - wide.mean(dim, keepdim=True)
    return (centered * torch.rsqrt(centered.square().mean(dim, keepdim=True) + eps)).to(x.dtype).contiguous()


V = {"program": Variance(), "reference": variance_of}


@row_operator("forge_test_moments::variance(Tensor x, int[1] dim=-1, *, str variant='auto') -> Tensor", **V)
def variance(x, dim=-1, *, variant="auto"):
    return row_output("variance", Variance(), dim=dim, x=x)


@row_operator(
    "forge_test_moments::layer_norm(Tensor x, int[1] dim=-1, float eps=1e-5, *, str variant='auto') -> Tensor",
    program=LayerNorm(),
    reference=normed,
)
def layer_norm(x, dim=-1, eps=1e-5, *, variant="auto"):
    return row_output("layer_norm", LayerNorm(), dim=dim, x=x)


def affine(rows, length, dtype):
    """The configuration of a norm with weight and bias."""
    x, w, s = (torch.empty(*shape, dtype=dtype, device="meta") for shape in ((rows, length), (length,), (rows,)))
    operands = {"x": x, "weight": w, "bias": w, "y": x, "mean": s, "rstd": s}
    return plan_call("norm", AffineLayerNorm(), operands, (1,), H200, numbers=(1e-5,)).config


def magnitude(x, dim=-1):
    """Of the terms, and of the squared mean, whose error moves the deviations."""
    return 4 * x.square().mean(dim)


SUBJECT = row_subject(variance, **V, terms=magnitude, differentiable=False)


@pytest.mark.parametrize("check", battery(SUBJECT))
def test_conformance(check):
    check()


# ----------------------------------------------------------------------------------------------------------- kernels


@CAN_COMPILE
def test_a_merge_takes_the_folds_that_it_combines():
    from cutlass import Float32

    from forge_core.cute.moments import Moments
    from forge_core.rows.folds import merge_of

    @dataclass(frozen=True)
    class Other(Variance):
        folds = MOMENTS[1:]

    assert merge_of(Variance(), Float32) == Moments(Float32)
    with pytest.raises(ValueError, match=r"merge 'moments': expected folds \('count', 'sum', 'sum'\), got \('sum', 's"):
        merge_of(Other(), Float32)


def test_long_rows_of_a_norm_are_streamed_split_and_shared_by_the_grid():
    for shape, variant in (((64, 2**22), "stream"), ((3, 2**23), "split"), ((1, 2**20), "grid")):
        x = torch.empty(shape, dtype=BF16, device="meta")
        launch = plan_call("norm", LayerNorm(), {"x": x, "y": x}, (1,), H200, variant, numbers=(1e-5,))
        assert launch.variant == variant


@pytest.mark.parametrize(
    "rows, length, blocks, fp32_blocks", [(8192, 16384, 1, 1), (8192, 65536, 2, 4), (500, 100001, 4, 8)]
)
def test_blocks_hold_the_most_of_many_long_rows(rows, length, blocks, fp32_blocks):
    """Rows that are not aligned from 32 MiB on, since they have copies of the column operands then."""
    for dtype, expected in ((BF16, blocks), (FP32, fp32_blocks)):
        config = affine(rows, length, dtype)
        assert (config.deep, config.blocks) == (True, expected)
        assert config.resident * config.threads >= 1024
        assert config.resident * (config.shared(config.threads) + 1024) <= H200.smem_per_sm


@pytest.mark.parametrize("rows, length", [(8192, 8192), (2000, 16384), (80, 100001)])
@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_few_or_short_rows_have_other_blocks(rows, length, dtype):
    assert not affine(rows, length, dtype).deep


@CAN_COMPILE
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_kernel_is_as_declared(variant, arch):
    # Here, because what this module imports is in the keys of its programs' kernels.
    from forge_core.testing.rows_expected import EXPECTED

    for operator, dtype in ((layer_norm, BF16), (variance, FP32)):
        for shape, dim in (((4, 16001), -1), ((4, 16384), -1), ((512, 64), 0)):
            x = torch.empty(shape, dtype=dtype, device="meta")
            supports = {"held": dim == -1, "grid": dim == -1 and arch == "sm_90a", "column": dim == 0}
            if supports.get(variant, True):
                told = operator.explain(x, dim, variant=variant, arch=arch)
                assert_as_declared(compiled_for(told.builder, told.config, arch), EXPECTED, told.config, arch)


@CAN_COMPILE
@pytest.mark.parametrize("shape, dim", [((300, 64), -1), ((300, 5000), -1), ((300, 50257), -1), ((64, 300), 0)])
def test_rows_that_are_one_row_or_one_element_repeated_compile(shape, dim):
    """Of an expanded row no element is loaded; they count all the same."""
    for x in (torch.empty(1, shape[1], device="meta"), torch.empty(shape[0], 1, device="meta")):
        told = layer_norm.explain(x.expand(shape), dim, arch="sm_90a")
        assert compile_to_look_at(told.builder, told.config, None, arch="sm_90a").ptx


@CAN_COMPILE
@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["A100", "H200", "B200", "RTX 5090"])
@pytest.mark.parametrize(
    "program, dtype, column",
    [
        (LayerNorm, BF16, FP32),
        (AffineLayerNorm, BF16, FP32),
        (AffineLayerNorm, FP32, FP32),
        (AffineLayerNorm, BF16, BF16),
    ],
)
def test_all_listed_kernels_are_as_declared(program, dtype, column, gpu):
    given = {"x": dtype, "y": dtype, "weight": column, "bias": column}
    dtypes = tuple(given.get(name, FP32) for name in program.operands.tensors)
    assert_listed_as_declared(configurations(Binding(program(), dtypes, FP32), SPECS[gpu]), SPECS[gpu])


# --------------------------------------------------------------------------------------------------------------- GPU

#: Rows that each kernel takes, and one of which no part is a whole vector.
CALLS = [
    ((1000, 5), -1, "held"),
    ((300, 64), -1, "held"),
    ((70, 1000), -1, "held"),
    ((70, 4097), -1, "held"),
    ((300, 30001), -1, "held"),
    ((70, 60000), -1, "held"),
    ((1, 400000), -1, "grid"),
    ((3, 262147), -1, "grid"),
    ((7, 50001), -1, "stream"),
    ((40, 2**21 + 3), -1, "stream"),
    ((3, 700001), -1, "split"),
    ((4096, 20), 0, "column"),
    ((100000, 15), 0, "column"),
    ((3, 700, 64), 1, "column"),
]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
@pytest.mark.parametrize("shape, dim, variant", CALLS, ids=str)
def test_a_large_mean_cancels_nothing(shape, dim, variant, dtype):
    """Deviations of 1 about 100 (bf16, fp16) or 1000: a sum of squares would keep no digit of fp32, or few."""
    generator = torch.Generator(device="cuda").manual_seed(3)
    x = torch.randn(shape, device="cuda", dtype=FP64, generator=generator)
    x = (x + (1000 if dtype is FP32 else 100)).to(dtype)
    exact = x.double().var(dim, correction=0)
    got = variance(x.float(), dim, variant=variant)
    # Means of parts are off by some 2^-24 of their size, which moves their squared distances by as much at most.
    assert ((got.double() - exact).abs() / exact.clamp(min=0.1)).max() < 1000 * 2**-24
    want, y = normed(x.double(), dim), layer_norm(x, dim, variant=variant)
    rounding = {BF16: 2**-8, FP16: 2**-11, FP32: 0}[dtype]
    # The mean is off by some 2^-24 of its size, the deviations of 1 as much.
    assert ((y.double() - want).abs() / want.abs().clamp(min=1)).max() < rounding + (1000 * 2**-20)
    assert torch.equal(y, layer_norm(x, dim, variant=variant))


@pytest.mark.gpu
@pytest.mark.parametrize("length", [1, 2, 7, 31, 64, 333, 4095, 20000, 131073, 2**20 + 1])
def test_rows_that_are_one_row_or_one_element_repeated(length):
    x = torch.randn(1, length, device="cuda")
    for dtype in (FP32, BF16):
        got = layer_norm(x.to(dtype).expand(50, length))
        exact = normed(x.to(dtype).double())
        assert (got.double() - exact).abs().max() < (2**-5 if dtype is BF16 else 1e-5)
    one = torch.randn(50, 1, device="cuda").expand(50, length)
    assert layer_norm(one).abs().max() < 0.1
    assert (variance(one) <= (one[:, 0] * 2**-16).square()).all()


@pytest.mark.gpu
@pytest.mark.parametrize("shape, dim, variant", CALLS, ids=str)
def test_what_is_not_finite_stays_in_its_row(shape, dim, variant):
    x = torch.randn(shape, device="cuda")
    spoilt = x.movedim(dim, -1)
    spoilt[..., 0, 0] = float("inf")
    got, want = layer_norm(x, dim, variant=variant).movedim(dim, -1), normed(x.double(), dim).movedim(dim, -1)
    assert torch.equal(got.isnan(), want.isnan())
    assert (got.double() - want).nan_to_num().abs().max() < 1e-4
