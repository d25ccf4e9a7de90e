"""The configurations of week 2's kernels: plain data, one frozen dataclass a kernel.

``config.py`` chooses among them.  A configuration holds only what the kernel is compiled for; sizes, strides and
addresses are arguments of the launch, so that another shape never compiles another kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from forge_week2_softmax.arithmetic import Arithmetic

__all__ = ["ColumnConfig", "Config", "GridConfig", "HeldConfig", "PartsConfig", "SplitConfig", "SweepConfig"]


def _group(arithmetic: Arithmetic, rank: int) -> int:
    """Integers that say where the entries of some dimensions are: how many, and of each its size and its steps."""
    return 1 + rank * (1 + len(arithmetic.on_rows))


def _converts(arithmetic: Arithmetic) -> bool:
    """Whether what is computed with takes more registers than the elements of a row, beyond 32 bits each."""
    return arithmetic.acc.itemsize == 8 or arithmetic.rounds_first


@dataclass(frozen=True)
class _RowConfig:
    """What the kernels that walk along rows have in common.

    Attributes:
        arithmetic: what is computed.
        vector: elements of a chunk, at most 16 bytes of every tensor.
        edges: rows begin or end inside a chunk.
        kept_rank: dimensions that number the rows.
        spread: for each tensor that is read, whether a row of it is one element, repeated.
        wide: rows are numbered by 64-bit integers, needed from 2^31 on.
    """

    arithmetic: Arithmetic
    vector: int
    edges: bool
    kept_rank: int
    spread: tuple[bool, ...]
    wide: bool = False

    @property
    def integers(self) -> int:
        """Integers of a launch before those in groups: the elements of a row."""
        return 1

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of the groups of integers that follow: where the rows are."""
        return (_group(self.arithmetic, self.kept_rank),)

    @property
    def _flags(self) -> str:
        spread = "_spread" + "".join(str(i) for i, s in enumerate(self.spread) if s) if any(self.spread) else ""
        return f"_k{self.kept_rank}{'_edges' if self.edges else ''}{spread}{'_wide' if self.wide else ''}"


@dataclass(frozen=True)
class HeldConfig(_RowConfig):
    """``kernels/held.py``: ``single_pass`` and ``cluster``.

    Attributes:
        lanes: threads of a block that share a row: a power of two up to 1024.
        threads: threads of a block; more than ``lanes`` only where those are at most 32.
        chunks: chunks of a thread, for each tensor.
        blocks: blocks that share a row: 1, a cluster of 2, 4, 8 or 16, or 0 for any number that need not meet.
        staged: of a thread's chunks of each tensor, how many wait in shared memory; the others wait in registers.
        resident: blocks that the compiler leaves registers for on each multiprocessor; 0 leaves it to choose.
        top_first: the lanes of a row, 32 of them at most, find its maximum before they sum, so that an element has one
            exponential; forward, and computed in fp32.
    """

    lanes: int = 128
    threads: int = 128
    chunks: int = 4
    blocks: int = 1
    staged: int = 0
    resident: int = 0
    top_first: bool = False

    @property
    def integers(self) -> int:
        """The elements of a row; and its blocks, where there may be any number."""
        return 1 + (self.blocks == 0)

    @property
    def rows_per_block(self) -> int:
        """Rows of a block."""
        return self.threads // self.lanes

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        idea = f"cluster{self.blocks}" if self.blocks > 1 else "single_pass"
        waiting = f"{self.chunks}s{self.staged}" if self.staged else f"{self.chunks}"
        resident = f"_m{self.resident}" if self.resident else ""
        top = "_top" if self.top_first else ""
        return (
            f"{self.arithmetic.name}_{idea}_v{self.vector}_{self.lanes}l_{self.threads}t_c{waiting}{resident}{top}"
            f"{self._flags}"
        )


@dataclass(frozen=True)
class SweepConfig(_RowConfig):
    """``kernels/sweep.py``: ``naive`` and ``online``.

    Attributes:
        idea: ``"naive"`` (maximum, sum, write: three reads) or ``"online"`` (two).
        threads: threads of a block: 32 times a power of two.
        unroll: chunks of a thread in flight, for each tensor.
        reduced_rank: dimensions within a row, or 0 where it is contiguous.
        hold: the L2 is asked to evict last what is read.
    """

    idea: str = "online"
    threads: int = 256
    unroll: int = 4
    reduced_rank: int = 0
    hold: bool = False

    @property
    def lengths(self) -> tuple[int, ...]:
        """Where the rows are; and where their elements are, unless they are neighbours."""
        rows = _group(self.arithmetic, self.kept_rank)
        return (rows, _group(self.arithmetic, self.reduced_rank)) if self.reduced_rank else (rows,)

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        return f"{self.arithmetic.name}_{self.idea}_{self.body}"

    @property
    def body(self) -> str:
        """The part of a kernel's name that says how a row is read."""
        hold = "_hold" if self.hold else ""
        return f"v{self.vector}_{self.threads}t_u{self.unroll}r{self.reduced_rank}{hold}{self._flags}"


