"""A sum along rows, last rung: 16 bytes an access, several of a thread in flight.

    y = sum(x) over a row

    mX    (M, N):(s0, 1)                             x, whole 16-byte vectors
    tXgX  ((vec, 1), chunks):((1, vec), T * vec)     thread t's vectors of a tile: t, t + T, ...      T threads a row
    tXrX  ((vec, 1), chunks)                         the same in registers, as stored
    rAcc  (vec)                                      a total for each place of a vector

    load     tXgX -> tXrX                            all of a tile's loads are issued before the first is used
    fold     tXrX -> rAcc, vector by vector; then across the vector, by shuffles, through sAcc: one barrier

By Little's law what is in flight hides the latency: on an H200 some 40 KB a multiprocessor, which threads with one
element each do not reach.  A total for each place of a vector: chains of additions that do not wait for each other.

Bytes moved: each element once, so the bound is DRAM bandwidth.  Limits: rows that begin at multiples of 16 bytes and
are whole multiples long; fewer than 2^31 rows, and elements of a row.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.memory import SmemAllocator

from forge_core.cute.copy import partition, vector_predicate
from forge_core.cute.exchange import Sharers, open_exchange, reduce_row
from forge_core.cute.memory import builder, name_kernel
from forge_core.cute.strided import tensor
from forge_core.dtypes import cute_dtype
from forge_week1_reduce.config import VectorizedConfig
from forge_week1_reduce.kernels.rows import finish, monoid_of

__all__ = ["Vectorized", "build"]


class Vectorized(VectorizedConfig):
    """The kernel of a configuration."""

    @cute.jit
    def __call__(self, pX: Any, pY: Any, rows: Any, length: Any, x0: Any, y0: Any, x1: Any, stream: Any):
        """Launches a block for each row; strides of x and y between rows (0), of x between elements (1), which is 1."""
        name_kernel(self.kernel, self.kernel_name)
        self.kernel(pX, pY, rows, Int32(length), x0, y0).launch(
            grid=(Int32(rows), 1, 1), block=(self.threads, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, pX: cute.Pointer, pY: cute.Pointer, rows: Int64, length: Int32, x0: Int64, y0: Int64):
        dtype, vec, chunks, threads = cute_dtype(self.dtype), 16 // self.dtype.itemsize, self.chunks, self.threads
        thread, row, monoid = cute.arch.thread_idx()[0], cute.arch.block_idx()[0], monoid_of(self)
        (exchange,) = open_exchange(SmemAllocator(), [monoid], Sharers(threads, threads))

        # Partition: the row among the threads, a tile at a time.
        gX = tensor(pX, dtype, (rows, length), (x0, 1), 16)[row, None]
        mY = tensor(pY, dtype, rows, y0)
        nothing, tile = dtype(monoid.identity()[0]), threads * vec * chunks
        rAcc = cute.make_rmem_tensor(vec, Float32)
        rAcc.fill(monoid.identity()[0])
        for first in cutlass.range(0, length, tile, unroll=1):
            # Load.
            load, tXgX = partition(gX, first, vec, threads, chunks, thread, load=True)
            tXrX = cute.make_rmem_tensor((tXgX.shape[0], chunks), dtype)
            tXrX.fill(nothing)
            for c in cutlass.range_constexpr(chunks):
                inside = first + thread * vec + c * threads * vec < length
                cute.copy(load, tXgX[None, c], tXrX[None, c], pred=vector_predicate(tXgX, inside))

            # Fold.
            for c in cutlass.range_constexpr(chunks):
                x = tXrX[None, c].load().to(Float32).reshape(vec)
                for k in cutlass.range_constexpr(vec):
                    rAcc[k] = monoid.combine((rAcc[k],), (x[k],))[0]

        # Across the vector, and across the block.
        left = vec
        while cutlass.const_expr(left > 1):
            left = left // 2
            for k in cutlass.range_constexpr(left):
                rAcc[k] = monoid.combine((rAcc[k],), (rAcc[k + left],))[0]
        (total,) = reduce_row((rAcc[0],), monoid, exchange)
        if thread == 0:
            mY[row] = finish(self, total, length)


build = builder(Vectorized, wide=5)
