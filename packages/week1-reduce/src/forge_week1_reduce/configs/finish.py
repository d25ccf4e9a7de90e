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
        parts: accumulators of a result, where the kernel is compiled for their number; 0 for any number.
    """

    arithmetic: Arithmetic
    threads: int
    kept_rank: int
    dependent: bool = False
    parts: int = 0

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        flags = ("_dep" if self.dependent else "") + (f"_p{self.parts}" if self.parts else "")
        return f"{self.arithmetic.name}_finish_{self.threads}t_k{self.kept_rank}{flags}"
