"""The timer that replays: each batch of launches is captured in a CUDA graph, and the graph is timed.

A graph holds the launches and the events around them, so the host takes no part once it is launched: no backlog is
needed, and a contender with many small kernels is timed as a program that replays graphs would run it.

    capture   [before | start0 launch0 end0 | before | start1 launch1 end1 | ... ]
    replay    one launch of the whole; the events are nodes of the graph and carry the GPU's own time
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from forge_core.errors import BenchmarkError
from forge_core.timing.events import EventTimer, event_pair

__all__ = ["GraphTimer"]


class GraphTimer(EventTimer):
    """Times launches inside a CUDA graph; see :class:`EventTimer`."""

    method = "CUDA graph: each batch of launches captured with CUDA events around each launch, and replayed"

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._side = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._previous: torch.cuda.CUDAGraph | None = None  # keeps the pool's memory allocated between graphs

    def batch(
        self, launches: Sequence[Callable[[], object]], before: Callable[[], object] | None = None
    ) -> list[float]:
        """As :meth:`EventTimer.batch`; BenchmarkError if a launch synchronises, or works on a stream of its own."""
        pairs = [event_pair(external=True) for _ in launches]
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.device)
        with torch.cuda.stream(self._side):
            graph.capture_begin(pool=self._pool)
            try:
                for launch, (start, end) in zip(launches, pairs, strict=True):
                    if before is not None:
                        before()
                    start.record(self._side)
                    launch()
                    end.record(self._side)
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
            torch._C._cuda_endAllocateToPool(self.device.index, self._pool)
        self._pool = torch.cuda.graph_pool_handle()
        scratch = torch.empty(1, device=self.device)
        torch.cuda.synchronize(self.device)
        healing = torch.cuda.CUDAGraph()
        healing.capture_begin(pool=self._pool)
        scratch.zero_()
        healing.capture_end()
        self._previous = healing
