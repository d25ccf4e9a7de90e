"""Configurations of the kernels that read rows in wide loads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from forge_week1_reduce.arithmetic import Arithmetic
from forge_week1_reduce.configs.finish import FinishConfig
from forge_week1_reduce.configs.groups import kept_integers, reduced_integers

__all__ = ["ClusterConfig", "ShortConfig", "SplitConfig", "VectorizedConfig"]


@dataclass(frozen=True)
class VectorizedConfig:
    """``kernels/vectorized.py``.

    Attributes:
        arithmetic: what is computed.
        width: bytes of a thread's load: 16, or what every address is a multiple of.
        peel: rows begin anywhere; their ends are read by element, so that the rest is whole, aligned chunks.
        threads: threads of a block: 32 times a power of two.
        unroll: loads of a thread in flight.
        kept_rank: dimensions of the result.
        outer_rank: reduced dimensions around the contiguous one.
        once: loads of 16 bytes are marked as read by nobody again.
        held: the L2 is asked to evict last what loads of 16 bytes read.
        exact: a row is exactly ``threads * unroll`` loads, so none is guarded and nothing is repeated.
        whole: a row, or a block's part of it, is some times ``threads * unroll`` loads, so none is guarded.
        resident: blocks that the compiler leaves registers for on each multiprocessor; 0 leaves it to choose.
    """

    arithmetic: Arithmetic
    width: int = 16
    peel: bool = False
    threads: int = 256
    unroll: int = 4
    kept_rank: int = 1
    outer_rank: int = 0
    once: bool = False
    exact: bool = False
    whole: bool = False
    held: bool = False
    resident: int = 0

    integers: ClassVar[int] = 1

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of the groups of integers of a launch."""
        return (kept_integers(self.kept_rank), reduced_integers(self.outer_rank))

    @property
    def body(self) -> str:
        """The part of a kernel's name that says how a row is read."""
        peel = "_peel" if self.peel else ""
        flags = "".join(f"_{flag}" for flag in ("exact", "whole", "once", "held") if getattr(self, flag))
        flags += f"_m{self.resident}" if self.resident else ""
        return f"{self.width}B{peel}_{self.threads}t_u{self.unroll}_k{self.kept_rank}o{self.outer_rank}{flags}"

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        return f"{self.arithmetic.name}_vectorized_{self.body}"


@dataclass(frozen=True)
class ShortConfig:
    """``kernels/short.py``.

    Attributes:
        arithmetic: what is computed.
        width: bytes of a thread's load.
        lanes: threads of a row: 1, 2, 4, 8, 16 or 32.
        unroll: loads of a thread for one row; a row is at most ``lanes * unroll`` of them.
        rows: rows of a group of lanes, all in flight.
        exact: a row is exactly ``lanes * unroll`` loads, so none is guarded.
        kept_rank: dimensions of the result.
        wide: rows are numbered by 64-bit integers, needed from 2^31 on.
        threads: threads of a block.
        once: loads of 16 bytes are marked as read by nobody again.
        held: the L2 is asked to evict last what loads of 16 bytes read.
    """

    arithmetic: Arithmetic
    width: int = 16
    lanes: int = 1
    unroll: int = 2
    rows: int = 1
    exact: bool = False
    kept_rank: int = 1
    wide: bool = False
    threads: int = 128
    once: bool = False
    held: bool = False

    integers: ClassVar[int] = 1

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of the groups of integers of a launch."""
        return (kept_integers(self.kept_rank),)

    @property
    def rows_per_block(self) -> int:
        """Rows of a block."""
        return self.threads // self.lanes * self.rows

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        flags = "".join(f"_{flag}" for flag in ("exact", "wide", "once", "held") if getattr(self, flag))
        return (
            f"{self.arithmetic.name}_short_{self.width}B_{self.lanes}l_u{self.unroll}_r{self.rows}"
            f"_k{self.kept_rank}{flags}"
        )


@dataclass(frozen=True)
class ClusterConfig:
    """``kernels/cluster.py``.

    Attributes:
        row: how each block reads its part of the row.
        blocks: blocks of a cluster, which share a row: 2, 4, 8 or 16.
    """

    row: VectorizedConfig
    blocks: int

    integers: ClassVar[int] = 1

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of the groups of integers of a launch."""
        return self.row.lengths

    @property
    def arithmetic(self) -> Arithmetic:
        """What is computed."""
        return self.row.arithmetic

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        return f"{self.arithmetic.name}_cluster{self.blocks}_{self.row.body}"


@dataclass(frozen=True)
class SplitConfig:
    """``kernels/split.py``.

    Attributes:
        row: how each block reads its part of the row; its arithmetic ends in accumulators.
        finish: the second pass.
    """

    row: VectorizedConfig
    finish: FinishConfig

    integers: ClassVar[int] = 2

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of the groups of integers of a launch."""
        return self.row.lengths

    @property
    def arithmetic(self) -> Arithmetic:
        """What is computed by the second pass."""
        return self.finish.arithmetic

    @property
    def kernel_name(self) -> str:
        """What a profiler shows of the first pass."""
        return f"{self.row.arithmetic.name}_split_{self.row.body}"
