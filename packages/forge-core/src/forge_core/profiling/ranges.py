"""Marking what a profiler is to see: an NVTX range inside cudaProfilerStart and cudaProfilerStop."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

__all__ = ["CudaMarks", "Marks", "profiled_range"]


class Marks(Protocol):
    """What marks a range; CUDA's own in earnest, a list of calls in tests."""

    def synchronize(self) -> None:
        """Waits for all that was launched."""

    def start(self) -> None:
        """Begins profiling."""

    def stop(self) -> None:
        """Ends profiling."""

    def push(self, name: str) -> None:
        """Opens a named range."""

    def pop(self) -> None:
        """Closes it."""


class CudaMarks:
    """cudaProfilerStart and cudaProfilerStop, and NVTX, through torch."""

    def synchronize(self) -> None:
        """Waits for all that was launched on the current device."""
        import torch

        torch.cuda.synchronize()

    def start(self) -> None:
        """Calls cudaProfilerStart."""
        import torch

        torch.cuda.check_error(torch.cuda.cudart().cudaProfilerStart())

    def stop(self) -> None:
        """Calls cudaProfilerStop."""
        import torch

        torch.cuda.check_error(torch.cuda.cudart().cudaProfilerStop())

    def push(self, name: str) -> None:
        """Opens an NVTX range."""
        import torch

        torch.cuda.nvtx.range_push(name)

    def pop(self) -> None:
        """Closes it."""
        import torch

        torch.cuda.nvtx.range_pop()


@contextlib.contextmanager
def profiled_range(name: str, marks: Marks | None = None) -> Iterator[None]:
    """Profiles a block: what ran before it has ended when profiling starts, and it has ended when profiling stops.

    A profiler that was told to wait (``ncu --profile-from-start off``, ``nsys --capture-range cudaProfilerApi``) sees
    this block and nothing else.

    Args:
        name: the NVTX range's name.
        marks: what marks the range; by default CUDA's own.
    """
    marks = marks or CudaMarks()
    marks.synchronize()
    marks.start()
    marks.push(name)
    try:
        yield
        marks.synchronize()
    finally:
        marks.pop()
        marks.stop()
