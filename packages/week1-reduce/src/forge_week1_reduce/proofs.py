"""What week 1 has to prove: see docs/proofs.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from forge_core.testing.proofs import Subject, week_of
from forge_core.testing.tolerances import tree_bound
from forge_week1_reduce import ops

__all__ = ["PROOFS"]

#: Rows for each kernel, short and long, whole and not; and columns.
SHAPES = (((300, 64), -1), ((33, 4097), -1), ((3, 2**17), -1), ((4097, 40), 0), ((70, 1031), 0))


def _samples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for shape, dim in SHAPES:
            generator = torch.Generator(device=device).manual_seed(shape[1])
            x = torch.randn(shape, device=device, dtype=torch.float64, generator=generator)
            yield (x.to(dtype), dim)


def _near_one(device: torch.device) -> Iterator[tuple[Any, ...]]:
    # Products of many numbers leave every dtype, unless the numbers are near 1.
    for x, dim in _samples(device):
        yield (1 + x / 256, dim)


def _accumulator(x: torch.Tensor) -> torch.dtype:
    return torch.float64 if x.dtype is torch.float64 else torch.float32


def _of_sum(x: torch.Tensor, dim: int) -> torch.Tensor:
    return tree_bound(x.double().abs().sum(dim), x.shape[dim], _accumulator(x))


def _of_mean(x: torch.Tensor, dim: int) -> torch.Tensor:
    return _of_sum(x, dim) / x.shape[dim]


def _of_prod(x: torch.Tensor, dim: int) -> torch.Tensor:
    # Each of count - 1 roundings is relative to the product so far, whatever the tree.
    return x.shape[dim] * torch.finfo(_accumulator(x)).eps * x.double().prod(dim).abs()


PROOFS = week_of(
    "week1",
    "forge_week1_reduce",
    "packages/week1-reduce/tests",
    [
        Subject(ops.reduce_sum, _samples, _of_sum),
        Subject(ops.mean, _samples, _of_mean),
        Subject(ops.amax, _samples),
        Subject(ops.amin, _samples),
        Subject(ops.prod, _near_one, _of_prod),
    ],
)
