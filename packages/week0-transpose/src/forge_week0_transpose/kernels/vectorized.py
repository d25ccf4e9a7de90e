r"""Transposition with 128-bit accesses on both sides.

    dst[b, c, r] = src[b, r, c]        (batch, rows, cols) -> (batch, cols, rows), elements of 1, 2, 4, 8 or 16 bytes

How the data moves.  A tile is ``col_chunks`` 16-byte chunks of an input row by ``row_chunks`` 16-byte chunks of an
output row; V = 16 / itemsize elements make a chunk.  Each thread owns one V x V block of elements:

    global, input                 registers             shared memory, one line an output row    global, output
    r \\ c  chunk 0  chunk 1 ...   V rows of a chunk      c \\ chunk     0        1     ...
    0      [t0    ] [t1    ]      a0 a1 a2 a3           0           a0b0c0d0  (rows 4..7)         one line of
    1      [t0    ] [t1    ]  ->  b0 b1 b2 b3   ->      1           a1b1c1d1              ->      row_chunks lanes
    2      [t0    ] [t1    ]      c0 c1 c2 c3           2           a2b2c2d2                      x 16 bytes
    3      [t0    ] [t1    ]      d0 d1 d2 d3           3           a3b3c3d3

1. Load: neighbouring threads take neighbouring chunks of a row, V loads of 16 bytes each, all in flight at once.  The
   L2 is asked to evict what they bring last: rows that share lines or sectors find them there, and what is evicted in
   their place are finished output rows, which have to go to memory anyway.
2. Transpose V x V in registers: a renaming for 4 bytes and more, one prmt a word for 2 bytes, two for 1 byte.
3. Write each of the V columns as one chunk of its line in shared memory.  Lines are not padded: the chunk's index is
   XORed with the line's (c / V) mod 8, and neither the writes nor the reads have bank conflicts.
4. Store: neighbouring threads take neighbouring chunks of an output row, so a warp writes whole lines of memory.

Blocks walk down the input's rows first, so that neighbours in time extend the same output rows; ``by_columns`` turns
that round for input rows that share lines of memory.  A tile's place comes from the grid's dimensions, and all that
stands before the first load is what finding its address needs: a small matrix is mostly start-up.

Bytes moved: each input and output byte once, 2 * batch * rows * cols * itemsize; the bound is DRAM bandwidth.

Limits.  Both pitches, both row lengths and all batch steps must be multiples of the declared widths (16, 8 or 4
bytes, not below the element); ``shifted`` takes what is left.  Threads past the edge repeat the last row or chunk
instead of branching, and do not store.

Sources: the layout is this project's own; docs/week0-designs.md has what was tried and what each step gave.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from forge_core.cache import Traceable, compile_cached
from forge_core.cute.hold import hold_policy, load_held
from forge_week0_transpose.configs import VectorizedConfig
from forge_week0_transpose.kernels.memory import (
    SHARED,
    Int32,
    Int64,
    Uint32,
    batch_offsets,
    check,
    chunk_tensor,
    example_arguments,
    name_kernel,
    permute,
    select,
    view,
)
from forge_week0_transpose.kernels.words import CHUNK, swizzle, transpose_chunks

__all__ = ["Vectorized", "build"]


#: Percent of a multiprocessor's memory that shared memory should get.  H200, 2026-11-21: 0 to 3 % against leaving it.
CARVEOUT = 100

#: Named so that the compiler does not press the registers of a thread for more blocks: it spilled for that in the
#: 2-byte kernel, whose share of a copy at 16384x16384 rose from 0.94 to 0.99 without (H200, 2026-11-21).
BLOCKS_PER_SM = 1


class Vectorized:
    """The kernel for one configuration."""

    def __init__(self, config: VectorizedConfig) -> None:
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
        row_tiles = Int32((rows + (config.tile_rows - 1)) // config.tile_rows)
        col_tiles = Int32((cols + (config.tile_cols - 1)) // config.tile_cols)
        blocks = Uint32((rows + (config.chunk_items - 1)) // config.chunk_items)
        chunks = Uint32(cols // (config.src_width // config.itemsize))
        inner, outer = (col_tiles, row_tiles) if cutlass.const_expr(config.by_columns) else (row_tiles, col_tiles)
        grid = (inner, outer, Int32(batch[0]))
        if cutlass.const_expr(config.flat):
            grid = (inner * outer * Int32(batch[0]), 1, 1)
        name_kernel(self.kernel, config.kernel_name)
        self.kernel(src, dst, rows, blocks, chunks, src_pitch, dst_pitch, Uint32(inner), Uint32(outer), batch).launch(
            grid=grid,
            block=(config.threads, 1, 1),
            smem=config.smem_bytes,
            min_blocks_per_mp=BLOCKS_PER_SM,
            preferred_smem_carveout=CARVEOUT,
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self,
        src: cute.Pointer,
        dst: cute.Pointer,
        rows: Int64,
        blocks: Uint32,
        chunks: Uint32,
        src_pitch: Int64,
        dst_pitch: Int64,
        inner: Uint32,
        outer: Uint32,
        batch: tuple,
    ):
        """``blocks`` of V rows and ``chunks`` of one load's columns are the matrix, the last block perhaps in part."""
        config = self.config
        size, v = config.itemsize, config.chunk_items
        src_width, dst_width = config.src_width, config.dst_width
        items = src_width // size  # columns that one load of a thread covers
        thread, _, _ = cute.arch.thread_idx()
        thread = Uint32(thread)

        # Which tile: its first block of rows and its first chunk of columns.
        place, along, entry = (Uint32(index) for index in cute.arch.block_idx())
        if cutlass.const_expr(config.flat):
            place, rest = place % inner, place // inner
            along, entry = rest % outer, rest // outer
        row_tile, col_tile = (along, place) if cutlass.const_expr(config.by_columns) else (place, along)
        src_base, dst_base = src.toint(), dst.toint()
        if cutlass.const_expr(config.batch_rank > 0):
            src_step, dst_step = batch_offsets(entry, batch)
            src_base += src_step
            dst_base += dst_step
        first_block, first_chunk = row_tile * config.row_chunks, col_tile * config.col_chunks
        check((first_block < blocks) & (first_chunk < chunks), "the tile begins inside the matrix")
        check(((src_base | src_pitch) & (src_width - 1)) == 0, "input rows begin at multiples of a load's width")
        check(((dst_base | dst_pitch) & (dst_width - 1)) == 0, "output rows begin at multiples of a store's width")

        # Load: chunk column cc of the V rows of one block, repeated at the edges.
        cc, row_block = thread % config.col_chunks, thread // config.col_chunks
        chunk = cutlass.min(first_chunk + cc, chunks - 1)
        if cutlass.const_expr(config.ragged):
            row = cutlass.min(Int64(first_block + row_block) * v, rows - 1)
        else:
            row = Int64(cutlass.min(first_block + row_block, blocks - 1)) * v
        address = src_base + row * src_pitch + Int64(chunk) * src_width
        rRow = cute.make_rmem_tensor(cute.make_layout((v, src_width // 4), stride=(src_width // 4, 1)), Uint32)
        policy = hold_policy()
        for k in cutlass.range_constexpr(v):
            load_held(address, rRow[k, None], src_width, policy)
            if cutlass.const_expr(config.ragged):
                address += select(row + (k + 1) < rows, src_pitch, Int64(0))
            else:
                address += src_pitch

        # Transpose in registers; write a chunk of each column's line.
        columns = transpose_chunks([[rRow[k, w] for w in range(src_width // 4)] for k in range(v)], size, permute)
        rColumn = chunk_tensor(items)
        shared = cute.arch.get_dyn_smem(Uint32, alignment=128).toint()
        for j in cutlass.range_constexpr(items):
            for w in cutlass.range_constexpr(4):
                rColumn[j, w] = columns[j][w]
            place = (cc * items + j) * config.line_bytes + swizzle(row_block, cc) * CHUNK
            cute.autovec_copy(rColumn[j, None], view(shared + Int32(place), CHUNK, SHARED))
        cute.arch.sync_threads()

        # Store: each access of dst_width bytes of a line; a line's key is its own chunk column.
        per_line = config.line_bytes // dst_width
        part, line0 = thread % per_line, thread // per_line
        inside = part * dst_width
        step = config.threads // per_line
        rOut = cute.make_rmem_tensor(
            cute.make_layout((config.stores, dst_width // 4), stride=(dst_width // 4, 1)), Uint32
        )
        for i in cutlass.range_constexpr(config.stores):
            line = line0 + i * step
            place = line * config.line_bytes + swizzle(inside // CHUNK, line // items) * CHUNK + inside % CHUNK
            cute.autovec_copy(view(shared + Int32(place), dst_width, SHARED, Uint32), rOut[i, None])
        begin = Int64(first_block) * CHUNK + Int64(inside)  # in the output row, in bytes
        address = dst_base + (Int64(col_tile) * config.tile_cols + Int64(line0)) * dst_pitch + begin
        # Of a thread's lines the first few are inside; none where its rows are not.
        lines = Int32(cutlass.min(chunks - first_chunk, Uint32(config.col_chunks)) * items)
        lines_left = select(begin < rows * size, lines - Int32(line0), Int32(0))
        for i in cutlass.range_constexpr(config.stores):
            if i * step < lines_left:
                cute.autovec_copy(rOut[i, None], view(address, dst_width, unit=Uint32))
            address += dst_pitch * step


@compile_cached
def build(config: VectorizedConfig) -> Traceable:
    """What to compile for a configuration."""
    return Traceable(
        Vectorized(config), example_arguments(wide=4, batch_rank=config.batch_rank), name=config.kernel_name
    )
