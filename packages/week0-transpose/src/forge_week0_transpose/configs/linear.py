"""Configurations of the kernels that need no tile: elements one by one, and rows that are copied as they are."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NaiveConfig", "RealignedConfig", "RowsConfig"]


@dataclass(frozen=True)
class NaiveConfig:
    """``kernels/naive.py``.

    Attributes:
        itemsize: bytes of an element: 1, 2, 4, 8 or 16.
        rank: dimensions of the canonical problem.
        wide_index: elements are numbered by 64-bit integers, needed from 2^32 on.
        items: elements of a thread, a block's width apart; more than one where no other kernel can do the problem.
        threads: threads of a block.
    """

    itemsize: int
    rank: int
    wide_index: bool = False
    items: int = 1
    threads: int = 256

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        items = f"_x{self.items}" if self.items > 1 else ""
        return f"naive_{self.itemsize}B_rank{self.rank}{items}{'_wide' if self.wide_index else ''}"


@dataclass(frozen=True)
class RowsConfig:
    """``kernels/rows.py``.

    Attributes:
        width: bytes of a thread's access: 1, 2, 4, 8 or 16.
        rank: outer dimensions.
        tail: width of the accesses that copy an incomplete last chunk; 0 where every row is whole chunks.
        wide_index: chunks are numbered by 64-bit integers, needed from 2^32 on.
        threads: threads of a block.
    """

    width: int
    rank: int = 0
    tail: int = 0
    wide_index: bool = False
    threads: int = 128

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        tail = f"_tail{self.tail}B" if self.tail else ""
        return f"copy_rows_{self.width}B_rank{self.rank}{tail}{'_wide' if self.wide_index else ''}"


@dataclass(frozen=True)
class RealignedConfig:
    """``kernels/realigned.py``.

    Attributes:
        itemsize: bytes of an element: 1, 2, 4 or 8.
        rank: outer dimensions.
        wide_index: chunks are numbered by 64-bit integers, needed from 2^32 on.
        threads: threads of a block.
    """

    itemsize: int
    rank: int = 0
    wide_index: bool = False
    threads: int = 128

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        return f"copy_realigned_{self.itemsize}B_rank{self.rank}{'_wide' if self.wide_index else ''}"
