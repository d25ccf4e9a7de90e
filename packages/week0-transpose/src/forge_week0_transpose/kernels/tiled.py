r"""Transposition through a padded tile of shared memory: the course's ``copy_transpose``.

    Y[b, n, m] = X[b, m, n]            (B, M, N) -> (B, N, M), elements of 1, 2, 4, 8 or 16 bytes

How the data moves.  A block takes a square tile, T = 16 or 32 elements a side; a thread moves one element at a time.
All tensors are seen as (M, N):

    mX, mY (M, N)                 one matrix of the batch, any strides
    gX, gY (T, T)                 this block's tile
    tXgX   ((1, steps), 1, 1)     loads: neighboring threads have neighboring elements of an input row
    sX     (T, T):(T + 1, 1)      in shared memory, rows with an element of padding
    tYgY   ((1, steps), 1, 1)     stores: neighboring threads have neighboring elements of an output row

Both global sides are contiguous along the lanes; the strided step happens in shared memory.  The padding moves each
row of the tile by one bank: without it the T lanes that read down a column would meet in one bank.

Bytes moved: 2 * B * M * N * itemsize, each once.  A row of the tile is only T * itemsize bytes, so a warp's access
covers a part of the 128-byte lines it touches for 1- and 2-byte elements: that, and one instruction an element, is what
``vectorized`` does better.

Limits: none; with steps other than one element along a row the accesses are correct and no longer contiguous.
"""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32

from forge_core.cache import Traceable, compile_cached
from forge_core.cute.check import check
from forge_core.cute.memory import name_kernel
from forge_week0_transpose.configs import TiledConfig
from forge_week0_transpose.kernels.tensors import (
    UNSIGNED,
    inside,
    matrices,
    shared_tile,
    tile_at,
    tiled_copy,
    traceable,
)

__all__ = ["Tiled", "build"]


class Tiled(TiledConfig):
    """The kernel of a configuration."""

    @cute.jit
    def __call__(
        self, pX: Any, pY: Any, rows: Any, cols: Any, x0: Any, x1: Any, y0: Any, y1: Any, batch: tuple, stream: Any
    ):
        """Launches a block a tile; strides of x and y between rows (0) and columns (1) of x, in elements."""
        row_tiles, col_tiles = ((size + (self.tile - 1)) // self.tile for size in (rows, cols))
        name_kernel(self.kernel, self.kernel_name)
        tiles = (Uint32(col_tiles), Uint32(row_tiles))
        self.kernel(pX, pY, (rows, cols), ((x0, x1), (y0, y1)), tiles, batch).launch(
            grid=(Int32(row_tiles * col_tiles * batch[0]), 1, 1),
            block=(self.threads, 1, 1),
            smem=self.smem_bytes,
            stream=stream,
        )

    @cute.kernel
    def kernel(self, pX: cute.Pointer, pY: cute.Pointer, shape: tuple, strides: tuple, tiles: tuple, batch: tuple):
        thread, block = cute.arch.thread_idx()[0], Uint32(cute.arch.block_idx()[0])
        rest, dtype, tile = block // tiles[0], UNSIGNED[self.itemsize], (self.tile, self.tile)
        origin = (Int64(rest % tiles[1]) * self.tile, Int64(block % tiles[0]) * self.tile)
        check((origin[0] < shape[0]) & (origin[1] < shape[1]), "the tile begins inside the matrix")
        mats = matrices((pX, pY), self.itemsize, shape, strides, batch, rest // tiles[1])
        (gX, gY), cX = (tile_at(mat, origin, tile) for mat in mats), cute.make_identity_tensor(tile)
        load, write, _, store = self.steps
        sX = shared_tile(write, dtype)

        load, part = tiled_copy(load, dtype, thread)
        tXgX, tXsX, tXpX = part.partition_S(gX), part.partition_D(sX), inside(part.partition_S(cX), origin, shape)
        tXrX = cute.make_rmem_tensor(tXgX.shape, dtype)
        cute.copy(load, tXgX, tXrX, pred=tXpX)
        cute.copy(load, tXrX, tXsX)
        cute.arch.sync_threads()

        store, part = tiled_copy(store, dtype, thread)
        tYsX, tYgY, tYpY = part.partition_S(sX), part.partition_D(gY), inside(part.partition_S(cX), origin, shape)
        tYrY = cute.make_rmem_tensor(tYgY.shape, dtype)
        cute.copy(store, tYsX, tYrY)
        cute.copy(store, tYrY, tYgY, pred=tYpY)


@compile_cached
def build(config: TiledConfig) -> Traceable:
    """What to compile for a configuration."""
    return traceable(Tiled(**vars(config)), 6, config.batch_rank)
