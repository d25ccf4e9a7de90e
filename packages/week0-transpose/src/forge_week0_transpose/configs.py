"""What the kernels of week 0 are compiled for, and the layouts by which their threads move a tile.

A configuration is a frozen dataclass that imports no compiler; the kernel of ``kernels/`` is a subclass of it.  Sizes,
strides and addresses are arguments of the launch, so that another shape never compiles another kernel.

A layout is a pair (shape, stride), as ``cute.make_layout`` takes them.  A *thread-value* layout maps a thread of the
block and the number of its element to m + n * tile_m, the place in a tile (tile_m, tile_n) of the matrix (M, N):
kernels partition by it, and ``layouts`` draws it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = [
    "CHUNK",
    "Layout",
    "NaiveConfig",
    "RealignedConfig",
    "RowsConfig",
    "SkinnyConfig",
    "TiledConfig",
    "UnalignedConfig",
    "VectorizedConfig",
]

#: Bytes of the widest access of a thread.
CHUNK = 16

#: Shape and stride.
Layout = tuple[tuple[Any, ...], tuple[Any, ...]]


@dataclass(frozen=True)
class NaiveConfig:
    """``kernels/naive.py``.

    Attributes:
        itemsize: bytes of an element: 1, 2, 4, 8 or 16.
        rank: dimensions of the canonical problem, at least one.
        wide: elements are numbered by 64-bit integers, needed from 2^32 on.
        items: elements of a thread, a block's width apart; more than one where no other kernel can do the problem.
        threads: of a block.
    """

    itemsize: int
    rank: int
    wide: bool = False
    items: int = 1
    threads: int = 256

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        items = f"_x{self.items}" if self.items > 1 else ""
        return f"naive_{self.itemsize}B_rank{self.rank}{items}{'_wide' if self.wide else ''}"


@dataclass(frozen=True)
class RowsConfig:
    """``kernels/rows.py``, of rows that begin at multiples of ``width``.

    Attributes:
        width: bytes of a thread's access: 1, 2, 4, 8 or 16.
        rank: outer dimensions.
        tail: width of the accesses that copy an incomplete last chunk; 0 where every row is whole chunks.
        wide: chunks are numbered by 64-bit integers, needed from 2^32 on.
        threads: of a block.
    """

    width: int
    rank: int = 0
    tail: int = 0
    wide: bool = False
    threads: int = 128

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        tail = f"_tail{self.tail}B" if self.tail else ""
        return f"copy_rows_{self.width}B_rank{self.rank}{tail}{'_wide' if self.wide else ''}"


@dataclass(frozen=True)
class RealignedConfig:
    """``kernels/rows.py``, of rows that begin anywhere.

    Attributes:
        itemsize: bytes of an element: 1, 2, 4 or 8.
        rank: outer dimensions.
        wide: chunks are numbered by 64-bit integers, needed from 2^32 on.
        threads: of a block.
    """

    itemsize: int
    rank: int = 0
    wide: bool = False
    threads: int = 128

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        return f"copy_realigned_{self.itemsize}B_rank{self.rank}{'_wide' if self.wide else ''}"


@dataclass(frozen=True)
class TiledConfig:
    """``kernels/tiled.py``.

    Attributes:
        itemsize: bytes of an element: 1, 2, 4, 8 or 16.
        tile: edge of the square tile, in elements: 16 or 32.
        batch_rank: dimensions around the matrix.
        threads: of a block, a multiple of ``tile``.
    """

    itemsize: int
    tile: int
    batch_rank: int = 0
    threads: int = 256

    @property
    def load_layout(self) -> Layout:
        """Neighboring threads have neighboring elements of an input row."""
        lines = self.threads // self.tile
        return ((self.tile, lines), (1, self.tile // lines)), ((self.tile, 1), (0, lines))

    @property
    def store_layout(self) -> Layout:
        """Neighboring threads have neighboring elements of an output row."""
        lines = self.threads // self.tile
        return ((self.tile, lines), (1, self.tile // lines)), ((1, self.tile), (0, lines * self.tile))

    @property
    def shared_layout(self) -> Layout:
        """The tile in shared memory: rows with an element of padding."""
        return (self.tile, self.tile), (self.tile + 1, 1)

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a block."""
        return self.tile * (self.tile + 1) * self.itemsize

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        return f"transpose_tiled_{self.itemsize}B_{self.tile}x{self.tile}_b{self.batch_rank}"


