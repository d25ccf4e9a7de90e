"""Rows side by side on a GPU: all widths, alignments and parts, with every kind of operand, to the last bit."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from forge_core.rows import Fold, Operands, RowProgram
from forge_core.rows.operator import row_operator

BF16, FP32, FP64 = torch.bfloat16, torch.float32, torch.float64


@dataclass(frozen=True)
class Total(RowProgram):
    operands = Operands(rows=("x",), results=("y",))

    @property
    def folds(self):
        return (Fold("sum", lambda v, row: v.x),)

    def results(self, totals, row):
        return totals


@dataclass(frozen=True)
class Mixed(RowProgram):
    """All kinds of operands, and a pass that needs the total of the one before."""

    operands = Operands(rows=("x", "z"), columns=("weight",), scalars=("s",), writes=("y",))

    @property
    def folds(self):
        return (
            Fold("max", lambda v, row: v.x),
            Fold("sum", lambda v, row, most: (v.x - most) * v.z * v.weight),
        )

    def map(self, v, totals):
        return (v.x * v.weight + totals[0] - totals[1],)

    def constants(self, totals, row):
        return totals[0], totals[1] * row.s


def total_reference(x, dim):
    return x.double().sum(dim).to(x.dtype)


def mixed_reference(x, z, weight, s, dim):
    a, b, w = x.double().movedim(dim, -1), z.double().movedim(dim, -1), weight.double()
    most = a.amax(-1, True)
    y = a * w + most - ((a - most) * b * w).sum(-1, True) * s.double()[..., None]
    return y.to(x.dtype).movedim(-1, dim)


@row_operator(
    "forge_test_rows::column_total(Tensor x, int dim=-1, *, str variant='auto') -> Tensor",
    program=Total(),
    reference=total_reference,
)
def column_total(x, dim=-1, *, variant="auto"):
    return x.new_empty([size for i, size in enumerate(x.shape) if i != dim % x.ndim])


@row_operator(
    "forge_test_rows::column_mixed(Tensor x, Tensor z, Tensor weight, Tensor s, int dim=-1, *, str variant='auto')"
    " -> Tensor",
    program=Mixed(),
    reference=mixed_reference,
)
def column_mixed(x, z, weight, s, dim=-1, *, variant="auto"):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def some(generator, shape, dtype, begin=0, most=2):
    """Small integers, so that every order of additions gives the same total; ``begin`` elements after a boundary."""
    size = torch.Size(shape).numel()
    x = torch.randint(-most, most + 1, (size + begin,), device="cuda", generator=generator).to(dtype)
    return x[begin:].view(shape)


WIDTHS = (1, 2, 3, 7, 8, 15, 16, 23, 64, 100, 242, 257, 300, 1000, 5003)
LENGTHS = (1, 2, 5, 9, 100, 3000, 40000)
MOST = 2**24
"""Elements of a tensor."""


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [BF16, FP32, FP64], ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_totals_of_neighboring_rows(width, dtype):
    generator = torch.Generator(device="cuda").manual_seed(width)
    for length in filter(lambda n: n * width < MOST, LENGTHS):
        for begin in (0, 1, 5):
            x = some(generator, (length, width), dtype, begin, 1 if dtype is BF16 else 4)
            for view in (x, x[1:], x.view(1, *x.shape).expand(3, -1, -1), x[:, : width - width // 3]):
                variant = "column" if view.numel() and width > 1 else "auto"  # others are contiguous rows, or none
                got = column_total(view, -2, variant=variant)
                assert torch.equal(got, total_reference(view, -2)), (length, begin, view.shape)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [BF16, FP32, FP64], ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_all_kinds_of_operands_of_neighboring_rows(width, dtype):
    generator = torch.Generator(device="cuda").manual_seed(width)
    for length in filter(lambda n: n * width < MOST, LENGTHS):
        weight = some(generator, (length,), dtype, 1)
        for shape in ((length, width), (3, length, width)):
            s = some(generator, (*shape[:-2], width), dtype)
            for begin in (0, 3):
                x, z = (some(generator, shape, dtype, begin) for _ in range(2))
                apart = some(generator, (*shape[:-1], width + 3), dtype)[..., :width]
                for a, b in ((x, z), (x, apart), (apart, apart.flip(0).contiguous())):
                    variant = "column" if width > 1 else "auto"
                    got = column_mixed(a, b, weight, s, len(shape) - 2, variant=variant)
                    assert torch.equal(got, mixed_reference(a, b, weight, s, len(shape) - 2)), (shape, begin)
