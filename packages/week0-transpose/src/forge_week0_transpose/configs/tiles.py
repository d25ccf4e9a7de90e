"""Configurations of the kernels that transpose tile by tile."""

from __future__ import annotations

from dataclasses import dataclass

from forge_week0_transpose.kernels.words import CHUNK

__all__ = ["ShiftedConfig", "SkinnyConfig", "TiledConfig", "VectorizedConfig"]


@dataclass(frozen=True)
class TiledConfig:
    """``kernels/tiled.py``.

    Attributes:
        itemsize: bytes of an element: 1, 2, 4, 8 or 16.
        tile: edge of the square tile in elements: 16 or 32.
        batch_rank: dimensions around the matrix.
        threads: threads of a block, a multiple of ``tile``.
    """

    itemsize: int
    tile: int
    batch_rank: int = 0
    threads: int = 256

    @property
    def lines(self) -> int:
        """Lines of the tile that the block covers at once."""
        return self.threads // self.tile

    @property
    def steps(self) -> int:
        """How often the block moves on to cover the tile."""
        return self.tile // self.lines

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
        flat: tiles are numbered by one dimension of the grid, because the other two cannot hold that many.
    """

    itemsize: int
    row_chunks: int = 16
    col_chunks: int = 16
    src_width: int = 16
    dst_width: int = 16
    batch_rank: int = 0
    by_columns: bool = False
    flat: bool = False

    @property
    def ragged(self) -> bool:
        """Whether the number of rows need not be whole chunks."""
        return self.dst_width < CHUNK

    @property
    def chunk_items(self) -> int:
        """Elements of a chunk."""
        return CHUNK // self.itemsize

    @property
    def tile_rows(self) -> int:
        """Input rows of the tile."""
        return self.row_chunks * self.chunk_items

    @property
    def tile_cols(self) -> int:
        """Input columns of the tile."""
        return self.col_chunks * self.src_width // self.itemsize

    @property
    def threads(self) -> int:
        """Threads of a block: one for each block of V rows by one load."""
        return self.row_chunks * self.col_chunks

    @property
    def line_bytes(self) -> int:
        """Bytes of an output row in the tile."""
        return self.row_chunks * CHUNK

    @property
    def stores(self) -> int:
        """Stores of a thread."""
        return self.tile_cols * self.line_bytes // self.dst_width // self.threads

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a block."""
        return self.tile_cols * self.line_bytes

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        how = f"{'_cols' if self.by_columns else ''}{'_flat' if self.flat else ''}"
        return (
            f"transpose_vectorized_{self.itemsize}B_{self.tile_rows}x{self.tile_cols}"
            f"_ld{self.src_width}_st{self.dst_width}_b{self.batch_rank}{how}"
        )


@dataclass(frozen=True)
class ShiftedConfig:
    """``kernels/shifted.py``.

    Attributes:
        itemsize: bytes of an element: 1, 2, 4 or 8.
        src_shift: input rows may begin between 16-byte boundaries, or end there.
        dst_shift: output rows may.
        row_chunks: 16-byte chunks of an output row that are loaded, a multiple of 8; one of them is shared with the
            tile before when ``dst_shift``.
        col_chunks: 16-byte chunks of an input row in the tile, a multiple of 8.
        batch_rank: dimensions around the matrix.
        blocks_per_sm: blocks that a multiprocessor must be able to hold, which bounds the registers of a thread.
        by_columns: blocks walk along the input's columns before they move down its rows.
    """

    itemsize: int
    src_shift: bool
    dst_shift: bool
    row_chunks: int = 16
    col_chunks: int = 16
    batch_rank: int = 0
    blocks_per_sm: int = 2
    by_columns: bool = False

    @property
    def chunk_items(self) -> int:
        """Elements of a chunk."""
        return CHUNK // self.itemsize

    @property
    def group(self) -> int:
        """Chunks that a thread reads from shared memory before it stores them."""
        return min(self.chunk_items, 8)

    @property
    def halo_chunks(self) -> int:
        """Chunks of a line that belong to the tile before."""
        return 1 if self.dst_shift else 0

    @property
    def halo(self) -> int:
        """Rows before the tile's own that are loaded."""
        return self.halo_chunks * self.chunk_items

    @property
    def reach(self) -> int:
        """Elements by which an output row's first whole chunk can begin late."""
        return self.chunk_items - 1 if self.dst_shift else 0

    @property
    def lines(self) -> int:
        """Input rows that are loaded."""
        return self.row_chunks * self.chunk_items

    @property
    def tile_rows(self) -> int:
        """Rows from one tile to the next."""
        return self.lines - self.halo

    @property
    def tile_cols(self) -> int:
        """Input columns of the tile."""
        return self.col_chunks * self.chunk_items

    @property
    def threads(self) -> int:
        """Threads of a block: one for each V x V block of elements."""
        return self.row_chunks * self.col_chunks

    @property
    def line_bytes(self) -> int:
        """Bytes of an output row in shared memory."""
        return self.row_chunks * CHUNK

    @property
    def end_steps(self) -> int:
        """Output rows whose ends a thread stores at most."""
        return -(-self.tile_cols // self.threads)

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a block."""
        return self.tile_cols * self.line_bytes

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        shifts = ("src" if self.src_shift else "") + ("dst" if self.dst_shift else "")
        how = "_cols" if self.by_columns else ""
        return f"transpose_shifted_{self.itemsize}B_{self.tile_rows}x{self.tile_cols}_{shifts}_b{self.batch_rank}{how}"


@dataclass(frozen=True)
class SkinnyConfig:
    """``kernels/skinny.py``.

    Attributes:
        itemsize: bytes of an element: 1, 2, 4 or 8.
        lines: the short side, 2 to 8.
        gather: the short side is the rows: lines are read and a run is written; otherwise the inverse.
        line_width: bytes of an access to a line: 16 or less, not below the element.
        run_width: bytes of an access to the run, likewise.
        batch_rank: dimensions around the matrix.
        threads: threads of a block.
    """

    itemsize: int
    lines: int
    gather: bool
    line_width: int = 16
    run_width: int = 16
    batch_rank: int = 0
    threads: int = 32

    @property
    def tile(self) -> int:
        """Elements of each line in a tile."""
        return self.threads * CHUNK // self.itemsize

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a block."""
        return self.threads * self.lines * CHUNK

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        way = f"{self.lines}rows" if self.gather else f"{self.lines}cols"
        return f"transpose_skinny_{self.itemsize}B_{way}_line{self.line_width}_run{self.run_width}_b{self.batch_rank}"
