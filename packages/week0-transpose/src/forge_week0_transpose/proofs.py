"""The operators of week 0 under test, for the battery (docs/testing.md) and the proofs (docs/proofs.md)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch

from forge_core.proofs import week_of
from forge_core.testing import Case, Subject
from forge_core.testing.planted import MOVED
from forge_core.testing.subject import bits, normal
from forge_week0_transpose import ops

#: A tile's multiple, rows that begin anywhere, a few columns, and a batch.
SHAPES = ((256, 320), (131, 77), (2064, 3), (3, 33, 65), (1, 300))


def _samples(device: torch.device) -> Iterator[tuple[torch.Tensor, ...]]:
    for dtype, shape in product((torch.float16, torch.bfloat16, torch.float32, torch.float64), SHAPES):
        (x,) = normal(Case(shape), dtype, device, len(shape))
        yield from ((x,), (x.transpose(-1, -2),))


# The battery's.  The kernels see the size of an element and nothing else of a dtype, so there is one of each size; the
# first is one that gradients have.
DTYPES = (torch.float32, torch.uint8, torch.bfloat16, torch.float64, torch.complex128)
#: A matrix, a batch, and a row, whose transposition could be a view.
SMALL = ((6, 10), (3, 6, 10), (1, 40))
LAID_OUT = ((40, 56), (64, 64), (129, 257), (1, 33), (2, 48, 80), (3, 2, 33, 65), (2, 3, 4, 16, 24), (5, 3, 200))
#: Whole tiles, rows that begin anywhere, few lines, one row, a batch, and many tiles.
LARGE = ((300, 520), (272, 261), (4112, 3), (3, 4099), (65, 40001), (1, 4099), (3, 65, 67), (1024, 2048), (1000, 3001))


# Written apart from ref.py, so that a wrong reference cannot vouch for itself.
def _transposed(x: torch.Tensor, *tile: int) -> torch.Tensor:
    return x.transpose(-1, -2).contiguous().clone(memory_format=torch.contiguous_format)


def _moved(x: torch.Tensor) -> torch.Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def _calls(*args: Any) -> dict[str, Any]:
    return {
        "cases": [Case(shape, args) for shape in SMALL],
        "laid_out": [Case(shape, args) for shape in LAID_OUT],
        "launches": [Case(shape, args) for shape in LARGE],
        "dtypes": (*DTYPES, torch.bool),
        "laid_out_dtypes": DTYPES,
        "make": bits,
    }


PROOFS = week_of(
    "week0",
    "forge_week0_transpose",
    "packages/week0-transpose/tests",
    [
        # A copy that returns its input's elements in order is right, of a contiguous input.
        Subject(ops.copy, _samples, reference=_moved, planted=MOVED[1:], **_calls()),
        Subject(ops.transpose, _samples, reference=_transposed, planted=MOVED, **_calls()),
        Subject(ops.copy_transpose, _samples, reference=_transposed, planted=MOVED, **_calls(32)),
    ],
)