@dataclass(frozen=True)
class PartsConfig:
    """What the kernels have in common that cut a row into parts, one for each of its blocks.

    Attributes:
        row: how each block reads its part of a row.
    """

    row: SweepConfig

    @property
    def arithmetic(self) -> Arithmetic:
        """What is computed."""
        return self.row.arithmetic

    @property
    def integers(self) -> int:
        """The elements of a row, and its parts."""
        return 2

    @property
    def lengths(self) -> tuple[int, ...]:
        """Where the rows are."""
        return self.row.lengths


@dataclass(frozen=True)
class SplitConfig(PartsConfig):
    """``kernels/split.py``.

    Attributes:
        dependent: the second pass is launched while the first one runs (sm_90 and newer).
    """

    dependent: bool = False

    @property
    def resident(self) -> int:
        """Blocks that the compiler leaves registers for on each multiprocessor; 0 leaves it to choose.

        It chooses well for whole chunks that wait as they are stored, on sm_90 and newer.  Elsewhere it makes one more
        block fit, and spills for it.
        """
        usual = self.dependent and not (self.row.edges or _converts(self.arithmetic))
        return 0 if usual else max(384 // self.row.threads, 1)

    @property
    def kernel_name(self) -> str:
        """What a profiler shows, with what each of the two passes adds."""
        return f"{self.arithmetic.name}_split_{self.row.body}{'_dep' if self.dependent else ''}"


@dataclass(frozen=True)
class GridConfig(PartsConfig):
    """``kernels/grid.py``: ``row.unroll`` is how many chunks a thread holds, all of its part."""

    @property
    def resident(self) -> int:
        """Blocks that the compiler leaves registers for on each multiprocessor; 0 leaves it to choose.

        Values that are converted, or of 64 bits, take more registers than elements: it makes one more block fit, and
        spills for it.
        """
        return int(not self.row.hold)

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        return f"{self.arithmetic.name}_grid_{self.row.body}"


@dataclass(frozen=True)
class ColumnConfig:
    """``kernels/column.py``.

    Attributes:
        arithmetic: what is computed.
        vector: neighbouring rows of a thread, at most 16 bytes of every tensor.
        lanes: threads across neighbouring rows: a power of two up to 32.
        groups: threads down a row; with ``lanes``, 32 times a power of two.
        chunks: loads of a thread in flight, for each tensor.
        held: a row is at most ``groups * chunks`` elements, so it is read once.
        kept_rank: dimensions that number the rows, but for the innermost.
        reduced_rank: dimensions within a row.
    """

    arithmetic: Arithmetic
    vector: int
    lanes: int
    groups: int
    chunks: int
    held: bool
    kept_rank: int
    reduced_rank: int

    #: Every integer of a launch is in a group.
    integers: ClassVar[int] = 0

    @property
    def lengths(self) -> tuple[int, ...]:
        """Neighbouring rows: how many, and the steps; then where the others are, and where a row's elements are."""
        ranks = (self.kept_rank, self.reduced_rank)
        return (1 + len(self.arithmetic.on_rows), *(_group(self.arithmetic, rank) for rank in ranks))

    @property
    def resident(self) -> int:
        """Blocks that the compiler leaves registers for on each multiprocessor; 0 leaves it to choose.

        Where values take more registers than elements, it makes one more block fit, and spills for it.
        """
        return max(512 // self.threads, 1) if _converts(self.arithmetic) else 0

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.lanes * self.groups

    @property
    def tile(self) -> int:
        """Rows of a block."""
        return self.vector * self.lanes

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        held = "_held" if self.held else ""
        return (
            f"{self.arithmetic.name}_column_v{self.vector}_{self.lanes}x{self.groups}_c{self.chunks}{held}"
            f"_k{self.kept_rank}r{self.reduced_rank}"
        )


Config = HeldConfig | SweepConfig | SplitConfig | GridConfig | ColumnConfig
