"""What the kernels of week 0 are compiled for, how their threads move a tile, and what their code must look like.

A configuration is a frozen dataclass that imports no compiler; the kernel of ``kernels/`` is a subclass of it.  Sizes,
strides and addresses are arguments of the launch, so that another shape never compiles another kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from forge_core.steps import CHUNK, PLAIN, Step, Stepped, Swizzle, contiguous

#: What the name of a kernel says about fields that differ from their defaults.
FLAGS = {"items": "_x{}", "tail": "_tail{}B", "by_columns": "_cols", "flat": "_flat", "gaps": "_gaps", "wide": "_wide"}


@dataclass(frozen=True)
class Config(Stepped):
    """What configurations have in common; what can vary is made a field.

    Attributes:
        itemsize: bytes of an element: 1, 2, 4, 8 or, unless the class says otherwise, 16.
        rank, batch_rank: dimensions around a row or a matrix.
        wide: places are 64-bit integers: from 2^31 elements, chunks, rows or columns on.
        threads: of a block.
        idea: of the kernel, in a line.
        pattern: the name of the kernel, formatted with the configuration; :data:`FLAGS` follow.
    """

    itemsize: int
    idea: ClassVar[str]
    pattern: ClassVar[str]

    @property
    def vec(self) -> int:
        """Elements of a chunk."""
        return CHUNK // self.itemsize

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        set_apart = {name: value for name, value in vars(self).items() if value != getattr(type(self), name, value)}
        flags = (flag.format(set_apart[name]) for name, flag in FLAGS.items() if name in set_apart)
        return self.pattern.format(self) + "".join(flags)


@dataclass(frozen=True)
class NaiveConfig(Config):
    """``kernels/naive.py``; ``rank`` counts all dimensions, at least one."""

    rank: int
    wide: bool = False
    items: int = 1  # elements of a thread, a block's width apart; more than one where no other kernel does the problem
    threads: int = 256

    idea = "one thread an element; does every problem"
    pattern = "naive_{0.itemsize}B_rank{0.rank}"

    @property
    def steps(self) -> tuple[Step, ...]:
        """A warp of a transposition reads down a column, of rows longer than a line of memory, and writes a row."""
        size, warp, tile = self.itemsize, (((32,), (1,)), ((1,), (0,))), (32, 1)
        return (
            Step("input rows of 1024 bytes: loads", size, warp, tile, (1024 // size, 1), size),
            Step("an output row: stores", size, warp, tile, (1, 32), size),
        )


@dataclass(frozen=True)
class RowsConfig(Config):
    """``kernels/rows.py``, of rows that begin at whole chunks, which are elements to the kernel."""

    rank: int = 0
    tail: int = 0  # bytes of the accesses that copy an incomplete last chunk; 0 where every row is whole chunks
    wide: bool = False
    threads: int = 128

    idea = "16 bytes a thread, for rows that are contiguous on both sides"
    pattern = "copy_rows_{0.itemsize}B_rank{0.rank}"

    @property
    def steps(self) -> tuple[Step, ...]:
        """One chunk a thread, the same place on both sides."""
        return (contiguous("loads and stores", self.threads, self.itemsize, self.itemsize, edge=self.tail),)


@dataclass(frozen=True)
class RealignedConfig(RowsConfig):
    """``kernels/rows.py``, of rows that begin anywhere; elements of at most 8 bytes, and no ``tail``."""

    idea = "contiguous rows that begin anywhere: aligned chunks, shifted"
    pattern = "copy_realigned_{0.itemsize}B_rank{0.rank}"

    @property
    def steps(self) -> tuple[Step, ...]:
        """An aligned chunk of the output a thread, from the two aligned chunks of the input that hold its bytes."""
        size, threads = self.itemsize, self.threads
        loads = contiguous("input: loads", threads, size, CHUNK, edge=size, shifted=True)
        return loads, contiguous("output: stores", threads, size, CHUNK, edge=size)


class TileConfig(Config):
    """A block moves a tile of a matrix through shared memory (``kernels/tiled.py``): load, write, read and store.

    Attributes:
        by_columns: blocks walk along the input's columns before they move down its rows.
        flat: the grid has one dimension, since another would be too long.
        room: blocks that a multiprocessor must have registers for; 0 leaves it to the compiler.
        carveout: percent of a multiprocessor's memory that shared memory should get; None leaves it to the driver.
        evict_last: loads ask the L2 to evict their lines last.
    """

    batch_rank = 0
    by_columns = flat = wide = False
    room = 0
    carveout: int | None = None
    evict_last = True

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns from one tile to the next."""
        return self.steps[0].tile

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return math.prod(self.steps[0].layout[0][0])

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a block."""
        write = self.steps[1]
        return max(size * stride for size, stride in zip(write.tile, write.strides, strict=True)) * self.itemsize


@dataclass(frozen=True)
class TiledConfig(TileConfig):
    """``kernels/tiled.py``; the tile is square."""

    edge: int  # of the tile, in elements: 16 or 32
    batch_rank: int = 0
    flat: bool = False
    wide: bool = False
    threads: int = 256  # a multiple of the edge

    idea = "a padded tile of shared memory, an element a thread and step"
    pattern = "transpose_tiled_{0.itemsize}B_{0.edge}x{0.edge}_b{0.batch_rank}"
    by_columns = True
    evict_last = False

    @property
    def steps(self) -> tuple[Step, ...]:
        """Neighboring threads have neighboring elements of an input row, then of an output row."""
        size, edge, tile, lines = self.itemsize, self.edge, (self.edge, self.edge), self.threads // self.edge
        threads, values = (edge, lines), (1, edge // lines)
        load = (threads, values), ((edge, 1), (0, lines))
        store = (threads, values), ((1, edge), (0, lines * edge))
        return (
            Step("input: loads", size, load, tile, (edge, 1), size),
            Step("rows: writes", size, load, tile, (edge + 1, 1), size, PLAIN),
            Step("columns: reads", size, store, tile, (edge + 1, 1), size, PLAIN),
            Step("output: stores", size, store, tile, (1, edge), size),
        )


@dataclass(frozen=True)
class VectorizedConfig(TileConfig):
    """``kernels/vectorized.py``; a thread stores chunks of 16 bytes."""

    row_chunks: int = 16  # of 16 bytes of an output row in the tile: a multiple of 8
    col_chunks: int = 16  # loads of an input row in the tile, likewise
    src_width: int = CHUNK  # bytes of a thread's load: 16 or 8, not below the element
    batch_rank: int = 0
    by_columns: bool = False
    flat: bool = False
    wide: bool = False

    idea = "16 bytes a thread on both sides, transposed in registers"
    pattern = "transpose_vectorized_{0.itemsize}B_{0.tile[0]}x{0.tile[1]}_ld{0.src_width}_st16_b{0.batch_rank}"
    #: For more blocks the compiler spills.  H200, 2026-11-21: the carveout gains 0 to 3 % against leaving it.
    room, carveout = 1, 100
    #: Whether rows may begin between 16-byte boundaries.
    src_shift = dst_shift = False

    @property
    def cols(self) -> int:
        """Elements of a load, of which a thread has one in ``vec`` rows."""
        return self.src_width // self.itemsize

    @property
    def loaded(self) -> tuple[int, int]:
        """Rows and columns that are loaded."""
        return self.row_chunks * self.vec, self.col_chunks * self.cols

    @property
    def tile(self) -> tuple[int, int]:
        """Rows from one tile to the next, of which a shifted output needs a chunk more, and columns."""
        return self.loaded[0] - self.vec * self.dst_shift, self.loaded[1]

    @property
    def swizzle(self) -> Swizzle:
        """A chunk's number in its line, XORed with the line's number over ``cols``.

        Eight chunks are all 32 banks: eight threads that write one chunk of lines with eight different keys, or read
        eight neighboring chunks of one line, touch each bank once.
        """
        return 3, 4, (self.row_chunks * self.cols).bit_length() - 1

    @property
    def steps(self) -> tuple[Step, ...]:
        """Neighboring threads have neighboring loads of input rows, then neighboring stores of output rows."""
        size, v, c, (m, n), i, o = self.itemsize, self.vec, self.cols, self.loaded, self.src_shift, self.dst_shift
        threads, places = (self.col_chunks, self.row_chunks), (c * m, v)
        load = (threads, (c, v)), (places, (m, 1))
        put = (threads, (v, c)), (places, (1, m))
        store = (threads[::-1], (v, c)), ((v, m), (1, m * self.col_chunks))
        return (
            Step("input rows: loads", size, load, (m, n), (n + v * i, 1), self.src_width, None, size * i, i),
            Step("transposed: writes", size, put, (m, n), (1, m), CHUNK, self.swizzle),
            Step("output rows: reads", size, store, (m, n), (1, m), CHUNK, self.swizzle, 0, o),
            Step("output rows: stores", size, store, (m, n), (1, self.tile[0]), CHUNK, None, size * o),
        )


@dataclass(frozen=True)
class ShiftedConfig(VectorizedConfig):
    """``kernels/shifted.py``; loads are 16 bytes, too, and one of ``row_chunks`` may belong to the next tile."""

    src_shift: bool = True  # input rows may begin between 16-byte boundaries, or end there
    dst_shift: bool = True  # output rows may
    room: int = 2

    idea = "rows that begin anywhere: aligned 16-byte accesses, shifted on chip"
    pattern = "transpose_shifted_{0.itemsize}B_{0.tile[0]}x{0.tile[1]}_{0.shifts}_b{0.batch_rank}"

    @property
    def shifts(self) -> str:
        """The sides that are shifted."""
        return "src" * self.src_shift + "dst" * self.dst_shift


@dataclass(frozen=True)
class LinesConfig(Config):
    """``kernels/lines.py``: long lines on one side, on the other a run of all of them, interleaved.

    How many lines, and where they begin, is known at the launch only.
    """

    gather: bool  # the lines are the rows: they are read, and the run is written; otherwise the inverse
    bits: int = 0  # the logarithm of the largest power of two, up to 8, that divides the places' distance
    batch_rank: int = 0
    loads: int = 4  # chunks of a thread
    gaps: bool = False  # between the places of the run, which are read with it
    threads: int = 256  # 32 or more

    idea = "2 to 128 rows or columns of any alignment: gathered by element"
    pattern = "transpose_lines_{0.itemsize}B_{0.way}_x{0.loads}_s{0.bits}_b{0.batch_rank}"

    @property
    def way(self) -> str:
        """What the lines are."""
        return "rows" if self.gather else "cols"

    @property
    def swizzle(self) -> Swizzle:
        """A chunk's number in its line of 128 bytes, XORed with the line's.

        Threads' own chunks lie as many apart as there are lines, and elements of a gap: where 2^bits divides that,
        every 2^bits-th line of shared memory has them in the same banks.
        """
        return self.bits, 4, 3

    @property
    def steps(self) -> tuple[Step, ...]:
        """Eight chunks beside one another of each line, all of one element of them at a time; neighbors of the run."""
        size, v, n = self.itemsize, self.vec, (9, 10, 12, 8)[self.bits]  # drawn with as many lines
        groups = self.groups(n)
        tile, moved = (n, 8 * v * groups), ("loads", "stores") if self.gather else ("stores", "loads")
        lines = ((8, n), (v, groups)), ((v * n, 1), (n, 8 * v * n))
        run = ((8 * n,), (v, groups)), ((v,), (1, 8 * v * n))
        steps = (
            Step(f"{n} lines: {moved[0]}", size, lines, tile, (tile[1], 1), CHUNK, edge=size),
            Step("the run, as threads have lines", size, lines, tile, (1, n), size, self.swizzle, run=True),
            Step("the run, neighboring chunks", size, run, tile, (1, n), CHUNK, self.swizzle, run=True),
            Step(f"the run: {moved[1]}", size, run, tile, (1, n), CHUNK, edge=size, run=True),
        )
        return steps if self.gather else steps[::-1]

    def groups(self, lines: int) -> int:
        """How many times eight chunks of each line are a tile: a power of two, or 0 where the tile is too small."""
        fitting = self.threads * self.loads // (lines * 8)
        return 1 << fitting.bit_length() >> 1

    def tiles(self, lines: int, length: int) -> int:
        """How many there are."""
        return -(-length // (8 * self.vec * self.groups(lines)))

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a block, whose run may begin inside a chunk."""
        return (self.threads * self.loads + 1) * CHUNK
