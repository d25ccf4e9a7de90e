"""The samples of one contender, and the shortest time that memory allows them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from forge_core.errors import BenchmarkError

__all__ = ["Timing", "check_floor", "floor_ms", "quantile"]

#: Share of the SM clock that two readings may lie apart before the clock counts as moved.
CLOCK_TOLERANCE = 0.02


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie, interpolated between neighbours.

    Args:
        values: at least one number.
        share: 0 to 1; 0.5 is the median.

    Raises:
        ValueError: no values, or a share outside 0 to 1.
    """
    if not values:
        raise ValueError("quantile: expected at least one value, got none.")
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"quantile: expected a share from 0 to 1, got {share}.")
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = math.ceil(position)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


@dataclass(frozen=True)
class Timing:
    """How long one contender took, and how that was measured.

    Attributes:
        samples_ms: one figure a sample, in milliseconds, in the order they were taken.
        method: the timer, in words.
        l2: the state of the cache before each launch, in words.
        warmup: launches of this contender before the first sample.
        clocks_mhz: the SM clock before the first and after the last sample; None where it could not be read.
    """

    samples_ms: tuple[float, ...]
    method: str
    l2: str = "not controlled"
    warmup: int = 0
    clocks_mhz: tuple[int | None, int | None] = (None, None)

    def __post_init__(self) -> None:
        if not self.samples_ms:
            raise ValueError("Timing: expected at least one sample, got none.")

    @property
    def iterations(self) -> int:
        """Samples taken."""
        return len(self.samples_ms)

    @property
    def median_ms(self) -> float:
        """The median sample, in milliseconds."""
        return quantile(self.samples_ms, 0.5)

    @property
    def median_us(self) -> float:
        """The median sample, in microseconds."""
        return self.median_ms * 1e3

    @property
    def fastest_ms(self) -> float:
        """The shortest sample, in milliseconds."""
        return min(self.samples_ms)

    @property
    def p20_ms(self) -> float:
        """A fifth of the samples are below this, in milliseconds."""
        return quantile(self.samples_ms, 0.2)

    @property
    def p80_ms(self) -> float:
        """Four fifths of the samples are below this, in milliseconds."""
        return quantile(self.samples_ms, 0.8)

    @property
    def spread(self) -> float:
        """The width of the middle 60 % of the samples, as a share of the median; 0 for a single sample."""
        median = self.median_ms
        return (self.p80_ms - self.p20_ms) / median if median > 0 else 0.0

    @property
    def clocks(self) -> str:
        """The SM clock in words; ``"not read"`` where the driver's library is not there."""
        before, after = self.clocks_mhz
        if before is None and after is None:
            return "not read"
        shown = ["not read" if clock is None else f"{clock} MHz" for clock in (before, after)]
        return " to ".join(shown)

    @property
    def clocks_moved(self) -> bool:
        """Whether the SM clock differed by more than 2 % between the two readings."""
        before, after = self.clocks_mhz
        return before is not None and after is not None and abs(after - before) > CLOCK_TOLERANCE * before

    def bandwidth_gbs(self, nbytes: int) -> float:
        """Bytes over the median time, in GB/s of 1e9 bytes."""
        median = self.median_ms
        return nbytes / (median * 1e6) if median > 0 else math.inf


def floor_ms(*, read: int, written: int, l2_bytes: int, bandwidth_gbs: float) -> float:
    """The least time, in milliseconds, of an operation that finds a cold L2.

        floor = (read + max(0, written - L2)) / bandwidth

    Every byte that is read comes from DRAM.  Of the bytes that are written, as many as the L2 holds may still lie in it
    when the kernel ends.

    Args:
        read: bytes that must be read at least.
        written: bytes that must be written at least.
        l2_bytes: the L2's size.
        bandwidth_gbs: the specified DRAM bandwidth, in GB/s of 1e9 bytes.
    """
    return (read + max(0, written - l2_bytes)) / (bandwidth_gbs * 1e6)


def check_floor(timing: Timing, floor: float, *, suite: str = "", case: str = "", contender: str = "") -> None:
    """Refuses a timing with a sample below the floor, in milliseconds.

    The fastest sample decides, not the median: a contender that skips every third call would pass by its median.

    Raises:
        BenchmarkError: a sample is below the floor.
    """
    if timing.fastest_ms < floor:
        raise BenchmarkError(
            f"a sample of {timing.fastest_ms * 1e3:.2f} us is below the roofline floor of {floor * 1e3:.2f} us, which "
            "the specified DRAM bandwidth allows with a cold L2: the work was not done, landed on another stream, or "
            "the data was in the cache",
            suite=suite,
            case=case,
            peer=contender,
        )
