"""Each kernel by name: what it must do and refuse, at every edge, on the longest rows, and under a sanitizer."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import forge_week1_reduce as week1
from forge_core.errors import UnsupportedError
from forge_core.testing.inputs import cover, placed, traits
from forge_week1_reduce.config import LADDER

VARIANTS = tuple(week1.reduce_sum.variants())

#: One below, at and above vector widths, warps, blocks and what a row's kernels divide by; and primes.
EDGES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1000, 1023, 1025)
ROWS = (1, 2, 3, 33, 130)
#: rows, columns, elements before the first.
LONG = ((1, 2**20 + 3, 1), (5, 300_001, 0), (17, 70_000, 3), (2, 2**22, 0), (300, 5003, 2))


def integers(count, dtype, seed, device="cuda"):
    """Small whole numbers: sums are exact in the accumulator, whatever the order."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-8 if dtype.is_signed else 0, 9, (count,), generator=generator).to(dtype).to(device)


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
        y = torch.ones(shape, dtype=torch.int8, device="cuda")
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


# -------------------------------------------------------------------------------------------------------- sanitizers

DTYPES = (torch.int8, torch.bfloat16, torch.float32, torch.float64)
#: Shape, dims, and the elements by which the tensor begins behind its allocation.
SMALLEST = (
    *(((3, 5), -1, 1), ((1, 1), -1, 0), ((2, 64), -1, 0), ((300, 8), -1, 0), ((9, 512), -1, 0), ((3, 257), -1, 1)),
    *(((5, 2048), -1, 0), ((2, 4099), -1, 3), ((1, 9000), -1, 0), ((2, 70_000), -1, 1), ((2, 65_536), -1, 0)),
    *(((5, 3), 0, 1), ((33, 8), 0, 0), ((40, 9), 0, 1), ((40, 257), 0, 1), ((600, 64), 0, 0), ((9, 40), 0, 0)),
    *(((5000, 8), 0, 0), ((470_000, 9), 0, 0), ((17_000, 257), 0, 1), ((1, 300), 0, 1), ((1, 4096), 0, 0)),
    *(((3, 5, 8), (0, 2), 0), ((3, 4, 5, 7), (0, 2), 0), ((3, 4, 5, 7), (1, 3), 1)),
)


def small_call(case, device):
    shape, _, offset = case[1]
    return placed(integers(math.prod(shape), case[0], seed=offset, device="cpu").view(shape), offset, device)


def subset(variant, arch=None):
    """Few of the smallest calls that have together all the traits of all of them, those traits, and the kernels."""
    able, kernels = {}, {}
    for case in itertools.product(DTYPES, SMALLEST):
        x = small_call(case, "cpu" if arch else "cuda")
        try:
            config = week1.reduce_sum.explain(x, case[1][1], variant=variant, arch=arch).config
        except UnsupportedError:
            continue
        kernels[case] = config
        able[case] = {*traits(config), ("dtype", case[0]), ("shape", case[1])}
    chosen = cover(able, {case: math.prod(case[1][0]) for case in able})
    return chosen, set().union(*able.values()), {kernels[case] for case in chosen}


def test_the_subset_for_sanitizers_is_small_and_holds_every_alignment():
    kernels = set()
    for variant in ("auto", *VARIANTS):
        _, wanted, own = subset(variant, "sm_90a")
        kernels |= own
        values = {name: {value for key, value in wanted if key == name} for name, _ in wanted}
        assert values["dtype"] == set(DTYPES[1:3] if variant in LADDER else DTYPES[1:] if variant == "grid" else DTYPES)
        if variant == "column":
            assert values["align"] == {"whole", "shifted", "skewed", "element"}
            assert values["held"] == {True, False}
        if variant == "held":
            assert values["align"] == {"whole", "shifted", "element"}
            assert values["lanes"] >= {0, 1, 4, 8, 16, 32}
            assert max(values["blocks"]) == 16
        if variant == "split":
            assert values["align"] >= {"shifted", "element"}
    assert len(kernels) <= 110  # each is compiled anew, in a process that a sanitizer slows down


@pytest.mark.gpu
@pytest.mark.sanitizer
@pytest.mark.parametrize("variant", ["auto", *VARIANTS])
def test_smallest_shapes(variant):
    """The subset for compute-sanitizer; the test above says what it holds."""
    for case in subset(variant)[0]:
        x = small_call(case, "cuda")
        got = week1.reduce_sum(x, case[1][1], variant=variant)
        assert torch.equal(got.cpu(), x.cpu().double().sum(case[1][1]).to(got.dtype)), case
