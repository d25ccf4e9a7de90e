"""What the kernels of week 0 are compiled for, how their threads move a tile, and what their code must look like.

A configuration is a frozen dataclass that imports no compiler; the kernel of ``kernels/`` is a subclass of it.  Sizes,
strides and addresses are arguments of the launch, so that another shape never compiles another kernel.

Fields that several have: ``itemsize``, bytes of an element: 1, 2, 4, 8 or, unless its class says otherwise, 16;
``rank`` or ``batch_rank``, dimensions around a row or a matrix; ``wide``, places are 64-bit integers, needed from 2^32
elements or chunks on, or from 2^31 rows or columns; ``threads`` of a block.  ``steps`` are what the kernel does, in
order: the first one loads, the last one stores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

#: Bytes of the widest access of a thread.
CHUNK = 16

#: Shape and stride, as ``cute.make_layout`` takes them.
Layout = tuple[tuple[Any, ...], tuple[Any, ...]]

#: Bits, base and shift of a swizzle over bytes.
Swizzle = tuple[int, int, int]
#: One that changes nothing.
PLAIN: Swizzle = (0, 4, 3)


@dataclass(frozen=True)
class Step:
    """The accesses of a block to a tile (tile_m, tile_n) in one memory, by which kernels partition it.

    Attributes:
        title: what is done; the last word names the accesses.
        layout: maps a thread of the block and the number of its element to m + n * tile_m, the place in the tile.
        tile: (tile_m, tile_n).
        strides: elements in memory from one m to the next, and from one n; a row is the larger of them.
        width: bytes of an access.
        swizzle: of shared memory; None in global memory.
        edge: bytes of the accesses where a whole one does not fit; 0 if it always does.
        shifted: a thread also accesses the next 16 bytes, unless its row ends.
        run: the tile is one contiguous run.
    """

    title: str
    layout: Layout
    tile: tuple[int, int]
    strides: tuple[int, int]
    width: int
    swizzle: Swizzle | None = None
    edge: int = 0
    shifted: bool = False
    run: bool = False


def _run(title: str, threads: int, size: int, width: int, **others: Any) -> Step:
    """Neighboring threads access neighboring bytes."""
    vec = width // size
    layout = ((threads,), (vec,)), ((vec,), (1,))
    return Step(title, layout, (threads * vec, 1), (1, threads * vec), width, run=True, **others)


@dataclass(frozen=True)
class NaiveConfig:
    """``kernels/naive.py``.

    Attributes:
        rank: all dimensions, at least one.
        items: elements of a thread, a block's width apart; more than one where no other kernel can do the problem.
    """

    itemsize: int
    rank: int
    wide: bool = False
    items: int = 1
    threads: int = 256

    @property
    def steps(self) -> tuple[Step, ...]:
        """A warp of a transposition reads down a column, of rows longer than a line of memory, and writes a row."""
        size, warp, tile = self.itemsize, (((32,), (1,)), ((1,), (0,))), (32, 1)
        return (
            Step("input rows of 1024 bytes: loads", warp, tile, (1024 // size, 1), size),
            Step("an output row: stores", warp, tile, (1, 32), size),
        )

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        items = f"_x{self.items}" if self.items > 1 else ""
        return f"naive_{self.itemsize}B_rank{self.rank}{items}{'_wide' if self.wide else ''}"


@dataclass(frozen=True)
class RowsConfig:
    """``kernels/rows.py``, of rows that begin at whole chunks.

    Attributes:
        itemsize: bytes of a chunk, a thread's access, which is an element to the kernel: 1, 2, 4, 8 or 16.
        tail: width of the accesses that copy an incomplete last chunk; 0 where every row is whole chunks.
    """

    itemsize: int
    rank: int = 0
    tail: int = 0
    wide: bool = False
    threads: int = 128

    @property
    def steps(self) -> tuple[Step, ...]:
        """One chunk a thread, the same place on both sides."""
        return (_run("loads and stores", self.threads, self.itemsize, self.itemsize, edge=self.tail),)

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        tail = f"_tail{self.tail}B" if self.tail else ""
        form = type(self).__name__.removesuffix("Config").lower()
        return f"copy_{form}_{self.itemsize}B_rank{self.rank}{tail}{'_wide' if self.wide else ''}"


@dataclass(frozen=True)
class RealignedConfig(RowsConfig):
    """``kernels/rows.py``, of rows that begin anywhere; elements of at most 8 bytes, and no ``tail``."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """An aligned chunk of the output a thread, from the two aligned chunks of the input that hold its bytes."""
        size, threads = self.itemsize, self.threads
        loads = _run("input: loads", threads, size, CHUNK, edge=size, shifted=True)
        return loads, _run("output: stores", threads, size, CHUNK, edge=size)


class TileConfig:
    """A block moves a tile of a matrix through shared memory (``kernels/tile.py``); what can vary is made a field.

    Attributes:
        by_columns: blocks walk along the input's columns before they move down its rows.
        flat: the grid has one dimension, since another would be too long.
        room: blocks that a multiprocessor must have registers for; 0 leaves it to the compiler.
        carveout: percent of a multiprocessor's memory that shared memory should get; None leaves it to the driver.
        evict_last: loads ask the L2 to evict their lines last.
    """

    itemsize: int
    batch_rank = 0
    by_columns = flat = wide = False
    room = 0
    carveout: int | None = None
    evict_last = True

    @property
    def steps(self) -> tuple[Step, ...]:
        """Load, write, read and store."""
        raise NotImplementedError

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

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        flags = {"_cols": "by_columns", "_flat": "flat", "_wide": "wide"}
        varied = "".join(name for name, field in flags.items() if vars(self).get(field))
        return f"transpose_{self._name}_b{self.batch_rank}{varied}"

    @property
    def _name(self) -> str:
        raise NotImplementedError


@dataclass(frozen=True)
class TiledConfig(TileConfig):
    """``kernels/tiled.py``.

    Attributes:
        edge: of the square tile, in elements: 16 or 32.
        threads: a multiple of ``edge``.
    """

    itemsize: int
    edge: int
    batch_rank: int = 0
    threads: int = 256

    by_columns = flat = wide = True
    evict_last = False

    @property
    def steps(self) -> tuple[Step, ...]:
        """Neighboring threads have neighboring elements of an input row, then of an output row."""
        size, edge, tile, lines = self.itemsize, self.edge, (self.edge, self.edge), self.threads // self.edge
        threads, values = (edge, lines), (1, edge // lines)
        load = (threads, values), ((edge, 1), (0, lines))
        store = (threads, values), ((1, edge), (0, lines * edge))
        return (
            Step("input: loads", load, tile, (edge, 1), size),
            Step("rows: writes", load, tile, (edge + 1, 1), size, PLAIN),
            Step("columns: reads", store, tile, (edge + 1, 1), size, PLAIN),
            Step("output: stores", store, tile, (1, edge), size),
        )

    @property
    def _name(self) -> str:
        return f"tiled_{self.itemsize}B_{self.edge}x{self.edge}"


@dataclass(frozen=True)
class VectorizedConfig(TileConfig):
    """``kernels/vectorized.py``.

    Attributes:
        row_chunks: 16-byte chunks of an output row in the tile, a multiple of 8.
        col_chunks: loads of ``src_width`` bytes of an input row in the tile, a multiple of 8.
        src_width: bytes of a thread's load: 16, 8 or 4, not below the element.
        dst_width: bytes of a thread's store, likewise.
    """

    itemsize: int
    row_chunks: int = 16
    col_chunks: int = 16
    src_width: int = CHUNK
    dst_width: int = CHUNK
    batch_rank: int = 0
    by_columns: bool = False
    flat: bool = False
    wide: bool = False

    #: For more blocks the compiler spills.  H200, 2026-11-21: the carveout gains 0 to 3 % against leaving it.
    room, carveout = 1, 100
    #: Whether rows may begin between 16-byte boundaries.
    src_shift = dst_shift = False

    @property
    def vec(self) -> int:
        """Elements of a chunk."""
        return CHUNK // self.itemsize

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
        w, threads, places = self.dst_width // size, (self.col_chunks, self.row_chunks), (c * m, v)
        lines = self.col_chunks * w // v
        load = (threads, (c, v)), (places, (m, 1))
        put = (threads, (v, c)), (places, (1, m))
        store = ((m // w, lines), (w, n // lines)), ((w, m), (1, m * lines))
        return (
            Step("input rows: loads", load, (m, n), (n + v * i, 1), self.src_width, None, size * i, i),
            Step("transposed: writes", put, (m, n), (1, m), CHUNK, self.swizzle),
            Step("output rows: reads", store, (m, n), (1, m), self.dst_width, self.swizzle, 0, o),
            Step("output rows: stores", store, (m, n), (1, self.tile[0]), self.dst_width, None, size * o),
        )

    @property
    def _name(self) -> str:
        size = f"{self.itemsize}B_{self.tile[0]}x{self.tile[1]}"
        return f"vectorized_{size}_ld{self.src_width}_st{self.dst_width}"


@dataclass(frozen=True)
class UnalignedConfig(VectorizedConfig):
    """``kernels/unaligned.py``; loads and stores are 16 bytes, and one of ``row_chunks`` may belong to the next tile.

    Attributes:
        src_shift: input rows may begin between 16-byte boundaries, or end there.
        dst_shift: output rows may.
    """

    src_shift: bool = True
    dst_shift: bool = True
    room: int = 2

    @property
    def _name(self) -> str:
        size = f"{self.itemsize}B_{self.tile[0]}x{self.tile[1]}"
        return f"unaligned_{size}_{'src' * self.src_shift}{'dst' * self.dst_shift}"
