"""The configurations of the row engine's kernels: each a frozen dataclass, and each program's enumerable list of them.

A configuration holds what a kernel is compiled for; sizes, strides and addresses are arguments of the launch, so no
shape compiles a kernel of its own.  :func:`configurations` lists those that selection picks from: CI compiles the list,
and a proof covers it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from forge_core.choice import max_cluster
from forge_core.device import Device
from forge_core.dtypes import short_name
from forge_core.rows.problem import ACCESS
from forge_core.rows.program import RowProgram

__all__ = [
    "ALL_DIMS",
    "MANY_DIMS",
    "Binding",
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

# Words of a row that a thread holds, at most: in steps between which one block less fits a multiprocessor.
_HELD_WORDS = (16, 24, 40)


@dataclass(frozen=True)
class Binding:
    """A program and the dtypes of its operands.

    Attributes:
        program: the arithmetic.
        dtypes: in the order of ``program.operands.tensors``.
        compute: the dtype of values and totals: float32, float64, or an integer.
        broadcast: row operands with one element a row.
        via: the dtype that row operands are rounded to when they are loaded; None for their own.
        order: the operands in the order of a launch's pointers; () for that of the program.
    """

    program: RowProgram
    dtypes: tuple[torch.dtype, ...]
    compute: torch.dtype
    broadcast: tuple[str, ...] = ()
    via: torch.dtype | None = None
    order: tuple[str, ...] = ()

    def dtype(self, name: str) -> torch.dtype:
        """That of one operand."""
        return self.dtypes[self.program.operands.tensors.index(name)]

    @property
    def loaded(self) -> tuple[str, ...]:
        """Row operands that are loaded for each element."""
        return tuple(name for name in self.program.operands.rows if name not in self.broadcast)

    @property
    def moving(self) -> tuple[str, ...]:
        """Row operands and outputs with an element for each element of a row."""
        return self.loaded + self.program.operands.writes

    @property
    def widest_vec(self) -> int:
        """Elements of 16 bytes of the narrowest operand that moves."""
        return ACCESS // min((self.dtype(name).itemsize for name in self.moving), default=ACCESS)

    def words(self, vec: int) -> int:
        """32-bit registers that hold a vector of each row operand, as it is stored."""
        return sum(max(1, -(-vec * self.dtype(name).itemsize // 4)) for name in self.loaded)

    @property
    def name(self) -> str:
        """For kernel names: the program, and the dtypes of what moves."""
        dtypes = "_".join(dict.fromkeys(short_name(dtype) for dtype in self.dtypes))
        via = f"_via_{short_name(self.via)}" if self.via else ""
        return f"{type(self.program).__name__}_{dtypes}{via}"


@dataclass(frozen=True)
class RowConfig:
    """What all kernels have in common.

    Attributes:
        binding: the program and its dtypes.
        align: ``"whole"``: every row is whole aligned vectors, and one dim numbers the rows.  ``"shifted"``: contiguous
            rows that begin anywhere, at the same place in all row operands and outputs.  ``"element"``: any others.
        threads: threads of a block.
        chunks: vectors of a thread in flight, of each operand.
        spare: registers of a thread beside the elements that it holds.
        rank: kept dims: 1 or ``MANY_DIMS``.
        reduced: dims within a row, each with a stride of its own; 0 for contiguous rows.
    """

    binding: Binding
    align: str
    threads: int
    chunks: int
    spare: int
    rank: int = 1
    reduced: int = 0

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
        columns = vectors * sum(vec * binding.dtype(name).itemsize // 4 for name in binding.program.operands.columns)
        wide = max(1, binding.compute.itemsize // 4)
        beside = columns + max(0, vec * wide - 8) * wide + self.spare * (3 if wide == 2 else 1)
        beside += 8 * (self.align != "whole") + 10 * self.reduced
        return self.chunks * binding.words(vec) + beside

    @property
    def resident(self) -> int:
        """Blocks that the compiler must leave registers for on a multiprocessor: as many as ``registers`` allow.

        Each of the four parts of a multiprocessor has 16384 registers, which a warp takes in steps of 8 a thread.
        """
        warps = 16384 // (32 * -(-self.registers // 8) * 8) * 4
        return max(1, min(warps * 32 // self.threads, 2048 // self.threads, 16))

    @property
    def _suffix(self) -> str:
        return f"{self.align}_v{self.vec}_{self.threads}t_c{self.chunks}" + (
            f"_r{self.reduced}" if self.reduced > 1 else ""
        )


@dataclass(frozen=True)
class HeldConfig(RowConfig):
    """``held.py``: rows held in registers.

    Attributes:
        lanes: threads of a block that share a row: all, or a power of two up to 32.
        blocks: blocks of the cluster that shares a row; 0: any number of blocks, of a program without folds.
    """

    lanes: int = 0
    blocks: int = 1

    @property
    def capacity(self) -> int:
        """Vectors of a row that fit, where it is held."""
        return self.lanes * max(self.blocks, 1) * self.chunks

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        return f"{self.binding.name}_held_{self.lanes}l_b{self.blocks}_{self._suffix}"


@dataclass(frozen=True)
class StreamConfig(RowConfig):
    """``stream.py``: a row read by one block, once for its totals and once more for its outputs."""

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        return f"{self.binding.name}_stream_{self._suffix}"


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


# Threads of a block, lanes of a row: rows of up to 128 vectors.
_WARP_ROWS = ((128, 2), (128, 4), (128, 8), (128, 16), (128, 32))


def configurations(binding: Binding, device: Device) -> tuple[RowConfig, ...]:
    """All configurations of a program that selection picks from on a device."""
    held = (c for c in _held(binding, device) if c.registers <= min(_MOST_REGISTERS, 65536 // c.threads))
    return tuple(dict.fromkeys((*held, *_streams(binding, device), *_columns(binding, device))))


def _spare(device: Device) -> int:
    return _SPARE_NEWER if device.capability >= (10, 0) else _SPARE


def _held(binding: Binding, device: Device) -> Iterator[HeldConfig]:
    clusters, vec, words = max_cluster(device), binding.widest_vec, max(1, binding.words(binding.widest_vec))

    def held(align: str, threads: int, lanes: int, chunks: int, blocks: int = 1) -> HeldConfig:
        rank = 1 if align == "whole" else MANY_DIMS
        return HeldConfig(binding, align, threads, chunks, _spare(device), rank=rank, lanes=lanes, blocks=blocks)

    steps = [held_words // words for held_words in _HELD_WORDS if held_words >= words]
    for align in ("whole", "shifted") if steps else ():
        for threads, lanes in _WARP_ROWS:
            # An element outside whole vectors has a thread of its own.
            if align == "whole" or lanes >= max(2 * vec, 16) or lanes == 32:
                yield held(align, threads, lanes, 2)
        yield held(align, 64, 32, 4)
        yield held(align, 64, 64, steps[0])
        for threads in (256, 512):
            yield held(align, threads, threads, 2)
        if not binding.program.folds:
            yield held(align, 256, 256, steps[0], blocks=0)
            continue
        if clusters == 1:
            for chunks in steps:
                yield held(align, 512, 512, chunks)
        for blocks in (2, 4, 8, 16):
            if blocks <= clusters:
                longer = steps[1:] if align == "whole" else steps[-1:]
                for chunks in (steps[0], steps[-1]) if blocks == 2 else longer:
                    yield held(align, 256, 256, chunks, blocks)
        if clusters >= 16:
            yield held(align, 512, 512, steps[-1], 16)
    for threads, lanes, chunks in ((128, 4, 2), (128, 16, 2), (128, 32, 4), (256, 256, 4), (512, 512, 16)):
        yield held("element", threads, lanes, chunks)


def _streams(binding: Binding, device: Device) -> Iterator[StreamConfig]:
    for align in ("whole", "shifted", "element"):
        words = max(1, binding.words(1 if align == "element" else binding.widest_vec))
        rank = 1 if align == "whole" else MANY_DIMS
        yield StreamConfig(binding, align, 512, max(1, 16 // words), _spare(device), rank=rank)
    for rank in (MANY_DIMS, ALL_DIMS):
        yield StreamConfig(binding, "element", 256, 2, _spare(device), rank=rank, reduced=rank)


def _columns(binding: Binding, device: Device) -> Iterator[ColumnConfig]:
    words = max(1, binding.words(binding.widest_vec))
    for align, lanes, chunks in (("whole", 8, max(1, 16 // words)), ("element", 32, 8)):
        for threads, held, reduced in ((lanes * 4, True, 1), (256, True, 1), (256, False, 1), (256, False, MANY_DIMS)):
            if align == "element" or reduced == 1:
                yield ColumnConfig(
                    binding, align, threads, chunks, _spare(device), MANY_DIMS, reduced, lanes=lanes, held=held
                )
