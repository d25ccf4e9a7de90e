r"""Transposition through a padded tile of shared memory: the course's ``copy_transpose``.

    dst[b, c, r] = src[b, r, c]        (batch, rows, cols) -> (batch, cols, rows), elements of 1, 2, 4, 8 or 16 bytes

How the data moves.  A block takes a square tile, T = 16 or 32 elements a side; a thread moves one element at a time:

    global, input             shared memory, T x (T + 1)          global, output
    r \\ c  0   1   2   3                                          c \\ r  0   1   2   3
    0     [t0][t1][t2][t3]     a0 a1 a2 a3 --                      0     [t0][t1][t2][t3]   a0 b0 c0 d0
    1      b0  b1  b2  b3  ->  b0 b1 b2 b3 --   read down a    ->  1      a1  b1  c1  d1
    2      c0  c1  c2  c3      c0 c1 c2 c3 --   column             2      a2  b2  c2  d2
    3      d0  d1  d2  d3      d0 d1 d2 d3 --                      3      a3  b3  c3  d3

Both global sides are contiguous along the lanes; the strided step happens in shared memory.  The column of padding
(--) moves each row of the tile by one bank: without it the T lanes that read down a column would meet in one bank.

Bytes moved: 2 * batch * rows * cols * itemsize, each once.  A row of the tile is only T * itemsize bytes, so a warp's
access covers a part of the 128-byte lines it touches for 1- and 2-byte elements: that, and one instruction an
element, is what ``vectorized`` does better.

Limits: none.  The steps along a row are arguments too, so that any strides work; with steps other than one element
the accesses are correct and no longer contiguous.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from forge_core.cache import Traceable, compile_cached
from forge_week0_transpose.configs import TiledConfig
from forge_week0_transpose.kernels.memory import (
    SHARED,
    Int32,
    Int64,
    Uint32,
    batch_offsets,
    check,
    example_arguments,
    move,
    name_kernel,
)

__all__ = ["Tiled", "build"]


class Tiled:
    """The kernel for one configuration."""

    def __init__(self, config: TiledConfig) -> None:
        self.config = config

    @cute.jit
    def __call__(
        self,
        src: cute.Pointer,
        dst: cute.Pointer,
        rows: Int64,
        cols: Int64,
        src_pitch: Int64,
        src_step: Int64,
        dst_pitch: Int64,
        dst_step: Int64,
        batch: tuple,
        stream: Any,
    ):
        """Launches one block a tile; pitches and steps are in bytes, ``batch[0]`` counts the batch's entries."""
        config = self.config
        row_tiles = (rows + (config.tile - 1)) // config.tile
        col_tiles = (cols + (config.tile - 1)) // config.tile
        name_kernel(self.kernel, config.kernel_name)
        self.kernel(
            src, dst, rows, cols, src_pitch, src_step, dst_pitch, dst_step, Uint32(row_tiles), Uint32(col_tiles), batch
        ).launch(
            grid=(Int32(row_tiles * col_tiles * batch[0]), 1, 1),
            block=(config.threads, 1, 1),
            smem=config.smem_bytes,
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self,
        src: cute.Pointer,
        dst: cute.Pointer,
        rows: Int64,
        cols: Int64,
        src_pitch: Int64,
        src_step: Int64,
        dst_pitch: Int64,
        dst_step: Int64,
        row_tiles: Uint32,
        col_tiles: Uint32,
        batch: tuple,
    ):
        config = self.config
        size, tile = config.itemsize, config.tile
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        x, y0 = thread % tile, thread // tile

        rest = Uint32(block)
        col_tile = rest % col_tiles
        rest = rest // col_tiles
        row_tile = rest
        src_base, dst_base = src.toint(), dst.toint()
        if cutlass.const_expr(config.batch_rank > 0):
            row_tile = rest % row_tiles
            src_offset, dst_offset = batch_offsets(rest // row_tiles, batch)
            src_base += src_offset
            dst_base += dst_offset
        row_base, col_base = Int64(row_tile) * tile, Int64(col_tile) * tile
        rows_left = Int32(cutlass.min(rows - row_base, Int64(tile)))
        cols_left = Int32(cutlass.min(cols - col_base, Int64(tile)))
        check((rows_left > 0) & (cols_left > 0), "the tile begins inside the matrix")
        check(((src_base | dst_base) & (size - 1)) == 0, "both matrices begin at multiples of an element")
        steps = src_pitch | src_step | dst_pitch | dst_step
        check((steps & (size - 1)) == 0, "rows and columns lie at multiples of an element")

        shared = cute.arch.get_dyn_smem(Uint32, alignment=16).toint()
        for i in cutlass.range_constexpr(config.steps):
            y = y0 + i * config.lines  # a row of the input
            if (y < rows_left) & (x < cols_left):
                address = src_base + (row_base + Int64(y)) * src_pitch + (col_base + Int64(x)) * src_step
                move(address, shared + (y * (tile + 1) + x) * size, size, dst_space=SHARED)
        cute.arch.sync_threads()
        for i in cutlass.range_constexpr(config.steps):
            y = y0 + i * config.lines  # a column of the input, a row of the output
            if (y < cols_left) & (x < rows_left):
                address = dst_base + (col_base + Int64(y)) * dst_pitch + (row_base + Int64(x)) * dst_step
                move(shared + (x * (tile + 1) + y) * size, address, size, src_space=SHARED)


@compile_cached
def build(config: TiledConfig) -> Traceable:
    """What to compile for a configuration."""
    return Traceable(Tiled(config), example_arguments(wide=6, batch_rank=config.batch_rank), name=config.kernel_name)
