"""Transposition of matrices whose rows begin anywhere, still with 128-bit accesses on both sides.

    dst[b, c, r] = src[b, r, c]        (batch, rows, cols) -> (batch, cols, rows), elements of 1, 2, 4 or 8 bytes

With an odd number of columns every input row begins at another offset from a 16-byte boundary, and with an odd number
of rows every output row does.  Memory is only accessed at those boundaries; the shifts happen inside the chip.

How the data moves.  A tile is ``col_chunks`` chunks of 16 bytes of an input row by ``row_chunks`` chunks of an output
row; V = 16 / itemsize elements make a chunk, and each thread owns one V x V block of elements.

    src_shift: the rows do not begin at 16-byte boundaries
        global     |....AAAA|AAAABBBB|BBBBCCCC|CCCC....|      the aligned chunks that cover the tile's row segment,
                        ^ the tile's first column             copied as they are (cp.async) to shared memory, one
        shared     |....AAAA|AAAABBBB|BBBBCCCC|CCCC....|      chunk more than the segment has
        registers  AAAAAAAA BBBBBBBB CCCCCCCC                 two neighbouring chunks, funnel-shifted right
    V x V transposition in registers, chunks XOR-swizzled in shared memory, one line an output row: see ``vectorized``
    dst_shift: the output rows do not begin at 16-byte boundaries
        shared     |aaaaaaaa|bbbbbbbb|cccccccc|               a line: rows of the tile, which reaches V rows back
        registers  ....aaaa aaaabbbb bbbbcccc                 two neighbouring chunks, funnel-shifted left
        global     |....aaaa|aaaabbbb|bbbbcccc|               aligned chunks; the first and the last of an output
                        ^ the output row's first element      row, which belong to two rows, element by element

Bytes moved: 2 * batch * rows * cols * itemsize, and what neighbouring tiles read twice, mostly from L2: a chunk of
``col_chunks`` when src_shift, a chunk of ``row_chunks`` when dst_shift.

Limits: none on sizes and pitches; addresses are multiples of the element.  Reads stay inside the 16-byte chunks that
hold the tensor's first element, and never pass the end of its last.

Sources: this project's own; docs/week0-designs.md has what was tried and what each step gave.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from forge_core.cache import Traceable, compile_cached
from forge_week0_transpose.configs import ShiftedConfig
from forge_week0_transpose.kernels.memory import (
    SHARED,
    Int32,
    Int64,
    Uint32,
    batch_offsets,
    chunk_tensor,
    copy_async,
    example_arguments,
    funnel_shift_left,
    funnel_shift_right,
    name_kernel,
    permute,
    select,
    view,
)
from forge_week0_transpose.kernels.words import CHUNK, funnel_left, funnel_right, swizzle, transpose_chunks

__all__ = ["Shifted", "build"]


class Shifted:
    """The kernel for one configuration."""

    def __init__(self, config: ShiftedConfig) -> None:
        self.config = config

    @cute.jit
    def __call__(
        self,
        src: cute.Pointer,
        dst: cute.Pointer,
        rows: Int64,
        cols: Int64,
        src_pitch: Int64,
        dst_pitch: Int64,
        batch: tuple,
        stream: Any,
    ):
        """Launches one block a tile; pitches and batch steps are in bytes, ``batch[0]`` counts the batch's entries."""
        config = self.config
        # A shifted output row has up to V - 1 elements before its first whole chunk.
        row_tiles = (rows + config.reach + (config.tile_rows - 1)) // config.tile_rows
        col_tiles = (cols + (config.tile_cols - 1)) // config.tile_cols
        name_kernel(self.kernel, config.kernel_name)
        self.kernel(
            src, dst, rows, cols, src_pitch, dst_pitch, Uint32(row_tiles), Uint32(col_tiles), batch
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
        dst_pitch: Int64,
        row_tiles: Uint32,
        col_tiles: Uint32,
        batch: tuple,
    ):
        config = self.config
        size, v = config.itemsize, config.chunk_items
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()

        rest = Uint32(block)
        row_tile = rest % row_tiles
        rest = rest // row_tiles
        col_tile = rest
        src_base, dst_base = src.toint(), dst.toint()
        if cutlass.const_expr(config.batch_rank > 0):
            col_tile = rest % col_tiles
            src_step, dst_step = batch_offsets(rest // col_tiles, batch)
            src_base += src_step
            dst_base += dst_step
        # The tile's first output chunk of an unshifted row, and the first row that is loaded: V before it.
        row_base = Int64(row_tile) * config.tile_rows
        first = row_base - config.halo
        col_base = Int64(col_tile) * config.tile_cols
        cols_left = Int32(cutlass.min(cols - col_base, Int64(config.tile_cols)))

        cc, row_block = thread % config.col_chunks, thread // config.col_chunks
        shared = cute.arch.get_dyn_smem(Uint32, alignment=128).toint()
        rRow = chunk_tensor(v)
        if cutlass.const_expr(config.src_shift):
            self._stage(shared, src_base, rows, cols, src_pitch, first, col_base, thread)
            rPair = chunk_tensor(2)
            for k in cutlass.range_constexpr(v):
                line = row_block * v + k
                place = shared + line * config.stage_bytes + cc * CHUNK
                cute.autovec_copy(view(place, CHUNK, SHARED), rPair[0, None])
                cute.autovec_copy(view(place + CHUNK, CHUNK, SHARED), rPair[1, None])
                row = cutlass.min(cutlass.max(first + Int64(line), Int64(0)), rows - 1)
                offset = Uint32(src_base + row * src_pitch + col_base * size) & (CHUNK - 1)
                words = funnel_right(
                    [rPair[0, w] for w in range(4)],
                    [rPair[1, w] for w in range(4)],
                    offset,
                    size,
                    select,
                    funnel_shift_right,
                )
                for w in cutlass.range_constexpr(4):
                    rRow[k, w] = words[w]
            # The same shared memory takes the transposed tile.
            cute.arch.sync_threads()
        else:
            chunk = cutlass.min(cc, cols_left // v - 1)
            start = src_base + col_base * size + Int64(chunk * CHUNK)
            for k in cutlass.range_constexpr(v):
                row = cutlass.min(cutlass.max(first + Int64(row_block * v + k), Int64(0)), rows - 1)
                cute.autovec_copy(view(start + row * src_pitch, CHUNK), rRow[k, None])

        columns = transpose_chunks([[rRow[k, w] for w in range(4)] for k in range(v)], size, permute)
        rColumn = chunk_tensor(v)
        for j in cutlass.range_constexpr(v):
            for w in cutlass.range_constexpr(4):
                rColumn[j, w] = columns[j][w]
            place = (cc * v + j) * config.line_bytes + swizzle(row_block, cc) * CHUNK
            cute.autovec_copy(rColumn[j, None], view(shared + place, CHUNK, SHARED))
        cute.arch.sync_threads()

        part, line0 = thread % config.row_chunks, thread // config.row_chunks
        rOut = chunk_tensor(2)
        for i in cutlass.range_constexpr(v):
            line = line0 + i * config.col_chunks
            key = line // v
            place = shared + line * config.line_bytes
            address = dst_base + (col_base + Int64(line)) * dst_pitch
            cute.autovec_copy(view(place + swizzle(part, key) * CHUNK, CHUNK, SHARED), rOut[0, None])
            start = row_base + Int64(part * v)
            if cutlass.const_expr(config.dst_shift):
                after = cutlass.min(part + 1, config.row_chunks - 1)
                cute.autovec_copy(view(place + swizzle(after, key) * CHUNK, CHUNK, SHARED), rOut[1, None])
                shift = Uint32(address) & (CHUNK - 1)
                words = funnel_left(
                    [rOut[0, w] for w in range(4)],
                    [rOut[1, w] for w in range(4)],
                    shift,
                    size,
                    select,
                    funnel_shift_left,
                )
                for w in cutlass.range_constexpr(4):
                    rOut[0, w] = words[w]
                start = start - Int64(shift // size)
            inside = (line < cols_left) & (part < config.row_chunks - config.halo_chunks)
            if inside & (start >= 0) & (start + v <= rows):
                cute.autovec_copy(rOut[0, None], view(address + start * size, CHUNK))
        if cutlass.const_expr(config.dst_shift):
            if (row_base == 0) | (row_base + config.tile_rows + v > rows):
                self._store_ends(shared, dst_base + col_base * dst_pitch, dst_pitch, rows, row_base, cols_left, thread)

    @cute.jit
    def _stage(
        self,
        shared: Int32,
        src_base: Int64,
        rows: Int64,
        cols: Int64,
        src_pitch: Int64,
        first: Int64,
        col_base: Int64,
        thread: Int32,
    ):
        """Copies the aligned chunks that cover the tile's row segments to shared memory, and waits for them."""
        config = self.config
        size = config.itemsize
        end = src_base + (rows - 1) * src_pitch + cols * size
        lines, chunks = config.lines, config.col_chunks
        # Each thread a chunk of each row block, then one more chunk for each row.
        for i in cutlass.range_constexpr(config.stage_steps):
            if cutlass.const_expr(i < config.chunk_items):
                line, chunk = thread // chunks + i * config.row_chunks, thread % chunks
            else:
                line, chunk = thread + (i - config.chunk_items) * config.threads, Int32(chunks)
            if line < lines:
                row = cutlass.min(cutlass.max(first + Int64(line), Int64(0)), rows - 1)
                begin = src_base + row * src_pitch
                segment = begin + col_base * size
                address = segment - (segment & (CHUNK - 1)) + Int64(chunk * CHUNK)
                # Of the last chunk of the tensor only what belongs to it; of what no column needs, nothing.
                inside = cutlass.min(end - address, Int64(CHUNK))
                wanted = select(address < begin + cols * size, inside, Int64(0))
                copy_async(shared + line * config.stage_bytes + chunk * CHUNK, address, Int32(wanted))
        cute.arch.cp_async_commit_group()
        cute.arch.cp_async_wait_group(0)
        cute.arch.sync_threads()

    @cute.jit
    def _store_ends(
        self,
        shared: Int32,
        dst_base: Int64,
        dst_pitch: Int64,
        rows: Int64,
        row_base: Int64,
        cols_left: Int32,
        thread: Int32,
    ):
        """Stores what lies before the first and after the last whole chunk of the tile's output rows, by element.

        Such a chunk is shared with the neighbouring output row, which another block may be writing.
        """
        config = self.config
        size, v = config.itemsize, config.chunk_items
        first = row_base - config.halo
        for step in cutlass.range_constexpr(config.end_steps):
            line = thread + step * config.threads
            if line < cols_left:
                address = dst_base + Int64(line) * dst_pitch
                before = Int64((Uint32(address) & (CHUNK - 1)) // size)  # elements of the previous row in the chunk
                head = select(before > 0, cutlass.min(v - before, rows), Int64(0))
                if row_base == 0:
                    for row in cutlass.range(Int32(head)):
                        self._store_element(shared, line, row - Int32(first), address + row * size)
                last = (rows + before) // v  # the chunk that the row ends in, counted from the row's first
                behind = last * v - row_base
                if (behind >= 0) & (behind < config.tile_rows):
                    begin = cutlass.max(last * v - before, head)
                    for row in cutlass.range(Int32(rows - begin)):
                        self._store_element(shared, line, Int32(begin - first) + row, address + (begin + row) * size)

    @cute.jit
    def _store_element(self, shared: Int32, line: Int32, row: Int32, address: Int64):
        """Copies one element of a line from shared to global memory; ``row`` counts from the tile's first."""
        config = self.config
        size, v = config.itemsize, config.chunk_items
        place = line * config.line_bytes + swizzle(row // v, line // v) * CHUNK + row % v * size
        view(address, size)[0] = view(shared + place, size, SHARED)[0]


@compile_cached
def build(config: ShiftedConfig) -> Traceable:
    """What to compile for a configuration."""
    return Traceable(
        Shifted(config), example_arguments(wide=4, batch_rank=config.batch_rank), name=config.kernel_name
    )
