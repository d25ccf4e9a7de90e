"""A program bound to dtypes: the part of a configuration that does not depend on data movement."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from forge_core.dtypes import short_name
from forge_core.rows.problem import ACCESS, VEC
from forge_core.rows.program import Operands, RowProgram, operands_of


@dataclass(frozen=True)
class Binding:
    """A program and the dtypes of its operands."""

    program: RowProgram
    dtypes: tuple[torch.dtype, ...]  # in the order of ``program.operands.tensors``
    compute: torch.dtype  # the program's compute dtype
    broadcast: tuple[str, ...] = ()  # row operands with one element per row
    via: torch.dtype | None = None  # to which row operands are rounded on load
    order: tuple[str, ...] = ()  # the operands in the order of a launch's pointers; () for that of the program

    def dtype(self, name: str) -> torch.dtype:
        """The dtype of an operand."""
        return self.dtypes[self.operands.tensors.index(name)]

    def sizes(self, names: Iterable[str]) -> list[int]:
        """Bytes per element of operands."""
        return [self.dtype(name).itemsize for name in names]

    @cached_property
    def operands(self) -> Operands:
        """The program's operands."""
        return operands_of(self.program)

    @cached_property
    def loaded(self) -> tuple[str, ...]:
        """Row operands that are not broadcast."""
        return tuple(name for name in self.operands.rows if name not in self.broadcast)

    @cached_property
    def wide(self) -> int:
        """Registers of an element in the compute dtype."""
        return max(1, self.compute.itemsize // 4)

    @cached_property
    def wide_columns(self) -> bool:
        """Whether a program with outputs reads more bytes of column operands than of row operands."""
        return bool(self.operands.writes) and sum(self.sizes(self.operands.columns)) > self.loaded_bytes

    @cached_property
    def loaded_bytes(self) -> int:
        """Bytes loaded per element of a row."""
        return sum(self.sizes(self.loaded))

    @cached_property
    def moving(self) -> tuple[str, ...]:
        """Row operands and outputs that are not broadcast."""
        return self.loaded + self.operands.writes

    @cached_property
    def widest_vec(self) -> int:
        """Elements of the narrowest moving operand in 16 bytes; at most 8, which is 8 or 16 registers."""
        return min(VEC, ACCESS // min(self.sizes(self.moving), default=ACCESS))

    @classmethod
    @functools.lru_cache(maxsize=1024)
    def of(cls, *fields: Any) -> Binding:
        """The binding of these fields, in order; the same object for equal ones, with its cached properties."""
        return cls(*fields)

    def words(self, vec: int) -> int:
        """32-bit registers of a vector of each row operand: as stored, but of bytes in the compute dtype.

        The compiler converts a vector of bytes at once, when it is loaded.
        """
        sizes = (size if size > 1 else self.compute.itemsize for size in self.sizes(self.loaded))
        return sum(max(1, -(-vec * size // 4)) for size in sizes)

    @property
    def fits_slot(self) -> bool:
        """Whether a block's totals fit in a slot of ``forge_core.cute.grid``."""
        most = 14 if self.compute is torch.float32 else 7
        return self.compute.is_floating_point and (not self.program.merge or len(self.program.folds) <= most)

    @property
    def name(self) -> str:
        """For kernel names: the program, and the dtypes of what moves."""
        dtypes = "_".join(dict.fromkeys(short_name(dtype) for dtype in self.dtypes))
        via = f"_via_{short_name(self.via)}" if self.via else ""
        return f"{type(self.program).__name__}_{dtypes}{via}"
