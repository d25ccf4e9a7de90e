"""Every bit of every element, by each kernel: at every edge of its tiles, of the largest sizes, under a sanitizer."""

from __future__ import annotations

import contextlib
import itertools
import math
from typing import Any

import pytest
import torch

import forge_week0_transpose as week0
from forge_core.errors import UnsupportedError
from forge_core.testing import assert_same_bits, random_bits
from forge_core.testing.inputs import cover

# One dtype for each element size: a kernel sees the size and nothing else of a dtype.
SIZES = (torch.uint8, torch.bfloat16, torch.float32, torch.float64, torch.complex128)
DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))

#: One below, at and above every tile edge and vector width; 0 and 1; primes; and the most lines of ``lines``.
EDGES = (0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 255, 256, 257)


def expected_transpose(x: torch.Tensor) -> torch.Tensor:
    """Written apart from ref.py, so that a wrong reference cannot vouch for itself."""
    return x.transpose(-1, -2).contiguous().clone(memory_format=torch.contiguous_format)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", SIZES, ids=str)
def test_shapes_around_every_tile_edge(dtype: torch.dtype, device: str) -> None:
    edges = EDGES if device == "cuda" else EDGES[:18]
    for rows, cols in itertools.product(edges, edges):
        x = random_bits((rows, cols), dtype, device, seed=rows * 1000 + cols)
        assert_same_bits(week0.transpose(x), expected_transpose(x), what=f"transpose {rows}x{cols}")
        assert_same_bits(week0.copy(x), x, what=f"copy {rows}x{cols}")


def promised(variant: str, rows: int, cols: int, itemsize: int) -> bool:
    """What a variant's documentation says that it can transpose; here it must, elsewhere it may refuse.

    ``rows`` and ``cols`` are those of the matrix in memory: a permuted view that is copied has them the other way.
    """
    short = min(rows, cols)
    if variant in ("naive", "tiled") or short == 0:
        return True
    if variant == "rows":
        return short == 1
    if variant == "realigned":
        return short == 1 and itemsize <= 8
    if variant == "lines":
        return 2 <= short <= 128
    if variant == "shifted":
        return short >= 2 and itemsize <= 8 and cols * itemsize >= 16
    assert variant == "vectorized"
    return short >= 2 and rows * itemsize % 16 == 0 and cols * itemsize % 16 == 0


#: Long matrices with a short side, around tiles of ``lines`` of every number of loads; the last are many tiles.
LONG = [*itertools.product((*range(2, 10), 27, 64, 65, 127, 128), (2047, 2048, 2049, 2064, 5008))]
LONG = [shape for n, m in (*LONG, (3, 400_001), (65, 100_001)) for shape in ((n, m), (m, n))]


def served(op: Any, x: torch.Tensor, variant: str, promise: bool) -> torch.Tensor | None:
    """What a variant gives; None where it refuses and had not promised."""
    try:
        return op(x, variant=variant)  # type: ignore[no-any-return]
    except UnsupportedError:
        if promise:
            raise
        return None


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", SIZES, ids=str)
@pytest.mark.parametrize("variant", week0.transpose.variants())
def test_each_variant_at_every_edge(variant: str, dtype: torch.dtype) -> None:
    done = 0
    for rows, cols in [*itertools.product(EDGES, EDGES), *LONG]:
        x = random_bits((rows, cols), dtype, "cuda", seed=rows * 1000 + cols)
        result = served(week0.transpose, x, variant, promised(variant, rows, cols, dtype.itemsize))
        if result is not None:
            assert_same_bits(result, expected_transpose(x), what=f"{variant} {rows}x{cols}")
            done += 1
        permuted = random_bits((cols, rows), dtype, "cuda", seed=rows * 1000 + cols).t()
        copied = {"rows": "vectorized", "realigned": "realigned", "naive": "naive"}.get(variant, f"permuted_{variant}")
        copy = served(week0.copy, permuted, copied, promised(variant, cols, rows, dtype.itemsize))
        if copy is not None:
            assert_same_bits(copy, permuted.contiguous(), what=f"{variant} of a permuted {rows}x{cols}")
            done += 1
    assert done > 2 * len(EDGES)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", SIZES, ids=str)
