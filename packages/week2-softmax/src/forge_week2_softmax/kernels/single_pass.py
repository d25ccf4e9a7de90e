"""Softmax, last rung: the row stays in registers, so it is read once.

    y = exp(x - m) / s      m = max(x), s = sum(exp(x - m)) over a row

Threads take turns along the row, a 16-byte vector each, and all of a thread's loads are issued before the first use:

    mX    (M, N):(s0, 1)                                x, whole 16-byte vectors; mY likewise
    tXgX  ((vec, 1), chunks):((1, vec), T * vec)        thread t's vectors: t, t + T, ...       T threads a row
    tXrX  ((vec, 1), chunks)                            the same in registers, as stored; -inf outside the row
    tXpX  (1) for each chunk                            whether it is inside the row

    load     tXgX -> tXrX
    fold     (max, sum) of the thread's elements -> lanes, or block -> (m, s): one barrier, or none
    map      tXrX -> tYgY

A row of up to 128 vectors has some lanes of a warp, and a block has several rows; a longer one has a block of as many
warps as hold it, ``chunks`` vectors a thread.

Bytes moved: 1 read and 1 write of each element, so the bound is DRAM bandwidth.  Loads ask the L2 to evict their lines
last.  The phases of a block do not overlap; resident blocks hide each other's, so registers are bounded.
Limits: rows that begin at multiples of 16 bytes and are whole multiples long, of at most 10240 vectors.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint32, const_expr
from cutlass.memory import SmemAllocator

from forge_core.cute.copy import load_policy, opaque, partition, vector_predicate
from forge_core.cute.exchange import Sharers, open_exchange, reduce_row
from forge_core.cute.math import exp
from forge_core.cute.memory import builder, launch_bounds, name_kernel
from forge_core.cute.monoid import Maximum, Sum
from forge_core.cute.online import MaxSum, reciprocal
from forge_core.cute.strided import tensor
from forge_core.cute.warp import reduce_part
from forge_core.dtypes import cute_dtype
from forge_week2_softmax.config import SinglePassConfig

__all__ = ["SinglePass", "build"]

PAIR = MaxSum(Float32)


class SinglePass(SinglePassConfig):
    """The kernel of a configuration."""

    @cute.jit
    def __call__(self, pX: Any, pY: Any, rows: Any, length: Any, threads: Any, x0: Any, y0: Any, stream: Any):
        """Launches blocks of ``threads`` for rows of ``length``; ``x0``, ``y0``: strides between rows."""
        each = self.threads // self.lanes if const_expr(self.lanes > 0) else 1
        name_kernel(self.kernel, self.kernel_name)
        self.kernel(pX, pY, rows, Int32(length), Int32(threads), x0, y0).launch(
            grid=(Int32((rows + (each - 1)) // each), 1, 1),
            block=(Int32(threads), 1, 1),
            max_number_threads=(self.threads, 1, 1),
            stream=stream,
            **launch_bounds(self.resident),
        )

    @cute.kernel
    def kernel(
        self, pX: cute.Pointer, pY: cute.Pointer, rows: Int64, length: Int32, threads: Int32, x0: Int64, y0: Int64
    ):
        dtype, vec, chunks, lanes = cute_dtype(self.dtype), 16 // self.dtype.itemsize, self.chunks, self.lanes
        thread, row, count = cute.arch.thread_idx()[0], Int64(cute.arch.block_idx()[0]), length
        if const_expr(lanes > 0):
            # Lanes past the last row stand in it and hold nothing of it, so that the warp stays converged.
            row, thread = row * (self.threads // lanes) + thread // lanes, thread % lanes
            row, count = cutlass.min(row, rows - 1), Int32(cutlass.select_(row < rows, length, 0))

        # Partition: the row among the threads.
        mX = tensor(pX, dtype, (rows, length), (x0, 1), 16)
        mY = tensor(pY, dtype, (rows, length), (y0, 1), 16)
        turn = lanes or threads
        load, tXgX = partition(mX[row, None], Int32(0), vec, turn, chunks, thread, load=True)
        tXpX = [vector_predicate(tXgX, thread * vec + c * turn * vec < count) for c in range(chunks)]

        # Load.
        tXrX, policy = cute.make_rmem_tensor((tXgX.shape[0], chunks), dtype), load_policy()
        tXrX.fill(-dtype.inf)
        for c in cutlass.range_constexpr(chunks):
            cute.copy(load, tXgX[None, c], tXrX[None, c], pred=tXpX[c], cache_policy=policy)

        # Fold: the maximum, in the dtype of storage; the sum below it.
        top = dtype(tXrX.load().reduce(cute.ReductionOp.MAX, -dtype.inf, 0)).to(Float32)
        if const_expr(lanes > 0):
            top = reduce_part(top, Maximum(Float32), lanes)
        terms = self.exp(tXrX[None, 0], PAIR.base(top))
        for c in cutlass.range_constexpr(1, chunks):
            terms = terms + self.exp(tXrX[None, c], PAIR.base(top))
        total = terms.reduce(cute.ReductionOp.ADD, 0.0, 0)
        if const_expr(lanes > 0):
            total = reduce_part(total, Sum(Float32), lanes)
        else:
            (exchange,) = open_exchange(SmemAllocator(), [PAIR], Sharers(threads, self.threads))
            top, total = reduce_row((top, total), PAIR, exchange)

        # Map and store.  Conversions of 16-bit elements, and places, are computed anew behind the exchange: kept, they
        # would take registers that other blocks need.  The compiler does not know that `zero` is 0.
        base, factor, zero = PAIR.base(top), reciprocal(total), (Uint32(length) >> 31) & total.bitcast(Uint32)
        if const_expr(dtype.width == 16):
            opaque(tXrX, zero)
        if const_expr(lanes == 0):
            turn = threads + Int32(zero)
        store, tYgY = partition(mY[row, None], Int32(0), vec, turn, chunks, thread, load=False)
        tYrY = cute.make_rmem_tensor_like(tXrX[None, 0])
        for c in cutlass.range_constexpr(chunks):
            tYrY.store((self.exp(tXrX[None, c], base) * factor).to(dtype))
            cute.copy(store, tYrY, tYgY[None, c], pred=vector_predicate(tYgY, thread * vec + c * turn * vec < count))

    def exp(self, tXrX: cute.Tensor, base: Float32) -> cute.TensorSSA:
        """The exponentials of some elements, less the maximum; results of 16 bits need no exact ones."""
        return exp(tXrX.load().to(Float32) - base, exact=self.dtype.itemsize > 2)


build = builder(SinglePass, wide=5)
