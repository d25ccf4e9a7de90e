"""Profiling: from "it is slow" to the reason.

Without a GPU: the static report of a compiled kernel (``static``, the command ``forge-cute inspect``) and drawings of
layouts (``layouts``, ``forge-cute layout``).  With one: the runners in ``tools/profiling``, which mark what is to be
profiled by :func:`profiled_range`, and what Nsight Compute counted (``ncu``, ``diagnosis``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

__all__ = ["profiled_range"]


@contextlib.contextmanager
def profiled_range(name: str) -> Iterator[None]:
    """Profiles a block: an NVTX range inside cudaProfilerStart and cudaProfilerStop.

    What ran before the block has ended when profiling starts, and the block has ended when profiling stops.  A profiler
    that was told to wait (``ncu --profile-from-start off``, ``nsys --capture-range cudaProfilerApi``) sees this block
    and nothing else.
    """
    import torch  # not at import: the doctor imports this package where torch is missing

    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    torch.cuda.nvtx.range_push(name)
    try:
        yield
        torch.cuda.synchronize()
    finally:
        torch.cuda.nvtx.range_pop()
        torch.cuda.profiler.stop()
