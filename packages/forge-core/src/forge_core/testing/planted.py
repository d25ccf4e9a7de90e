"""Planted wrong operators, which the checks must reject: tests of the tests.

Each fault takes the right operator and returns one with a fault that real kernels have had.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Call = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Planted:
    """A fault, and the check of the battery that must find it.

    Attributes:
        plant: takes the right operator and returns the wrong one.
        found_by: the check's name.
        gpu: whether the fault shows on a GPU only.
    """

    plant: Callable[[Call], Call]
    found_by: str = "values"
    gpu: bool = False

    @property
    def name(self) -> str:
        """The fault's name in test ids."""
        return getattr(self.plant, "__name__", "fault")


def _of_result(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Call], Call]:
    """A fault that changes the right operator's result, or a copy that it may write."""

    @functools.wraps(change)
    def plant(right: Call) -> Call:
        return lambda *args, **kwargs: change(right(*args, **kwargs).clone())

    return plant


def _flat(dense: torch.Tensor) -> torch.Tensor:
    """The elements in memory order, so that a fault of values keeps the strides."""
    return dense.as_strided((dense.numel(),), (1,))


@_of_result
def last_tile_dropped(out: torch.Tensor) -> torch.Tensor:
    """The grid was rounded down, so the last elements are never written."""
    flat = _flat(out).view(torch.uint8)
    tail = flat[-max(1, min(flat.numel() // 4, 32)) :]
    tail.copy_(tail ^ 0xA5 if out.dtype is not torch.bool else tail ^ 1)
    return out


def input_returned(right: Call) -> Call:
    """The launch did nothing, and the output holds the input in the input's order."""

    def wrong(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return x.contiguous().view(-1).view(right(x, *args, **kwargs).shape).clone()

    return wrong


@_of_result
def one_element_flipped(out: torch.Tensor) -> torch.Tensor:
    """A race between two blocks flips a single bit of a single element."""
    flat = _flat(out).view(torch.uint8)
    middle = flat.numel() // 2
    flat[middle] = flat[middle] ^ 1
    return out


@_of_result
def shifted_by_one(out: torch.Tensor) -> torch.Tensor:
    """An off-by-one in the index map."""
    flat = _flat(out)
    flat.copy_(flat.roll(1))
    return out


@_of_result
def strides_of_input(out: torch.Tensor) -> torch.Tensor:
    """The values are right, but a view is returned instead of a contiguous result."""
    return out.transpose(-1, -2).contiguous().transpose(-1, -2)


def stale_output(right: Call) -> Call:
    """The first call's output is returned again: what a captured graph that launches nothing does."""
    kept: list[torch.Tensor] = []

    def wrong(*args: Any, **kwargs: Any) -> torch.Tensor:
        out = right(*args, **kwargs)
        if not kept or kept[0].shape != out.shape or kept[0].dtype != out.dtype:
            kept[:] = [out]
        return kept[0]

    return wrong


def frozen_input(right: Call) -> Call:
    """Computes from a copy of the first call's input: a graph that was captured with the wrong address."""
    kept: list[torch.Tensor] = []

    def wrong(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not kept or kept[0].shape != x.shape:
            kept[:] = [x.clone()]
        return right(kept[0], *args, **kwargs)

    return wrong


def forgotten_stream(right: Call) -> Call:
    """Launches on a stream of its own and waits for nothing (GPU only)."""
    own: list[torch.cuda.Stream] = []

    def wrong(*args: Any, **kwargs: Any) -> torch.Tensor:
        if not own:
            own.append(torch.cuda.Stream())
        with torch.cuda.stream(own[0]):
            return right(*args, **kwargs)

    return wrong


def offset_ignored(right: Call) -> Call:
    """Reads the first tensor from the aligned address below its first element."""

    def wrong(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        start = x.storage_offset() - x.storage_offset() % max(1, 16 // x.element_size())
        return right(x.as_strided(x.shape, x.stride(), start), *args, **kwargs)

    return wrong


def strides_ignored(right: Call) -> Call:
    """Reads the first tensor as if it were contiguous."""

    def wrong(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        dense = torch.empty(x.shape, device="meta").stride()
        reach = 1 + sum((size - 1) * step for size, step in zip(x.shape, dense, strict=True))
        if x.storage_offset() + reach > x.untyped_storage().nbytes() // x.element_size():
            # A kernel would read past the storage; here it reads zeros.
            return right(torch.zeros(x.shape, dtype=x.dtype, device=x.device), *args, **kwargs)
        return right(x.as_strided(x.shape, dense), *args, **kwargs)

    return wrong


def _smallest_tenth(out: torch.Tensor) -> torch.Tensor:
    """Marks the smallest tenth by magnitude, at least one, of the finite results that are not 0."""
    size = out.double().abs()
    size = torch.where((size > 0) & size.isfinite(), size, float("inf"))
    count = max(1, int(size.isfinite().sum()) // 10)
    limit = size.flatten().kthvalue(count).values if size.numel() else size
    return (size <= limit) & size.isfinite()


@_of_result
def small_results_zeroed(out: torch.Tensor) -> torch.Tensor:
    """Small results are lost, which an allowance proportional to the largest result would not notice."""
    return out.masked_fill(_smallest_tenth(out), 0)


@_of_result
def small_results_doubled(out: torch.Tensor) -> torch.Tensor:
    """Small results are off by a factor of 2: an exponent of a subnormal or a rescaled partial result is wrong."""
    return torch.where(_smallest_tenth(out), 2 * out, out)


@_of_result
def one_row_scaled(out: torch.Tensor) -> torch.Tensor:
    """One row, or one result where there are no rows, is off by a factor of 1 + 2^-7: a wrong constant of that row."""
    if out.numel():
        # The row that holds the largest result, so that the change is not below a reduction's bound.
        largest = int(out.abs().reshape(-1).argmax())
        row = out[largest // (out.numel() // out.shape[0])] if out.ndim else out
        row.copy_(row.double() * (1 + 2**-7))
    return out


#: The formats that results are rounded to on the way; 16-bit results are scaled instead.
NARROWER = {torch.float64: torch.float32, torch.float32: torch.bfloat16}


def rounded_twice(right: Call) -> Call:
    """Results go through a narrower format first: fp64 through fp32, fp32 through bf16.

    16-bit results are scaled by 3/4, rounded, divided by 3/4 and rounded again.  All are computed from float64 inputs,
    so that only the two roundings separate them from the right results.
    """

    def wrong(*args: Any, **kwargs: Any) -> torch.Tensor:
        dtype = right(*args, **kwargs).dtype
        wide = right(*(a.double() if isinstance(a, torch.Tensor) else a for a in args), **kwargs)
        if dtype in NARROWER:
            return wide.to(NARROWER[dtype]).to(dtype)
        return ((0.75 * wide).to(dtype).double() / 0.75).to(dtype)

    return wrong


def tangent_lost(right: Call) -> Call:
    """Computes the value and drops the tangent, as a registered operator without a rule for it does."""

    def wrong(*args: Any, **kwargs: Any) -> torch.Tensor:
        return right(*(a.detach() if isinstance(a, torch.Tensor) else a for a in args), **kwargs)

    return wrong


#: Faults that are planted in every operator; those of ``float64_error`` must be found in every floating dtype.
GENERAL = (
    Planted(last_tile_dropped),
    Planted(shifted_by_one),
    Planted(stale_output),
    Planted(offset_ignored, "misaligned_offset"),
    Planted(strides_ignored, "strides"),
    Planted(frozen_input, "graph_replay", gpu=True),
    Planted(forgotten_stream, "side_stream", gpu=True),
    Planted(tangent_lost, "forward_mode"),
    Planted(small_results_zeroed, "float64_error"),
    Planted(small_results_doubled, "float64_error"),
    Planted(one_row_scaled, "float64_error"),
    Planted(rounded_twice, "float64_error"),
)

#: Further faults for operators that only move data, bit for bit, and whose input is not symmetric.
MOVED = (Planted(input_returned), Planted(one_element_flipped), Planted(strides_of_input))
