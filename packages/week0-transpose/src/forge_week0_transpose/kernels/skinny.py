"""Transposition of a matrix with two to eight rows, or two to eight columns: an interleave, or its inverse.

    few rows (``gather``)      Y[l * N + n] = X[n * pitch + l]       N = 2 to 8 rows, any number of columns
    few columns                Y[n * pitch + l] = X[l * N + n]       N = 2 to 8 columns, any number of rows

Such a matrix has no square tile, but its short side is contiguous as a whole: the N-element rows follow one another
without a gap.  So one side is N long lines and the other a single run.

How the data moves.  V = 16 / itemsize elements are a chunk of 16 bytes.  For N = 3, few rows:

    global, N lines           registers of a thread                  shared memory           global, one run
    r0 [a0 a1 a2 a3]...       a0 a1 a2 a3                            chunks 3 t + 0, 1, 2    neighboring threads take
    r1 [b0 b1 b2 b3]...   ->  b0 b1 b2 b3  -> a0b0c0a1 b1c1a2b2  ->  of thread t         ->  neighboring chunks
    r2 [c0 c1 c2 c3]...       c0 c1 c2 c3     c2a3b3c3

    mX, mY (N, L)                 both sides, of which one has the strides (pitch, 1), the other (1, N)
    tXgX   ((w, V / w * N), 1, 1) a thread's chunk of each line of the tile
    sX     (N, tile):(1, N)       the run in shared memory; of even N swizzled: no bank conflicts
    tXsX   ((V, N), 1, 1)         a thread's own chunks of the run
    tYsX   ((V, N), 1, 1)         neighboring threads' chunks of the run

Few columns go the other way.  Loads ask the L2 to evict their lines last, as in ``vectorized``.

Bytes moved: 2 * B * N * L * itemsize, each once; the bound is DRAM bandwidth.

Limits: the pitch of the short side is N (no gap).  ``line_width`` and ``run_width`` say how wide the accesses of the
two sides can be; they may be as narrow as an element.  One kernel is compiled for each N.
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
from forge_week0_transpose.configs import SkinnyConfig
from forge_week0_transpose.kernels.tensors import matrices, permute, shared_tile, tile_at, tiled_copy, traceable
from forge_week0_transpose.kernels.words import deinterleave, interleave

__all__ = ["Skinny", "build"]


class Skinny(SkinnyConfig):
    """The kernel of a configuration."""

    @cute.jit
    def __call__(self, pX: Any, pY: Any, length: Any, pitch: Any, batch: tuple, stream: Any):
        """Launches a block a tile; ``length`` of a line and ``pitch`` between lines in elements."""
        tiles = (length + (self.tile[1] - 1)) // self.tile[1]
        name_kernel(self.kernel, self.kernel_name)
        self.kernel(pX, pY, length, pitch, Uint32(tiles), batch).launch(
            grid=(Int32(tiles * batch[0]), 1, 1), block=(self.threads, 1, 1), smem=self.smem_bytes, stream=stream
        )

    @cute.kernel
    def kernel(self, pX: cute.Pointer, pY: cute.Pointer, length: Int64, pitch: Int64, tiles: Uint32, batch: tuple):
        thread, block = cute.arch.thread_idx()[0], Uint32(cute.arch.block_idx()[0])
        lines, run = (pitch, 1), (1, self.lines)
        strides = (lines, run) if cutlass.const_expr(self.gather) else (run, lines)
        tile = block % tiles if cutlass.const_expr(self.batch_rank > 0) else block
        mX, mY = matrices((pX, pY), self.itemsize, (self.lines, length), strides, batch, block // tiles)
        first = Int64(tile) * self.tile[1]
        left = Int32(cutlass.min(length - first, Int64(self.tile[1])))
        check(left > 0, "the tile begins inside the lines")
        if left == self.tile[1]:
            self.move(mX, mY, (0, first), thread)
        else:
            # The last, incomplete tile: element by element, in the order of the run.
            for i in cutlass.range(thread, left * self.lines, self.threads):
                place = (i % self.lines, first + i // self.lines)
                mY[place] = mX[place]

    @cute.jit
    def move(self, mX: cute.Tensor, mY: cute.Tensor, origin: tuple, thread: Int32):
        """A whole tile."""
        load, put, get, store = self.steps
        gX, gY = (tile_at(m, origin, self.tile, s.width // self.itemsize) for m, s in ((mX, load), (mY, store)))
        dtype, sX = gX.element_type, shared_tile(put, gX.element_type)

        load, part = tiled_copy(load, dtype, thread, CopyG2ROp)
        tXgX = part.partition_S(gX)
        tXrX = cute.make_rmem_tensor(tXgX.shape, dtype)
        cute.copy(load, tXgX, tXrX, cache_policy=load_policy())
        if cutlass.const_expr(self.gather):
            self.shuffle(interleave, tXrX)
        put, part = tiled_copy(put, dtype, thread)
        tXsX = part.partition_D(sX)
        cute.copy(put, cute.make_tensor(tXrX.iterator, cute.make_layout(tXsX.shape)), tXsX)
        cute.arch.sync_threads()

        get, part = tiled_copy(get, dtype, thread)
        store, whole = tiled_copy(store, dtype, thread)
        tYsX, tYgY = part.partition_S(sX), whole.partition_D(gY)
        tYrY = cute.make_rmem_tensor(tYgY.shape, dtype)
        cute.copy(get, tYsX, cute.make_tensor(tYrY.iterator, cute.make_layout(tYsX.shape)))
        if cutlass.const_expr(not self.gather):
            self.shuffle(deinterleave, tYrY)
        cute.copy(store, tYrY, tYgY)

    def shuffle(self, by: Any, rX: cute.Tensor) -> None:
        """N chunks of registers, by a function of lists of their words."""
        rWords = cute.recast_tensor(rX, Uint32)
        found = by([[rWords[4 * i + w] for w in range(4)] for i in range(self.lines)], self.itemsize, permute)
        for i, word in enumerate(word for chunk in found for word in chunk):
            rWords[i] = word


@compile_cached
def build(config: SkinnyConfig) -> Traceable:
    """What to compile for a configuration."""
    return traceable(Skinny(**vars(config)), 2, config.batch_rank)
