"""Softmax, first rung: a block a row, and a pass over global memory for each step of the definition.

    y = exp(x - m) / s      m = max(x), s = sum(exp(x - m)) over a row

    mX    (M, N):(s0, s1)             x, any strides; mY likewise
    gX    (N):(s1)                    the block's row
    tXgX  (steps):(T * s1)            thread t's elements: t, t + T, t + 2T, ...      T threads

    pass 1   tXgX -> max of the thread -> block -> m
    pass 2   tXgX -> sum of the thread -> block -> s
    pass 3   tXgX -> tYgY

Bytes moved: 3 reads and 1 write of each element, less what caches keep.  A thread has four elements in flight, 8 or 16
bytes, so latency bounds it rather than DRAM bandwidth.
Limits: fewer than 2^31 rows, and elements of a row.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.memory import SmemAllocator

from forge_core.cute.exchange import Sharers, open_exchange, reduce_row
from forge_core.cute.math import exp
from forge_core.cute.memory import builder, launch_bounds, name_kernel
from forge_core.cute.monoid import Maximum, Sum
from forge_core.cute.online import MaxSum, reciprocal
from forge_core.cute.strided import tensor
from forge_core.dtypes import cute_dtype
from forge_week2_softmax.config import NaiveConfig

__all__ = ["Naive", "build"]


class Naive(NaiveConfig):
    """The kernel of a configuration."""

    @cute.jit
    def __call__(self, pX: Any, pY: Any, rows: Any, length: Any, x0: Any, y0: Any, x1: Any, y1: Any, stream: Any):
        """Launches a block for each row; a stride of x and one of y between rows (0) and between elements (1)."""
        name_kernel(self.kernel, self.kernel_name)
        self.kernel(pX, pY, rows, length, (x0, x1), (y0, y1)).launch(
            grid=(Int32(rows), 1, 1), block=(self.threads, 1, 1), stream=stream, **launch_bounds(1536 // self.threads)
        )

    @cute.kernel
    def kernel(self, pX: cute.Pointer, pY: cute.Pointer, rows: Int64, length: Int64, xStrides: tuple, yStrides: tuple):
        dtype, exact = cute_dtype(self.dtype), self.dtype.itemsize > 2
        thread, row = cute.arch.thread_idx()[0], cute.arch.block_idx()[0]
        smem, sharers = SmemAllocator(), Sharers(self.threads, self.threads)
        maxima, sums = open_exchange(smem, [Maximum(Float32), Sum(Float32)], sharers)

        # Partition: the row among the threads.
        mX = tensor(pX, dtype, (rows, length), xStrides)
        mY = tensor(pY, dtype, (rows, length), yStrides)
        gX, gY = mX[row, None], mY[row, None]
        tXgX, tYgY = (cute.local_partition(g, cute.make_layout(self.threads), thread) for g in (gX, gY))
        steps = Int32((length - thread + (self.threads - 1)) // self.threads)

        # Pass 1: the maximum; a NaN wins.
        top = Float32(-Float32.inf)
        for i in cutlass.range(steps, unroll=4):
            top = cute.arch.fmax(top, tXgX[i].to(Float32), nan=True)
        (top,) = reduce_row((top,), Maximum(Float32), maxima)

        # Pass 2: the sum.  Of a row of nothing but -inf it is 0, and the results 0 / 0.
        base, total = MaxSum(Float32).base(top), Float32(0)
        for i in cutlass.range(steps, unroll=4):
            total += exp(tXgX[i].to(Float32) - base, exact=exact)
        (total,) = reduce_row((total,), Sum(Float32), sums)

        # Pass 3: the results.
        factor = reciprocal(total)
        for i in cutlass.range(steps, unroll=4):
            tYgY[i] = (exp(tXgX[i].to(Float32) - base, exact=exact) * factor).to(dtype)


build = builder(Naive, wide=6)
