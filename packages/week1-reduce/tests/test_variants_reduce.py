"""Each kernel by name: what it must do and what it must refuse, at every edge, on long rows, and under a sanitizer."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from unittest import mock

import pytest
import torch

import forge_week1_reduce as week1
from forge_core.device import SPECS, query
from forge_core.errors import UnsupportedError
from forge_core.op.launch import load
from forge_week1_reduce.arithmetic import Arithmetic
from forge_week1_reduce.config import plan
from forge_week1_reduce.problem import Problem

VARIANTS = tuple(week1.reduce_sum.variants())

#: One below, at and above vector widths, warps, blocks and what a row's kernels divide by; and primes.
EDGES = (
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    9,
    15,
    16,
    17,
    31,
    32,
    33,
    63,
    64,
    65,
    127,
    128,
    129,
    255,
    256,
    257,
    1000,
    1023,
    1024,
    1025,
)
ROWS = (1, 2, 3, 33, 130)
#: rows, columns, elements before the first.
LONG = ((1, 2**20 + 3, 1), (5, 300_001, 0), (17, 70_000, 3), (2, 2**22, 0), (300, 5003, 2))
SHORT_LOADS = 256


def must_do(variant, x, dim, *, capability=(9, 0)):
    """Whether a variant is for the sum of a matrix over one dimension; what it is not for it must refuse.

    The matrix is contiguous, at any storage offset.  A dimension of size 1 is none, so a column is a row, too.
    """
    count, results = (x.shape[1], x.shape[0]) if dim == -1 else (x.shape[0], x.shape[1])
    inner = count > 1 and (dim == -1 or x.shape[1] == 1)
    outer = results > 1 and (dim == 0 or x.shape[1] == 1)
    if variant in ("auto", "naive", "shared", "shuffle"):
        return True
    if variant == "column":
        return outer
    if variant == "cluster":
        return inner and capability >= (9, 0)
    if variant == "short":
        size = x.element_size()
        width = math.gcd(16, x.storage_offset() * size, count * size)
        return inner and count * size // width <= SHORT_LOADS
    return inner  # vectorized, split


def run(x, dim, variant):
    """The sum, or None where the variant refuses as it must; fails where it refuses or does what it must not."""
    what = f"{variant} {tuple(x.shape)} from {x.storage_offset()} dim {dim}"
    able = must_do(variant, x, dim, capability=query(x.device).capability)
    try:
        got = week1.reduce_sum(x, dim, variant=variant)
    except UnsupportedError:
        assert not able, f"refused: {what}"
        return None
    assert able, f"not refused: {what}"
    return got


def integers(count, dtype, device, seed):
    """Small whole numbers: sums are exact in the accumulator, whatever the order."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-8 if dtype.is_signed else 0, 9, (count,), generator=generator).to(dtype).to(device)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("variant", ["auto", *VARIANTS])
def test_what_each_variant_is_for(variant, arch):
    """The statement that the GPU tests below rest on, for all their inputs."""
    shapes = [(rows, cols, 0) for rows in ROWS for cols in EDGES] + list(LONG)
    for (rows, cols, offset), dtype in itertools.product(shapes, (torch.int8, torch.bfloat16, torch.float64)):
        x = torch.empty(rows * cols + offset, dtype=dtype, device="meta")[offset:].view(rows, cols)
        for dim in (0, -1):
            out = torch.empty(rows if dim == -1 else cols, dtype=dtype)
            # A meta tensor has no address, so the offset's alignment is said here.
            problem = Problem.make(
                x.shape,
                x.stride(),
                (dim % 2,),
                out.stride(),
                dtype.itemsize,
                dtype.itemsize,
                src_address=offset * dtype.itemsize,
            )
            device = SPECS["H200"] if arch == "sm_90a" else SPECS["A100"]
            able = must_do(variant, x, dim, capability=device.capability)
            try:
                plan("reduce_sum", problem, Arithmetic.of("sum", dtype, dtype, None), device, variant)
            except UnsupportedError:
                assert not able, (rows, cols, offset, dtype, dim)
            else:
                assert able, (rows, cols, offset, dtype, dim)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_each_variant_at_every_edge(variant, dtype):
    for rows, cols in itertools.product(ROWS, EDGES):
        x = integers(rows * cols, dtype, "cuda", seed=rows * 2000 + cols).view(rows, cols)
        for dim in (0, -1):
            got = run(x, dim, variant)
            if got is not None:
                assert torch.equal(got, x.double().sum(dim).to(got.dtype)), f"{variant} {rows}x{cols} dim {dim}"


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["auto", *VARIANTS])
def test_long_rows_and_odd_ones(variant):
    for rows, cols, offset in LONG:
        x = integers(rows * cols + offset, torch.int32, "cuda", seed=rows)[offset:].view(rows, cols)
        for dim in (0, -1):
            got = run(x, dim, variant)
            if got is not None:
                assert torch.equal(got, torch.sum(x, dim)), f"{variant} {rows}x{cols} dim {dim}"


# ------------------------------------------------------------------------------------- the subset for compute-sanitizer


def widths(size):
    return [width for width in (1, 2, 4, 8, 16) if width >= size]


