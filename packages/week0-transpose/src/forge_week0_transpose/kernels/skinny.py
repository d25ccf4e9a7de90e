"""Transposition of a matrix with two to eight rows, or two to eight columns: an interleave, or its inverse.

    few rows (``gather``)      dst[c * N + r] = src[r * src_pitch + c]       N = 2 to 8 rows, any number of columns
    few columns (``scatter``)  dst[c * dst_pitch + r] = src[r * N + c]       N = 2 to 8 columns, any number of rows

Such a matrix has no square tile, but its short side is contiguous as a whole: the N-element rows follow one another
without a gap.  So one side is N long lines and the other a single run.

How the data moves.  V = 16 / itemsize elements make a chunk of 16 bytes.  For N = 3, few rows:

    global, N lines           registers of a thread                  shared memory           global, one run
    r0 [a0 a1 a2 a3]...       a0 a1 a2 a3                            chunks 3 t + 0, 1, 2    neighbouring threads take
    r1 [b0 b1 b2 b3]...   ->  b0 b1 b2 b3  -> a0b0c0a1 b1c1a2b2  ->  of thread t         ->  neighbouring chunks
    r2 [c0 c1 c2 c3]...       c0 c1 c2 c3     c2a3b3c3

Each thread loads one chunk of each line, interleaves them into N chunks that are neighbours in the run, and passes
them through shared memory so that neighbouring threads store neighbouring chunks.  Few columns go the other way.
For even N the chunks are XOR-swizzled against bank conflicts.  Loads ask the L2 to evict their lines last, as in
``vectorized``.

Bytes moved: 2 * batch * N * length * itemsize, each once; the bound is DRAM bandwidth.

Limits: the pitch of the short side is N (no gap).  ``line_width`` and ``run_width`` say how wide the accesses of the
two sides can be; they may be as narrow as an element.  One kernel is compiled for each N.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from forge_core.cache import Traceable, compile_cached
from forge_core.cute.hold import hold_policy
from forge_week0_transpose.configs import SkinnyConfig
from forge_week0_transpose.kernels.memory import (
    SHARED,
    Int32,
    Int64,
    Uint32,
    batch_offsets,
    check,
    chunk_tensor,
    example_arguments,
    load_parts,
    move,
    name_kernel,
    permute,
    store_parts,
    view,
)
from forge_week0_transpose.kernels.words import CHUNK, deinterleave, interleave, run_place

__all__ = ["Skinny", "build"]


class Skinny:
    """The kernel for one configuration."""

    def __init__(self, config: SkinnyConfig) -> None:
        self.config = config

    @cute.jit
    def __call__(
        self,
        src: cute.Pointer,
        dst: cute.Pointer,
        length: Int64,
        pitch: Int64,
        batch: tuple,
        stream: Any,
    ):
        """Launches one block for ``threads`` chunks of each line.

        ``length`` is a line's number of elements, ``pitch`` the bytes from one line to the next, ``batch[0]``
        counts the batch's entries.
        """
        config = self.config
        tiles = (length + (config.tile - 1)) // config.tile
        name_kernel(self.kernel, config.kernel_name)
        self.kernel(src, dst, length, pitch, Uint32(tiles), batch).launch(
            grid=(Int32(tiles * batch[0]), 1, 1),
            block=(config.threads, 1, 1),
            smem=config.smem_bytes,
            stream=stream,
        )

    @cute.kernel
    def kernel(self, src: cute.Pointer, dst: cute.Pointer, length: Int64, pitch: Int64, tiles: Uint32, batch: tuple):
        config = self.config
        size, n = config.itemsize, config.lines
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        tile = Uint32(block)
        src_base, dst_base = src.toint(), dst.toint()
        if cutlass.const_expr(config.batch_rank > 0):
            tile = Uint32(block) % tiles
            src_step, dst_step = batch_offsets(Uint32(block) // tiles, batch)
            src_base += src_step
            dst_base += dst_step
        base = Int64(tile) * config.tile
        src_lines, src_run = src_base + base * size, src_base + base * (n * size)
        dst_lines, dst_run = dst_base + base * size, dst_base + base * (n * size)
        left = Int32(cutlass.min(length - base, Int64(config.tile)))
        check(left > 0, "the tile begins inside the lines")
        lines_at, run_at = (src_base, dst_base) if cutlass.const_expr(config.gather) else (dst_base, src_base)
        check(((lines_at | pitch) & (config.line_width - 1)) == 0, "lines begin at multiples of an access's width")
        check((run_at & (config.run_width - 1)) == 0, "the run begins at a multiple of an access's width")
        if left == config.tile:
            if cutlass.const_expr(config.gather):
                self._gather_tile(src_lines, dst_run, pitch, thread)
            else:
                self._scatter_tile(src_run, dst_lines, pitch, thread)
        else:
            if cutlass.const_expr(config.gather):
                self._partial_tile(src_lines, dst_run, pitch, left, thread)
            else:
                self._partial_tile(dst_lines, src_run, pitch, left, thread)

    @cute.jit
    def _partial_tile(self, lines: Int64, run: Int64, pitch: Int64, left: Int32, thread: Int32):
        """The last, incomplete tile: element by element, in the order of the run."""
        config = self.config
        for index in cutlass.range(thread, left * config.lines, config.threads):
            on_run = run + Int64(index * config.itemsize)
            on_line = lines + Int64(index % config.lines) * pitch + Int64(index // config.lines * config.itemsize)
            if cutlass.const_expr(config.gather):
                move(on_line, on_run, config.itemsize)
            else:
                move(on_run, on_line, config.itemsize)

    @cute.jit
    def _gather_tile(self, lines: Int64, run: Int64, pitch: Int64, thread: Int32):
        """A whole tile from N lines to one run."""
        config = self.config
        n, threads = config.lines, config.threads
        shared = cute.arch.get_dyn_smem(Uint32, alignment=128).toint()
        rLine, rRun, policy = chunk_tensor(n), chunk_tensor(n), hold_policy()
        for r in cutlass.range_constexpr(n):
            load_parts(lines + r * pitch + Int64(thread * CHUNK), rLine[r, None], config.line_width, policy)
        words = interleave([[rLine[r, w] for w in range(4)] for r in range(n)], config.itemsize, permute)
        for j in cutlass.range_constexpr(n):
            for w in cutlass.range_constexpr(4):
                rRun[j, w] = words[j][w]
            cute.autovec_copy(rRun[j, None], view(shared + run_place(thread * n + j, n) * CHUNK, CHUNK, SHARED))
        cute.arch.sync_threads()
        for j in cutlass.range_constexpr(n):
            chunk = thread + j * threads
            cute.autovec_copy(view(shared + run_place(chunk, n) * CHUNK, CHUNK, SHARED), rRun[j, None])
        for j in cutlass.range_constexpr(n):
            store_parts(rRun[j, None], run + Int64((thread + j * threads) * CHUNK), config.run_width)

    @cute.jit
    def _scatter_tile(self, run: Int64, lines: Int64, pitch: Int64, thread: Int32):
        """A whole tile from one run to N lines."""
        config = self.config
        n, threads = config.lines, config.threads
        shared = cute.arch.get_dyn_smem(Uint32, alignment=128).toint()
        rLine, rRun, policy = chunk_tensor(n), chunk_tensor(n), hold_policy()
        for j in cutlass.range_constexpr(n):
            load_parts(run + Int64((thread + j * threads) * CHUNK), rRun[j, None], config.run_width, policy)
        for j in cutlass.range_constexpr(n):
            place = shared + run_place(thread + j * threads, n) * CHUNK
            cute.autovec_copy(rRun[j, None], view(place, CHUNK, SHARED))
        cute.arch.sync_threads()
        for j in cutlass.range_constexpr(n):
            cute.autovec_copy(view(shared + run_place(thread * n + j, n) * CHUNK, CHUNK, SHARED), rRun[j, None])
        words = deinterleave([[rRun[j, w] for w in range(4)] for j in range(n)], config.itemsize, permute)
        for r in cutlass.range_constexpr(n):
            for w in cutlass.range_constexpr(4):
                rLine[r, w] = words[r][w]
            store_parts(rLine[r, None], lines + r * pitch + Int64(thread * CHUNK), config.line_width)


@compile_cached
def build(config: SkinnyConfig) -> Traceable:
    """What to compile for a configuration."""
    return Traceable(Skinny(config), example_arguments(wide=2, batch_rank=config.batch_rank), name=config.kernel_name)