def test_lines_that_begin_anywhere(dtype: torch.dtype) -> None:
    for lines, length, begin, gap in itertools.product((2, 3, 9, 31, 64, 127), (65, 1000, 4099), (0, 1, 3), (0, 1, 5)):
        storage = random_bits((begin + lines * (length + gap),), dtype, "cuda", seed=lines * length)
        rows = storage[begin:].view(lines, length + gap)[:, :length]
        what = f"{lines} lines of {length}, {gap} apart, from element {begin}"
        assert_same_bits(week0.transpose(rows, variant="lines"), expected_transpose(rows), what=what)
        columns, out = expected_transpose(rows), random_bits(storage.shape, dtype, "cuda")
        kept = out.clone()
        kept[begin:].view(lines, length + gap)[:, :length] = rows
        week0.transpose_out(columns, out[begin:].view(lines, length + gap)[:, :length], variant="lines")
        assert_same_bits(out, kept, what=f"the inverse of {what}, and all around it")
        apart = min(lines + gap, 2 * lines, 128)
        end = begin + (length - 1) * apart + lines  # no gap behind the last row
        sliced = random_bits((end,), dtype, "cuda", seed=end)[begin:].as_strided((length, lines), (apart, 1))
        what = f"{length} rows of {lines} columns, {apart} apart, from element {begin}"
        assert_same_bits(week0.transpose(sliced, variant="lines"), expected_transpose(sliced), what=what)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", SIZES, ids=str)
@pytest.mark.parametrize("variant", ["naive", "vectorized", "realigned"])
def test_each_copy_variant(variant: str, dtype: torch.dtype) -> None:
    for shape in [(n,) for n in (*EDGES, 1000, 4099, 65536, 100003)] + [(7, n) for n in EDGES]:
        x = random_bits(shape, dtype, "cuda", seed=sum(shape))
        if variant == "realigned" and dtype.itemsize > 8 and x.numel():
            with pytest.raises(UnsupportedError, match="elements of at most 8 bytes"):
                week0.copy(x, variant=variant)
            continue
        assert_same_bits(week0.copy(x, variant=variant), x, what=f"{variant} {shape}")


@pytest.mark.gpu
@pytest.mark.large(16)
@pytest.mark.parametrize("shape", [(65537, 32771), (3, 2**30 - 37), (2**21 + 1, 1031), (2, 32768, 32769)], ids=str)
def test_more_than_two_to_the_31_elements(shape: tuple[int, ...]) -> None:
    x = random_bits(shape, torch.int8, "cuda")
    assert x.numel() > 2**31
    assert_same_bits(week0.transpose(x), expected_transpose(x))


@pytest.mark.gpu
@pytest.mark.large(8)
@pytest.mark.parametrize("shape", [(65536, 16, 64), (32, 65536 * 64), (65536 * 64, 72), (2, 65536 * 64, 72)], ids=str)
def test_more_tiles_than_the_other_dimensions_of_a_grid_hold(shape: tuple[int, ...]) -> None:
    x = random_bits(shape, torch.float32, "cuda")
    assert week0.transpose.explain(x, variant="vectorized").config.flat
    assert_same_bits(week0.transpose(x, variant="vectorized"), expected_transpose(x))


@pytest.mark.gpu
@pytest.mark.large(24)
def test_copy_of_more_than_two_to_the_31_elements() -> None:
    x = random_bits((2**31 + 12345,), torch.int8, "cuda")
    assert_same_bits(week0.copy(x), x)
    strided = random_bits((2**16 + 1, 2**16), torch.int8, "cuda")[:, 1:40000]
    assert_same_bits(week0.copy(strided), strided.clone(memory_format=torch.contiguous_format))


@pytest.mark.gpu
@pytest.mark.large(24)
@pytest.mark.parametrize("variant", ["naive", "tiled", "auto"])
def test_strides_past_two_to_the_31(variant: str) -> None:
    storage = random_bits((3, 2**30 + 8), torch.int16, "cuda")
    x = storage[:, : 2**10]  # few elements, far apart
    assert_same_bits(week0.transpose(x, variant=variant), expected_transpose(x))
    y = storage.view(-1)[: 3 * 2**30].view(3, 2**10, 2**20)[:, :, :50]
    assert_same_bits(week0.transpose(y, variant=variant), expected_transpose(y))


# -------------------------------------------------------------------------------------------------------- sanitizers

DTYPE_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}

#: Sizes, and the elements by which the tensor begins behind its allocation: whole tiles and parts of them; rows of
#: whole chunks, of halves and quarters, and such that begin anywhere; few rows and columns, single ones; batches, the
#: last two with one matrix and two for each multiprocessor.
SMALLEST = (
    *((1, 1, 0), (16, 32, 0), (48, 80, 0), (3, 17, 19, 0), (3, 5, 1), (33, 17, 1), (2, 3, 33, 21, 1), (16, 16, 0)),
    *((272, 288, 0), (256, 264, 0), (3, 32, 48, 0), (168, 176, 0), (84, 88, 0), (42, 44, 0), (21, 22, 0)),
    *((82, 86, 0), (41, 43, 0), (172, 164, 0), (86, 88, 0), (44, 42, 0), (176, 172, 0), (43, 44, 0), (22, 21, 0)),
    *((129, 67, 0), (272, 261, 3), (259, 272, 0), (256, 261, 0), (3, 65, 67, 1), (3, 17, 1), (2, 2100, 0)),
    *((2051, 3, 0), (2051, 3, 1), (8, 2048, 0), (2048, 7, 0), (2048, 7, 1), (2, 3, 2048, 0), (1, 77, 0), (33, 1, 1)),
    *((1, 300, 3), (3, 2064, 0), (2064, 3, 0), (164, 172, 0), (2, 2100, 1)),
    *((2, 9, 513, 1), (128, 131, 3), (131, 64, 1), (132, 8, 72, 0), (264, 27, 25, 0)),
)


