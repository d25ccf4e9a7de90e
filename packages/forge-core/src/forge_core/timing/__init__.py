"""Timing of calls: their samples, and the shortest time that memory allows them.

``interleave`` runs contenders launch by launch under one timer: one of ``timers`` (CUDA events behind a backlog of GPU
work, the default; the same inside a CUDA graph; the hardware's trace), or ``host``'s ``WallTimer`` for the CPU.
``host`` also times the calling thread, ``l2`` prepares the cache before each launch, ``streams`` detects work on
another stream, ``clocks`` reads what disturbs a measurement, ``accuracy`` measures the timers themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from forge_core.errors import BenchmarkError

__all__ = ["Call", "Timing", "check_floor", "floor_ms", "quantile"]

#: What is timed: a call whose arguments are bound.
Call = Callable[[], object]

#: Relative difference of two readings from which the SM clock counts as changed.
CLOCK_TOLERANCE = 0.02


def quantile(values: Sequence[float], q: float) -> float:
    """The q-th quantile with linear interpolation."""
    return float(torch.tensor(values, dtype=torch.float64).quantile(q))


@dataclass(frozen=True)
class Timing:
    """The samples of one contender in order, the timer in words, and the SM clock before and after, where known."""

    samples_ms: tuple[float, ...]
    method: str
    clocks_mhz: tuple[int | None, int | None] = (None, None)

    @property
    def median_ms(self) -> float:
        """The median."""
        return median(self.samples_ms)

    @property
    def p20_ms(self) -> float:
        """The 20th percentile."""
        return quantile(self.samples_ms, 0.2)

    @property
    def p80_ms(self) -> float:
        """The 80th percentile."""
        return quantile(self.samples_ms, 0.8)

    @property
    def spread(self) -> float:
        """(p80 - p20) / median."""
        return (self.p80_ms - self.p20_ms) / self.median_ms if self.median_ms > 0 else 0.0

    @property
    def clocks(self) -> str:
        """The SM clock in words; ``"not read"`` without NVML."""
        if self.clocks_mhz == (None, None):
            return "not read"
        return " to ".join("not read" if clock is None else f"{clock} MHz" for clock in self.clocks_mhz)

    @property
    def clocks_moved(self) -> bool:
        """Whether the two readings of the SM clock differ by more than 2 %."""
        before, after = self.clocks_mhz
        return before is not None and after is not None and abs(after - before) > CLOCK_TOLERANCE * before


def floor_ms(*, read: int, written: int, l2_bytes: int, bandwidth_gbs: float) -> float:
    """The least time, in milliseconds, of an operation with a cold L2, at the specified DRAM bandwidth in GB/s.

        floor = (read + max(0, written - L2)) / bandwidth

    Every byte read comes from DRAM.  Of the bytes written, as many as fit may still be in the L2 when the kernel ends.
    """
    return (read + max(0, written - l2_bytes)) / (bandwidth_gbs * 1e6)


def check_floor(timing: Timing, floor: float, **names: str) -> None:
    """Raises BenchmarkError, with these names, if a sample is below the floor, in milliseconds."""
    fastest = min(timing.samples_ms)  # a contender that skips every third call would pass by its median
    if fastest < floor:
        raise BenchmarkError(
            f"a sample of {fastest * 1e3:.2f} us is below the roofline floor of {floor * 1e3:.2f} us, which "
            "the specified DRAM bandwidth allows with a cold L2: the work was not done, landed on another stream, or "
            "the data was in the cache",
            **names,
        )
