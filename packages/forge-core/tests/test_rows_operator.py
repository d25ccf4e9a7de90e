"""A new operator in one module: x * rsqrt(mean(x^2) + eps) * weight and the gradient of x, as two row programs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial

import pytest
import torch

from forge_core.errors import ArgumentError, UnsupportedError
from forge_core.rows import Fold, Operands, RowProgram, rsqrt
from forge_core.rows.operator import row_operator, row_output
from forge_core.testing.battery import battery
from forge_core.testing.rows import row_subject

SQUARES = Fold("sum", lambda v, row, *_: v.x * v.x, masked=False)
OPTIONS = "int dim=-1, float eps=1e-5, *, str variant='auto') -> Tensor"


@dataclass(frozen=True)
class RMSNorm(RowProgram):
    operands = Operands(rows=("x",), columns=("weight",), writes=("y",), numbers=("eps",))
    folds = (SQUARES,)

    def constants(self, totals, row):
        return rsqrt(totals[0] / row.count + row.eps)

    def map(self, v, rstd):
        return (v.x * rstd * v.weight,)


@dataclass(frozen=True)
class RMSNormBackward(RowProgram):
    operands = Operands(rows=("dy", "x"), columns=("weight",), writes=("dx",), numbers=("eps",))
    folds = (SQUARES, Fold("sum", lambda v, row, *_: v.dy * v.weight * v.x, masked=False))
    merge = "each"

    def constants(self, totals, row):
        rstd = rsqrt(totals[0] / row.count + row.eps)
        return rstd, rstd * rstd * totals[1] / row.count

    def map(self, v, constants):
        rstd, mean = constants
        return ((v.dy * v.weight - v.x * mean) * rstd,)


def reference(x, weight, dim=-1, eps=1e-5):
    h = x.movedim(dim, -1).to(torch.promote_types(x.dtype, torch.float32))
    return (h * torch.rsqrt((h * h).mean(-1, True) + eps) * weight).to(x.dtype).movedim(-1, dim).contiguous()


def dx_reference(dy, x, weight, dim=-1, eps=1e-5, sign=-1):
    wide = torch.promote_types(x.dtype, torch.float32)
    g, h, w = dy.movedim(dim, -1).to(wide), x.movedim(dim, -1).to(wide), weight.to(wide)
    rstd = torch.rsqrt((h * h).mean(-1, True) + eps)
    dx = (g * w + sign * h * rstd * rstd * (g * w * h).mean(-1, True)) * rstd
    return dx.to(x.dtype).movedim(-1, dim).contiguous()


DX = {"program": RMSNormBackward(), "reference": dx_reference}
Y = {"program": RMSNorm(), "reference": reference}


@row_operator(f"forge_test_rows::rms_norm_dx(Tensor dy, Tensor x, Tensor weight, {OPTIONS}", **DX)
def rms_norm_dx(dy, x, weight, dim=-1, eps=1e-5, *, variant="auto"):
    return row_output("rms_norm_dx", DX["program"], dy=dy, x=x, weight=weight, dim=dim)


@row_operator(f"forge_test_rows::rms_norm(Tensor x, Tensor weight, {OPTIONS}", **Y, gradient={"x": rms_norm_dx})
def rms_norm(x, weight, dim=-1, eps=1e-5, *, variant="auto"):
    return row_output("rms_norm", Y["program"], x=x, weight=weight, dim=dim)


PARTIAL = dict.fromkeys(("gradients", "second_derivatives"), "there is a gradient of x alone, which has none itself")
FORWARD = row_subject(rms_norm, **Y, terms=reference, inapplicable=PARTIAL)
BACKWARD = row_subject(rms_norm_dx, **DX, terms=partial(dx_reference, sign=1), differentiable=False)


@pytest.mark.parametrize("subject", [FORWARD, BACKWARD], ids=lambda subject: subject.name)
def test_every_kernel_supports_one_of_the_samples(subject):
    supported = set()
    for args in itertools.takewhile(lambda args: args[0].dtype is torch.bfloat16, subject.samples(torch.device("cpu"))):
        for variant in subject.operator.variants():
            try:
                subject.operator.explain(*args, variant=variant, arch="sm_90a")
            except UnsupportedError:
                continue
            supported.add(variant)
    assert supported == set(subject.operator.variants())


def test_only_declared_kernels_are_offered():
    x = torch.empty(600, 4096, device="meta")
    with pytest.raises(UnsupportedError, match=r"this call: 'stream', 'column', 'split'; or leave"):
        rms_norm.explain(x.t(), x.new_empty(600), variant="held", arch="sm_90a")
    with pytest.raises(ArgumentError, match=r"'auto' or one of .*'held', got 'persistent'"):
        rms_norm.explain(x, x.new_empty(4096), variant="persistent", arch="sm_90a")


def test_the_reason_gives_the_threads_of_the_launch():
    x = torch.empty(4096, 8192, dtype=torch.bfloat16, device="meta")
    assert ": a block of 128 threads a row, 8 vectors a thread" in rms_norm.explain(x, x[0], arch="sm_90a").why


@pytest.mark.parametrize("check", battery(FORWARD, BACKWARD))
def test_conformance(check):
    check()
