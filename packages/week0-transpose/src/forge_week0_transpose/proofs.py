"""What week 0 has to prove: see docs/proofs.md."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from forge_core.testing.proofs import Subject, week_of
from forge_week0_transpose import ops

__all__ = ["PROOFS"]

#: A tile's multiple, rows that begin anywhere, a skinny matrix, and a batch.
SHAPES = ((256, 320), (131, 77), (2051, 3), (3, 33, 65), (1, 300))


def _samples(device: torch.device) -> Iterator[tuple[torch.Tensor]]:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for shape in SHAPES:
            generator = torch.Generator(device=device).manual_seed(len(shape))
            x = torch.randn(shape, device=device, dtype=torch.float64, generator=generator).to(dtype)
            yield (x,)


def _copied(device: torch.device) -> Iterator[tuple[torch.Tensor]]:
    for (x,) in _samples(device):
        yield (x,)
        yield (x.transpose(-1, -2),)


PROOFS = week_of(
    "week0",
    "forge_week0_transpose",
    "packages/week0-transpose/tests",
    [Subject(ops.copy, _copied), Subject(ops.transpose, _samples), Subject(ops.copy_transpose, _samples)],
)
