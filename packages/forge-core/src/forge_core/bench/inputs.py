"""Random inputs with a fixed seed, in several memory layouts."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from functools import partial

import torch

from forge_core.testing.inputs import LAYOUTS, in_layout


def generator_for(device: torch.device, *, seed: int, what: str) -> torch.Generator:
    """A generator seeded by the run's seed and a text."""
    return torch.Generator(device=device).manual_seed((seed << 32) + zlib.crc32(what.encode()))


def random_tensor(
    shape: Sequence[int],
    dtype: torch.dtype,
    *,
    device: torch.device,
    generator: torch.Generator,
    layout: str = "contiguous",
) -> torch.Tensor:
    """Random values: standard normal for floating point and complex, the whole range for integers.

    Zeros would hide unwritten outputs and toggle fewer wires; random bits would have NaNs, whose payload a peer that
    converts may change.

    Raises:
        ValueError: an unknown layout, or ``permuted`` or ``sliced`` for a shape without two dimensions.
    """
    shape = tuple(shape)
    if layout not in LAYOUTS:
        raise ValueError(f"layout: expected one of {', '.join(LAYOUTS)}, got {layout!r}.")
    if layout in ("permuted", "sliced") and len(shape) < 2:
        raise ValueError(f"layout {layout}: expected a shape of two or more dimensions, got {shape}.")
    return in_layout(partial(_values, dtype=dtype, device=device, generator=generator), shape, layout)


def _values(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> torch.Tensor:
    if dtype.is_complex:
        return torch.view_as_complex(_values((*shape, 2), dtype.to_real(), device, generator))
    if not dtype.is_floating_point:
        count, most = math.prod(shape) * dtype.itemsize, 2 if dtype == torch.bool else 256
        raw = torch.randint(0, most, (count,), dtype=torch.uint8, device=device, generator=generator)
        return raw.view(dtype).view(shape)
    drawn = torch.float16 if dtype.itemsize == 1 else dtype
    return torch.randn(shape, dtype=drawn, device=device, generator=generator).to(dtype)
