"""Few small calls that take every way through the kernels: what compute-sanitizer runs, which slows them down a lot.

every small call  ->  its configuration  ->  traits: alignment, lanes, blocks, ...
calls chosen one by one, each for the traits that are new  ->  a subset with all of them
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, TypeVar

import torch

__all__ = ["cover", "placed", "traits"]

Call = TypeVar("Call", bound=Hashable)


def traits(config: Any) -> set[tuple[str, Any]]:
    """What of a row kernel's configuration decides which addresses it reads and writes, and what its threads exchange.

    Args:
        config: a frozen dataclass of ``forge_core.rows.config``, or of a week's ladder.
    """
    names = ("align", "lanes", "blocks", "rank", "reduced", "held")
    found = {(name, getattr(config, name, None)) for name in names}
    return {*found, ("staged", getattr(config, "staged", 0) > 0), ("chunks", min(getattr(config, "chunks", 1), 2))}


def cover(calls: Mapping[Call, set[tuple[str, Any]]], sizes: Mapping[Call, int]) -> list[Call]:
    """Few of some calls that have together all the traits of all of them.

    Args:
        calls: the traits of each.
        sizes: elements of each; of two calls with as many new traits the smaller one is chosen.
    """
    left: set[tuple[str, Any]] = set().union(*calls.values())
    chosen: list[Call] = []
    while left:
        chosen.append(max(calls, key=lambda call: (len(calls[call] & left), -sizes[call])))
        left -= calls[chosen[-1]]
    return chosen


def placed(values: torch.Tensor, offset: int, device: str) -> torch.Tensor:
    """The values in an allocation that ends with them, so that memcheck sees a read past their end.

    Args:
        values: of any shape.
        offset: elements of the allocation before them.
        device: where.
    """
    flat = torch.empty(values.numel() + offset, dtype=values.dtype, device=device)
    flat[offset:] = values.reshape(-1).to(device)
    return flat[offset:].view(values.shape)
