"""Inputs of tests: random bits of any dtype in every layout; small sets of calls for compute-sanitizer."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch

Call = TypeVar("Call", bound=Hashable)

#: Layouts that are drawn: contiguous; the last two dimensions swapped in memory; one element past an aligned address;
#: rows of a wider matrix; every second column.
LAYOUTS = ("contiguous", "permuted", "offset", "sliced", "stepped")
_WEIGHTS = (12, 2, 2, 2, 2)


def random_bits(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device | str = "cpu", *, seed: int = 0
) -> torch.Tensor:
    """A contiguous tensor of uniformly random bits; NaNs, infinities and negative zeros are among them.

    Args:
        shape: any, empty included.
        dtype: any dtype of whole bytes; bool elements are 0 or 1, the only valid ones.
        device: of the tensor.
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
    """Tensors of one shape with random bits, in every layout that views produce, by name.

    The arguments are those of :func:`random_bits`; fewer than two dimensions have fewer layouts.
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


def log_uniform(choose: random.Random, least: int, most: int) -> int:
    """A random size from ``least`` to ``most``, as often below their geometric mean as above it."""
    return min(most, round(math.exp(choose.uniform(math.log(least), math.log(max(least, most))))))


def random_shape(choose: random.Random, elements: int, rank: int) -> tuple[int, ...]:
    """Log-uniform sizes of about so many elements, the last one drawn first."""
    sizes: list[int] = []
    for _ in range(rank - 1):
        sizes.insert(0, log_uniform(choose, 1, elements))
        elements = max(1, elements // sizes[0])
    return (elements, *sizes)[:rank]


def random_layout(choose: random.Random) -> str:
    """One of ``LAYOUTS``, most often the first."""
    (layout,) = choose.choices(LAYOUTS, _WEIGHTS)
    return layout


def in_layout(fresh: Callable[[tuple[int, ...]], torch.Tensor], shape: Sequence[int], layout: str) -> torch.Tensor:
    """A tensor in one of ``LAYOUTS``, a view of what ``fresh`` makes; contiguous where its shape has none such."""
    *batch, cols = shape or (1,)
    if layout == "permuted" and batch:
        *batch, rows = batch
        return fresh((*batch, cols, rows)).transpose(-1, -2)
    if layout == "offset":
        return fresh((math.prod(shape) + 1,))[1:].view(tuple(shape))
    if layout == "sliced" and batch:
        return fresh((*batch, cols + 1))[..., :-1]
    if layout == "stepped" and shape:
        return fresh((*batch, 2 * cols))[..., ::2]
    return fresh(tuple(shape))


def matrix_to_plan(choose: random.Random, dtype: torch.dtype, *, longest: int = 2**22) -> torch.Tensor:
    """A random matrix on ``meta`` of less than 2^31 elements: contiguous, transposed, or with padded rows.

    Its sizes are log-uniform, ``longest`` columns at most, and mostly multiples of 8.
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
    """The values of ``x`` in each of :func:`layouts`, by name, with random bits in the gaps.

    An expanded layout repeats the first slice of ``x``.
    """
    for name, found in layouts(x.shape, x.dtype, x.device, seed=seed):
        values, target = x, found
        for dim, (size, step) in enumerate(zip(found.shape, found.stride(), strict=True)):
            if step == 0 and size > 1:
                values, target = values.narrow(dim, 0, 1), target.narrow(dim, 0, 1)
        target.copy_(values)
        yield name, found


# compute-sanitizer is slow, so it runs the few calls whose configurations together have every trait (alignment, lanes,
# blocks, ...) of all small calls.


def traits(config: Any) -> set[tuple[str, Any]]:
    """The fields of a row kernel's configuration that decide its addresses and its exchanges."""
    names = ("align", "lanes", "blocks", "rank", "reduced", "held")
    found = {(name, getattr(config, name, None)) for name in names}
    return {*found, ("staged", getattr(config, "staged", 0) > 0), ("chunks", min(getattr(config, "chunks", 1), 2))}


def cover(calls: Mapping[Call, set[tuple[str, Any]]], sizes: Mapping[Call, int]) -> list[Call]:
    """A greedy set cover: a subset of calls with all traits (``calls``), small ones first (``sizes``, in elements)."""
    left: set[tuple[str, Any]] = set().union(*calls.values())
    chosen: list[Call] = []
    while left:
        chosen.append(max(calls, key=lambda call: (len(calls[call] & left), -sizes[call])))
        left -= calls[chosen[-1]]
    return chosen


def placed(values: torch.Tensor, offset: int, device: str) -> torch.Tensor:
    """The values behind ``offset`` elements, at the end of an allocation, so that memcheck sees a read past them."""
    flat = torch.empty(values.numel() + offset, dtype=values.dtype, device=device)
    flat[offset:] = values.reshape(-1).to(device)
    return flat[offset:].view(values.shape)
