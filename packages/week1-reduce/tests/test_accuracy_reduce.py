"""Errors against float64, by the rule of forge_core.testing.tolerances; on the CPU and on a GPU."""

from __future__ import annotations

import pytest
import torch

import forge_week1_reduce as week1
from forge_core.errors import UnsupportedError
from forge_core.testing import assert_near_float64, tree_bound
from forge_core.testing.tolerances import product_bound

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
KINDS = ("normal", "positive", "cancelling", "mixed")

#: Up to 2^26 on a GPU; the CPU takes what two cores do in a moment.
COUNTS = (1, 2, 3, 5, 8, 31, 100, 257, 1000, 4097, 2**14 + 1, 2**17, 10**6 + 3)
LARGE = (2**22, 2**24 + 7, 2**26)


def numbers(kind, rows, count, dtype, device):
    generator = torch.Generator(device=device).manual_seed(count)
    x = torch.randn(rows, count, device=device, dtype=torch.float64, generator=generator)
    if kind == "positive":
        x = x.abs() + 0.1
    if kind == "cancelling":  # the sum is nearly nothing beside what is added
        half = count // 2
        x = x * 100
        x[:, count - half :] = -x[:, :half] + 1e-3 * torch.randn(
            rows, half, device=device, dtype=torch.float64, generator=generator
        )
    if kind == "mixed":  # magnitudes over many powers of two
        scale = torch.randint(-12, 12, (rows, count), device=device, generator=generator)
        x = x * torch.exp2(scale.double())
    return x.to(dtype)


def check_sum(x, dim, variant="auto"):
    accumulator = torch.float64 if x.dtype is torch.float64 else torch.float32
    count = x.shape[dim]
    exact = x.double().sum(dim)
    magnitude = x.double().abs().sum(dim)
    what = f"{variant} {tuple(x.shape)} {x.dtype} dim {dim}"
    got = week1.reduce_sum(x, dim, variant=variant)
    floor = tree_bound(magnitude, count, accumulator)
    assert_near_float64(got, exact, torch.sum(x, dim), floor=floor, what=f"sum {what}")
    got = week1.mean(x, dim, variant=variant)
    # The count and the division by it round once each.
    division = torch.finfo(accumulator).eps * (exact / count).abs()
    floor = tree_bound(magnitude, count, accumulator) / count + division
    assert_near_float64(got, exact / count, torch.mean(x, dim), floor=floor, what=f"mean {what}")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sums_and_means(dtype, kind, device):
    for count in COUNTS:
        x = numbers(kind, 3, count, dtype, device)
        check_sum(x, -1)
        check_sum(x.t().contiguous(), 0)


@pytest.mark.gpu
@pytest.mark.large(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_the_longest_rows(dtype, kind):
    for count in LARGE:
        x = numbers(kind, 1 if count >= 2**26 else 2, count, dtype, "cuda")
        check_sum(x, -1)
        check_sum(x.t().contiguous(), 0)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", week1.reduce_sum.variants())
def test_each_variant(variant, kind):
    done = 0
    for count in (1, 100, 1000, 4097, 2**17):
        x = numbers(kind, 5, count, torch.float32, "cuda")
        for y, dim in ((x, -1), (x.t().contiguous(), 0)):
            try:
                check_sum(y, dim, variant)
            except UnsupportedError:
                continue
            done += 1
    assert done >= 2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_products(dtype, device):
    for count in (1, 2, 7, 100, 1000):
        generator = torch.Generator(device=device).manual_seed(count)
        x = 1 + 0.02 * torch.randn(4, count, device=device, dtype=torch.float64, generator=generator)
        x = x.to(dtype)
        accumulator = torch.float64 if dtype is torch.float64 else torch.float32
        exact = x.double().prod(-1)
        floor = product_bound(x.double(), -1, accumulator)
        assert_near_float64(week1.prod(x), exact, torch.prod(x, -1), floor=floor, what=f"prod {count}")
