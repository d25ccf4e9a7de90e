"""The configurations of the row engine's kernels: frozen dataclasses, what a kernel is compiled for.

Sizes, strides and addresses are arguments of the launch, so no shape compiles a kernel of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from forge_core.rows.binding import Binding

__all__ = [
    "ALL_DIMS",
    "COLUMN_THREADS",
    "MANY_DIMS",
    "ColumnConfig",
    "HeldConfig",
    "RowConfig",
    "StreamConfig",
]

#: Kept dims of the kernels for rows numbered by several dims; those of a smaller rank are padded with size 1.
MANY_DIMS = 4
#: Dims of the kernel that takes whatever the others do not.
ALL_DIMS = 16
#: Threads of a block that reads neighboring rows, at most.
COLUMN_THREADS = 256


@dataclass(frozen=True)
class RowConfig:
    """What all kernels have in common.

    Attributes:
        binding: the program and its dtypes.
        align: ``"whole"``: every row is whole aligned vectors, and one dim numbers the rows.  ``"shifted"``: contiguous
            rows that begin anywhere, at the same place in all row operands and outputs.  ``"skewed"``: rows side by
            side, of which each element begins anywhere, likewise.  ``"element"``: any others.
        threads: threads of a block; of ``sized`` kernels, at most.
        chunks: vectors of a thread in flight, of each operand.
        spare: registers of a thread beside the elements that it holds.
        rank: kept dims: 1 or ``MANY_DIMS``.
        reduced: dims within a row, each with a stride of its own; 0 for contiguous rows.
        sm_threads: threads that a multiprocessor can have.
    """

    binding: Binding
    align: str
    threads: int
    chunks: int
    spare: int
    rank: int = 1
    reduced: int = 0
    sm_threads: int = 2048

    @property
    def sized(self) -> bool:
        """Whether a launch is passed a size: the threads of a block, or the parts of a row."""
        return False

    @property
    def sizes(self) -> int:
        """How many sizes a launch is passed."""
        return int(self.sized)

    @property
    def workspace(self) -> bool:
        """Whether a launch has a workspace."""
        return False

    @property
    def numbered(self) -> bool:
        """Whether a launch is passed a number: see ``Launch.numbered``."""
        return False

    @cached_property
    def vec(self) -> int:
        """Elements of a vector."""
        return 1 if self.align == "element" else self.binding.widest_vec

    @property
    def registers(self) -> int:
        """Registers that a thread needs: the elements that it holds, as stored; vectors beside them; ``spare``."""
        binding, vec = self.binding, self.vec
        columns = self.column_registers
        wide = max(1, binding.compute.itemsize // 4)
        beside = columns + max(0, vec * wide - 8) * wide + self.spare * (3 if wide == 2 else 1)
        beside += 8 * (self.align != "whole") + 10 * self.reduced
        if not binding.program.folds:  # a map of several operands has a vector of each at once
            beside += vec * wide * max(0, len(binding.moving) - 2)
        if self.align == "element":  # each element's place, and its column operands
            beside += self.chunks * (1 + len(binding.program.operands.columns))
        return self.chunks * binding.words(vec) + beside

    @property
    def slots(self) -> int:
        """Totals that an exchange has in shared memory."""
        return self.threads // 32

    def shared(self, threads: Any) -> Any:
        """Bytes of shared memory of a block: those of the exchanges.

        Args:
            threads: of the block.
        """
        program = self.binding.program
        each, count = (len(program.folds), 1) if program.merge else (1, len(program.folds))
        total = 1 << (each * self.binding.compute.itemsize - 1).bit_length()
        # Beside the totals a barrier, and what alignment takes.
        return count * (total * self.slots + 32) if self.slots and program.folds else 0

    @property
    def column_registers(self) -> int:
        """Registers that column operands need: two vectors at a time; one more where they are shifted in registers."""
        vectors, operands = 2 if self.align == "whole" else 3, self.binding.program.operands
        return sum(vectors * self.vec * self.binding.dtype(n).itemsize // 4 + 4 for n in operands.columns)

    @cached_property
    def resident(self) -> int:
        """Blocks that the compiler must leave registers for on a multiprocessor: as many as ``registers`` allow.

        Each of its four parts has 16384 registers, which a warp takes in steps of 8 a thread.
        """
        warps = min(self.sm_threads // 128, 16384 // (32 * -(-self.registers // 8) * 8)) * 4
        return max(1, warps * 32 // self.threads)

    @property
    def rematerializes(self) -> bool:
        """Whether elements of 8 or 16 bits are converted again at each use, rather than wait as values."""
        return self.vec > 1

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        return f"{self.binding.name}_{self._suffix}"

    @property
    def _suffix(self) -> str:
        return f"{self.align}_v{self.vec}_{self.threads}t_c{self.chunks}" + (
            f"_r{self.reduced}" if self.reduced > 1 else ""
        )


@dataclass(frozen=True)
class HeldConfig(RowConfig):
    """``held.py``: rows held in registers.

    Attributes:
        lanes: threads of a warp that share a row, a power of two; 0: all threads of the blocks that do, as many as the
            launch says.
        blocks: blocks of the cluster that shares a row; 0: the launch says how many blocks a row has.  If the program
            has folds, that launch is cooperative, and its blocks exchange through the workspace.
        staged: of a thread's vectors of each row operand, how many wait in shared memory, so that another block finds
            room for its registers.
        columns_staged: column operands are asked for with the row, and wait in shared memory.
    """

    lanes: int = 0
    blocks: int = 1
    staged: int = 0
    columns_staged: bool = False

    @property
    def slots(self) -> int:
        """As of the other kernels: of each warp that shares the row, once more of a grid."""
        return self.threads // 32 * max(self.blocks, 1) * (1 + self.in_grid) if self.sized else 0

    def shared(self, threads: Any) -> Any:
        """As of the other kernels; and those in which vectors or column operands wait."""
        binding, columns = self.binding, self.binding.program.operands.columns if self.columns_staged else ()
        rows = self.staged * sum(binding.dtype(n).itemsize for n in binding.loaded) * self.vec * threads
        column = sum(binding.dtype(n).itemsize for n in columns) * self.vec * self.chunks
        return super().shared(threads) + rows + (threads + (self.align == "shifted")) * column

    @cached_property
    def in_grid(self) -> bool:
        """Whether the blocks of a row exchange through the workspace."""
        return self.blocks == 0 and bool(self.binding.program.folds)

    @property
    def workspace(self) -> bool:
        """Whether a launch has a workspace: for the slots of blocks."""
        return self.in_grid

    @property
    def numbered(self) -> bool:
        """Whether a launch is passed a number, by which blocks know its slots."""
        return self.in_grid

    @cached_property
    def sized(self) -> bool:
        """Whether a launch says how many threads a block has: as many as a row needs."""
        return self.lanes == 0

    @property
    def edges(self) -> int:
        """Elements outside whole vectors that a thread of a ``shifted`` row may have."""
        return max(1, 2 * self.vec // (self.lanes or self.threads))

    @cached_property
    def capacity(self) -> int:
        """Vectors of a row that fit, where it is held."""
        return (self.lanes or self.threads * max(self.blocks, 1)) * self.chunks

    def block(self, vectors: int, blocks: int = 1) -> int:
        """Threads of a block, for rows of so many vectors.

        Args:
            vectors: of a row.
            blocks: of a row, where they may be any number.
        """
        if self.lanes:
            return self.threads
        warps = -(-vectors // (32 * (self.blocks or blocks) * self.chunks))
        return min(32 * (warps or 1), self.threads)

    @property
    def registers(self) -> int:
        """As of the other kernels, of the vectors that wait in registers; slots; elements beside vectors; folds."""
        staged = self.staged * self.binding.words(self.vec)
        edges = 2 * (self.edges - 1) * len(self.binding.loaded) if self.align == "shifted" else 0
        return super().registers + 8 * self.in_grid - staged + edges + self.fold_registers

    @property
    def fold_registers(self) -> int:
        """Of several folds beside scalars, results or column operands: what is computed once a row, terms of lanes.

        Of moments: what a thread combines at once, of the warps that share the row; deviations, which lanes keep.
        """
        program, names = self.binding.program, self.binding.program.operands
        if program.merge == "moments":
            combined = 3 * (-(-self.slots // 32)) if self.sized else self.chunks * self.vec // 2
            return 8 + combined + 4 * len(names.scalars + names.results)
        beside, later = len(names.scalars + names.results), len(program.folds) - 1
        if later < 1 or not names.writes or not (beside or names.columns):
            return 0
        terms = later * self.chunks * self.vec * 3 // 4 if self.lanes else 0
        return 4 * beside + (0 if program.merge else 8 * later) + terms

    @property
    def column_registers(self) -> int:
        """Of column operands staged in shared memory: a vector for each row operand but the first.

        One more where elements have 4 bytes: fewer resident blocks leave more memory to the L1, in which the accesses
        of rows that begin anywhere find the lines that they share.
        """
        binding, columns = self.binding, self.binding.program.operands.columns
        if not self.columns_staged:
            return super().column_registers
        sizes = [binding.dtype(n).itemsize for n in columns]
        return sum((self.vec * n // 4 + 8) * (len(binding.loaded) - 1 + (n > 2)) for n in sizes)

    @property
    def rematerializes(self) -> bool:
        """As of the other kernels; not where values have room in registers, and no exchange takes some."""
        values = self.chunks * self.vec * max(1, self.binding.compute.itemsize // 4) * len(self.binding.loaded)
        room = 65536 // (self.resident * self.threads) // 8 * 8
        # A lone row operand under a plain fold is kept whole from the fold to the map, beside what the map makes of it.
        program = self.binding.program
        share = 0.65 if program.merge == "each" and len(self.binding.loaded) == 1 else 0.8
        return super().rematerializes and not (self.lanes and values <= share * room)

    def in_flight(self, vectors: int, rows: int, sm_count: int) -> float:
        """Bytes that a multiprocessor holds at once of rows that blocks hold: in the mean of all waves.

        Args:
            vectors: of a row.
            rows: how many.
            sm_count: multiprocessors.
        """
        cluster = self.blocks or 1
        blocks = min(self.resident * self.threads // self.block(vectors), 32 if self.sm_threads >= 2048 else 16)
        waves = rows * cluster / (blocks * sm_count)
        return blocks * vectors * self.vec * self.binding.loaded_bytes / cluster * waves / math.ceil(waves)

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        who = f"{self.lanes}l" if self.lanes else f"b{self.blocks}"
        return f"{self.binding.name}_held_{who}_{self._suffix}"


@dataclass(frozen=True)
class StreamConfig(RowConfig):
    """``stream.py``: rows read once for their totals and once more for their outputs.

    Attributes:
        parted: a row has any number of blocks, in a launch for each pass; otherwise one.
        overlap: such a launch begins before the one ahead of it ends.
    """

    parted: bool = False
    overlap: bool = False

    @property
    def sized(self) -> bool:
        """Whether a launch says how many parts a row has."""
        return self.parted

    @property
    def workspace(self) -> bool:
        """Whether a launch has a workspace: for the totals of parts."""
        return self.parted

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        return f"{self.binding.name}_{'split' if self.parted else 'stream'}_{self._suffix}"


@dataclass(frozen=True)
class ColumnConfig(RowConfig):
    """``column.py``: neighboring rows in neighboring threads; ``shifted`` rows make up contiguous memory.

    Attributes:
        held: a tile of rows has one block, in whose registers the first ``chunks`` steps stay; otherwise rows have any
            number of parts, in a launch for each pass.
        overlap: such a launch begins before the one ahead of it ends.
    """

    held: bool = False
    overlap: bool = False

    @property
    def sizes(self) -> int:
        """A launch says what ``Tiling`` has."""
        return 4

    @property
    def workspace(self) -> bool:
        """Whether a launch has a workspace: for the totals of parts."""
        return not self.held and bool(self.binding.program.folds)

    @property
    def slots(self) -> int:
        """As of the other kernels: of each place."""
        return self.threads * self.vec

    @property
    def registers(self) -> int:
        """As of the other kernels; and for each of a thread's rows its totals, and elements apart from vectors."""
        operands, wide = self.binding.program.operands, max(1, self.binding.compute.itemsize // 4)
        results = 2 * len(operands.results) if operands.writes else 0
        totals = self.vec * (1 + 2 * len(self.binding.program.folds) + 2 * len(operands.columns) + results)
        return super().registers + wide * (totals + 3 * self.chunks * len(operands.elementwise))

    @cached_property
    def resident(self) -> int:
        """As of the other kernels; where parts only add up elements as they arrive, half of the threads at least.

        Parts are counted for so many, and such a kernel needs fewer registers than ``registers`` says.
        """
        program = self.binding.program
        adds = self.workspace and len(program.folds) == 1 and not program.operands.writes
        adds = adds and self.registers <= 96 and self.binding.words(self.vec) == 4
        return max(super().resident, 1024 // self.threads if adds else 1)

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        return f"{self.binding.name}_column{'_held' if self.held else '_split'}_{self._suffix}"
