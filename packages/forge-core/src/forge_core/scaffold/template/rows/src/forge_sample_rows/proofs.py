"""The operator under test: for the battery that every operator passes, and for the validation on a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from forge_core.proofs import week_of
from forge_core.testing.planted import Planted
from forge_core.testing.rows import row_subject
from forge_sample_rows import ops
from forge_sample_rows.program import SampleNorm


# Written apart from ref.py, so that a wrong reference cannot vouch for itself.
def _expected(x: torch.Tensor, dim: int, eps: float = 1e-5) -> torch.Tensor:
    wide = x if x.dtype is torch.float64 else x.float()
    return (wide / (wide * wide).mean(dim, keepdim=True).add(eps).sqrt()).to(x.dtype).contiguous()


def whole_vectors_counted(right: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A planted fault: the mean is taken over the row's length rounded up to whole vectors."""

    def wrong(x: torch.Tensor, dim: int = -1, *args: Any, **kwargs: Any) -> torch.Tensor:
        count = x.shape[dim]
        ratio = -(-count // 8) * 8 / max(count, 1)
        return right(x, dim, *args, **kwargs) * math.sqrt(ratio)

    return wrong


PROOFS = week_of(
    "sample_suite",
    "forge_sample_rows",
    "packages/sample-rows/tests",
    [
        row_subject(
            ops.sample_norm,
            SampleNorm(),
            reference=_expected,
            terms=_expected,  # of magnitudes: each element is one product, whose error is relative to itself
            planted=[Planted(whole_vectors_counted)],
        )
    ],
)
