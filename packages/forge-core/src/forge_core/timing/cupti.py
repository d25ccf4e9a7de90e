"""The timer that reads the hardware's trace: CUPTI, through torch's profiler.

CUPTI notes when each kernel began and ended, so nothing around a launch is part of its sample: from the begin of its
first kernel to the end of its last.  Short spinning kernels on both sides mark a launch; the first spin is a backlog,
so that the host is not part of the gap between two kernels of one launch.

    stream    spin | before | spin kernel kernel spin | before | spin kernel kernel spin | ...
    sample 0                      |-------------|

The trace names the stream of every kernel, so work on another stream is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch._C._autograd import DeviceType

from forge_core.errors import BenchmarkError
from forge_core.timing.events import EventTimer

__all__ = ["CuptiTimer", "Span", "between_marks"]

#: The kernel behind ``torch.cuda._sleep``, as the trace names it.
MARK = "spin_kernel"
MARK_CYCLES = 1000
BACKLOG_MS = 5.0


@dataclass(frozen=True)
class Span:
    """One kernel or copy of the trace, on the stream of that number."""

    name: str
    stream: int
    start_ns: int
    end_ns: int


def between_marks(spans: Sequence[Span], launches: int) -> list[float]:
    """Milliseconds between the marks around each launch.

    `spans` are all work of the GPU, in any order: a mark, then for each launch what came before it, a mark, its own
    work, and a mark.

    Raises:
        BenchmarkError: work on another stream, other marks than expected, or a launch without any work.
    """
    ordered = sorted(spans, key=lambda span: span.start_ns)
    marks = [n for n, span in enumerate(ordered) if MARK in span.name]
    if len(marks) != 2 * launches + 1:
        raise BenchmarkError(
            f"the trace of {launches} launches has {len(marks)} marks, expected {2 * launches + 1}: records were lost, "
            "or a contender launches the kernel that the marks are made of"
        )
    stream = ordered[marks[0]].stream
    for span in ordered:
        if span.stream != stream:
            raise BenchmarkError(
                f"{span.name} landed on stream {span.stream}, and the current stream, which it has to use, is {stream}"
            )
    samples = []
    for begin, end in zip(marks[1::2], marks[2::2], strict=True):
        work = ordered[begin + 1 : end]
        if not work:
            raise BenchmarkError("a launch put no work on the GPU: nothing ran between its marks")
        samples.append((max(span.end_ns for span in work) - work[0].start_ns) * 1e-6)
    return samples


class CuptiTimer(EventTimer):
    """Times launches by the begin and end that CUPTI records of each kernel; see :class:`EventTimer`."""

    method = "CUPTI through torch's profiler: from the begin of a launch's first kernel to the end of its last"

    def batch(
        self, launches: Sequence[Callable[[], object]], before: Callable[[], object] | None = None
    ) -> list[float]:
        """As :meth:`EventTimer.batch`; BenchmarkError if a launch landed on another stream or did nothing."""
        torch.cuda.synchronize(self.device)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as traced:
            torch.cuda._sleep(int(BACKLOG_MS * self._cycles_per_ms))
            for launch in launches:
                if before is not None:
                    before()
                torch.cuda._sleep(MARK_CYCLES)
                launch()
                torch.cuda._sleep(MARK_CYCLES)
            torch.cuda.synchronize(self.device)
        spans = [
            Span(event.name(), event.device_resource_id(), event.start_ns(), event.end_ns())
            for event in traced.profiler.kineto_results.events()
            if event.device_type() == DeviceType.CUDA
            and not event.is_user_annotation()
            and not (hasattr(event, "activity_type") and "sync" in str(event.activity_type()).lower())
        ]
        return between_marks(spans, len(launches))

    def empty_pair_ms(self) -> float:
        """0: a sample begins and ends with its own kernels."""
        return 0.0