@dataclass(frozen=True)
class VectorizedConfig:
    """``kernels/vectorized.py``.

    Attributes:
        itemsize: bytes of an element: 1, 2, 4, 8 or 16.
        row_chunks: 16-byte chunks of an output row in the tile, a multiple of 8.
        col_chunks: loads of ``src_width`` bytes of an input row in the tile, a multiple of 8.
        src_width: bytes of a thread's load: 16, 8 or 4, not below the element.
        dst_width: bytes of a thread's store, likewise.
        batch_rank: dimensions around the matrix.
        by_columns: blocks walk along the input's columns before they move down its rows.
        flat: the grid has one dimension, since another would be too long.
        wide: places in the matrix are 64-bit integers, needed for 2^31 rows or columns and more.
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

    @property
    def vec(self) -> int:
        """Elements of a chunk."""
        return CHUNK // self.itemsize

    @property
    def dst_vec(self) -> int:
        """Elements of a store."""
        return self.dst_width // self.itemsize

    @property
    def cols(self) -> int:
        """Elements of a load."""
        return self.src_width // self.itemsize

    @property
    def halo(self) -> int:
        """Rows behind the tile's own that are loaded."""
        return 0

    @property
    def loaded(self) -> tuple[int, int]:
        """Rows and columns that are loaded."""
        return self.row_chunks * self.vec, self.col_chunks * self.cols

    @property
    def tile(self) -> tuple[int, int]:
        """Rows from one tile to the next, and columns."""
        return self.loaded[0] - self.halo, self.loaded[1]

    @property
    def threads(self) -> int:
        """Threads of a block, each of which loads ``cols`` columns of ``vec`` rows."""
        return self.row_chunks * self.col_chunks

    @property
    def load_layout(self) -> Layout:
        """Neighboring threads have neighboring loads of an input row, and each ``vec`` rows."""
        m, v, c = self.loaded[0], self.vec, self.cols
        return ((self.col_chunks, self.row_chunks), (c, v)), ((c * m, v), (m, 1))

    @property
    def put_layout(self) -> Layout:
        """The same elements, by columns."""
        (threads, (c, v)), (places, (along, down)) = self.load_layout
        return (threads, (v, c)), (places, (down, along))

    @property
    def store_layout(self) -> Layout:
        """Neighboring threads have neighboring stores of an output row."""
        m, n = self.loaded
        w = self.dst_vec
        lines = self.threads * w // m
        return ((m // w, lines), (w, n // lines)), ((w, m), (1, m * lines))

    @property
    def shared_layout(self) -> Layout:
        """The tile in shared memory: output rows."""
        return self.loaded, (1, self.loaded[0])

    @property
    def swizzle(self) -> tuple[int, int, int]:
        """Bits, base and shift over bytes: a chunk's number in its line, XORed with the line's number over ``cols``.

        Eight chunks are all 32 banks: eight threads that write one chunk of lines with eight different keys, or read
        eight neighboring chunks of one line, touch each bank once.
        """
        return 3, 4, (self.row_chunks * self.cols).bit_length() - 1

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a block."""
        return self.loaded[0] * self.loaded[1] * self.itemsize

    @property
    def blocks_per_sm(self) -> int:
        """Blocks that a multiprocessor must have registers for.

        One, so that the compiler does not press the registers of a thread for more: it spilled for that in the 2-byte
        kernel, whose share of a copy at 16384x16384 rose from 0.94 to 0.99 without (H200, 2026-11-21).
        """
        return 1

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        flags = {"_cols": self.by_columns, "_flat": self.flat, "_wide": self.wide}
        return self._name + f"_b{self.batch_rank}" + "".join(name for name, on in flags.items() if on)

    @property
    def _name(self) -> str:
        return f"transpose_vectorized_{self._size}_ld{self.src_width}_st{self.dst_width}"

    @property
    def _size(self) -> str:
        return f"{self.itemsize}B_{self.tile[0]}x{self.tile[1]}"


@dataclass(frozen=True)
class UnalignedConfig(VectorizedConfig):
    """``kernels/unaligned.py``; loads and stores are 16 bytes, and one of ``row_chunks`` may belong to the next tile.

    Attributes:
        src_shift: input rows may begin between 16-byte boundaries, or end there.
        dst_shift: output rows may.
        room: blocks that a multiprocessor must be able to hold, which bounds the registers of a thread.
    """

    src_shift: bool = True
    dst_shift: bool = True
    room: int = 2

    @property
    def halo(self) -> int:
        """Rows behind the tile's own that are loaded."""
        return self.vec if self.dst_shift else 0

    @property
    def group(self) -> int:
        """Chunks that a thread reads from shared memory before it stores them."""
        return min(self.vec, 8)

    @property
    def blocks_per_sm(self) -> int:
        """Blocks that a multiprocessor must have registers for."""
        return self.room

    @property
    def _name(self) -> str:
        return f"transpose_unaligned_{self._size}_{'src' if self.src_shift else ''}{'dst' if self.dst_shift else ''}"


@dataclass(frozen=True)
class SkinnyConfig:
    """``kernels/skinny.py``; a tile is (lines, elements of each), so that places are those of the run.

    Attributes:
        itemsize: bytes of an element: 1, 2, 4 or 8.
        lines: the short side, 2 to 8.
        gather: the short side is the rows: lines are read and a run is written; otherwise the inverse.
        line_width: bytes of an access to a line: 16 or less, not below the element.
        run_width: bytes of an access to the run, likewise.
        batch_rank: dimensions around the matrix.
        threads: of a block.
    """

    itemsize: int
    lines: int
    gather: bool
    line_width: int = CHUNK
    run_width: int = CHUNK
    batch_rank: int = 0
    threads: int = 32

    @property
    def vec(self) -> int:
        """Elements of a chunk."""
        return CHUNK // self.itemsize

    @property
    def tile(self) -> tuple[int, int]:
        """Lines, and elements of each in a tile."""
        return self.lines, self.threads * self.vec

    @property
    def line_layout(self) -> Layout:
        """A chunk of each line a thread."""
        return ((self.threads,), (self.vec, self.lines)), ((self.vec * self.lines,), (self.lines, 1))

    @property
    def own_layout(self) -> Layout:
        """The same elements in the order of the run: its neighboring chunks."""
        return ((self.threads,), (self.vec, self.lines)), ((self.vec * self.lines,), (1, self.vec))

    @property
    def run_layout(self) -> Layout:
        """Neighboring threads have neighboring chunks of the run."""
        return ((self.threads,), (self.vec, self.lines)), ((self.vec,), (1, self.vec * self.threads))

    @property
    def swizzle(self) -> tuple[int, int, int]:
        """Bits, base and shift over bytes, so that threads ``lines`` chunks apart do not share banks.

        An odd distance visits all eight chunks of 128 bytes.  An even one, 2^a times an odd number, comes back to its
        first one after 8 / 2^a threads, an odd multiple of 128 bytes on, whose number mod 2^a is another each time.
        """
        return (self.lines & -self.lines).bit_length() - 1, 4, 3

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a block."""
        return self.threads * self.lines * CHUNK

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        way = f"{self.lines}rows" if self.gather else f"{self.lines}cols"
        return f"transpose_skinny_{self.itemsize}B_{way}_line{self.line_width}_run{self.run_width}_b{self.batch_rank}"
