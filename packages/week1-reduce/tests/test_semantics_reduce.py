"""PyTorch's own semantics: dims, dtypes, promotion, NaN, infinities, nothing; on the CPU and on a GPU."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import forge_week1_reduce as week1
from forge_week1_reduce.ops import DTYPES

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
EXTREMES = {"amax": (week1.amax, torch.amax), "amin": (week1.amin, torch.amin)}


def integers(shape, dtype, device="cpu", *, seed=0):
    """Small whole numbers, whose sums are exact in every dtype that holds them: any order gives the same bits."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-8 if dtype.is_signed else 0, 9, tuple(shape), generator=generator).to(dtype).to(device)


def same(got, want, what=""):
    assert got.dtype == want.dtype, what
    assert got.shape == want.shape, what
    assert got.is_contiguous(), what
    assert torch.equal(torch.isnan(got), torch.isnan(want)), what
    assert torch.equal(torch.nan_to_num(got), torch.nan_to_num(want)), what


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_of_every_dtype_are_exact(dtype, device):
    for shape in ((37, 53), (4, 300), (3, 70, 40)):
        x = integers(shape, dtype, device)
        for dim in (0, -1, None):
            if dtype.is_floating_point and dtype.itemsize == 2:
                want = x.float().sum(dim).to(dtype)  # exact in fp32, rounded once
            else:
                want = torch.sum(x, dim)
            same(week1.reduce_sum(x, dim), want, f"{shape} {dim}")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_extremes_of_every_dtype_are_exact(dtype, name, device):
    ours, theirs = EXTREMES[name]
    for shape in ((37, 53), (4, 300), (3, 70, 40)):
        x = integers(shape, dtype, device, seed=1)
        for dim in (0, -1, (0, 1)):
            same(ours(x, dim), theirs(x, dim), f"{shape} {dim}")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool], ids=str)
def test_products_of_integers_wrap_as_pytorchs_do(dtype, device):
    x = integers((9, 33), dtype, device, seed=2)
    x[x == 0] = 1
    for dim in (0, -1, None):
        want = torch.prod(x) if dim is None else torch.prod(x, dim)
        same(week1.prod(x, dim), want)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("keepdim", [False, True])
def test_every_combination_of_dimensions(keepdim, device):
    shape = (2, 3, 4, 5)
    x = integers(shape, torch.float32, device)
    for count in range(1, 5):
        for dims in itertools.permutations(range(4), count):
            signed = tuple(d - 4 if i % 2 else d for i, d in enumerate(dims))
            same(week1.reduce_sum(x, signed, keepdim), torch.sum(x, signed, keepdim), signed)
            same(week1.amax(x, list(signed), keepdim), torch.amax(x, signed, keepdim), signed)
    same(week1.reduce_sum(x, None, keepdim), torch.sum(x, None, keepdim))
    same(week1.reduce_sum(x, (), keepdim), torch.sum(x, (), keepdim))
    same(week1.amin(x, None, keepdim), torch.amin(x, (), keepdim))


@pytest.mark.parametrize("device", DEVICES)
def test_the_out_of_a_reduction_by_name(device):
    x = integers((6, 7, 40), torch.float32, device)
    out = torch.empty(6, 40, device=device)
    assert week1.reduce(x, 1, "max", out=out) is out
    assert torch.equal(out, torch.amax(x, 1))


@pytest.mark.parametrize("device", DEVICES)
def test_a_tensor_without_dimensions(device):
    x = torch.tensor(3.5, device=device)
    for dim in (None, 0, -1, ()):
        for name in ("sum", "mean", "amax", "amin", "prod"):
            same(week1.reduce(x, dim, name), x.clone())
    assert week1.reduce_sum(torch.tensor(True, device=device)).dtype is torch.int64


