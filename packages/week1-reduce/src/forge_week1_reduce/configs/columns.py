"""The configuration of the kernel for columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from forge_week1_reduce.arithmetic import Arithmetic
from forge_week1_reduce.configs.finish import FinishConfig
from forge_week1_reduce.configs.groups import kept_integers, reduced_integers

__all__ = ["ColumnConfig"]


@dataclass(frozen=True)
class ColumnConfig:
    """``kernels/column.py``.

    Attributes:
        arithmetic: what is computed; it ends in accumulators where there is a second pass.
        width: bytes of a thread's load.
        lanes: threads across the columns: a power of two up to 32.
        groups: threads down the rows.
        unroll: loads of a thread in flight.
        blocks: blocks of a cluster, which share the rows of a tile: 1, 2, 4, 8 or 16.
        shifts: rows begin at this many different distances from a 16-byte boundary: 1, 2, 4, 8 or 16.
        packed: results of a thread are stored together.
        kept_rank: kept dimensions around the contiguous one.
        reduced_rank: reduced dimensions.
        finish: the second pass, or None.
        once: loads of 16 bytes are marked as read by nobody again.
        whole: columns are whole tiles, and each thread's rows some times ``unroll``, so no load is guarded.
        exact: ``whole``, and each thread's rows are ``unroll``, so nothing is repeated.
    """

    arithmetic: Arithmetic
    width: int = 16
    lanes: int = 8
    groups: int = 32
    unroll: int = 4
    blocks: int = 1
    shifts: int = 1
    packed: bool = False
    kept_rank: int = 0
    reduced_rank: int = 1
    finish: FinishConfig | None = None
    once: bool = False
    whole: bool = False
    exact: bool = False

    integers: ClassVar[int] = 3

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of the groups of integers of a launch."""
        own = (kept_integers(self.kept_rank), reduced_integers(self.reduced_rank))
        return own if self.finish is None else (*own, kept_integers(self.finish.kept_rank))

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.lanes * self.groups

    @property
    def resident(self) -> int:
        """Blocks that the compiler leaves registers for on each multiprocessor; 0 leaves it to choose.

        Beside accumulators of 8 bytes, and elements of one, it makes one more block fit, and spills for it; and for
        guarded means of 2-byte elements, whose count has to wait for the end.
        """
        own = self.arithmetic
        if own.acc.itemsize == 8:
            return max(512 // self.threads, 1)
        if own.src.itemsize == 1:
            return max(768 // self.threads, 1)
        guarded_mean = own.op == "mean" and own.src.itemsize == 2 and self.unroll == 4 and not self.whole
        return 1024 // self.threads if guarded_mean and self.threads == 512 and self.shifts == 1 else 0

    @property
    def vector(self) -> int:
        """Columns of a thread."""
        return self.width // self.arithmetic.src.itemsize

    @property
    def tile(self) -> int:
        """Columns of a block; where rows are shifted, one chunk of each row belongs to the neighbours."""
        return self.vector * (self.lanes - (self.shifts > 1))

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        shifts = f"_shift{self.shifts}" if self.shifts > 1 else ""
        flags = shifts + "".join(f"_{flag}" for flag in ("packed", "whole", "exact", "once") if getattr(self, flag))
        cluster = f"_cluster{self.blocks}" if self.blocks > 1 else "_split" if self.finish else ""
        return (
            f"{self.arithmetic.name}_column{cluster}_{self.width}B_{self.lanes}x{self.groups}_u{self.unroll}"
            f"_k{self.kept_rank}r{self.reduced_rank}{flags}"
        )
