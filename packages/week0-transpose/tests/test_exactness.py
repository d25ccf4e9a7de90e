"""Every bit of every element: dtypes, shapes around each tile boundary, layouts, batches; on the CPU and on a GPU."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import forge_week0_transpose as week0
from forge_core.dtypes import MOVABLE
from forge_core.errors import UnsupportedError
from forge_core.testing import assert_same_bits, random_bits

DTYPES = sorted(MOVABLE, key=str)
# One dtype for each element size: a kernel sees the size and nothing else of a dtype.
SIZES = (torch.uint8, torch.bfloat16, torch.float32, torch.float64, torch.complex128)
DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))

#: One below, at and above every tile edge and vector width; 0 and 1; primes; and the threshold between skinny and
#: wide matrices.
EDGES = (0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 255, 256, 257)


def expected_transpose(x: torch.Tensor) -> torch.Tensor:
    """Written apart from ref.py, so that a wrong reference cannot vouch for itself."""
    return x.transpose(-1, -2).contiguous().clone(memory_format=torch.contiguous_format)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype: torch.dtype, device: str) -> None:
    for shape in ((37, 53), (64, 128), (3, 70, 40), (256, 256)):
        x = random_bits(shape, dtype, device)
        assert_same_bits(week0.transpose(x), expected_transpose(x), what=f"transpose {shape}")
        assert_same_bits(week0.copy(x), x, what=f"copy {shape}")
        for tile in (16, 32):
            assert_same_bits(week0.copy_transpose(x, tile), expected_transpose(x), what=f"tile {tile} {shape}")


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
    short, long = sorted((rows, cols))
    if variant in ("naive", "tiled") or short == 0:
        return True
    if variant == "rows":
        return short == 1
    if variant == "realigned":
        return short == 1 and itemsize <= 8
    if variant == "lines":
        return 2 <= short <= 64
    if variant == "skinny":
        return 2 <= short <= 8 and long >= 2048 and itemsize <= 8 and long * itemsize % 16 == 0
    if variant == "shifted":
        return short >= 2 and itemsize <= 8 and cols * itemsize >= 16
    assert variant == "vectorized"
    return short >= 2 and rows * itemsize % 16 == 0 and cols * itemsize % 16 == 0


#: Long matrices with a short side, around what a block of the skinny kernel takes and of the one for lines.
LONG = [
    shape for n in (*range(2, 10), 27, 64, 65) for m in (2047, 2048, 2049, 2064, 5008) for shape in ((n, m), (m, n))
]


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
    for lines, length, begin, gap in itertools.product((2, 3, 9, 31, 64), (65, 1000, 4099), (0, 1, 3), (0, 1, 5)):
        storage = random_bits((begin + lines * (length + gap),), dtype, "cuda", seed=lines * length)
        rows = storage[begin:].view(lines, length + gap)[:, :length]
        what = f"{lines} lines of {length}, {gap} apart, from element {begin}"
        assert_same_bits(week0.transpose(rows, variant="lines"), expected_transpose(rows), what=what)
        columns, out = expected_transpose(rows), random_bits(storage.shape, dtype, "cuda")
        kept = out.clone()
        kept[begin:].view(lines, length + gap)[:, :length] = rows
        week0.transpose_out(columns, out[begin:].view(lines, length + gap)[:, :length], variant="lines")
        assert_same_bits(out, kept, what=f"the inverse of {what}, and all around it")


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


@pytest.mark.parametrize("device", DEVICES)
def test_many_dimensions(device: str) -> None:
    x = random_bits((2, 3, 2, 2, 3, 2, 2, 5, 7), torch.int16, device)
    for permuted in (x, x.permute(8, 6, 4, 2, 0, 1, 3, 5, 7), x.permute(1, 0, 3, 2, 5, 4, 7, 6, 8)):
        assert_same_bits(week0.transpose(permuted), expected_transpose(permuted))
        assert_same_bits(week0.copy(permuted), permuted.clone(memory_format=torch.contiguous_format))


@pytest.mark.parametrize("device", DEVICES)
def test_scalars_and_vectors_are_copied(device: str) -> None:
    for shape in ((), (1,), (17,)):
        x = random_bits(shape, torch.float32, device)
        assert_same_bits(week0.copy(x), x)


@pytest.mark.parametrize("device", DEVICES)
def test_a_conjugated_view_is_materialised(device: str) -> None:
    x = random_bits((33, 17), torch.complex64, device).conj()
    assert_same_bits(week0.transpose(x), x.resolve_conj().transpose(-1, -2).contiguous())
    negated = torch.view_as_complex(torch.randn(8, 4, 2, device=device)).conj().imag
    assert negated.is_neg()
    assert_same_bits(week0.transpose(negated), negated.resolve_neg().transpose(-1, -2).contiguous())


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
