"""A sum along rows, second rung: a block a row, and a tree in shared memory.

    y = sum(x) over a row

    gX    (N):(s1)            the block's row
    tXgX  (steps):(T * s1)    thread t's elements: t, t + T, t + 2T, ...      T threads
    sAcc  (T)                 a total for each thread

The threads of a block read their row side by side, so that a warp's 32 elements are one line of memory.  Then the block
adds up its threads' totals in halves:

    sAcc     [0]  [1]  [2]  [3]  [4]  [5]  [6]  [7]       8 threads
    half 4    +4   +5   +6   +7   .    .    .    .        barrier
    half 2    +2   +3   .    .    .    .    .    .        barrier
    half 1    +1   .    .    .    .    .    .    .        thread 0 holds the row's

Bytes moved: each element once, coalesced.  The tree costs log2(T) barriers, at each of which half as many threads
work: for short rows that takes the time, and not the memory; ``shuffle`` does without.
Limits: fewer than 2^31 rows, and elements of a row.
"""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr
from cutlass.memory import SmemAllocator

from forge_core.cute.memory import builder, name_kernel
from forge_week1_reduce.config import SharedConfig
from forge_week1_reduce.kernels.rows import finish, matrix, monoid_of, walk

__all__ = ["Shared", "build"]


class Shared(SharedConfig):
    """The kernel of a configuration."""

    @cute.jit
    def __call__(self, pX: Any, pY: Any, rows: Any, length: Any, x0: Any, y0: Any, x1: Any, stream: Any):
        """Launches a block for each row; the arguments are those of ``naive``."""
        name_kernel(self.kernel, self.kernel_name)
        self.kernel(pX, pY, rows, length, (x0, x1), y0).launch(
            grid=(Int32(rows), 1, 1), block=(self.threads, 1, 1), smem=4 * self.threads, stream=stream
        )

    @cute.kernel
    def kernel(self, pX: cute.Pointer, pY: cute.Pointer, rows: Int64, length: Int64, xStrides: tuple, y0: Int64):
        thread, row, monoid = cute.arch.thread_idx()[0], cute.arch.block_idx()[0], monoid_of(self)
        mX, mY = matrix(self, pX, pY, (rows, length), xStrides, y0)
        sAcc = SmemAllocator().allocate_tensor(Float32, cute.make_layout(self.threads), byte_alignment=16)
        sAcc[thread] = walk(self, mX[row, None], length, thread)
        half = self.threads // 2
        while const_expr(half > 0):
            cute.arch.sync_threads()
            if thread < half:
                sAcc[thread] = monoid.combine((sAcc[thread],), (sAcc[thread + half],))[0]
            half = half // 2
        if thread == 0:
            mY[row] = finish(self, sAcc[0], length)


build = builder(Shared, wide=5)
