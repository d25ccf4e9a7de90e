"""Each kernel by name: what it must do and what it must refuse, at every edge, and on long rows."""

from __future__ import annotations

import itertools

import pytest
import torch

import forge_week1_reduce as week1
from forge_core.errors import UnsupportedError
from forge_week1_reduce.config import LADDER

VARIANTS = tuple(week1.reduce_sum.variants())

#: One below, at and above vector widths, warps, blocks and what a row's kernels divide by; and primes.
EDGES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1000, 1023, 1025)
ROWS = (1, 2, 3, 33, 130)
#: rows, columns, elements before the first.
LONG = ((1, 2**20 + 3, 1), (5, 300_001, 0), (17, 70_000, 3), (2, 2**22, 0), (300, 5003, 2))


def integers(count, dtype, seed):
    """Small whole numbers: sums are exact in the accumulator, whatever the order."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-8 if dtype.is_signed else 0, 9, (count,), generator=generator).to(dtype).cuda()


@pytest.mark.parametrize("variant", LADDER)
def test_the_ladder_is_for_matrices_of_floating_point_numbers(variant):
    for dtype, dim in itertools.product((torch.float16, torch.bfloat16, torch.float32), (-1, 0)):
        x = torch.empty(64, 1024, dtype=dtype, device="meta")
        if variant == "vectorized" and dim == 0:
            with pytest.raises(UnsupportedError, match="contiguous rows of whole 16-byte vectors"):
                week1.reduce_sum.explain(x, dim, variant=variant, arch="sm_90a")
        else:
            assert week1.reduce_sum.explain(x, dim, variant=variant, arch="sm_90a").variant == variant
    with pytest.raises(UnsupportedError, match="fp16, bf16 or fp32"):
        week1.reduce_sum.explain(torch.empty(64, 64, dtype=torch.int32, device="meta"), variant=variant, arch="sm_90a")
    with pytest.raises(UnsupportedError, match=r"more dims; pass a contiguous\(\) tensor"):
        week1.reduce_sum.explain(torch.empty(4, 4, 4, device="meta"), (0, 2), variant=variant, arch="sm_90a")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("variant", ["auto", *VARIANTS])
def test_each_variant_at_every_edge(variant, dtype):
    done = 0
    for rows, cols in itertools.product(ROWS, EDGES):
        x = integers(rows * cols, dtype, seed=rows * 2000 + cols).view(rows, cols)
        for dim in (0, -1):
            try:
                got = week1.reduce_sum(x, dim, variant=variant)
            except UnsupportedError:
                assert variant != "auto"
                continue
            done += 1
            assert torch.equal(got, x.double().sum(dim).to(got.dtype)), f"{variant} {rows}x{cols} dim {dim}"
    assert done or (variant in LADDER and dtype in (torch.int8, torch.float64)) or variant == "grid"


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["auto", *VARIANTS])
def test_long_rows_and_odd_ones(variant):
    for rows, cols, offset in LONG:
        x = integers(rows * cols + offset, torch.float32, seed=rows)[offset:].view(rows, cols)
        for dim in (0, -1):
            try:
                got = week1.reduce_sum(x, dim, variant=variant)
            except UnsupportedError:
                assert variant != "auto"
                continue
            assert torch.equal(got, torch.sum(x, dim)), f"{variant} {rows}x{cols} dim {dim}"


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["mean", "prod", "amax", "amin"])
@pytest.mark.parametrize("variant", LADDER)
def test_the_ladder_has_the_whole_family(variant, op):
    x = torch.randn(130, 1024, device="cuda")
    want = {"mean": x.mean(-1), "prod": (1 + x / 64).prod(-1), "amax": x.amax(-1), "amin": x.amin(-1)}[op]
    got = week1.reduce(1 + x / 64 if op == "prod" else x, -1, op, variant=variant)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)
