"""Marking what a profiler is to see: an NVTX range inside cudaProfilerStart and cudaProfilerStop."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

__all__ = ["CudaMarks", "profiled_range"]


class CudaMarks:
    """Marks of a profiled range, through torch; tests give a log of the calls instead."""

    def __init__(self) -> None:
        import torch  # not at import: the doctor imports this package where torch is missing

        self._cuda = torch.cuda

    def synchronize(self) -> None:
        """Waits for all that was launched on the current device."""
        self._cuda.synchronize()

    def start(self) -> None:
        """Calls cudaProfilerStart."""
        self._cuda.check_error(self._cuda.cudart().cudaProfilerStart())

    def stop(self) -> None:
        """Calls cudaProfilerStop."""
        self._cuda.check_error(self._cuda.cudart().cudaProfilerStop())

    def push(self, name: str) -> None:
        """Opens an NVTX range."""
        self._cuda.nvtx.range_push(name)

    def pop(self) -> None:
        """Closes it."""
        self._cuda.nvtx.range_pop()


@contextlib.contextmanager
def profiled_range(name: str, marks: CudaMarks | None = None) -> Iterator[None]:
    """Profiles a block: what ran before it has ended when profiling starts, and it has ended when profiling stops.

    A profiler that was told to wait (``ncu --profile-from-start off``, ``nsys --capture-range cudaProfilerApi``) sees
    this block and nothing else.

    Args:
        name: the NVTX range's name.
        marks: what marks the range; CUDA's own by default.
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
