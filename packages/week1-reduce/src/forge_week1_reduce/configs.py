"""The configurations of week 1's kernels: plain data, one frozen dataclass a kernel.

``config.py`` chooses among them.  A configuration holds only what the kernel is compiled for; sizes, strides and
addresses are arguments of the launch, so that another shape never compiles another kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

from forge_week1_reduce.arithmetic import Arithmetic

__all__ = [
    "ClusterConfig",
    "ColumnConfig",
    "Config",
    "FinishConfig",
    "NaiveConfig",
    "SharedConfig",
    "ShortConfig",
    "ShuffleConfig",
    "SplitConfig",
    "VectorizedConfig",
]


@dataclass(frozen=True)
class _ElementConfig:
    """What the kernels that read element by element have in common.

    Attributes:
        arithmetic: what is computed.
        kept_rank: dimensions of the result.
        reduced_rank: dimensions that are reduced.
        wide: entries are numbered by 64-bit integers, needed from 2^31 on.
        threads: threads of a block, a power of two.
    """

    arithmetic: Arithmetic
    kept_rank: int
    reduced_rank: int
    wide: bool = False
    threads: int = 256

    idea = ""

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        wide = "_wide" if self.wide else ""
        return f"{self.arithmetic.name}_{self.idea}_{self.threads}t_k{self.kept_rank}r{self.reduced_rank}{wide}"


@dataclass(frozen=True)
class NaiveConfig(_ElementConfig):
    """``kernels/naive.py``; the attributes are those of every kernel that reads element by element."""

    idea = "naive"


@dataclass(frozen=True)
class SharedConfig(_ElementConfig):
    """``kernels/shared.py``."""

    idea = "shared"


@dataclass(frozen=True)
class ShuffleConfig(_ElementConfig):
    """``kernels/shuffle.py``."""

    idea = "shuffle"


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
    """

    arithmetic: Arithmetic
    width: int = 16
    peel: bool = False
    threads: int = 256
    unroll: int = 4
    kept_rank: int = 1
    outer_rank: int = 0
    once: bool = False

    @property
    def body(self) -> str:
        """The part of a kernel's name that says how a row is read."""
        peel = "_peel" if self.peel else ""
        once = "_once" if self.once else ""
        return f"{self.width}B{peel}_{self.threads}t_u{self.unroll}_k{self.kept_rank}o{self.outer_rank}{once}"

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

    @property
    def rows_per_block(self) -> int:
        """Rows of a block."""
        return self.threads // self.lanes * self.rows

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        flags = "".join(f"_{flag}" for flag in ("exact", "wide", "once") if getattr(self, flag))
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

    @property
    def arithmetic(self) -> Arithmetic:
        """What is computed."""
        return self.row.arithmetic

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        return f"{self.arithmetic.name}_cluster{self.blocks}_{self.row.body}"


@dataclass(frozen=True)
class FinishConfig:
    """``kernels/finish.py``: the second pass over partial accumulators.

    Attributes:
        arithmetic: from accumulators to the result.
        threads: threads of a result: 1, or 32 times a power of two.
        kept_rank: dimensions of the result.
        dependent: launched while the first pass ends (sm_90 and newer).
    """

    arithmetic: Arithmetic
    threads: int
    kept_rank: int
    dependent: bool = False

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        return f"{self.arithmetic.name}_finish_{self.threads}t_k{self.kept_rank}{'_dep' if self.dependent else ''}"


@dataclass(frozen=True)
class SplitConfig:
    """``kernels/split.py``.

    Attributes:
        row: how each block reads its part of the row; its arithmetic ends in accumulators.
        finish: the second pass.
    """

    row: VectorizedConfig
    finish: FinishConfig

    @property
    def arithmetic(self) -> Arithmetic:
        """What is computed by the second pass."""
        return self.finish.arithmetic

    @property
    def kernel_name(self) -> str:
        """What a profiler shows of the first pass."""
        return f"{self.row.arithmetic.name}_split_{self.row.body}"


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

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.lanes * self.groups

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
        flags = shifts + "".join(f"_{flag}" for flag in ("packed", "once") if getattr(self, flag))
        cluster = f"_cluster{self.blocks}" if self.blocks > 1 else "_split" if self.finish else ""
        return (
            f"{self.arithmetic.name}_column{cluster}_{self.width}B_{self.lanes}x{self.groups}_u{self.unroll}"
            f"_k{self.kept_rank}r{self.reduced_rank}{flags}"
        )


Config = (
    NaiveConfig
    | SharedConfig
    | ShuffleConfig
    | VectorizedConfig
    | ShortConfig
    | ClusterConfig
    | SplitConfig
    | ColumnConfig
)
