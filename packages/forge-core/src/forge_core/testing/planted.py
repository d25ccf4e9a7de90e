"""Planted wrong operators: what the oracle must refuse, so that the tests are tested.

Each takes the right operator and gives one with a fault that real kernels have had.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = ["PLANTED", "forgotten_stream"]

Unary = Callable[[torch.Tensor], torch.Tensor]


def last_tile_dropped(right: Unary) -> Unary:
    """The grid was rounded down, so the last elements are never written."""

    def wrong(x: torch.Tensor) -> torch.Tensor:
        out = right(x).clone()
        flat = out.view(-1).view(torch.uint8)
        tail = flat[-max(1, min(flat.numel() // 4, 32)) :]
        tail.copy_(tail ^ 0xA5 if x.dtype is not torch.bool else tail ^ 1)
        return out

    return wrong


def input_returned(right: Unary) -> Unary:
    """The launch did nothing, and the output holds the input in its own order."""

    def wrong(x: torch.Tensor) -> torch.Tensor:
        return x.contiguous().view(-1).view(right(x).shape).clone()

    return wrong


def one_element_flipped(right: Unary) -> Unary:
    """A race between two blocks spoils a single bit of a single element."""

    def wrong(x: torch.Tensor) -> torch.Tensor:
        out = right(x).clone()
        flat = out.view(-1).view(torch.uint8)
        middle = flat.numel() // 2
        flat[middle] = flat[middle] ^ 1
        return out

    return wrong


def shifted_by_one(right: Unary) -> Unary:
    """An off-by-one in the index map."""

    def wrong(x: torch.Tensor) -> torch.Tensor:
        out = right(x)
        return out.view(-1).roll(1).view(out.shape)

    return wrong


def strides_of_input(right: Unary) -> Unary:
    """The values are right, but a view is returned instead of a contiguous result."""

    def wrong(x: torch.Tensor) -> torch.Tensor:
        out = right(x)
        return out.transpose(-1, -2).contiguous().transpose(-1, -2)

    return wrong


def stale_output(right: Unary) -> Unary:
    """The first call's output is returned again: what a captured graph that launches nothing does."""
    kept: list[torch.Tensor] = []

    def wrong(x: torch.Tensor) -> torch.Tensor:
        if not kept or kept[0].shape != right(x).shape:
            kept[:] = [right(x)]
        return kept[0]

    return wrong


def forgotten_stream(right: Unary) -> Unary:
    """Launches on a stream of its own and waits for nothing (GPU only)."""
    own: list[torch.cuda.Stream] = []

    def wrong(x: torch.Tensor) -> torch.Tensor:
        if not own:
            own.append(torch.cuda.Stream())
        with torch.cuda.stream(own[0]):
            return right(x)

    return wrong


#: Faults that a plain comparison on fresh inputs must find, on a transposition whose input is not symmetric.
PLANTED: dict[str, Callable[[Unary], Unary]] = {
    "last_tile_dropped": last_tile_dropped,
    "input_returned": input_returned,
    "one_element_flipped": one_element_flipped,
    "shifted_by_one": shifted_by_one,
    "strides_of_input": strides_of_input,
}
