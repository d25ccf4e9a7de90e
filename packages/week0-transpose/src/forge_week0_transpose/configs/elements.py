"""Of the kernels without a tile: elements and chunks, one or some a thread."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NaiveConfig", "RealignedConfig", "RowsConfig"]


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