CONVERSIONS = (
    (torch.float32, torch.float16),
    (torch.float32, torch.int32),
    (torch.float32, torch.bool),
    (torch.bfloat16, torch.float32),
    (torch.float64, torch.bfloat16),
    (torch.float16, torch.float64),
    (torch.int32, torch.float32),
    (torch.int64, torch.int8),
    (torch.bool, torch.float32),
    (torch.uint8, torch.int16),
)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("pair", CONVERSIONS, ids=str)
def test_dtype_converts_each_element_first(pair, device):
    src, dst = pair
    x = integers((33, 200), src, device)
    if src.is_floating_point:
        x = x + 0.5  # tells truncation of each element from truncation of the sum
    for dim in (0, -1, None):
        converted = x.to(dst)
        half = dst.is_floating_point and dst.itemsize == 2
        want = converted.float().sum(dim).to(dst) if half else torch.sum(x, dim, dtype=dst)
        same(week1.reduce_sum(x, dim, dtype=dst), want)
        if dst.is_floating_point:
            assert week1.mean(x, dim, dtype=dst).dtype is dst


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("needs_gradient", [False, True], ids=["", "with a gradient"])
def test_dimensions_and_dtypes_may_be_written_as_pytorch_lets_them(device, needs_gradient):
    x = integers((3, 5, 4), torch.float32, device).requires_grad_(needs_gradient)
    for dim, plain in ((np.int64(1), 1), (torch.tensor(0), 0), ((np.int32(0), 2), (0, 2)), ([np.int64(1)], (1,))):
        for dtype in (None, float) if needs_gradient else (None, float, int):
            got = week1.reduce_sum(x, dim, dtype=dtype)
            same(got, torch.sum(x, plain, dtype=dtype), f"{dim} {dtype}")
            if needs_gradient:
                (grad,) = torch.autograd.grad(got.sum(), x)
                assert torch.equal(grad, torch.ones_like(x))
        same(week1.reduce(x, dim, "max"), torch.amax(x, plain))
        same(week1.amin.out(x.detach(), dim, out=torch.empty_like(torch.amin(x, plain))), torch.amin(x, plain).detach())


@pytest.mark.parametrize("device", DEVICES)
def test_reduce_names_the_family(device):
    x = torch.rand(5, 6, device=device) + 0.5
    for name, op in (
        ("sum", week1.reduce_sum),
        ("mean", week1.mean),
        ("prod", week1.prod),
        ("amax", week1.amax),
        ("amin", week1.amin),
        ("max", week1.amax),
        ("min", week1.amin),
    ):
        assert torch.equal(week1.reduce(x, 0, name), op(x, 0))
        assert torch.equal(week1.reduce(x, op=name, keepdim=True), op(x, -1, True))
    assert week1.reduce(x, op="sum", dtype=torch.float64).dtype is torch.float64


@pytest.mark.gpu
@pytest.mark.large(40)
@pytest.mark.parametrize("rows", [2**31 + 24, 2**31 + 21, 2**32 + 40], ids=["whole", "shifted", "wide"])
def test_more_than_two_to_the_31_results(rows):
    x = torch.ones(2, rows, dtype=torch.int8, device="cuda")
    x[1, -1], x[0, 2**31 - 1] = 3, 7
    y = week1.amax(x, 0)
    assert (y[0].item(), y[2**31 - 1].item(), y[-1].item()) == (1, 7, 3)
    y[2**31 - 1], y[-1] = 1, 1
    assert y.min().item() == y.max().item() == 1


@pytest.mark.gpu
@pytest.mark.large(12)
def test_more_than_two_to_the_31_elements():
    x = torch.ones(2**31 + 77, dtype=torch.int8, device="cuda")
    x[-1] = 3
    assert week1.reduce_sum(x).item() == 2**31 + 79
    assert week1.amax(x).item() == 3
    for shape in ((2, 2**30 + 5), (2**30 + 5, 2), (46343, 46341), (3, 2**15, 2**15)):
        count = 1
        for size in shape:
            count *= size
        y = torch.ones(count, dtype=torch.int8, device="cuda").view(shape)
        for dim in (0, -1):
            got = week1.reduce_sum(y, dim)
            assert bool((got == shape[dim]).all()), (shape, dim)


@pytest.mark.gpu
@pytest.mark.large(12)
def test_strides_past_two_to_the_31():
    storage = torch.randint(-5, 5, (3 * 2**30,), dtype=torch.int8, device="cuda").view(3, 2**30)
    x = storage[:, : 2**10]  # few elements, far apart
    for dim in (0, 1):
        assert torch.equal(week1.reduce_sum(x, dim), torch.sum(x, dim))
    y = storage.t()[: 2**10 * 64 : 64]
    for dim in (0, 1):
        assert torch.equal(week1.reduce_sum(y, dim), torch.sum(y, dim))
