"""A weight's gradient: a sum over all rows for each column, as a row program over the other dims."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pytest
import torch

from forge_core.rows import Fold, Operands, RowProgram
from forge_core.rows.operator import row_operator, row_output
from forge_core.testing.battery import battery
from forge_core.testing.rows import row_subject


@dataclass(frozen=True)
class WeightGradient(RowProgram):
    """The sum over rows of dy * x * rstd: of ``x * rstd * weight``, where each row has its rstd."""

    operands = Operands(rows=("dy", "x"), columns=("rstd",), results=("dw",))

    @property
    def folds(self):
        return (Fold("sum", lambda v, row: v.dy * v.x * v.rstd, masked=False),)

    def results(self, totals, row):
        return totals


def reference(dy, x, rstd, dim=0, magnitude=False):
    dims = tuple(d % x.ndim for d in ((dim,) if isinstance(dim, int) else dim))
    wide = torch.promote_types(x.dtype, torch.float32)
    shape = [size if i in dims else 1 for i, size in enumerate(x.shape)]
    terms = dy.to(wide) * x.to(wide) * rstd.to(wide).reshape(shape)
    return (terms.abs() if magnitude else terms).sum(dims).to(x.dtype)


W = {"program": WeightGradient(), "reference": reference}


@row_operator(
    "forge_test_rows::weight_gradient(Tensor dy, Tensor x, Tensor rstd, int[1] dim=0, *, str variant='auto') -> Tensor",
    **W,
)
def weight_gradient(dy, x, rstd, dim=0, *, variant="auto"):
    return row_output("weight_gradient", W["program"], dy=dy, x=x, rstd=rstd, dim=dim)


SUBJECT = row_subject(weight_gradient, **W, terms=partial(reference, magnitude=True), differentiable=False)


@pytest.mark.parametrize("check", battery(SUBJECT))
def test_conformance(check):
    check()


def test_rows_are_cut_into_parts_that_fill_the_gpu():
    x = torch.empty(32768, 4096, dtype=torch.bfloat16, device="meta")
    rstd = torch.empty(32768, dtype=torch.float32, device="meta")
    told = weight_gradient.explain(x, x, rstd, 0, arch="sm_90a")
    assert told.variant == "column" and "in 16 parts" in told.why


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_it_is_the_gradient_that_autograd_finds_and_the_same_at_each_call(dtype):
    for shape in ((4096, 1000), (100, 4096), (30000, 23), (8, 512, 768)):
        x, dy = (torch.randn(shape, device="cuda", dtype=dtype) for _ in range(2))
        rstd = torch.rsqrt(x.float().square().mean(-1) + 1e-5)
        dims = tuple(range(len(shape) - 1))
        weight = torch.ones(shape[-1], device="cuda", dtype=torch.float64, requires_grad=True)
        (x.double() * rstd.double()[..., None] * weight).backward(dy.double())
        got = weight_gradient(dy, x, rstd, dims)
        assert all(torch.equal(weight_gradient(dy, x, rstd, dims), got) for _ in range(5))
        scale = (dy.double() * x.double() * rstd.double()[..., None]).abs().sum(dims).max()
        error = (got.double() - weight.grad).abs().max() / scale
        assert error <= (2**-8 if dtype is torch.bfloat16 else 2**-20), (shape, error)
