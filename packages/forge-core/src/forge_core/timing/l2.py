"""The state of the L2 before each launch.

cold      buffers rotate, and an untimed copy of twice the L2's size comes before each launch (the default: what a
          program's next kernel finds)
flushed   zeros of four times the L2's size are written before each launch, as many benchmarks do
warm      the same contender runs untimed on the same buffers before each launch
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from forge_core.timing.events import copy_past_l2
from forge_core.timing.interleave import sets_for

__all__ = ["POLICIES", "L2Policy", "l2_policy"]

POLICIES = ("cold", "flushed", "warm")
#: Buffer sets where they need not rotate; two, so that the outputs compared afterwards are of different sets.
FIXED_SETS = 2


@dataclass(frozen=True)
class L2Policy:
    """How the L2 is prepared.

    Attributes:
        name: one of :data:`POLICIES`.
        l2_bytes: the L2's size.
        before: the work that comes before every launch; None for ``warm``, where it is the contender's own.
    """

    name: str
    l2_bytes: int
    before: Callable[[], object] | None

    @property
    def warm(self) -> bool:
        """Whether each launch follows an untimed one of its own."""
        return self.name == "warm"

    def sets(self, nbytes: int) -> int:
        """How many buffer sets a case of so many bytes needs."""
        return sets_for(nbytes, self.l2_bytes) if self.name == "cold" else FIXED_SETS

    def describe(self, nbytes: int) -> str:
        """The state of the L2 in words, for the record."""
        l2 = _megabytes(self.l2_bytes)
        if self.name == "cold":
            return (
                f"cold: {self.sets(nbytes)} buffer sets of {_megabytes(nbytes)} rotate, and an untimed copy of twice "
                f"the L2's {l2} comes before each launch"
            )
        if self.name == "flushed":
            return f"flushed: zeros of four times the L2's {l2} are written before each launch"
        return f"warm: the same contender runs untimed on the same buffers before each launch (L2 of {l2})"


def _megabytes(count: int) -> str:
    """Three digits, and no exponent: a record is read by people."""
    return f"{count / 1e6:.3g} MB" if count < 1e9 else f"{count / 1e6:,.0f} MB"


def l2_policy(name: str, device: torch.device, l2_bytes: int) -> L2Policy:
    """The policy of that name on a CUDA device.

    Raises:
        ValueError: an unknown name.
    """
    if name not in POLICIES:
        raise ValueError(f"l2: expected one of {', '.join(POLICIES)}, got {name!r}.")
    if name == "cold":
        return L2Policy(name, l2_bytes, copy_past_l2(device, l2_bytes))
    if name == "flushed":
        return L2Policy(name, l2_bytes, torch.empty(4 * l2_bytes, dtype=torch.uint8, device=device).zero_)
    return L2Policy(name, l2_bytes, None)
