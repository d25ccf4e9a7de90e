"""The timer of the GPU: CUDA events behind a backlog, so that no launch gap is ever inside a sample.

    host   | spin | gate | start0 launch0 end0 | start1 launch1 end1 | ... | gate still pending?
    GPU    |<------- spinning ------------------------------------------->| start0 kernel0 end0 start1 kernel1 ...

A pair of events around a launch on an idle stream times the host: the start event completes at once and the GPU then
waits for the launch.  So the stream is first kept busy by a kernel that spins longer than the host needs to enqueue the
whole batch.  If the event behind that kernel has completed by the time the last launch is enqueued, the batch is thrown
away and taken again behind a longer backlog.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import torch

from forge_core.errors import BenchmarkError, UnsupportedError
from forge_core.timing.clocks import sm_clock_mhz

__all__ = ["EventTimer", "event_pair"]

# A backlog is this much longer than enqueuing took the last time, plus a margin for a host that stumbles.
BACKLOG_FACTOR = 2.0
BACKLOG_MARGIN_MS = 0.3
FIRST_BACKLOG_MS = 5.0
LONGEST_BACKLOG_MS = 2000.0
ATTEMPTS = 8
CALIBRATION_CYCLES = 2_000_000


def event_pair(*, external: bool = False) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    """Two events that take times; `external` ones become nodes of a graph that is captured."""
    first, second = (torch.cuda.Event(enable_timing=True, external=external) for _ in range(2))
    return first, second


class EventTimer:
    """Times launches on the current stream of one CUDA device, which has to be the current one."""

    method = "CUDA events around each launch, behind a backlog of GPU work"
    #: Launches in one batch: with their events well under the driver's queue of about a thousand entries.
    batch_launches = 48

    def __init__(self, device: torch.device) -> None:
        if device.type != "cuda":
            raise UnsupportedError(
                f"EventTimer: CUDA events need a CUDA device, got {device}.", requirement="a CUDA GPU"
            )
        self.device = device
        self._stream = torch.cuda.current_stream(device)
        self._gate = torch.cuda.Event()
        self._backlog_ms = FIRST_BACKLOG_MS
        torch.cuda._sleep(CALIBRATION_CYCLES)  # loads the kernel and wakes the clocks
        start, end = event_pair()
        start.record(self._stream)
        torch.cuda._sleep(CALIBRATION_CYCLES)
        end.record(self._stream)
        end.synchronize()
        self._cycles_per_ms = CALIBRATION_CYCLES / start.elapsed_time(end)

    def batch(
        self, launches: Sequence[Callable[[], object]], before: Callable[[], object] | None = None
    ) -> list[float]:
        """Milliseconds of each launch; `before` is enqueued before each and is not part of its sample.

        Raises:
            BenchmarkError: the host could not enqueue the launches while the GPU was kept busy.
        """
        events = [event_pair() for _ in launches]
        for _ in range(ATTEMPTS):
            torch.cuda._sleep(int(self._backlog_ms * self._cycles_per_ms))
            self._gate.record(self._stream)
            began = time.perf_counter()
            for launch, (start, end) in zip(launches, events, strict=True):
                if before is not None:
                    before()
                start.record(self._stream)
                launch()
                end.record(self._stream)
            enqueue_ms = (time.perf_counter() - began) * 1e3
            covered = not self._gate.query()
            torch.cuda.synchronize(self.device)
            wanted = BACKLOG_FACTOR * enqueue_ms + BACKLOG_MARGIN_MS
            if covered:
                self._backlog_ms = wanted
                return [start.elapsed_time(end) for start, end in events]
            self._backlog_ms = min(LONGEST_BACKLOG_MS, max(2 * self._backlog_ms, wanted))
        raise BenchmarkError(
            f"the host took {enqueue_ms:.1f} ms to enqueue {len(launches)} launches and never stayed ahead of the GPU "
            f"in {ATTEMPTS} attempts: a contender synchronises, or the machine is overloaded"
        )

    def clock_mhz(self) -> int | None:
        """The SM clock under load, in MHz; None where it cannot be read."""
        torch.cuda._sleep(int(5.0 * self._cycles_per_ms))  # an idle GPU would show its idle clock
        clock = sm_clock_mhz(self.device)
        torch.cuda.synchronize(self.device)
        return clock

    def empty_pair_ms(self) -> float:
        """The median of event pairs with nothing between them: part of every sample, and not subtracted."""
        return median(self.batch([lambda: None] * 20))
