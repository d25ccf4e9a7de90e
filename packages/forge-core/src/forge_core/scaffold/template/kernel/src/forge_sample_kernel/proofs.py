"""The operator under test: for the battery that every operator passes, and for the validation on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from forge_core.proofs import week_of
from forge_core.testing import Case, Subject
from forge_core.testing.planted import Planted
from forge_sample_kernel import ops

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def _samples(device: torch.device) -> Iterator[tuple[torch.Tensor, float]]:
    for dtype in DTYPES:
        generator = torch.Generator(device=device).manual_seed(1)
        for shape in ((1024, 1024), (131, 77)):
            x = torch.randn(shape, dtype=torch.float64, device=device, generator=generator).to(dtype)
            yield x, 1.7
            yield x.t(), 1.7


# Written apart from ref.py, so that a wrong reference cannot vouch for itself.
def _expected(x: torch.Tensor, factor: float = 2.0, variant: str = "auto") -> torch.Tensor:
    wide = x if x.dtype is torch.float64 else x.float()
    return (wide * torch.tensor(factor, dtype=wide.dtype, device=x.device)).to(x.dtype).contiguous()


def _floor(x: torch.Tensor, factor: float = 2.0, variant: str = "auto") -> torch.Tensor:
    """The factor is rounded to the compute dtype, and so is the product, before it is rounded to the output."""
    exact = 2.0**-53 if x.dtype is torch.float64 else 2.0**-24
    return (x.double() * factor).abs() * (2 * exact)


def factor_forgotten(right: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A planted fault: the default is used, whatever the call says."""

    def wrong(x: torch.Tensor, factor: float = 2.0, **kwargs: Any) -> torch.Tensor:
        return right(x, **kwargs)

    return wrong


PROOFS = week_of(
    "sample_suite",
    "forge_sample_kernel",
    "packages/sample-kernel/tests",
    [
        Subject(
            ops.sample_scale,
            _samples,
            _floor,
            cases=[Case((4, 6), (1.5,)), Case((3, 5, 7), (-0.3,)), Case((8, 16), (3.0,))],
            launches=[Case((1000, 3001), (1.5,)), Case((1024, 2048), (-0.3,))],
            dtypes=DTYPES,
            reference=_expected,
            planted=[Planted(factor_forgotten)],
        )
    ],
)
