"""Transposition of matrices whose rows begin anywhere, still with 128-bit accesses on both sides.

    dst[b, c, r] = src[b, r, c]        (batch, rows, cols) -> (batch, cols, rows), elements of 1, 2, 4 or 8 bytes

With an odd number of columns every input row begins at another offset from a 16-byte boundary, and with an odd number
of rows every output row does.  Memory is only accessed at those boundaries; the shifts happen inside the chip.

How the data moves.  A tile is ``col_chunks`` chunks of 16 bytes of an input row by ``row_chunks`` chunks of an output
row; V = 16 / itemsize elements make a chunk, and each thread owns one V x V block of elements.

    src_shift: the rows do not begin at 16-byte boundaries
        global     |....AAAA|AAAABBBB|BBBBCCCC|CCCC....|      each thread loads the two aligned chunks that hold its
                        ^ the tile's first column             V elements of a row; the second is its neighbour's
        registers  AAAAAAAA BBBBBBBB CCCCCCCC                 first, so L1 has it; funnel-shifted right
    V x V transposition in registers, chunks XOR-swizzled in shared memory, one line an output row: see ``vectorized``
    dst_shift: the output rows do not begin at 16-byte boundaries
        shared     |aaaaaaaa|bbbbbbbb|cccccccc|               a line: rows of the tile, which reaches V rows back
        registers  ....aaaa aaaabbbb bbbbcccc                 two neighbouring chunks, funnel-shifted left
        global     |....aaaa|aaaabbbb|bbbbcccc|               aligned chunks; the first and the last of an output
                        ^ the output row's first element      row, which belong to two rows, element by element

The tensor's last chunk is never loaded where it reaches past the last element: the threads that would need it load
the chunk before, and the few elements that are wrong then are put right in shared memory.

Bytes moved: 2 * batch * rows * cols * itemsize, and when dst_shift one of ``row_chunks`` chunks of input rows again,
for the tile below, mostly from L2.

Limits: addresses are multiples of the element; shifted input rows have at least 16 bytes and do not overlap.  Reads
begin in the 16-byte chunk that holds the tensor's first element, and never pass the end of its last.

Sources: this project's own; docs/week0-designs.md has what was tried and what each step gave.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from forge_core.cache import Traceable, compile_cached
from forge_core.cute.hold import hold_policy, load_held
from forge_week0_transpose.configs import ShiftedConfig
from forge_week0_transpose.kernels.memory import (
    SHARED,
    Int32,
    Int64,
    Uint32,
    batch_offsets,
    check,
    chunk_tensor,
    example_arguments,
    funnel_shift_left,
    funnel_shift_right,
    move,
    name_kernel,
    permute,
    select,
    view,
)
from forge_week0_transpose.kernels.words import CHUNK, funnel_left, funnel_right, swizzle, transpose_chunks

__all__ = ["Shifted", "build"]


#: Percent of a multiprocessor's memory that shared memory should get; see ``vectorized``.
CARVEOUT = 100


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
        self.kernel(src, dst, rows, cols, src_pitch, dst_pitch, Uint32(row_tiles), Uint32(col_tiles), batch).launch(
            grid=(Int32(row_tiles * col_tiles * batch[0]), 1, 1),
            block=(config.threads, 1, 1),
            smem=config.smem_bytes,
            min_blocks_per_mp=config.blocks_per_sm,
            preferred_smem_carveout=CARVEOUT,
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

        # Which tile: down the rows first, or along the columns, then the batch.
        inner, outer = (col_tiles, row_tiles) if cutlass.const_expr(config.by_columns) else (row_tiles, col_tiles)
        place, along = Uint32(block) % inner, Uint32(block) // inner
        src_base, dst_base = src.toint(), dst.toint()
        if cutlass.const_expr(config.batch_rank > 0):
            src_step, dst_step = batch_offsets(along // outer, batch)
            along = along % outer
            src_base += src_step
            dst_base += dst_step
        row_tile, col_tile = (along, place) if cutlass.const_expr(config.by_columns) else (place, along)
        # The tile's first output chunk of an unshifted row, and the first row that is loaded: V before it.
        row_base = Int64(row_tile) * config.tile_rows
        first = row_base - config.halo
        col_base = Int64(col_tile) * config.tile_cols
        cols_left = Int32(cutlass.min(cols - col_base, Int64(config.tile_cols)))
        check((row_base < rows + config.reach) & (cols_left > 0), "the tile begins inside the matrix")
        src_unit, dst_unit = (size if shift else CHUNK for shift in (config.src_shift, config.dst_shift))
        check(((src_base | src_pitch) & (src_unit - 1)) == 0, "input rows begin at multiples of an element or a chunk")
        check(((dst_base | dst_pitch) & (dst_unit - 1)) == 0, "output rows begin at multiples of an element or a chunk")
        check((src_pitch >= cols * size) | (not config.src_shift), "shifted input rows do not overlap")

        cc, row_block = thread % config.col_chunks, thread // config.col_chunks
        shared = cute.arch.get_dyn_smem(Uint32, alignment=128).toint()
        rRow, policy = chunk_tensor(v), hold_policy()
        # Rows of the tile that exist, counted from the first loaded one; the others repeat the nearest.
        low = Int32(cutlass.max(-first, Int64(0)))
        high = Int32(cutlass.min(rows - first, Int64(config.lines))) - 1
        end = src_base + (rows - 1) * src_pitch + cols * size
        if cutlass.const_expr(config.src_shift):
            line = row_block * v
            nearest = cutlass.min(cutlass.max(line, low), high)
            segment = src_base + (first + Int64(nearest)) * src_pitch + col_base * size + Int64(cc * CHUNK)
            last = (end & -CHUNK) - CHUNK  # the last chunk that is all inside the tensor
            rPair = chunk_tensor(2 * v)
            offsets = []
            for k in cutlass.range_constexpr(v):
                chunk = segment & -CHUNK
                offsets.append(Uint32(segment) & (CHUNK - 1))
                load_held(cutlass.min(chunk, last), rPair[2 * k, None], CHUNK, policy)
                load_held(cutlass.min(chunk + CHUNK, last), rPair[2 * k + 1, None], CHUNK, policy)
                segment += select((line + k >= low) & (line + k < high), src_pitch, Int64(0))
            for k in cutlass.range_constexpr(v):
                words = funnel_right(
                    [rPair[2 * k, w] for w in range(4)],
                    [rPair[2 * k + 1, w] for w in range(4)],
                    offsets[k],
                    size,
                    select,
                    funnel_shift_right,
                )
                for w in cutlass.range_constexpr(4):
                    rRow[k, w] = words[w]
        else:
            chunk = cutlass.min(cc, cols_left // v - 1)
            line = row_block * v
            nearest = cutlass.min(cutlass.max(line, low), high)
            address = src_base + (first + Int64(nearest)) * src_pitch + col_base * size + Int64(chunk * CHUNK)
            for k in cutlass.range_constexpr(v):
                load_held(address, rRow[k, None], CHUNK, policy)
                address += select((line + k >= low) & (line + k < high), src_pitch, Int64(0))

        columns = transpose_chunks([[rRow[k, w] for w in range(4)] for k in range(v)], size, permute)
        rColumn = chunk_tensor(v)
        for j in cutlass.range_constexpr(v):
            for w in cutlass.range_constexpr(4):
                rColumn[j, w] = columns[j][w]
            place = (cc * v + j) * config.line_bytes + swizzle(row_block, cc) * CHUNK
            cute.autovec_copy(rColumn[j, None], view(shared + place, CHUNK, SHARED))
        if cutlass.const_expr(config.src_shift):
            if (first + config.lines >= rows) & (col_base + config.tile_cols + v > cols):
                self._load_end(shared, end, Int32(rows - 1 - first), Int32(cols - col_base), thread)
        cute.arch.sync_threads()

        # Store: a thread takes chunk ``part`` of every col_chunks-th line.  Its own rows begin at ``part * v`` of the
        # tile, less what the output row is shifted by.
        part, line0 = thread % config.row_chunks, thread // config.row_chunks
        after = cutlass.min(part + 1, config.row_chunks - 1)
        row = part * v
        lines_left = select(part < config.row_chunks - config.halo_chunks, cols_left - line0, Int32(0))
        address = dst_base + (col_base + Int64(line0)) * dst_pitch + (row_base + Int64(row)) * size
        rOut, rNext = chunk_tensor(config.group), chunk_tensor(config.group)
        for i in cutlass.range_constexpr(v):
            g = i % config.group
            if cutlass.const_expr(g == 0):
                for h in cutlass.range_constexpr(config.group):
                    line = line0 + (i + h) * config.col_chunks
                    place = shared + line * config.line_bytes
                    cute.autovec_copy(view(place + swizzle(part, line // v) * CHUNK, CHUNK, SHARED), rOut[h, None])
                    if cutlass.const_expr(config.dst_shift):
                        place += swizzle(after, line // v) * CHUNK
                        cute.autovec_copy(view(place, CHUNK, SHARED), rNext[h, None])
            if cutlass.const_expr(config.dst_shift):
                shift = Int32(address) & (CHUNK - 1)
                words = funnel_left(
                    [rOut[g, w] for w in range(4)],
                    [rNext[g, w] for w in range(4)],
                    shift,
                    size,
                    select,
                    funnel_shift_left,
                )
                for w in cutlass.range_constexpr(4):
                    rOut[g, w] = words[w]
                begin = row + config.halo - shift // size  # counted from the first loaded row, as low and high are
                whole = (begin >= low) & (begin + v - 1 <= high)
                if whole & (i * config.col_chunks < lines_left):
                    cute.autovec_copy(rOut[g, None], view(address & -CHUNK, CHUNK))
            elif (i * config.col_chunks < lines_left) & (row <= high):
                cute.autovec_copy(rOut[g, None], view(address, CHUNK))
            address += dst_pitch * config.col_chunks
        if cutlass.const_expr(config.dst_shift):
            if (row_base == 0) | (row_base + config.tile_rows + v > rows):
                self._store_ends(shared, dst_base + col_base * dst_pitch, dst_pitch, rows, row_base, cols_left, thread)

    @cute.jit
    def _load_end(self, shared: Int32, end: Int64, row: Int32, cols: Int32, thread: Int32):
        """Loads the elements of the tensor's last, incomplete chunk, which no thread could load as a whole.

        They are the last columns of the last row, and go straight to their lines in shared memory.  ``row`` and
        ``cols``, the tensor's last row and its end, count from the tile's first.
        """
        config = self.config
        size, v = config.itemsize, config.chunk_items
        cute.arch.sync_threads()
        count = Int32(end & (CHUNK - 1)) // size
        line = cols - count + thread
        if (thread < count) & (line >= 0) & (line < config.tile_cols):
            place = line * config.line_bytes + swizzle(row // v, line // v) * CHUNK + row % v * size
            move(end - Int64((count - thread) * size), shared + place, config.itemsize, dst_space=SHARED)

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
        move(shared + place, address, size, src_space=SHARED)


@compile_cached
def build(config: ShiftedConfig) -> Traceable:
    """What to compile for a configuration."""
    return Traceable(Shifted(config), example_arguments(wide=4, batch_rank=config.batch_rank), name=config.kernel_name)
