"""Transposition through a padded tile of shared memory, the course's ``copy_transpose``; and its steps, for others.

    Y[b, n, m] = X[b, m, n]            (B, M, N) -> (B, N, M), elements of 1, 2, 4, 8 or 16 bytes

    mX (M, N)                     mY (M, N)      one matrix of the batch, both in the input's coordinates
    gX (tile)        sX (tile)    gY (tile)      this block's tile
      |               ^     |       ^
      | load          |     |       | store
      v         write |     v read  |
    tXrX -- shuffle --'     tYrY ---'            registers of a thread

The ``steps`` of a configuration say which accesses each thread makes; a kernel adds the strides of its matrices, and
how registers are shuffled.  Accesses to global memory are predicated, each by where it begins.  ``Tiled`` moves one
element at a time, of a square tile, T = 16 or 32:

    tXgX   ((1, steps), 1, 1)     loads: neighboring threads have neighboring elements of an input row
    sX     (T, T):(T + 1, 1)      rows with an element of padding, or the T lanes down a column would meet in one bank
    tYgY   ((1, steps), 1, 1)     stores: neighboring threads have neighboring elements of an output row

Bytes moved: 2 * B * M * N * itemsize, each once.  ``vectorized`` takes fewer instructions, and whole 128-byte lines,
of which a row of this tile is a part for 1- and 2-byte elements.
Limits: none; with steps other than one element along a row the accesses are correct and no longer contiguous.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, Uint32
from cutlass.cute.nvgpu import CopyG2ROp
from cutlass.cute.testing import assert_ as check
from cutlass.memory import SmemAllocator

from forge_core.cute.copy import load_policy
from forge_core.cute.memory import builder, name_kernel
from forge_core.steps import PLAIN, Step
from forge_week0_transpose.config import TileConfig, TiledConfig
from forge_week0_transpose.kernels.tensors import matrices, tile_at, tiled_copy


class TileKernel(TileConfig):
    """The kernel of a configuration, but for :meth:`view` and :meth:`shuffle`."""

    @cute.jit
    def __call__(self, pX: Any, pY: Any, *launch: Any):
        """Launches a block a tile; after the pointers come integers, as :meth:`view` has them, a batch and a stream.

        A batch is the number of matrices, then for each dim, innermost first, its size and its strides in x and y.
        """
        *integers, batch, stream = launch
        shape, *_ = self.view(*integers)
        down, along = (Int32((n + (edge - 1)) // edge) for n, edge in zip(shape, self.tile, strict=True))
        inner, outer = (along, down) if cutlass.const_expr(self.by_columns) else (down, along)
        grid = (inner, outer, Int32(batch[0]))
        if cutlass.const_expr(self.flat):
            grid = (inner * outer * Int32(batch[0]), 1, 1)
        name_kernel(self.kernel, self.kernel_name)
        self.kernel(pX, pY, tuple(integers), (Uint32(inner), Uint32(outer)), batch).launch(
            grid=grid,
            block=(self.threads, 1, 1),
            smem=self.smem_bytes,
            min_blocks_per_mp=self.room,
            preferred_smem_carveout=self.carveout,
            stream=stream,
        )

    def view(self, *integers: Any) -> tuple[tuple, tuple, tuple]:
        """(M, N), the strides of mX and those of mY, in elements, by a launch's integers; what is fixed is an int."""
        raise NotImplementedError(f"{type(self).__name__}: expected a method `view`, got none")

    @cute.kernel
    def kernel(self, pX: cute.Pointer, pY: cute.Pointer, integers: tuple, tiles: tuple, batch: tuple):
        inner, outer, entry = (Uint32(index) for index in cute.arch.block_idx())
        if cutlass.const_expr(self.flat):
            inner, rest = inner % tiles[0], inner // tiles[0]
            outer, entry = rest % tiles[1], rest // tiles[1]
        down, along = (outer, inner) if cutlass.const_expr(self.by_columns) else (inner, outer)
        (rows, cols), *strides = self.view(*integers)
        mX, mY = matrices((pX, pY), self.itemsize, (rows, cols), strides, batch, entry)
        index = Int64 if cutlass.const_expr(self.wide) else Int32
        shape, origin = (index(rows), index(cols)), (index(down) * self.tile[0], index(along) * self.tile[1])
        check((origin[0] < shape[0]) & (origin[1] < shape[1]), "the tile begins inside the matrix")
        self.move(mX, mY, shape, origin, cute.arch.thread_idx()[0])

    def move(self, mX: cute.Tensor, mY: cute.Tensor, shape: tuple, origin: tuple, thread: Any) -> None:
        """Moves the tile that begins at ``origin`` of matrices of ``shape``."""
        step = self.steps[1]
        layout, swizzle = cute.make_layout(step.tile, stride=step.strides), cute.make_swizzle(*(step.swizzle or PLAIN))
        sX = SmemAllocator().allocate_tensor(mX.element_type, layout, byte_alignment=128, swizzle=swizzle)
        self.fill(sX, mX, shape, origin, thread)
        cute.arch.sync_threads()
        self.store(sX, mY, shape, origin, thread)

    def load(self, mX: cute.Tensor, shape: tuple, origin: tuple, thread: Any) -> cute.Tensor:
        """A thread's elements of the tile; all loads are in flight at once."""
        gX, (copy, part) = tile_at(mX, origin, self.steps[0]), tiled_copy(self.steps[0], mX, thread, CopyG2ROp)
        tXgX = part.partition_S(gX)
        tXrX, tXpX = cute.make_rmem_tensor(tXgX.shape, mX.element_type), self.inside(self.steps[0], part, origin, shape)
        cute.copy(copy, tXgX, tXrX, pred=tXpX, cache_policy=load_policy() if self.evict_last else None)
        return tXrX

    def inside(self, step: Step, part: Any, origin: tuple, shape: tuple) -> cute.Tensor:
        """The predicate of a thread's accesses: whether they are inside the matrix."""
        tXcX = part.partition_S(cute.make_identity_tensor(step.tile))
        tXpX = cute.make_rmem_tensor((tXcX.shape[0][1], 1, 1), Boolean)
        for i in range(tXcX.shape[0][1]):
            row, col = (first + c for first, c in zip(origin, tXcX[(0, i), 0, 0], strict=True))
            tXpX[i] = (row < shape[0]) & (col < shape[1])
        return tXpX

    def fill(self, sX: cute.Tensor, mX: cute.Tensor, shape: tuple, origin: tuple, thread: Any) -> None:
        """Loads the tile that begins at ``origin`` and writes it into shared memory."""
        tXrX = self.load(mX, shape, origin, thread)
        copy, part = tiled_copy(self.steps[1], sX, thread)
        tXsX = part.partition_D(sX)
        rX = self.shuffle(tXrX)
        cute.copy(copy, cute.make_tensor(rX.iterator, cute.make_layout(tXsX.shape)), tXsX)

    def store(self, sX: cute.Tensor, mY: cute.Tensor, shape: tuple, origin: tuple, thread: Any) -> None:
        """Writes the tile that begins at ``origin``."""
        (get, part), (put, whole) = (tiled_copy(step, mY, thread) for step in self.steps[2:])
        tYsX, tYgY = part.partition_S(sX), whole.partition_D(tile_at(mY, origin, self.steps[3]))
        tYpY = self.inside(self.steps[3], whole, origin, shape)
        tYrY = cute.make_rmem_tensor(tYsX.shape, mY.element_type)
        cute.copy(get, tYsX, tYrY)
        cute.copy(put, cute.make_tensor(tYrY.iterator, cute.make_layout(tYgY.shape)), tYgY, pred=tYpY)

    def shuffle(self, rX: cute.Tensor) -> cute.Tensor:
        """What is written into shared memory, from what was loaded: the same, unless a kernel shuffles."""
        return rX


class Tiled(TiledConfig, TileKernel):
    """The kernel of a configuration."""

    def view(self, rows: Any, cols: Any, x0: Any, x1: Any, y0: Any, y1: Any) -> tuple[tuple, tuple, tuple]:
        """Strides of x and y between rows (0) and columns (1) of x."""
        return (rows, cols), (x0, x1), (y0, y1)


build = builder(Tiled, wide=6, dims="batch_rank")