def small_call(size: int, shape: tuple[int, ...], device: str) -> torch.Tensor:
    """An input in an allocation that ends with it, so that memcheck sees a read past its end.

    What lies before it has a value: kernels read the 16 bytes at a boundary that hold its first element.
    """
    *sizes, offset = shape
    return random_bits((math.prod(sizes) + offset,), DTYPE_OF_SIZE[size], device, seed=size)[offset:].view(sizes)


def subset(variant: str, arch: str | None = None) -> tuple[list[tuple[int, tuple[int, ...]]], dict[str, set[object]]]:
    """Few of the smallest calls that have together every figure of a configuration that any of them has, and which."""
    able = {}
    for case in itertools.product(DTYPE_OF_SIZE, SMALLEST):
        x = small_call(*case, "cpu" if arch else "cuda")
        with contextlib.suppress(UnsupportedError):
            config = week0.transpose.explain(x, variant=variant, arch=arch).config
            figures = vars(config) | {"shape": case[1]}
            able[case] = {*figures.items(), *((f"{name} by size", (case[0], n)) for name, n in vars(config).items())}
    wanted: dict[str, set[object]] = {}
    for name, value in set().union(*able.values()):
        wanted.setdefault(name, set()).add(value)
    return cover(able, {case: math.prod(case[1][:-1]) for case in able}), wanted


def test_the_subset_holds_every_width() -> None:
    """The smallest shapes reach every width of access that a kernel is compiled for."""
    _, wanted = subset("vectorized", "sm_90a")
    widths = {(size, width) for size in DTYPE_OF_SIZE for width in (8, 16) if width >= size}
    assert wanted["src_width by size"] == widths - {(1, 16)}  # those are for the largest tile alone
    assert wanted["batch_rank"] == {0, 1}
    _, wanted = subset("shifted", "sm_90a")
    assert wanted["src_shift"] == wanted["dst_shift"] == {True, False}
    _, wanted = subset("lines", "sm_90a")
    assert wanted["gather by size"] == set(itertools.product(DTYPE_OF_SIZE, (True, False)))
    assert wanted["batch_rank"] == {0, 1}
    shortest = {min(shape[-3:-1]) for shape in wanted["shape"]}
    assert {2, 64, 128} <= shortest <= set(range(2, 129))
    assert wanted["loads"] == {1, 2, 4, 8}


@pytest.mark.gpu
@pytest.mark.sanitizer
@pytest.mark.parametrize("variant", ["auto", *week0.transpose.variants()])
def test_smallest_shapes(variant: str) -> None:
    """The subset for compute-sanitizer; the test above says what it holds."""
    for size, shape in subset(variant)[0]:
        x = small_call(size, shape, "cuda")
        assert_same_bits(week0.transpose(x, variant=variant), expected_transpose(x), what=f"{size} bytes {shape}")


@pytest.mark.gpu
@pytest.mark.sanitizer
@pytest.mark.parametrize("size", DTYPE_OF_SIZE)
@pytest.mark.parametrize("offset", [0, 1])
def test_smallest_outs(offset: int, size: int) -> None:
    x = random_bits((2, 33, 48), DTYPE_OF_SIZE[size], "cuda")
    for pitch in (33, 36, 48):
        storage = random_bits((2 * 48 * pitch + offset,), DTYPE_OF_SIZE[size], "cuda", seed=1)
        out = storage[offset:].view(2, 48, pitch)[..., :33]
        week0.transpose_out(x, out)
        assert_same_bits(out.contiguous(), expected_transpose(x))


@pytest.mark.gpu
@pytest.mark.sanitizer
@pytest.mark.parametrize("variant", ["auto", "naive", "vectorized", "realigned"])
@pytest.mark.parametrize("size", DTYPE_OF_SIZE)
def test_smallest_copies(size: int, variant: str) -> None:
    if variant == "realigned" and size > 8:
        with pytest.raises(UnsupportedError, match="elements of at most 8 bytes"):
            week0.copy(torch.zeros(4, dtype=DTYPE_OF_SIZE[size], device="cuda"), variant=variant)
        return
    for count, offset in ((1, 0), (5, 1), (64, 0), (4099, 3)):
        x = random_bits((count + offset,), DTYPE_OF_SIZE[size], "cuda")[offset:]
        assert_same_bits(week0.copy(x, variant=variant), x.clone())
    pitched = random_bits((7, 40), DTYPE_OF_SIZE[size], "cuda")[:, 3:36]
    assert_same_bits(week0.copy(pitched, variant=variant), pitched.contiguous())
