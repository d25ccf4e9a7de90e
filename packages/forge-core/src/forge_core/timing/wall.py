"""The timer of the CPU: perf_counter around each call."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

__all__ = ["WallTimer"]


class WallTimer:
    """Times calls that have finished when they return, as PyTorch's CPU operators do.

    Args:
        clock_ns: the clock, in nanoseconds; tests give their own.
    """

    method = "perf_counter around each call, on the CPU"
    #: Launches in one batch; the CPU needs no queue, so a batch is only a unit of progress.
    batch_launches = 16

    def __init__(self, clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock_ns = clock_ns

    def batch(
        self, launches: Sequence[Callable[[], object]], before: Callable[[], object] | None = None
    ) -> list[float]:
        """Milliseconds of each launch; `before` is called before each and is not part of its sample."""
        samples = []
        for launch in launches:
            if before is not None:
                before()
            start = self._clock_ns()
            launch()
            samples.append((self._clock_ns() - start) * 1e-6)
        return samples

    def clock_mhz(self) -> int | None:
        """The CPU's clock is not read."""
        return None
