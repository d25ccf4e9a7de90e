"""A sum along rows, third rung: a block a row, and warp shuffles.

    y = sum(x) over a row

    gX    (N):(s1)            the block's row
    tXgX  (steps):(T * s1)    thread t's elements: t, t + T, t + 2T, ...      T threads

The row is read as in ``shared``.  Then lanes pass their totals to each other through registers; shared memory carries
one value a warp, and the block meets at one barrier:

    warp 0   32 lanes -> shuffles -> [w0] --.
    warp 1   32 lanes -> shuffles -> [w1] ---+-> sAcc -> barrier -> every warp: shuffles -> the row's
    ...                                     |
    warp 7   32 lanes -> shuffles -> [w7] --'

Bytes moved: each element once, coalesced, an element a thread and load: for long rows the number of load instructions
is the bound, which ``vectorized`` divides by four and more.
Limits: fewer than 2^31 rows, and elements of a row.
"""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass.memory import SmemAllocator

from forge_core.cute.exchange import Sharers, open_exchange, reduce_row
from forge_core.cute.memory import builder, name_kernel
from forge_week1_reduce.config import ShuffleConfig
from forge_week1_reduce.kernels.rows import finish, matrix, monoid_of, walk

__all__ = ["Shuffle", "build"]


class Shuffle(ShuffleConfig):
    """The kernel of a configuration."""

    @cute.jit
    def __call__(self, pX: Any, pY: Any, rows: Any, length: Any, x0: Any, y0: Any, x1: Any, stream: Any):
        """Launches a block for each row; the arguments are those of ``naive``."""
        name_kernel(self.kernel, self.kernel_name)
        self.kernel(pX, pY, rows, length, (x0, x1), y0).launch(
            grid=(Int32(rows), 1, 1), block=(self.threads, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, pX: cute.Pointer, pY: cute.Pointer, rows: Int64, length: Int64, xStrides: tuple, y0: Int64):
        thread, row, monoid = cute.arch.thread_idx()[0], cute.arch.block_idx()[0], monoid_of(self)
        mX, mY = matrix(self, pX, pY, (rows, length), xStrides, y0)
        (exchange,) = open_exchange(SmemAllocator(), [monoid], Sharers(self.threads, self.threads))
        total = walk(self, mX[row, None], length, thread)
        (total,) = reduce_row((total,), monoid, exchange)
        if thread == 0:
            mY[row] = finish(self, total, length)


build = builder(Shuffle, wide=5)
