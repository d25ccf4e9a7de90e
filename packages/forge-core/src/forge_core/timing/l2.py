"""The state of the L2 before each launch; :meth:`L2Policy.describe` has the policies in words.

``cold`` (the default) is what a program's next kernel finds; many benchmarks measure ``flushed``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

POLICIES = ("cold", "flushed", "warm")
#: Buffer sets where they need not rotate; two, so that the outputs compared afterwards are of different sets.
FIXED_SETS = 2
#: Most buffer sets: a smaller case's data is displaced by what comes before each launch.
MAX_SETS = 256
#: How many times the L2's size passes between two uses of a buffer.
L2_MULTIPLE = 3.0


@dataclass(frozen=True)
class L2Policy:
    """One of :data:`POLICIES`, or ``"as found"``, and the work before every launch; None for ``warm``."""

    name: str
    l2_bytes: int = 0
    before: Callable[[], object] | None = None

    @property
    def warm(self) -> bool:
        """Whether each launch follows an untimed one of the same contender."""
        return self.name == "warm"

    def sets(self, nbytes: int) -> int:
        """How many buffer sets, 2 to 256, launches that read and write `nbytes` need."""
        if self.name != "cold":
            return FIXED_SETS
        return max(FIXED_SETS, min(1 + math.ceil(L2_MULTIPLE * self.l2_bytes / max(1, nbytes)), MAX_SETS))

    def describe(self, nbytes: int) -> str:
        """The state of the L2 in words, for the record."""
        if self.name == AS_FOUND.name:
            return f"caches as found: {FIXED_SETS} buffer sets rotate"
        l2 = _megabytes(self.l2_bytes)
        how = {
            "cold": f"{self.sets(nbytes)} buffer sets of {_megabytes(nbytes)} rotate, and an untimed copy of twice the "
            f"L2's {l2} comes before each launch",
            "flushed": f"zeros of four times the L2's {l2} are written before each launch",
            "warm": f"the same contender runs untimed on the same buffers before each launch (L2 of {l2})",
        }
        return f"{self.name}: {how[self.name]}"


AS_FOUND = L2Policy("as found")


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.3g} MB" if count < 1e9 else f"{count / 1e6:,.0f} MB"


def l2_policy(name: str, device: torch.device, l2_bytes: int) -> L2Policy:
    """The policy of that name on a CUDA device with an L2 of so many bytes."""
    before: Callable[[], object] | None = None
    if name == "cold":
        # Displaces what was in the L2 and leaves dirty lines, as a predecessor that writes does.
        source = torch.randint(0, 256, (2 * l2_bytes,), dtype=torch.uint8, device=device)
        before = partial(torch.empty_like(source).copy_, source)
    elif name == "flushed":
        before = torch.empty(4 * l2_bytes, dtype=torch.uint8, device=device).zero_
    return L2Policy(name, l2_bytes, before)
