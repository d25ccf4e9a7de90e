"""Softmax, second rung: a block a row; the maximum and the sum of exponentials in one pass.

    y = exp(x - m) / s      m = max(x), s = sum(exp(x - m)) over a row

Parts of a row have pairs (m, s), which merge (see ``forge_core.cute.online``), so the sum need not wait for the
maximum:

    (a, s) merged with (b, t) = (m, s exp(a - m) + t exp(b - m))      m = max(a, b)

    mX    (M, N):(s0, s1)                 x, any strides; mY likewise
    gX    (T * chunks * vec, tiles)       the block's row, in tiles of T threads * chunks * vec
    tXgX  ((vec, 1), chunks, tiles)       thread t's vectors of a tile: t, t + T, ..., all loaded before the first use
    tXpX  (1, chunks)                     whether they are inside the row; tXrX is -inf where not

    pass 1   tXgX -> pair of the tile -> merged into that of the thread -> block -> (m, s)
    pass 2   tXgX -> tYgY

Bytes moved: 2 reads and 1 write of each element; a row that the L2 keeps from the first pass to the second costs DRAM
one read.  A vector has 16 bytes in rows of whole aligned vectors, and is one element in any others.
Limits: fewer than 2^31 rows, and elements of a row.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64, const_expr
from cutlass.cute.nvgpu import CopyG2ROp, CopyUniversalOp
from cutlass.memory import SmemAllocator

from forge_core.cute.exchange import Sharers, open_exchange, reduce_row
from forge_core.cute.math import exp
from forge_core.cute.memory import builder, name_kernel
from forge_core.cute.online import MaxSum, reciprocal
from forge_core.cute.strided import tensor
from forge_core.dtypes import cute_dtype
from forge_week2_softmax.config import OnlineConfig

__all__ = ["Online", "build"]

PAIR = MaxSum(Float32)


class Online(OnlineConfig):
    """The kernel of a configuration."""

    @cute.jit
    def __call__(self, pX: Any, pY: Any, rows: Any, length: Any, x0: Any, y0: Any, x1: Any, y1: Any, stream: Any):
        """Launches a block for each row; a stride of x and one of y between rows (0) and between elements (1)."""
        name_kernel(self.kernel, self.kernel_name)
        self.kernel(pX, pY, rows, length, (x0, x1), (y0, y1)).launch(
            grid=(Int32(rows), 1, 1), block=(self.threads, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, pX: cute.Pointer, pY: cute.Pointer, rows: Int64, length: Int64, xStrides: tuple, yStrides: tuple):
        dtype, exact = cute_dtype(self.dtype), self.dtype.itemsize > 2
        thread, row = cute.arch.thread_idx()[0], cute.arch.block_idx()[0]
        (exchange,) = open_exchange(SmemAllocator(), [PAIR], Sharers(self.threads, self.threads))

        # Partition: tiles of the row among the threads.
        vec, width = self.vec, self.vec * dtype.width
        tile = (self.threads * self.chunks * vec,)
        if const_expr(vec > 1):  # what the compiler may take for granted
            xStrides, yStrides = ((cute.assume(s[0], divby=vec), 1) for s in (xStrides, yStrides))
        mX = tensor(pX, dtype, (rows, length), xStrides, width // 8)
        mY = tensor(pY, dtype, (rows, length), yStrides, width // 8)
        gX, gY = (cute.zipped_divide(m[row, None], tile) for m in (mX, mY))
        cX = cute.zipped_divide(cute.make_identity_tensor(Int32(length)), tile)
        load = cute.make_copy_atom(CopyG2ROp(), dtype, num_bits_per_copy=width)
        store = cute.make_copy_atom(CopyUniversalOp(), dtype, num_bits_per_copy=width)
        mine = cute.make_tiled_copy_tv(load, cute.make_layout(self.threads), cute.make_layout(vec)).get_slice(thread)
        tXgX, tYgY, tXcX = (mine.partition_S(t) for t in (gX, gY, cX))
        tXrX, tYrY = (cute.make_rmem_tensor_like(tXgX[None, None, 0]) for _ in range(2))
        tXpX = cute.make_rmem_tensor((1, self.chunks), Boolean)

        # Pass 1: the pair of each tile, merged into the thread's.
        top, total = PAIR.identity()
        for k in cutlass.range(cute.size(tXgX, mode=[2]), unroll=1):
            self.inside(tXcX[None, None, k], length, tXpX)
            tXrX.fill(-dtype.inf)
            cute.copy(load, tXgX[None, None, k], tXrX, pred=tXpX)
            x = tXrX.load().to(Float32)
            high = x.reduce(cute.ReductionOp.MAX, -Float32.inf, 0)
            low = exp(x - PAIR.base(high), exact=exact).reduce(cute.ReductionOp.ADD, 0.0, 0)
            top, total = PAIR.combine((top, total), (high, low))
        top, total = reduce_row((top, total), PAIR, exchange)

        # Pass 2: the results.  Of a row of nothing but -inf the sum is 0, and they are 0 / 0.
        base, factor = PAIR.base(top), reciprocal(total)
        for k in cutlass.range(cute.size(tXgX, mode=[2]), unroll=1):
            self.inside(tXcX[None, None, k], length, tXpX)
            cute.copy(load, tXgX[None, None, k], tXrX, pred=tXpX)
            y = exp(tXrX.load().to(Float32) - base, exact=exact) * factor
            tYrY.store(y.to(dtype))
            cute.copy(store, tYrY, tYgY[None, None, k], pred=tXpX)

    def inside(self, tXcX: cute.Tensor, length: Int64, tXpX: cute.Tensor) -> None:
        """Predicates: which of a thread's vectors of a tile are inside the row."""
        for c in range(self.chunks):
            tXpX[0, c] = tXcX[0, c] < length


build = builder(Online, wide=6)
