"""The shortest time that memory allows; whatever claims to be faster did not do the work or was not timed."""

from __future__ import annotations

from forge_core.errors import BenchmarkError
from forge_core.timing.result import Timing

__all__ = ["check_floor", "floor_ms"]


def floor_ms(*, read: int, written: int, l2_bytes: int, bandwidth_gbs: float) -> float:
    """The least time, in milliseconds, of an operation that finds a cold L2.

    Every byte that is read has to come from DRAM, for the L2 holds none of them.  Of the bytes that are written, as
    many as the L2 holds may still lie in it when the kernel ends: it writes back later, outside the timed region.
    Only the rest must have reached DRAM.  Reads and writes share one bus, whose specified bandwidth no kernel passes:

        floor = (read + max(0, written - L2)) / bandwidth

    Args:
        read: bytes that must be read at least.
        written: bytes that must be written at least.
        l2_bytes: the L2's size.
        bandwidth_gbs: the specified DRAM bandwidth, in GB/s of 1e9 bytes.
    """
    return (read + max(0, written - l2_bytes)) / (bandwidth_gbs * 1e6)


def check_floor(timing: Timing, floor: float, *, suite: str = "", case: str = "", contender: str = "") -> None:
    """Refuses a timing with a sample below the floor.

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
