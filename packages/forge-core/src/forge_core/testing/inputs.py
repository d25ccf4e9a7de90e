"""Inputs for tests: random bits of any dtype, in every kind of layout."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence

import torch

__all__ = ["layouts", "matrix_to_plan", "random_bits", "relaid"]


def random_bits(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device | str = "cpu", *, seed: int = 0
) -> torch.Tensor:
    """A contiguous tensor of uniformly random bits; NaNs, infinities and negative zeros are among them.

    Args:
        shape: any, empty included.
        dtype: any dtype of whole bytes; bool elements are 0 or 1, the only bits that mean a truth value.
        device: where to make it.
        seed: the same seed, shape and dtype give the same bits on one kind of device.
    """
    generator = torch.Generator(device=device).manual_seed(seed)
    count = math.prod(shape) * dtype.itemsize
    high = 2 if dtype is torch.bool else 256
    raw = torch.randint(0, high, (count,), dtype=torch.uint8, device=device, generator=generator)
    return raw.view(dtype).reshape(tuple(shape))


def layouts(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device | str = "cpu", *, seed: int = 0
) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors of one shape with random bits, and every kind of strides that views make.

    Args:
        shape: any; a tensor of no elements, or of fewer than two dimensions, has fewer layouts.
        dtype: any dtype of whole bytes.
        device: where to make them.
        seed: see :func:`random_bits`.

    Yields:
        A name for test ids, and the tensor.
    """
    if len(shape) < 2:
        yield from _lines(shape, dtype, device, seed)
        return
    *batch, rows, cols = shape
    rank = len(shape)

    def fresh(*sizes: int) -> torch.Tensor:
        return random_bits(sizes, dtype, device, seed=seed)

    yield "contiguous", fresh(*shape)
    for offset in (1, 3):
        flat = fresh(math.prod(shape) + offset)
        yield f"offset_{offset}", flat[offset:].view(tuple(shape))
    yield "padded_rows", fresh(*batch, rows, cols + 1)[..., :cols]
    yield "padded_rows_aligned", fresh(*batch, rows, cols + 16)[..., :cols]
    yield "cut_columns", fresh(*batch, rows, cols + 5)[..., 2 : cols + 2]
    yield "every_second_column", fresh(*batch, rows, 2 * cols)[..., ::2]
    yield "every_second_row", fresh(*batch, 2 * rows, cols)[..., ::2, :]
    yield "transposed", fresh(*batch, cols, rows).transpose(-1, -2)
    yield "transposed_padded", fresh(*batch, cols, rows + 3)[..., :rows].transpose(-1, -2)
    yield "expanded_rows", fresh(*batch, 1, cols).expand(*shape)
    yield "expanded_columns", fresh(*batch, rows, 1).expand(*shape)
    yield "expanded_all", fresh(*(1 for _ in shape)).expand(*shape)
    if batch:
        yield "expanded_batch", fresh(*(1 for _ in batch), rows, cols).expand(*shape)
        yield "batch_last", fresh(rows, cols, *batch).permute(*range(2, rank), 0, 1)
        yield "batch_between", fresh(rows, *batch, cols).permute(*range(1, rank - 1), 0, rank - 1)
        yield "reversed", fresh(*reversed(shape)).permute(*reversed(range(rank)))


def matrix_to_plan(choose: random.Random, dtype: torch.dtype, *, longest: int = 2**22) -> torch.Tensor:
    """A matrix without memory, for what is to be planned and not run: any sizes and, mostly, whole chunks.

    Args:
        choose: where the sizes come from; small ones are as likely as large ones.
        dtype: any.
        longest: columns of the longest row.

    Returns:
        A tensor on ``meta`` of less than 2^31 elements: contiguous, transposed, or with a gap between its rows.
    """
    cols = int(2 ** choose.uniform(0, math.log2(longest)))
    if cols > 8 and choose.random() < 0.6:
        cols = cols // 8 * 8
    rows = int(2 ** choose.uniform(0, min(18, 31 - cols.bit_length())))
    layout = choose.choice(("contiguous", "contiguous", "contiguous", "transposed", "gap"))
    if layout == "transposed":
        return torch.empty(cols, rows, dtype=dtype, device="meta").t()
    gap = choose.choice((1, 2, 8)) if layout == "gap" else 0
    return torch.empty(rows, cols + gap, dtype=dtype, device="meta")[:, :cols]


def _lines(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device | str, seed: int
) -> Iterator[tuple[str, torch.Tensor]]:
    """The layouts of a vector, or of a scalar."""
    count = math.prod(shape)
    flat = random_bits((2 * count + 8,), dtype, device, seed=seed)
    yield "contiguous", random_bits(shape, dtype, device, seed=seed)
    for offset in (1, 3):
        yield f"offset_{offset}", flat[offset : offset + count].view(tuple(shape))
    if shape:
        yield "every_second", flat[2 : 2 + 2 * count : 2]
        yield "expanded_all", flat[:1].expand(count)


def relaid(x: torch.Tensor, *, seed: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    """The values of a tensor in the layouts of :func:`layouts`; between them lie random bits, NaNs among them.

    Args:
        x: any strides, dtype and device.
        seed: of the random bits.

    Yields:
        The layout's name, and the tensor; an expanded one repeats the first slice of ``x``.
    """
    for name, found in layouts(x.shape, x.dtype, x.device, seed=seed):
        values, target = x, found
        for dim, (size, step) in enumerate(zip(found.shape, found.stride(), strict=True)):
            if step == 0 and size > 1:
                values, target = values.narrow(dim, 0, 1), target.narrow(dim, 0, 1)
        target.copy_(values)
        yield name, found
