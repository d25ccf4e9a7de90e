"""The timers of a GPU: CUDA events, CUDA graphs, and the hardware's trace."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch._C._autograd import DeviceType

from forge_core.errors import BenchmarkError, UnsupportedError
from forge_core.timing import Call
from forge_core.timing.clocks import sm_clock_mhz

# A backlog is this much longer than enqueuing took the last time, plus a margin for a host that stumbles.
BACKLOG_FACTOR = 2.0
BACKLOG_MARGIN_MS = 0.3
FIRST_BACKLOG_MS = 5.0
LONGEST_BACKLOG_MS = 2000.0
ATTEMPTS = 8
CALIBRATION_CYCLES = 2_000_000
#: The kernel behind ``torch.cuda._sleep``, as the trace names it.
MARK = "spin_kernel"
MARK_CYCLES = 1000


Pair = tuple[torch.cuda.Event, torch.cuda.Event]


def event_pair(*, external: bool = False) -> Pair:
    """Two events that take times; `external` ones become nodes of a graph that is captured."""
    first, second = (torch.cuda.Event(enable_timing=True, external=external) for _ in range(2))
    return first, second


def enqueue(launches: Sequence[Call], before: Call | None, pairs: Sequence[Pair], stream: torch.cuda.Stream) -> None:
    """Enqueues the launches, each between the events of its pair."""
    for launch, (start, end) in zip(launches, pairs, strict=True):
        if before is not None:
            before()
        start.record(stream)
        launch()
        end.record(stream)


class EventTimer:
    """Times launches on the current stream by CUDA events behind a backlog, so that no sample has a launch gap.

        host   | spin | gate | start0 launch0 end0 | start1 launch1 end1 | ... | gate still pending?
        GPU    |<------- spinning ------------------------------------------->| start0 kernel0 end0 start1 kernel1 ...

    A pair of events around a launch on an idle stream times the host: the start event completes at once and the GPU
    then waits for the launch.  So the stream is first kept busy by a kernel that spins longer than the host needs to
    enqueue the whole batch.  If the event behind that kernel has completed by the time the last launch is enqueued, the
    batch is thrown away and taken again behind a longer backlog.
    """

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

    def batch(self, launches: Sequence[Call], before: Call | None = None) -> list[float]:
        """Milliseconds of each launch; `before` is enqueued before each and is not part of its sample.

        Raises:
            BenchmarkError: the host could not enqueue the launches while the GPU was kept busy.
        """
        events = [event_pair() for _ in launches]
        for _ in range(ATTEMPTS):
            torch.cuda._sleep(int(self._backlog_ms * self._cycles_per_ms))
            self._gate.record(self._stream)
            began = time.perf_counter()
            enqueue(launches, before, events, self._stream)
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
        """The median duration of an empty pair of events, which is part of every sample."""
        return median(self.batch([lambda: None] * 20))


class GraphTimer(EventTimer):
    """Times a CUDA graph of each batch: the launches and the events around them.

        capture   [before | start0 launch0 end0 | before | start1 launch1 end1 | ... ]
        replay    one launch of the whole; the events are nodes of the graph and carry the GPU's own time

    The host takes no part in a replay, so no backlog is needed, and a contender with many small kernels is timed as a
    program that replays graphs would run it.
    """

    method = "CUDA graph: each batch of launches captured with CUDA events around each launch, and replayed"

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._side = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._previous: torch.cuda.CUDAGraph | None = None  # keeps the pool's memory allocated between graphs

    def batch(self, launches: Sequence[Call], before: Call | None = None) -> list[float]:
        """As :meth:`EventTimer.batch`; BenchmarkError if a launch synchronises, or works on a stream of its own."""
        pairs = [event_pair(external=True) for _ in launches]
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.device)
        with torch.cuda.stream(self._side):
            graph.capture_begin(pool=self._pool)
            try:
                enqueue(launches, before, pairs, self._side)
                graph.capture_end()
            except RuntimeError as error:
                self._abandon(graph)
                first = str(error).strip().splitlines()[0]
                raise BenchmarkError(
                    f"a launch cannot be captured in a CUDA graph ({first}): it synchronises, or it works on another "
                    "stream than the current one"
                ) from error
            graph.replay()
        torch.cuda.synchronize(self.device)
        self._previous = graph
        return [start.elapsed_time(end) for start, end in pairs]

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """Ends a capture that failed, and restores torch's allocator and generators.

        After the driver invalidates a capture, the allocator goes on recording to the pool, and the generators refuse
        to draw until some capture has ended as it should.
        """
        try:
            graph.capture_end()
        except RuntimeError:
            index = torch.cuda.current_device() if self.device.index is None else self.device.index
            torch._C._cuda_endAllocateToPool(index, self._pool)
        self._pool = torch.cuda.graph_pool_handle()
        scratch = torch.empty(1, device=self.device)
        torch.cuda.synchronize(self.device)
        healing = torch.cuda.CUDAGraph()
        healing.capture_begin(pool=self._pool)
        scratch.zero_()
        healing.capture_end()
        self._previous = healing


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
    """Times launches by CUPTI, through torch's profiler: when each kernel began and ended, without what is around it.

    A sample is from the begin of a launch's first kernel to the end of its last.  Short spinning kernels on both sides
    mark a launch; the first spin is a backlog, so that the host is not part of the gap between two kernels of a launch.

        stream    spin | before | spin kernel kernel spin | before | spin kernel kernel spin | ...
        sample 0                      |-------------|

    The trace names the stream of every kernel, so work on another stream is refused.
    """

    method = "CUPTI through torch's profiler: from the begin of a launch's first kernel to the end of its last"

    def batch(self, launches: Sequence[Call], before: Call | None = None) -> list[float]:
        """As :meth:`EventTimer.batch`; BenchmarkError if a launch landed on another stream or did nothing."""
        torch.cuda.synchronize(self.device)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as traced:
            torch.cuda._sleep(int(FIRST_BACKLOG_MS * self._cycles_per_ms))
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


#: The timers by name.
TIMERS: dict[str, Callable[[torch.device], EventTimer]] = {
    "events": EventTimer,
    "graph": GraphTimer,
    "cupti": CuptiTimer,
}
