"""What is the transposition's own beside what every operator has: dtypes, views, tile sizes, and examples of vmap."""

from __future__ import annotations

import pytest
import torch

import forge_week0_transpose as week0
from forge_core.dtypes import MOVABLE
from forge_core.errors import ArgumentError, LayoutError, ShapeError
from forge_core.testing import assert_same_bits, random_bits

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
each_device = pytest.mark.parametrize("device", DEVICES)


def transposed(x):
    return x.transpose(-1, -2).contiguous()


@each_device
@pytest.mark.parametrize("dtype", sorted(MOVABLE, key=str), ids=str)
def test_every_dtype(dtype, device):
    for shape in ((37, 53), (64, 128), (3, 70, 40), (256, 256)):
        x = random_bits(shape, dtype, device)
        assert_same_bits(week0.transpose(x), transposed(x), what=f"transpose {shape}")
        assert_same_bits(week0.copy(x), x, what=f"copy {shape}")
        for tile in (16, 32):
            assert_same_bits(week0.copy_transpose(x, tile), transposed(x), what=f"tile {tile} {shape}")


@each_device
def test_any_number_of_dimensions(device):
    x = random_bits((2, 3, 2, 2, 3, 2, 2, 5, 7), torch.int16, device)
    for permuted in (x, x.permute(8, 6, 4, 2, 0, 1, 3, 5, 7), x.permute(1, 0, 3, 2, 5, 4, 7, 6, 8)):
        assert_same_bits(week0.transpose(permuted), transposed(permuted))
        assert_same_bits(week0.copy(permuted), permuted.clone(memory_format=torch.contiguous_format))
    for shape in ((), (1,), (17,)):
        x = random_bits(shape, torch.float32, device)
        assert_same_bits(week0.copy(x), x)


@each_device
def test_a_conjugated_or_negated_view_is_materialised(device):
    x = random_bits((33, 17), torch.complex64, device).conj()
    assert_same_bits(week0.transpose(x), transposed(x.resolve_conj()))
    negated = torch.view_as_complex(torch.randn(8, 4, 2, device=device)).conj().imag
    assert negated.is_neg()
    assert_same_bits(week0.transpose(negated), transposed(negated.resolve_neg()))


@each_device
def test_autocast_changes_nothing(device):
    x = torch.randn(3, 5, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert week0.transpose(x).dtype is torch.float32
        assert week0.copy(x.half()).dtype is torch.float16


@each_device
def test_examples_of_vmap(device):
    x = torch.randn(0, 3, 4, device=device)
    assert torch.vmap(week0.transpose)(x).shape == (0, 4, 3)
    assert torch.vmap(week0.copy)(x).shape == (0, 3, 4)
    with pytest.raises(ShapeError, match="at least 2 dimensions in each example, got 1"):
        torch.vmap(week0.transpose)(torch.randn(3, 4, device=device))


@each_device
def test_what_is_refused(device):
    x = torch.zeros(3, 4, device=device)
    for call in (week0.transpose, week0.copy_transpose):
        for line in (x[0], x[0, 0]):
            with pytest.raises(ShapeError, match=r"transpose: argument 'x': expected at least 2 dimensions, got [01]"):
                call(line)
    for tile in (0, 8, 16.0, "16"):
        with pytest.raises(ArgumentError, match=r"copy_transpose: argument 'tile_size'.*expected.*got"):
            week0.copy_transpose(x, tile)
    jagged = torch.nested.nested_tensor([torch.zeros(2, 3), torch.zeros(4, 3)], device=device, layout=torch.jagged)
    with pytest.raises(LayoutError, match=r"transpose: argument 'x'"):
        week0.transpose(jagged)
    conjugated = torch.zeros(4, 3, dtype=torch.complex64, device=device).conj()
    with pytest.raises(ArgumentError, match=r"transpose_out: argument 'out'.*conjugated"):
        week0.transpose_out(torch.zeros(3, 4, dtype=torch.complex64, device=device), conjugated)
