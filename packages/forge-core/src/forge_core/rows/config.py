"""The configurations of the row engine's kernels: each a frozen dataclass, and each program's enumerable list of them.

A configuration holds what a kernel is compiled for; sizes, strides and addresses are arguments of the launch, so no
shape compiles a kernel of its own.  :func:`configurations` lists those that selection picks from: CI compiles the list,
and a proof covers it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from forge_core.choice import max_cluster
from forge_core.device import Device
from forge_core.rows.binding import Binding

__all__ = [
    "ALL_DIMS",
    "MANY_DIMS",
    "ColumnConfig",
    "HeldConfig",
    "RowConfig",
    "StreamConfig",
    "configurations",
]

#: Kept dims of the kernels for rows numbered by several dims; those of a smaller rank are padded with size 1.
MANY_DIMS = 4
#: Dims of the kernel that takes whatever the others do not.
ALL_DIMS = 16

# Registers of a thread beside what it holds: addresses, predicates, a vector converted to the compute dtype.  From
# sm_100 on the compiler takes more for the same code.
_SPARE, _SPARE_NEWER = 24, 32

# Registers of a thread at most: beyond, the compiler spills what it converts.
_MOST_REGISTERS = 160

# Words of a row that a thread holds: few leave room for all threads of a multiprocessor, half for half of them, many for
# the most bytes.  Of shifted rows it holds an element more, which takes registers; as many threads have room with fewer
# words.
_FEW, _SOME, _HALF, _MANY, _MOST = 8, 16, 32, 40, 56
_MANY_SHIFTED = 32

# Rows that a cluster holds only in registers and shared memory together, with two blocks on a multiprocessor: words in
# registers, fewer of elements that are converted, and in shared memory; vectors there at most, beyond which the compiler
# spills.
_STAGED_KEPT, _STAGED_KEPT_CONVERTED, _STAGED, _STAGED_VECTORS = 24, 16, 48, 8


@dataclass(frozen=True)
class RowConfig:
    """What all kernels have in common.

    Attributes:
        binding: the program and its dtypes.
        align: ``"whole"``: every row is whole aligned vectors, and one dim numbers the rows.  ``"shifted"``: contiguous
            rows that begin anywhere, at the same place in all row operands and outputs.  ``"element"``: any others.
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
    def workspace(self) -> bool:
        """Whether a launch has a workspace."""
        return False

    @property
    def numbered(self) -> bool:
        """Whether a launch is passed a number: see ``Launch.numbered``."""
        return False

    @property
    def vec(self) -> int:
        """Elements of a vector."""
        return 1 if self.align == "element" else self.binding.widest_vec

    @property
    def registers(self) -> int:
        """Registers that a thread needs: the elements that it holds, as stored; vectors beside them; ``spare``."""
        binding, vec = self.binding, self.vec
        # A column operand has two vectors at a time, and one more where its accesses are shifted in registers.
        vectors = 2 if self.align == "whole" else 3
        columns = sum(vectors * vec * binding.dtype(n).itemsize // 4 + 4 for n in binding.program.operands.columns)
        wide = max(1, binding.compute.itemsize // 4)
        beside = columns + max(0, vec * wide - 8) * wide + self.spare * (3 if wide == 2 else 1)
        beside += 8 * (self.align != "whole") + 10 * self.reduced
        if self.align == "element":  # each element's place, and its column operands
            beside += self.chunks * (1 + len(binding.program.operands.columns))
        return self.chunks * binding.words(vec) + beside

    @property
    def resident(self) -> int:
        """Blocks that the compiler must leave registers for on a multiprocessor: as many as ``registers`` allow.

        Each of its four parts has 16384 registers, which a warp takes in steps of 8 a thread.
        """
        warps = min(self.sm_threads // 128, 16384 // (32 * -(-self.registers // 8) * 8)) * 4
        return max(1, warps * 32 // self.threads)

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
        blocks: blocks of the cluster that shares a row; 0: any number of blocks, which are all resident at once where
            the program has folds, and exchange through the workspace.
        staged: of a thread's vectors of each row operand, how many wait in shared memory, so that another block finds
            room for its registers.
    """

    lanes: int = 0
    blocks: int = 1
    staged: int = 0

    @property
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

    @property
    def sized(self) -> bool:
        """Whether a launch says how many threads a block has: as many as a row needs."""
        return self.lanes == 0

    @property
    def edges(self) -> int:
        """Elements outside whole vectors that a thread of a ``shifted`` row may have."""
        return max(1, 2 * self.vec // (self.lanes or self.threads))

    @property
    def capacity(self) -> int:
        """Vectors of a row that fit, where it is held."""
        return (self.lanes or self.threads * max(self.blocks, 1)) * self.chunks

    def block(self, vectors: int, blocks: int = 1) -> int:
        """Threads of a block, for rows of so many vectors.

        Args:
            vectors: of a row.
            blocks: of a row, where they may be any number.
        """
        warps = -(-vectors // (32 * (self.blocks or blocks) * self.chunks))
        return min(32 * max(warps, 1), self.threads) if self.sized else self.threads

    @property
    def registers(self) -> int:
        """As of the other kernels, of the vectors that wait in registers; slots; elements beside vectors."""
        staged = self.staged * self.binding.words(self.vec)
        edges = 2 * (self.edges - 1) * len(self.binding.loaded) if self.align == "shifted" else 0
        return super().registers + 8 * self.in_grid - staged + edges

    def in_flight(self, vectors: int, rows: int, sm_count: int) -> float:
        """Bytes that a multiprocessor holds at once, of so many rows of so many vectors: in the mean of all waves."""
        blocks = min(self.resident * self.threads // self.block(vectors), 32 if self.sm_threads >= 2048 else 16)
        each = self.threads // self.lanes if self.lanes else 1
        waves = rows * max(self.blocks, 1) / (each * blocks * sm_count)
        row = vectors * self.vec * sum(self.binding.dtype(name).itemsize for name in self.binding.loaded)
        return blocks * each * row / max(self.blocks, 1) * waves / math.ceil(waves)

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
    """

    parted: bool = False

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
    """``column.py``: neighboring rows in neighboring threads.

    Attributes:
        lanes: threads across neighboring rows, a power of two up to 32; the others share rows.
        held: a row is at most ``capacity`` elements, so it is read once.
    """

    lanes: int = 8
    held: bool = False

    @property
    def capacity(self) -> int:
        """Elements of a row that fit, where it is held."""
        return self.threads // self.lanes * self.chunks

    @property
    def tile(self) -> int:
        """Rows of a block."""
        return self.lanes * self.vec

    @property
    def registers(self) -> int:
        """As of the other kernels; and for each of a thread's rows its totals, and elements apart from vectors."""
        operands, wide = self.binding.program.operands, max(1, self.binding.compute.itemsize // 4)
        totals = self.vec * (1 + 2 * len(self.binding.program.folds) + 2 * len(operands.columns))
        return super().registers + wide * (totals + 3 * self.chunks * len(operands.elementwise))

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        return f"{self.binding.name}_column{'_held' if self.held else ''}_{self.lanes}l_{self._suffix}"


# Threads of a block, lanes of a row, chunks: rows of up to 128 vectors.
_WARP_ROWS = ((128, 2, 2), (128, 4, 2), (128, 8, 2), (128, 16, 2), (128, 32, 2), (128, 32, 4))

# Threads of a block at most, blocks of a row, words that a thread holds: longer rows.
_BLOCK_ROWS = (
    (512, 1, _FEW),
    (512, 1, _SOME),
    (256, 1, _MANY),
    (256, 2, _MANY),
    (256, 4, _MANY),
    (256, 8, _MANY),
    (512, 16, _SOME),
    (256, 16, _MANY),
    (512, 16, _HALF),
)
# The same where there are no clusters.
_LONE_ROWS = ((512, 1, _MOST),)
# Words that a thread holds of few rows over the whole GPU: the most for which it has registers, as many as stated; from
# sm_100 on the compiler takes more beside them.
_GRID_WORDS, _GRID_REGISTERS, _GRID_REGISTERS_NEWER = (80, 64, 48), 116, 100


def configurations(binding: Binding, device: Device) -> tuple[RowConfig, ...]:
    """All configurations of a program that selection picks from on a device."""
    held = (c for c in _held(binding, device) if c.registers <= min(_MOST_REGISTERS, 65536 // c.threads))
    return tuple(dict.fromkeys((*held, *_streams(binding, device), *_columns(binding, device))))


def _spare(device: Device) -> int:
    return _SPARE_NEWER if device.capability >= (10, 0) else _SPARE


def _held(binding: Binding, device: Device) -> Iterator[HeldConfig]:
    words = max(1, binding.words(binding.widest_vec))

    def held(align: str, threads: int, lanes: int, chunks: int, blocks: int = 1, staged: int = 0) -> HeldConfig:
        rank = 1 if align == "whole" else MANY_DIMS
        spare, most = _spare(device), device.sm_threads
        return HeldConfig(binding, align, threads, chunks, spare, rank, 0, most, lanes, blocks, staged)

    clusters, bytewise = max_cluster(device), any(binding.dtype(name).itemsize == 1 for name in binding.loaded)
    stages = bool(binding.program.folds) and not binding.program.operands.columns and not bytewise
    longer = [(threads, min(blocks, clusters), room) for threads, blocks, room in _BLOCK_ROWS]
    longer += _LONE_ROWS if clusters == 1 else ()
    in_grid = bool(binding.slots and device.capability >= (9, 0) and binding.program.folds)
    longer += [(512, 0, _SOME)] if in_grid else []
    if not binding.program.folds:
        longer = [(256, 0, _SOME)]
    for align in ("whole", "shifted"):
        for threads, lanes, chunks in _WARP_ROWS:
            if align == "whole" or lanes in (4, 16, 32):
                yield held(align, threads, lanes, chunks)
        for threads, blocks, room in longer:
            fits = _MANY_SHIFTED if (align, room) == ("shifted", _MANY) else room
            if align == "whole" or room not in (_FEW, _HALF):
                yield held(align, threads, 0, max(1, fits // words), blocks)
        if in_grid:
            most = (held(align, 512, 0, max(1, room // words), 0) for room in _GRID_WORDS)
            limit = _GRID_REGISTERS if _spare(device) == _SPARE else _GRID_REGISTERS_NEWER
            yield from itertools.islice((config for config in most if config.registers <= limit), 1)
        if clusters > 1 and binding.program.folds and not stages:
            yield held(align, 512, 0, max(1, _MOST // words), clusters)
    converted = min(binding.dtype(name).itemsize for name in binding.loaded or binding.moving) < 4
    kept, staged = (_STAGED_KEPT_CONVERTED if converted else _STAGED_KEPT) // words, min(_STAGED // words, _STAGED_VECTORS)
    if clusters > 1 and stages and kept and staged:
        yield held("shifted", 512, 0, kept + staged, clusters, staged)
    for threads, lanes, chunks in ((128, 8, 2), (128, 32, 4), (512, 0, 8)):
        yield held("element", threads, lanes, chunks)


def _streams(binding: Binding, device: Device) -> Iterator[StreamConfig]:
    def stream(align: str, threads: int, chunks: int, reduced: int = 0, parted: bool = False) -> StreamConfig:
        spare, most = _spare(device), device.sm_threads
        return StreamConfig(binding, align, threads, chunks, spare, reduced or MANY_DIMS, reduced, most, parted)

    few = max(1, _SOME // max(1, binding.words(binding.widest_vec)))
    for parted in (False, True) if binding.program.folds else (False,):
        yield stream("shifted", 512, few, parted=parted)
        yield stream("element", 512, 8, parted=parted)
        yield stream("element", 256, 2, MANY_DIMS, parted)
    yield stream("element", 256, 2, ALL_DIMS)


def _columns(binding: Binding, device: Device) -> Iterator[ColumnConfig]:
    words = max(1, binding.words(binding.widest_vec))
    for align, lanes, chunks in (("whole", 8, max(1, 16 // words)), ("element", 32, 8)):
        for threads, held, reduced in ((lanes * 4, True, 1), (256, True, 1), (256, False, 1), (256, False, MANY_DIMS)):
            if align == "element" or reduced == 1:
                spare, most = _spare(device), device.sm_threads
                yield ColumnConfig(binding, align, threads, chunks, spare, MANY_DIMS, reduced, most, lanes, held)
