"""A new operator in one module: x * rsqrt(mean(x^2) + eps) * weight and the gradient of x, as two row programs."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from forge_core import rows
from forge_core.rows import Fold, Operands, RowProgram
from forge_core.rows.operator import like, row_operator
from forge_core.testing.battery import battery
from forge_core.testing.subject import Case, Subject

SQUARES = Fold("sum", lambda v, row, *_: v.x * v.x, masked=False)
OPTIONS = "int dim=-1, float eps=1e-5, *, str variant='auto') -> Tensor"


@dataclass(frozen=True)
class RMSNorm(RowProgram):
    operands = Operands(rows=("x",), columns=("weight",), writes=("y",), numbers=("eps",))
    folds = (SQUARES,)

    def constants(self, totals, row):
        return rows.rsqrt(totals[0] / row.count + row.eps)

    def map(self, v, rstd):
        return (v.x * rstd * v.weight,)


@dataclass(frozen=True)
class RMSNormBackward(RowProgram):
    operands = Operands(rows=("dy", "x"), columns=("weight",), writes=("dx",), numbers=("eps",))
    folds = (SQUARES, Fold("sum", lambda v, row, *_: v.dy * v.weight * v.x, masked=False))
    merge = "each"

    def constants(self, totals, row):
        rstd = rows.rsqrt(totals[0] / row.count + row.eps)
        return rstd, rstd * rstd * totals[1] / row.count

    def map(self, v, constants):
        rstd, mean = constants
        return ((v.dy * v.weight - v.x * mean) * rstd,)


def reference(x, weight, dim=-1, eps=1e-5):
    wide = x.movedim(dim, -1).to(torch.promote_types(x.dtype, torch.float32))
    return (wide * torch.rsqrt((wide * wide).mean(-1, True) + eps) * weight).to(x.dtype).movedim(-1, dim).contiguous()


def dx_reference(dy, x, weight, dim=-1, eps=1e-5, sign=-1):
    wide = torch.promote_types(x.dtype, torch.float32)
    g, h, w = dy.movedim(dim, -1).to(wide), x.movedim(dim, -1).to(wide), weight.to(wide)
    rstd = torch.rsqrt((h * h).mean(-1, True) + eps)
    dx = (g * w + sign * h * rstd * rstd * (g * w * h).mean(-1, True)) * rstd
    return dx.to(x.dtype).movedim(-1, dim).contiguous()


@row_operator(
    f"forge_test_rows::rms_norm_dx(Tensor dy, Tensor x, Tensor weight, {OPTIONS}",
    program=RMSNormBackward(),
    reference=dx_reference,
)
def rms_norm_dx(dy, x, weight, dim=-1, eps=1e-5, *, variant="auto"):
    return like("rms_norm_dx", RMSNormBackward(), dy=dy, x=x, weight=weight, dim=dim)


@row_operator(
    f"forge_test_rows::rms_norm(Tensor x, Tensor weight, {OPTIONS}",
    program=RMSNorm(),
    reference=reference,
    gradient={"x": rms_norm_dx},
)
def rms_norm(x, weight, dim=-1, eps=1e-5, *, variant="auto"):
    return like("rms_norm", RMSNorm(), x=x, weight=weight, dim=dim)


def subject(operator, count, right, bound):
    def make(case, dtype, device, seed):
        made = torch.Generator(device=device).manual_seed(seed)
        shapes = [case.shape] * count + [(case.shape[case.args[0]],)]
        return tuple(torch.randn(s, device=device, generator=made, dtype=torch.float64).to(dtype) for s in shapes)

    def floor(*args):  # relative to the terms: what a thread adds one after the other, and the exchange
        terms = args[0].shape[args[-1]] / 256 + 40
        return bound(*args) * terms * (2.0**-53 if args[0].dtype is torch.float64 else 2.0**-24)

    cases = [Case((4, 6), (-1,)), Case((4, 6), (0,)), Case((3, 5, 7), (1,)), Case((2, 301), (-1,))]
    launches = [Case((3, n), (-1,)) for n in (8, 1000, 4096, 50257, 300000)] + [Case((4096, 20), (0,))]
    dtypes = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
    return Subject(
        operator, None, floor, cases=cases, launches=launches, dtypes=dtypes, make=make, reference=right,
        differentiable=count == 1, shapes=[(4, n) for n in (6, 9, 40, 300)],
    )  # fmt: skip


SUBJECTS = [
    subject(rms_norm, 1, reference, lambda x, w, dim: reference(x.double(), w.double(), dim).abs()),
    subject(
        rms_norm_dx, 2, dx_reference,
        lambda g, x, w, dim: dx_reference(g.double().abs(), x.double().abs(), w.double().abs(), dim, sign=1),
    ),
]  # fmt: skip


@pytest.mark.parametrize("check", battery(*SUBJECTS))
def test_conformance(check):
    check()