def smallest(size):
    """The smallest problems that take each way of each kernel for elements of ``size`` bytes.

    Yields shape, dimensions, elements before the first, and whether the first dimension is an expanded one.
    """
    yield (1, 1), (-1,), 0, False
    for width in widths(size):  # three loads of exactly this width
        length = 3 * width // size
        yield (5, length), (-1,), 0, False
        yield (5, length), (0,), 0, False
        yield (3, 5, length), (0, 2), 0, False  # several runs of a row
        yield (3, 4, 5, length), (0, 2), 0, False  # several dimensions on both sides
    for start in (1, 3):  # the first element off a boundary, rows that reach all others, turns that are not whole
        yield (3, 257), (-1,), start, False
        yield (2, 16 * 600 // size + 5), (-1,), start, False
    yield (2, 16 * 600 // size), (-1,), 0, False
    yield (2, 16 * 6000 // size + 3), (-1,), 0, False
    yield (5, 48 // size), (-1,), 0, True  # rows in the same place, which are not read once
    yield (5, 48 // size), (0,), 0, True
    for distance in widths(size)[:-1]:  # rows that begin at 16 / distance places
        yield (70, (1024 + distance) // size), (0,), 0, False
    for loads in (4, 256, 512):  # one turn of a few lanes and of a block, whole turns of two blocks
        yield (3, loads * 16 // size), (-1,), 0, False
    lanes = 8 * 16 // size
    yield (600, lanes), (0,), 0, False  # a cluster a tile
    yield (600, 3 * lanes), (0,), 0, False  # a second pass
    yield (600, 3 * lanes - 1), (0,), 1, False  # by narrow loads, the last tile not whole
    yield (300, 9), (0,), 0, False


def make(shape, start, expanded, dtype, device):
    """An allocation of exactly these elements, so that memcheck sees a read past either end."""
    stored = (1, *shape[1:]) if expanded else shape
    flat = integers(math.prod(stored) + start, dtype, device, seed=start)
    return flat[start:].view(stored).expand(shape)


def planned(x, dims, variant, device):
    """An uninitialised result and the launches that write it, or None where the variant refuses.

    Loads are marked as read once from the L2's size on, so the second launch is that for a GPU without an L2.  The L2
    is asked to keep what is large enough to gain by it: in the third launch, anything.
    """
    dims = tuple(sorted(d % x.ndim for d in dims))
    dst = x.dtype if x.is_floating_point() else torch.int64
    out = x.new_empty([n for d, n in enumerate(x.shape) if d not in dims], dtype=dst)
    problem, arithmetic = Problem.of(x, dims, out, False), Arithmetic.of("sum", x.dtype, dst, None)
    try:
        found = [plan("f", problem, arithmetic, d, variant) for d in (device, replace(device, l2_bytes=0))]
        with mock.patch("forge_week1_reduce.rows.HELD_FROM", 0):
            return out, [*found, plan("f", problem, arithmetic, device, variant)]
    except UnsupportedError:
        return None


def ways_of(variant, config):
    if variant == "short":
        return {(config.width, config.once), ("held", config.held)}
    if variant == "column":
        way = "cluster" if config.blocks > 1 else "two passes" if config.finish else "alone"
        return {(config.width, config.shifts), way, ("once", config.once)}
    row = getattr(config, "row", config)
    return {(row.width, row.peel, row.outer_rank > 0), ("once", row.once), ("held", row.held)}


@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_the_smallest_problems_take_every_way(dtype):
    size = dtype.itemsize
    taken = {name: set() for name in ("short", "vectorized", "cluster", "split", "column")}
    for (shape, dims, start, expanded), variant in itertools.product(smallest(size), taken):
        found = planned(make(shape, start, expanded, dtype, "cpu"), dims, variant, SPECS["H200"])
        for config in {launch.config for launch in found[1]} if found else ():
            taken[variant] |= ways_of(variant, config)
    plain = {(width, False) for width in widths(size)}
    held = {("held", False), ("held", dtype.is_floating_point)}
    assert taken["short"] == {*plain, (16, True), *held}
    ways = {(16, True, False), *((width, False, True) for width in widths(size))}
    for variant in ("vectorized", "cluster", "split"):
        assert taken[variant] >= {*ways, (16, False, False), ("once", True), ("once", False)}
        asked = {way for way in taken[variant] if way[0] == "held"}
        assert asked == ({("held", False)} if variant == "split" else held)
    shifted = {(16, 16 // distance) for distance in widths(size)[:-1]}
    assert taken["column"] >= {*((w, 1) for w in widths(size)), *shifted, "alone", "cluster", "two passes"}
    assert taken["column"] >= {("once", True), ("once", False)}


@pytest.mark.gpu
@pytest.mark.sanitizer
@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("variant", ["auto", *VARIANTS])
def test_smallest_problems(variant, dtype):
    """The subset for compute-sanitizer; the test above says what it holds."""
    device, done = query(torch.device("cuda", 0)), 0
    for shape, dims, start, expanded in smallest(dtype.itemsize):
        x = make(shape, start, expanded, dtype, "cuda:0")
        found = planned(x, dims, variant, device)
        if found is None:
            continue
        want = x.double().sum(dims)
        got = week1.reduce_sum(x, dims, variant=variant)
        assert torch.equal(got, want.to(got.dtype)), (shape, dims, start)
        done += 1
        out, (own, *others) = found
        for other in others:
            if other.config == own.config:
                continue
            kernel = load(other.builder)(other.config, arch=device.arch)
            scratch = [torch.empty(other.workspace, dtype=torch.uint8, device="cuda:0")] if other.workspace else []
            pointers = [t.data_ptr() for t in (x, out.fill_(7), *scratch)]
            kernel(*pointers, *other.arguments, torch.cuda.current_stream().cuda_stream)
            assert torch.equal(out, want.to(out.dtype)), (shape, dims, start, other.config)
    assert done >= len(widths(dtype.itemsize))
