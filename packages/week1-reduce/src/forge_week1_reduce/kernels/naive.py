"""A sum along rows, first rung: a thread a row.

    y = sum(x) over a row

    mX    (M, N):(s0, s1)     x, any strides; mY (M)
    gX    (N):(s1)            the thread's row

    row      step 0   1   2   3                            a contiguous matrix, reduced over its last dim:
    thread 0   [a0]  [a1][a2][a3] ...                      at each step a warp reads 32 elements that lie a whole row
    thread 1   [b0]  [b1][b2][b3] ...                      apart: 32 sectors of 32 bytes for 32 elements
    thread 2   [c0]  [c1][c2][c3] ...

Bytes moved: each element once, if the caches keep a sector until the thread has walked through it; they do not always.
The bound is the latency of one load after the other.  Reduced over the first dim the same walk is coalesced.
Limits: fewer than 2^31 rows, and elements of a row.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from forge_core.cute.memory import builder, name_kernel
from forge_week1_reduce.config import NaiveConfig
from forge_week1_reduce.kernels.rows import finish, matrix, monoid_of

__all__ = ["Naive", "build"]

#: Elements that are added up before their sum is added to the row's: the error of rounding stays near that of a tree.
RUN = 128


class Naive(NaiveConfig):
    """The kernel of a configuration."""

    @cute.jit
    def __call__(self, pX: Any, pY: Any, rows: Any, length: Any, x0: Any, y0: Any, x1: Any, stream: Any):
        """Launches a thread for each row; strides of x and y between rows (0), of x between elements (1)."""
        name_kernel(self.kernel, self.kernel_name)
        self.kernel(pX, pY, rows, length, (x0, x1), y0).launch(
            grid=(Int32((rows + (self.threads - 1)) // self.threads), 1, 1), block=(self.threads, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, pX: cute.Pointer, pY: cute.Pointer, rows: Int64, length: Int64, xStrides: tuple, y0: Int64):
        monoid = monoid_of(self)
        mX, mY = matrix(self, pX, pY, (rows, length), xStrides, y0)
        row = Int64(cute.arch.block_idx()[0]) * self.threads + cute.arch.thread_idx()[0]
        if row < rows:
            gX, total = mX[row, None], monoid.identity()[0]
            for first in cutlass.range(0, Int32(length), RUN, unroll=1):
                part = monoid.identity()[0]
                for i in cutlass.range(first, cutlass.min(Int32(length), first + RUN), unroll=4):
                    part = monoid.combine((part,), (gX[i].to(Float32),))[0]
                total = monoid.combine((total,), (part,))[0]
            mY[row] = finish(self, total, length)


build = builder(Naive, wide=5)
