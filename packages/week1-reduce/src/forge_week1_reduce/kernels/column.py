"""Reduction over the rows of a matrix: neighbouring threads have neighbouring columns.

    dst[k..., c] = reduce(src[k..., r..., c])        c contiguous in the source

How the data moves.  A block has a tile of columns.  ``lanes`` threads stand side by side, each with a load's width of
columns, and ``groups`` of them one below the other; a thread walks down, ``unroll`` loads in flight:

                 columns ->
    group 0      [l0][l1][l2] ... rows 0, G, 2G, ...       each place of a load has an accumulator in registers
    group 1      [l0][l1][l2] ... rows 1, G+1, ...         ``tile`` tells how the groups' become one
    ...
    group G-1

Few columns make few tiles, so the rows are cut as well, into parts that are ``blocks`` of a cluster; or, for more parts
than a cluster holds and on older GPUs, accumulators go to a workspace and ``finish`` adds them up in the order of the
parts.

Rows that begin anywhere.  Rows whose number is the same modulo ``shifts`` begin at the same distance from a 16-byte
boundary, and ``groups`` is a multiple of ``shifts``: so a thread, at every row it visits, loads an aligned chunk that
holds the same columns, only that the columns of a chunk differ from group to group:

    group 0    |c0 c1 c2 c3|c4 c5 c6 c7|c8 ...       aligned: distance 0
    group 1   -|-- c0 c1 c2|c3 c4 c5 c6|c7 ...       distance 1 element; shared memory puts them under each other

Where the tiles are whole and each thread's rows are whole turns (``whole``), no load is guarded, and the code is half
as long.

Bytes moved: each element once (with shifts, 1/lanes of the chunks are read by two blocks, the second time from the L2
cache); the bound is DRAM bandwidth.

Limits: a contiguous kept dimension; the load's width must divide every distance, unless the rows have one distance.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from forge_core.cache import Traceable, compile_cached
from forge_core.cute.cluster import announce
from forge_core.cute.memory import (
    CHUNK,
    Int32,
    Int64,
    Uint32,
    elements_at,
    entry_offsets,
    flat_arguments,
    name_kernel,
    split_arguments,
)
from forge_core.cute.room import room_for
from forge_week1_reduce.configs import ColumnConfig
from forge_week1_reduce.kernels.finish import Finish
from forge_week1_reduce.kernels.tile import finish_tile, gather, tile_bytes
from forge_week1_reduce.kernels.values import Values

__all__ = ["Column", "build"]


class Column:
    """The kernel, or the two of them, for one configuration."""

    def __init__(self, config: ColumnConfig) -> None:
        self.config = config
        self.values = Values(config.arithmetic)
        self.size = self.values.acc.width // 8

    @cute.jit
    def __call__(self, *args: Any):
        """Launches one block for each tile of columns, each entry of ``kept`` and each part of the rows.

        The arguments are ``src`` and ``dst``; ``cols``, ``col_step`` and ``parts``; ``kept`` and ``reduced``, laid
        flat; the stream.  There are ``cols`` columns, whose results lie ``col_step`` bytes apart; ``kept`` holds the
        number of matrices, then size, source step and destination step in bytes for each dimension around, innermost
        first; ``reduced`` the number of rows, then size and source step.
        """
        (src, dst), (cols, col_step, parts), (kept, reduced) = split_arguments(args, self.config)
        self.launch(src, dst, dst, cols, col_step, parts, kept, reduced, args[-1])

    @cute.jit
    def launch(
        self,
        src: cute.Pointer,
        dst: cute.Pointer,
        partial: cute.Pointer,
        cols: Int64,
        col_step: Int64,
        parts: Int64,
        kept: tuple,
        reduced: tuple,
        stream: Any,
    ):
        config = self.config
        tiles = (cols + (config.tile - 1)) // config.tile
        # Rows of a part.  A thread would divide for longer than it loads a short column.
        span = (reduced[0] + (parts - 1)) // parts
        name_kernel(self.kernel, config.kernel_name)
        out = partial if cutlass.const_expr(config.finish is not None) else dst
        self.kernel(src, out, cols, col_step, Uint32(span), Uint32(tiles), kept, reduced).launch(
            grid=(Int32(tiles * kept[0]), Int32(parts), 1),
            block=(config.threads, 1, 1),
            cluster=(1, config.blocks, 1) if cutlass.const_expr(config.blocks > 1) else None,
            smem=tile_bytes(config, self.size),
            stream=stream,
            **room_for(config.resident),
        )

    @cute.kernel
    def kernel(
        self,
        src: cute.Pointer,
        out: cute.Pointer,
        cols: Int64,
        col_step: Int64,
        span: Uint32,
        tiles: Uint32,
        kept: tuple,
        reduced: tuple,
    ):
        config, values = self.config, self.values
        if cutlass.const_expr(config.blocks > 1):
            announce()
        if cutlass.const_expr(config.finish is not None and config.finish.dependent):
            cute.arch.griddepcontrol_launch_dependents()
        thread, _, _ = cute.arch.thread_idx()
        block, part, _ = cute.arch.block_idx()
        # Divisions by what is not known when the kernel is compiled cost more than the loads of a short column.
        matrix, tile = Uint32(0), Uint32(block)
        if cutlass.const_expr(config.kept_rank > 0):
            matrix, tile = Uint32(block) // tiles, Uint32(block) % tiles
        tile_start = Int64(tile) * config.tile
        src_offset, dst_offset = entry_offsets(matrix, kept, 2)
        lane, group = thread % config.lanes, thread // config.lanes

        # This part's rows, and this thread's among them.  There are less than 2^31, and groups alone have all of them.
        first, count = Int64(group), Int32(reduced[0])
        if cutlass.const_expr(config.groups > 1):
            begin = Uint32(part) * span
            end = cutlass.min(Uint32(reduced[0]), begin + span)
            own = begin + Uint32(group)
            first = Int64(own)
            # By numbers without a sign: the division by a power of two is then a shift.
            rest = Uint32(cutlass.select_(own < end, end - own, Uint32(0)))
            count = Int32((rest + (config.groups - 1)) // config.groups)

        base = src.toint() + src_offset + tile_start * values.size
        shift = Int64(0)
        if cutlass.const_expr(config.shifts > 1):
            shift = ((base + first * reduced[2]) & (CHUNK - 1)) // values.size
        column = tile_start + Int64(lane * config.vector) - shift
        address = base + (Int64(lane * config.vector) - shift) * values.size

        rAcc = values.new_strands(config.vector)
        if cutlass.const_expr(config.whole):
            self.walk_whole(address, first, count, reduced, rAcc)
        elif (column >= 0) & (column + config.vector <= cols):
            self.walk(address, first, count, reduced, rAcc)
        else:
            if (column + config.vector > 0) & (column < cols):
                self.walk_edge(address, column, cols, first, count, reduced, rAcc)

        if cutlass.const_expr(config.groups == 1):
            self.store_columns(rAcc, out.toint() + dst_offset, column, cols, col_step, reduced[0])
        else:
            shared = cute.arch.get_dyn_smem(Uint32, alignment=16).toint()
            gather(values, config, rAcc, shared, lane, Int32(shift), thread)
            start, step = out.toint() + dst_offset, col_step
            if cutlass.const_expr(config.finish is not None):
                # Into the workspace instead: part by part, matrix by matrix.
                start = out.toint() + (Int64(part) * kept[0] + Int64(matrix)) * cols * self.size
                step = Int64(self.size)
            finish_tile(values, config, shared, start, step, tile_start, cols, part, reduced[0], thread)

    def place(self, address: Any, row: Any, reduced: tuple) -> Any:
        """A row, as a thread walks on from it: its address where rows have one distance, else its number."""
        return address + row * reduced[2] if self.config.reduced_rank == 1 else row

    def row_address(self, address: Any, place: Any, reduced: tuple) -> Any:
        """What a thread reads at a place."""
        if self.config.reduced_rank == 1:
            return place
        return address + entry_offsets(Uint32(place), reduced, 1)[0]

    @cute.jit
    def turn(self, address: Any, place: Any, reduced: tuple, rChunks: Any, rAcc: Any):
        """Adds ``unroll`` rows by whole loads, from a place on; returns the place after them."""
        config = self.config
        # From place to place by addition: a product for each load costs the more, the smaller the matrix is.
        ahead = config.groups * (reduced[2] if cutlass.const_expr(config.reduced_rank == 1) else Int64(1))
        for u in cutlass.range_constexpr(config.unroll):
            self.values.fetch(self.row_address(address, place, reduced), rChunks[(u, None)], once=config.once)
            place = place + ahead
        for u in cutlass.range_constexpr(config.unroll):
            self.values.add_places(rChunks[(u, None)], rAcc)
        return place

    @cute.jit
    def walk(self, address: Any, first: Any, count: Any, reduced: tuple, rAcc: Any):
        """Adds this thread's rows, by whole loads."""
        config = self.config
        unroll, groups = config.unroll, config.groups
        rChunks = self.values.new_chunks(unroll, config.width)
        place = self.place(address, first, reduced)
        turns = Int32(Uint32(count) // unroll)
        for _ in cutlass.range(turns):
            place = self.turn(address, place, reduced, rChunks, rAcc)
        done = turns * unroll
        if done < count:
            for u in cutlass.range_constexpr(unroll):
                self.values.clear(rChunks[(u, None)])
                if done + u < count:
                    own = self.place(address, first + Int64(done + u) * groups, reduced)
                    self.values.fetch(self.row_address(address, own, reduced), rChunks[(u, None)], once=config.once)
            for u in cutlass.range_constexpr(unroll):
                self.values.add_places(rChunks[(u, None)], rAcc)

    @cute.jit
    def walk_whole(self, address: Any, first: Any, count: Any, reduced: tuple, rAcc: Any):
        """Adds this thread's rows, which are whole turns, or a single one."""
        config = self.config
        rChunks = self.values.new_chunks(config.unroll, config.width)
        place = self.place(address, first, reduced)
        if cutlass.const_expr(config.exact):
            self.turn(address, place, reduced, rChunks, rAcc)
        else:
            for _ in cutlass.range(Int32(Uint32(count) // config.unroll)):
                place = self.turn(address, place, reduced, rChunks, rAcc)

    @cute.jit
    def walk_edge(self, address: Any, column: Any, cols: Any, first: Any, count: Any, reduced: tuple, rAcc: Any):
        """Adds this thread's rows by element, those columns of the load that there are."""
        for i in cutlass.range(count):
            row = first + Int64(i) * self.config.groups
            start = self.row_address(address, self.place(address, row, reduced), reduced)
            for v in cutlass.range_constexpr(self.config.vector):
                if (column + v >= 0) & (column + v < cols):
                    own = (rAcc[v],)
                    other = (self.values.load(start + v * self.values.size),)
                    rAcc[v] = self.values.monoid.combine(own, other)[0]

    @cute.jit
    def store_columns(self, rAcc: Any, base: Any, column: Any, cols: Any, col_step: Any, count: Any):
        """Stores the results of a thread that has its columns to itself."""
        vector, values = self.config.vector, self.values
        if cutlass.const_expr(self.config.packed):
            if column + vector <= cols:
                rOut = cute.make_rmem_tensor(vector, values.dst)
                for v in cutlass.range_constexpr(vector):
                    rOut[v] = values.result(rAcc[v], count)
                cute.autovec_copy(rOut, elements_at(base + column * (values.dst.width // 8), values.dst, vector))
            else:
                for v in cutlass.range_constexpr(vector):
                    if column + v < cols:
                        values.store((rAcc[v],), count, base + (column + v) * col_step)
        else:
            for v in cutlass.range_constexpr(vector):
                if column + v < cols:
                    values.store((rAcc[v],), count, base + (column + v) * col_step)


class SplitColumn(Column):
    """The column kernel followed by a second pass."""

    def __init__(self, config: ColumnConfig) -> None:
        super().__init__(config)
        if config.finish is None:
            raise ValueError("a split column kernel needs the configuration of its second pass")
        self.finish = Finish(config.finish)

    @cute.jit
    def __call__(self, *args: Any):
        """As without a second pass, but ``partial`` follows ``dst``, and ``results`` follow ``reduced``.

        ``results`` are the kept dimensions, the columns among them, as in ``finish``.
        """
        (src, dst, partial), given, (kept, reduced, results) = split_arguments(args, self.config, pointers=3)
        (cols, col_step, parts), stream = given, args[-1]
        self.launch(src, dst, partial, cols, col_step, parts, kept, reduced, stream)
        self.finish(partial, dst, parts, results[0] * self.size, Int64(self.size), reduced[0], results, stream)


@compile_cached
def build(config: ColumnConfig) -> Traceable:
    """What to compile for a configuration."""
    if config.finish is None:
        return Traceable(Column(config), flat_arguments(config), name=config.kernel_name)
    return Traceable(SplitColumn(config), flat_arguments(config, pointers=3), name=config.kernel_name)
