"""Configurations of the kernels that read element by element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from forge_week1_reduce.arithmetic import Arithmetic
from forge_week1_reduce.configs.groups import kept_integers, reduced_integers

__all__ = ["NaiveConfig", "SharedConfig", "ShuffleConfig"]


@dataclass(frozen=True)
class _ElementConfig:
    """What the kernels that read element by element have in common.

    Attributes:
        arithmetic: what is computed.
        kept_rank: dimensions of the result.
        reduced_rank: dimensions that are reduced.
        wide: entries are numbered by 64-bit integers, needed from 2^31 on.
        threads: threads of a block, a power of two.
    """

    arithmetic: Arithmetic
    kept_rank: int
    reduced_rank: int
    wide: bool = False
    threads: int = 256

    idea = ""

    integers: ClassVar[int] = 0

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of the groups of integers of a launch."""
        return (kept_integers(self.kept_rank), reduced_integers(self.reduced_rank))

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        wide = "_wide" if self.wide else ""
        return f"{self.arithmetic.name}_{self.idea}_{self.threads}t_k{self.kept_rank}r{self.reduced_rank}{wide}"


@dataclass(frozen=True)
class NaiveConfig(_ElementConfig):
    """``kernels/naive.py``; the attributes are those of every kernel that reads element by element."""

    idea = "naive"


@dataclass(frozen=True)
class SharedConfig(_ElementConfig):
    """``kernels/shared.py``."""

    idea = "shared"


@dataclass(frozen=True)
class ShuffleConfig(_ElementConfig):
    """``kernels/shuffle.py``."""

    idea = "shuffle"
