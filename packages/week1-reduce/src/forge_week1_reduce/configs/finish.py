"""The configuration of a second pass."""

from __future__ import annotations

from dataclasses import dataclass

from forge_week1_reduce.arithmetic import Arithmetic

__all__ = ["FinishConfig"]


@dataclass(frozen=True)
class FinishConfig:
    """``kernels/finish.py``: the second pass over partial accumulators.

    Attributes:
        arithmetic: from accumulators to the result.
        threads: threads of a result: 1, or 32 times a power of two.
        kept_rank: dimensions of the result.
        dependent: launched while the first pass ends (sm_90 and newer).
    """

    arithmetic: Arithmetic
    threads: int
    kept_rank: int
    dependent: bool = False

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        return f"{self.arithmetic.name}_finish_{self.threads}t_k{self.kept_rank}{'_dep' if self.dependent else ''}"
