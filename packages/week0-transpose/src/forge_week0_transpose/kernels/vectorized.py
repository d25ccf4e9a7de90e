r"""Transposition with 128-bit accesses on both sides, through swizzled shared memory.

    Y[b, n, m] = X[b, m, n]            (B, M, N) -> (B, N, M), elements of 1, 2, 4, 8 or 16 bytes

How the data moves.  V = 16 / itemsize elements are a chunk of 16 bytes.  A tile is ``row_chunks`` chunks of an output
row by ``col_chunks`` loads of an input row; each thread owns V rows of a load.  All tensors are seen as (M, N):

    mX, mY (M, N)                 one matrix of the batch: rows of mX are contiguous, columns of mY
    gX, gY (tile_m, tile_n)       this block's tile; cX the coordinates of its elements
    tXgX   ((cols, V), 1, 1)      loads: neighboring threads have neighboring loads of a row, all in flight at once
    tXrX   the same, in registers, by rows; transposed there: a renaming for 4 bytes and more, one prmt a word for 2
           bytes, two for 1 byte
    sX     (tile_m, tile_n):(1, tile_m)    in shared memory, swizzled: neither writes nor reads have bank conflicts
    tXsX   ((V, cols), 1, 1)      a chunk of each column
    tYsX   ((w, stores), 1, 1)    stores: neighboring threads have neighboring accesses of an output row

Loads ask the L2 to evict their lines last.  Blocks walk down the input's rows first, so that neighbors in time extend
the same output rows; ``by_columns`` turns that round for input rows that share lines of memory (docs/week0.md).

Bytes moved: each input and output byte once, 2 * B * M * N * itemsize; the bound is DRAM bandwidth.

Limits: strides, rows and columns must be multiples of the declared widths (16, 8 or 4 bytes, not below the element);
``unaligned`` takes what is left.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32
from cutlass.cute.nvgpu import CopyG2ROp

from forge_core.cache import Traceable, compile_cached
from forge_core.cute.check import check
from forge_core.cute.copy import load_policy
from forge_core.cute.memory import name_kernel
from forge_week0_transpose.configs import VectorizedConfig
from forge_week0_transpose.kernels.tensors import inside, matrices, permute, shared_tile, tile_at, tiled_copy, traceable
from forge_week0_transpose.kernels.words import interleave

__all__ = ["CARVEOUT", "Vectorized", "build"]

#: Percent of a multiprocessor's memory that shared memory should get.  H200, 2026-11-21: 0 to 3 % against leaving it.
CARVEOUT = 100


class Vectorized(VectorizedConfig):
    """The kernel of a configuration."""

    @cute.jit
    def __call__(self, pX: Any, pY: Any, rows: Any, cols: Any, x0: Any, y1: Any, batch: tuple, stream: Any):
        """Launches a block a tile; strides between rows of x (0) and of y (1), in elements; of a batch likewise."""
        row_tiles = Int32((rows + (self.tile[0] - 1)) // self.tile[0])
        col_tiles = Int32((cols + (self.tile[1] - 1)) // self.tile[1])
        inner, outer = (col_tiles, row_tiles) if cutlass.const_expr(self.by_columns) else (row_tiles, col_tiles)
        grid = (inner, outer, Int32(batch[0]))
        if cutlass.const_expr(self.flat):
            grid = (inner * outer * Int32(batch[0]), 1, 1)
        name_kernel(self.kernel, self.kernel_name)
        self.kernel(pX, pY, (rows, cols), (x0, y1), (Uint32(inner), Uint32(outer)), batch).launch(
            grid=grid,
            block=(self.threads, 1, 1),
            smem=self.smem_bytes,
            min_blocks_per_mp=self.room,
            preferred_smem_carveout=CARVEOUT,
            stream=stream,
        )

    @cute.kernel
    def kernel(self, pX: cute.Pointer, pY: cute.Pointer, shape: tuple, strides: tuple, tiles: tuple, batch: tuple):
        # This block's tile of a matrix of the batch.
        inner, outer, entry = (Uint32(index) for index in cute.arch.block_idx())
        if cutlass.const_expr(self.flat):
            inner, rest = inner % tiles[0], inner // tiles[0]
            outer, entry = rest % tiles[1], rest // tiles[1]
        down, along = (outer, inner) if cutlass.const_expr(self.by_columns) else (inner, outer)
        index = Int64 if cutlass.const_expr(self.wide) else Int32
        rows, cols = (index(size) for size in shape)
        row, col = index(down) * self.tile[0], index(along) * self.tile[1]
        mX, mY = matrices((pX, pY), self.itemsize, shape, ((strides[0], 1), (1, strides[1])), batch, entry)
        check((row < rows) & (col < cols), "the tile begins inside the matrix")

        # In by rows, transposed in registers, out by columns, which are the output's rows.
        thread, shape, origin = cute.arch.thread_idx()[0], (rows, cols), (row, col)
        sX = shared_tile(self.steps[1], mX.element_type)
        self.put(self.load(mX, shape, origin, thread), sX, thread)
        self.mend(sX, mX, shape, origin, thread)
        cute.arch.sync_threads()
        self.store(sX, mY, shape, origin, thread)

    def load(self, mX: cute.Tensor, shape: tuple, origin: tuple, thread: Any) -> cute.Tensor:
        """A thread's rows of the tile that begins at ``origin``; all loads are in flight at once."""
        gX, cX = tile_at(mX, origin, self.loaded, self.cols), cute.make_identity_tensor(self.loaded)
        load, part = tiled_copy(self.steps[0], gX.element_type, thread, CopyG2ROp)
        tXgX, tXcX = part.partition_S(gX), part.partition_S(cX)
        tXrX = cute.make_rmem_tensor(tXgX.shape, gX.element_type)
        cute.copy(load, tXgX, tXrX, pred=inside(tXcX, origin, shape), cache_policy=load_policy())
        return tXrX

    def put(self, tXrX: cute.Tensor, sX: cute.Tensor, thread: Any) -> None:
        """Writes rows of registers by columns, a chunk each, into shared memory."""
        rX, words = cute.recast_tensor(tXrX, Uint32), self.src_width // 4
        rows = [[rX[words * k + w] for w in range(words)] for k in range(self.vec)]
        put, part = tiled_copy(self.steps[1], sX.element_type, thread)
        tXsX = part.partition_D(sX)
        tXrT = cute.make_rmem_tensor(tXsX.shape, sX.element_type)
        rT = cute.recast_tensor(tXrT, Uint32)
        for j, column in enumerate(interleave(rows, self.itemsize, permute)):
            for w in range(4):
                rT[4 * j + w] = column[w]
        cute.copy(put, tXrT, tXsX)

    def mend(self, sX: cute.Tensor, mX: cute.Tensor, shape: tuple, origin: tuple, thread: Any) -> None:
        """What loads left out is put into shared memory: nothing."""

    def store(self, sX: cute.Tensor, mY: cute.Tensor, shape: tuple, origin: tuple, thread: Any) -> None:
        """Writes the columns of the tile that begins at ``origin``."""
        width = self.dst_width // self.itemsize
        gY, cX = tile_at(mY, origin, self.loaded, width), cute.make_identity_tensor(self.loaded)
        store, part = tiled_copy(self.steps[3], gY.element_type, thread)
        tYsX, tYgY, tYcX = part.partition_S(sX), part.partition_D(gY), part.partition_D(cX)
        tYrY = cute.make_rmem_tensor(tYgY.shape, gY.element_type)
        cute.copy(store, tYsX, tYrY)
        cute.copy(store, tYrY, tYgY, pred=inside(tYcX, origin, shape))


@compile_cached
def build(config: VectorizedConfig) -> Traceable:
    """What to compile for a configuration."""
    return traceable(Vectorized(**vars(config)), 4, config.batch_rank)
