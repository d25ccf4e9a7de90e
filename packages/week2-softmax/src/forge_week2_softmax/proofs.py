"""What week 2 has to prove: see docs/proofs.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from forge_core.testing.proofs import Subject, week_of
from forge_core.testing.tolerances import (
    log_softmax_bound,
    log_softmax_gradient_bound,
    logsumexp_bound,
    logsumexp_gradient_bound,
    softmax_bound,
    softmax_gradient_bound,
)
from forge_week2_softmax import backward, ops

__all__ = ["PROOFS"]

#: Rows for each kernel, short and long, whole and not; and columns.
SHAPES = (((300, 64), -1), ((33, 4097), -1), ((3, 2**15), -1), ((4097, 40), 0), ((70, 1031), 0))
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _samples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    for dtype in FLOATS:
        for shape, dim in SHAPES:
            generator = torch.Generator(device=device).manual_seed(shape[1])
            x = 3 * torch.randn(shape, device=device, dtype=torch.float64, generator=generator)
            yield (x.to(dtype), dim)


def _gradient(x: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator(device=x.device).manual_seed(5)
    return torch.randn(x.shape, device=x.device, dtype=torch.float64, generator=generator).to(x.dtype)


def _of_softmax(device: torch.device) -> Iterator[tuple[Any, ...]]:
    for x, dim in _samples(device):
        y = torch.softmax(x, dim)
        yield (_gradient(y), y, dim)


def _of_log_softmax(device: torch.device) -> Iterator[tuple[Any, ...]]:
    for x, dim in _samples(device):
        y = torch.log_softmax(x, dim)
        yield (_gradient(y), y, dim)


def _of_logsumexp(device: torch.device) -> Iterator[tuple[Any, ...]]:
    for x, dim in _samples(device):
        lse = torch.logsumexp(x, dim)
        yield (_gradient(lse), x, lse, dim)


def _acc(x: torch.Tensor) -> torch.dtype:
    return torch.float64 if x.dtype is torch.float64 else torch.float32


def _logsumexp_floor(grad: torch.Tensor, x: torch.Tensor, lse: torch.Tensor, dim: int) -> torch.Tensor:
    grad, lse = grad.double().unsqueeze(dim), lse.double().unsqueeze(dim)
    return logsumexp_gradient_bound(grad, x.double(), lse, _acc(x))


_NOTHING_TO_EXCHANGE = "the blocks of a row have nothing to exchange"

PROOFS = week_of(
    "week2",
    "forge_week2_softmax",
    "packages/week2-softmax/tests",
    [
        Subject(ops.softmax, _samples, lambda x, d: softmax_bound(x.double(), d, _acc(x))),
        Subject(ops.log_softmax, _samples, lambda x, d: log_softmax_bound(x.double(), d, _acc(x))),
        Subject(ops.logsumexp, _samples, lambda x, d: logsumexp_bound(x.double(), d, _acc(x))),
        Subject(
            backward.softmax_backward,
            _of_softmax,
            lambda g, y, d: softmax_gradient_bound(g.double(), y.double(), d, _acc(y)),
        ),
        Subject(
            backward.log_softmax_backward,
            _of_log_softmax,
            lambda g, y, d: log_softmax_gradient_bound(g.double(), y.double(), d, _acc(y)),
        ),
        Subject(
            backward.logsumexp_backward,
            _of_logsumexp,
            _logsumexp_floor,
            absent={"split": _NOTHING_TO_EXCHANGE, "cluster": _NOTHING_TO_EXCHANGE},
        ),
    ],
)
