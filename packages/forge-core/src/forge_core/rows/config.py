"""Configurations of the row engine's kernels: frozen dataclasses, one compiled kernel each.

Sizes, strides and addresses are runtime arguments of a launch, so that a new shape compiles nothing unless it selects a
configuration of its program and dtypes that no earlier shape has: there are up to 85.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from forge_core.choice import power_of_two
from forge_core.rows.binding import Binding

#: Kept dims of kernels for rows indexed by several dims; fewer are padded with dims of size 1.
MANY_DIMS = 4
#: Dims of the most general kernel.
ALL_DIMS = 16
#: Maximum threads per block of the column kernel.
COLUMN_THREADS = 256
#: Grids have fewer blocks than this, and 32-bit element numbers end here.
LIMIT = 2**31


def realigned_bytes(length: Any, itemsize: int) -> Any:
    """Bytes of a copy of a column operand of ``length`` elements that begins at a 16-byte boundary, as the next one."""
    return (length * itemsize + 15) // 16 * 16


@dataclass(frozen=True)
class RowConfig:
    """Fields common to all kernels.

    ``align`` is the ``kind`` of an ``Alignment``, which is ``"whole"`` for one kept dim only, except in
    ``ColumnConfig``; or ``"skewed"``: neighboring rows whose elements are at any distance from a boundary, another one
    for each.
    """

    binding: Binding
    align: str
    threads: int  # per block; the maximum if ``sized``
    chunks: int  # vectors per thread and operand in flight
    spare: int  # registers per thread besides the elements it holds
    rank: int = 1  # kept dims: 1, ``MANY_DIMS`` or ``ALL_DIMS``
    reduced: int = 0  # reduced dims, each with a stride; 0 for contiguous rows
    sm_threads: int = 2048  # maximum threads per multiprocessor

    @property
    def sized(self) -> bool:
        """Whether a launch is passed a size: threads per block or parts per row."""
        return False

    @property
    def sizes(self) -> int:
        """Number of sizes that a launch is passed."""
        return int(self.sized)

    @cached_property
    def in_grid(self) -> bool:
        """Whether blocks of a row exchange through slots in the workspace, marked by the launch's unique number."""
        return False

    @property
    def workspace(self) -> bool:
        """Whether a launch has a workspace."""
        return self.in_grid

    @property
    def has_edges(self) -> bool:
        """Whether rows have a head and a tail besides their vectors."""
        return self.align in ("shifted", "unaligned")

    @cached_property
    def outer(self) -> int:
        """Elements at each end of an ``unaligned`` row, in whole vectors: aligned accesses may reach beyond it."""
        narrowest = self.vec * min(self.binding.sizes(self.binding.loaded), default=1)
        return -(-15 // narrowest) * self.vec if self.align == "unaligned" else 0

    @cached_property
    def vec(self) -> int:
        """Elements per vector."""
        return {"element": 1, "paired": 2}.get(self.align, self.binding.widest_vec)

    @property
    def registers(self) -> int:
        """Estimated registers per thread: the elements it holds, as stored; vectors in conversion; ``spare``."""
        binding, vec = self.binding, self.vec
        wide = binding.wide
        beside = self.column_registers + max(0, vec * wide - 8) * wide + self.spare * (3 if wide == 2 else 1)
        beside += 8 * (self.align != "whole") + 10 * self.reduced
        if self.align == "unaligned":  # the accesses that contain a vector, before they are shifted
            beside += 3 * self.chunks * len(binding.loaded)
        if not binding.program.folds:  # a map of several operands converts a vector of each at once
            beside += vec * wide * max(0, len(binding.moving) - 2)
        if self.align == "element":  # an index and the column operands of each element
            beside += self.chunks * (1 + len(binding.operands.columns))
        return self.chunks * binding.words(vec) + beside

    @property
    def merges(self) -> bool:
        """Whether one exchange follows the last fold, instead of one after each."""
        return self.binding.program.merge != ""

    @property
    def exchange_partials(self) -> int:
        """Partial results of an exchange in shared memory."""
        return self.threads // 32

    def shared(self, threads: Any) -> Any:
        """Bytes of shared memory per block of ``threads`` threads: those of the exchanges."""
        program = self.binding.program
        each, count = (len(program.folds), 1) if self.merges else (1, len(program.folds))
        total = power_of_two(each * self.binding.compute.itemsize)
        # 32 bytes for a barrier and for alignment.
        return count * (total * self.exchange_partials + 32) if self.exchange_partials and program.folds else 0

    @property
    def columns_early(self) -> bool:
        """Whether vectors of column operands are loaded with the row instead of where they are used."""
        return False

    @property
    def columns_whole(self) -> bool:
        """Whether vectors of column operands are aligned."""
        return self.align in ("whole", "paired")

    @property
    def column_registers(self) -> int:
        """Registers of column operands: all vectors, or two each, or three where they are shifted in registers."""
        vectors = self.chunks if self.columns_early else 2 if self.columns_whole else 3
        return sum(vectors * self.vec * size // 4 + 4 for size in self.binding.sizes(self.binding.operands.columns))

    @cached_property
    def resident(self) -> int:
        """Minimum resident blocks per multiprocessor, a launch bound: as many as ``registers`` allow.

        Each of the four subpartitions has 16384 registers, allocated in units of 8 per thread.
        """
        warps = min(self.sm_threads // 128, 16384 // (32 * -(-self.registers // 8) * 8)) * 4
        return max(1, warps * 32 // self.threads)

    def resident_by_registers(self, threads: int) -> int:
        """Resident blocks of ``threads`` threads per multiprocessor, not limited by shared memory."""
        return min(self.resident * self.threads // threads, 32 if self.sm_threads >= 2048 else 16)

    @property
    def rematerializes(self) -> bool:
        """Whether 8- and 16-bit elements are converted again at each use instead of being kept converted."""
        return self.vec > 1

    @property
    def idea(self) -> str:
        """The part of ``kernel_name`` that says which kernel it is."""
        raise NotImplementedError(f"{type(self).__name__}: expected a property `idea`, got none")

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        dims = (f"_k{self.rank}" if self.rank > 1 else "") + (f"_r{self.reduced}" if self.reduced > 1 else "")
        return f"{self.binding.name}_{self.idea}_{self.align}_v{self.vec}_{self.threads}t_c{self.chunks}{dims}"


@dataclass(frozen=True)
class SharedRowConfig(RowConfig):
    """Fields of kernels whose threads share rows on chip."""

    #: Lanes per row, a power of two; 0: all threads of the row's blocks; threads per block are then a launch argument.
    lanes: int = 0
    blocks: int = 1  # of the cluster that shares a row

    @cached_property
    def sized(self) -> bool:
        """Whether threads per block are a launch argument."""
        return self.lanes == 0

    @cached_property
    def capacity(self) -> int:
        """Maximum vectors of a row; of a block's part of it if ``blocks`` is 0."""
        return (self.lanes or self.threads * max(self.blocks, 1)) * self.chunks

    def threads_for(self, vectors: int, blocks: int = 1) -> int:
        """Threads per block, for rows of ``vectors`` vectors; ``blocks`` per row where ``self.blocks`` is 0."""
        if self.lanes:
            return self.threads
        warps = -(-vectors // (32 * (self.blocks or blocks) * self.chunks))
        return min(32 * (warps or 1), self.threads)

    @property
    def who(self) -> str:
        """For ``idea``: the threads that share a row."""
        return f"{self.lanes}l" if self.lanes else f"b{self.blocks}"


@dataclass(frozen=True)
class HeldConfig(SharedRowConfig):
    """``held.py``: rows held in registers.

    Where ``blocks`` is 0, blocks per row are a launch argument.  If the program has folds, that launch is cooperative
    and its blocks exchange through the workspace.
    """

    #: Vectors per thread and row operand that are staged in shared memory instead of registers, which leaves registers
    #: for another resident block.
    staged: int = 0
    columns_staged: bool = False  # column operands are copied to shared memory together with the row
    rows: int = 1  # of each group of lanes, all in flight at once
    #: A launch before copies column operands to the workspace at each distance from a boundary, so that rows at any
    #: distance read aligned vectors of them.
    columns_realigned: bool = field(default=False, metadata={"added": True})
    #: Blocks of the most vectors, in registers and shared memory, for many long rows.
    deep: bool = field(default=False, metadata={"added": True})

    @property
    def workspace(self) -> bool:
        """Whether a launch has a workspace."""
        return self.in_grid or self.columns_realigned

    @property
    def columns_whole(self) -> bool:
        """Whether vectors of column operands are aligned."""
        return super().columns_whole or self.columns_realigned

    @property
    def merges(self) -> bool:
        """Not moments in one block, whose two exchanges take less time than the arithmetic of a merge."""
        return super().merges and not (self.binding.program.merge == "moments" and self.blocks == 1)

    @property
    def columns_early(self) -> bool:
        """Whether vectors of column operands are loaded with the row: those of few rows have not arrived otherwise."""
        return self.lanes > 0 and self.align != "element"

    @property
    def exchange_partials(self) -> int:
        """Partial results of an exchange in shared memory: one per warp of the row, twice that of a grid."""
        return self.threads // 32 * max(self.blocks, 1) * (1 + self.in_grid) if self.sized else 0

    def shared(self, threads: Any) -> Any:
        """Bytes of shared memory per block: exchanges, staged vectors and staged column operands."""
        binding, columns = self.binding, self.binding.operands.columns if self.columns_staged else ()
        rows = self.staged * binding.loaded_bytes * self.vec * threads
        column = sum(binding.sizes(columns)) * self.vec * self.chunks
        return super().shared(threads) + rows + (threads + (not self.columns_whole)) * column

    @cached_property
    def in_grid(self) -> bool:
        """Whether the program has folds, and any number of blocks a row."""
        return self.blocks == 0 and bool(self.binding.program.folds)

    @property
    def edges(self) -> int:
        """Maximum elements per thread outside the vectors of a row that has a head and a tail."""
        most = 2 * (self.vec - 1 + self.outer) + self.behind
        return max(1, -(-most // (self.lanes or 32)))  # a block may have a single warp

    @property
    def behind(self) -> int:
        """Minimum elements after a row's vectors: the last 16-byte copy of an unaligned column operand reads them."""
        if not self.columns_staged or self.columns_whole:
            return 0
        return 16 // min(self.binding.sizes(self.binding.operands.columns)) - 1

    @cached_property
    def limit(self) -> float:
        """Rows have fewer elements than this, which is infinite if ``blocks`` is 0."""
        return (self.capacity + 1) * self.vec if self.blocks else math.inf

    @property
    def registers(self) -> int:
        """Estimated registers per thread: without staged vectors; with slots, head and tail elements, and folds."""
        staged = self.staged * self.binding.words(self.vec)
        edges = 2 * (self.edges - 1) * len(self.binding.loaded) if self.has_edges else 0
        others = (self.rows - 1) * (self.chunks * self.binding.words(self.vec) + 4)
        return super().registers + 8 * self.in_grid - staged + edges + others + self.fold_registers

    @property
    def column_registers(self) -> int:
        """Of those in shared memory: a vector for each row operand, if elements have 4 bytes or more."""
        if not self.columns_staged:
            return super().column_registers
        sizes = self.binding.sizes(self.binding.operands.columns)
        return sum((self.vec * n // 4 + 8) * len(self.binding.loaded) for n in sizes if n > 2)

    @property
    def fold_registers(self) -> int:
        """Registers of several folds: constants of the row, and terms that lanes keep.

        For moments: the partial results that a thread combines at once, and the deviations that lanes keep.
        """
        program, names = self.binding.program, self.binding.operands
        beside, later = len(names.scalars + names.results), len(program.folds) - 1
        if program.merge == "moments":
            combined = 3 * (-(-self.exchange_partials // 32)) if self.sized else self.chunks * self.vec // 2
            return 8 + combined + 4 * beside
        if later < 1 or not names.writes or not (beside or names.columns):
            return 0
        terms = later * self.chunks * self.vec * 3 // 4 if self.lanes else 0
        return 4 * beside + (0 if program.merge else 8 * later) + terms

    @property
    def rematerializes(self) -> bool:
        """Whether elements are converted at each use: not if converted values of lanes fit in registers."""
        values = self.chunks * self.vec * self.binding.wide * len(self.binding.loaded)
        room = 65536 // (self.resident * self.threads) // 8 * 8
        # A single row operand under a plain fold is kept converted from the fold to the map, together with its results.
        program = self.binding.program
        share = 0.65 if program.merge == "each" and len(self.binding.loaded) == 1 else 0.8
        return super().rematerializes and not (values <= (share if self.lanes else 0.5 * self.columns_staged) * room)

    @property
    def idea(self) -> str:
        """The kernel's name, the threads that share a row, and rows per thread."""
        more = "_realigned" * self.columns_realigned + "_strided" * (self.reduced > 0 and self.lanes > 1)
        return f"held_{self.who}" + (f"x{self.rows}" if self.rows > 1 else "") + more


@dataclass(frozen=True)
class StreamConfig(RowConfig):
    """``stream.py``: rows read for their totals, once with a merge, and once more for their outputs."""

    parted: bool = False  # any number of blocks per row and a launch per pass; otherwise a block per row
    overlap: bool = False  # programmatic dependent launch of the passes

    @property
    def sized(self) -> bool:
        """Whether parts per row are a launch argument."""
        return self.parted

    @property
    def workspace(self) -> bool:
        """Whether a launch has a workspace, for partial results."""
        return self.parted

    @property
    def idea(self) -> str:
        """The kernel's name."""
        return "split" if self.parted else "stream"


@dataclass(frozen=True)
class ColumnConfig(RowConfig):
    """``column.py``: neighboring rows in neighboring threads; ``shifted`` rows are contiguous memory together."""

    #: A block or a cluster per tile of rows, the first ``chunks`` steps of each block in registers; otherwise any
    #: number of parts per row and a launch per pass.
    held: bool = False
    overlap: bool = False  # programmatic dependent launch of the passes
    blocks: int = 1  # the most of a cluster that shares a tile, whose number is a launch argument
    transposes: bool = False  # outputs are contiguous along the rows, and written through shared memory

    @property
    def sizes(self) -> int:
        """Number of sizes that a launch is passed: parts, width, rows and threads of a ``Tiling``."""
        return 4

    @property
    def workspace(self) -> bool:
        """Whether a launch has a workspace, for partial results."""
        return not self.held and bool(self.binding.program.folds)

    @property
    def exchange_partials(self) -> int:
        """Partial results of an exchange in shared memory: one per element of the block, and those of a cluster."""
        return self.threads * self.vec * (2 if self.blocks > 1 else 1)

    def shared(self, threads: Any) -> Any:
        """Bytes of shared memory per block: exchanges; transposed outputs of an iteration, a gap behind a row."""
        names, most = self.binding.operands.writes if self.transposes else (), threads * (self.chunks + 1)
        return super().shared(threads) + sum(most * size + 16 for size in self.binding.sizes(names))

    @property
    def registers(self) -> int:
        """Estimated registers per thread: also the totals of its rows, and elements taken out of vectors."""
        operands, wide = self.binding.operands, self.binding.wide
        results = 2 * len(operands.results) if operands.writes else 0
        totals = self.vec * (1 + 2 * len(self.binding.program.folds) + 2 * len(operands.columns) + results)
        return super().registers + wide * (totals + 3 * self.chunks * len(operands.elementwise))

    @cached_property
    def resident(self) -> int:
        """Minimum resident blocks per multiprocessor: more than ``registers`` allow in kernels that need fewer."""
        operands, folds = self.binding.operands, len(self.binding.program.folds)
        # Half of a multiprocessor's threads if parts only add up, or what transposing kernels reach without spills.
        adds = (self.workspace or self.blocks > 1) and folds == 1 and not operands.writes
        least = 1024 // self.threads if adds and self.registers <= 96 and self.binding.words(self.vec) == 4 else 1
        if self.transposes and self.binding.wide == 1 and not operands.scalars:
            few, alone = folds + len(operands.columns + operands.writes) <= 3, self.binding.words(1) == 1
            most = 32 if few else 16 if operands.results else 24
            least = max(3 if alone and not operands.columns else 1, most // self.chunks)
        return max(super().resident, least)

    @property
    def idea(self) -> str:
        """The kernel's name."""
        one = "cluster" if self.blocks > 1 and not self.transposes else "held" if self.held else "split"
        return f"column_transposed_{one}" if self.transposes else f"column_{one}"
