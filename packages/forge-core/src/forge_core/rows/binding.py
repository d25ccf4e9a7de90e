"""A program bound to dtypes: what a kernel is compiled for, apart from how rows move."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from forge_core.dtypes import short_name
from forge_core.rows.problem import ACCESS, VEC
from forge_core.rows.program import Operands, RowProgram

__all__ = ["Binding"]


@dataclass(frozen=True)
class Binding:
    """A program and the dtypes of its operands.

    Attributes:
        program: the arithmetic.
        dtypes: in the order of ``program.operands.tensors``.
        compute: the dtype of values and totals, as the program has it.
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
        return self.dtypes[self.operands.tensors.index(name)]

    @cached_property
    def operands(self) -> Operands:
        """The program's, which it may make anew whenever it is asked."""
        return self.program.operands

    @cached_property
    def loaded(self) -> tuple[str, ...]:
        """Row operands that are loaded for each element."""
        return tuple(name for name in self.operands.rows if name not in self.broadcast)

    @cached_property
    def loaded_bytes(self) -> int:
        """Bytes of an element of each of them."""
        return sum(self.dtype(name).itemsize for name in self.loaded)

    @cached_property
    def moving(self) -> tuple[str, ...]:
        """Row operands and outputs with an element for each element of a row."""
        return self.loaded + self.operands.writes

    @cached_property
    def widest_vec(self) -> int:
        """Elements of 16 bytes of the narrowest operand that moves; at most 8, which take 8 registers or 16."""
        return min(VEC, ACCESS // min((self.dtype(name).itemsize for name in self.moving), default=ACCESS))

    @classmethod
    @functools.lru_cache(maxsize=1024)
    def of(cls, *fields: Any) -> Binding:
        """The binding of these fields, in order: the same object for equal ones, with all that it has worked out."""
        return cls(*fields)

    def words(self, vec: int) -> int:
        """32-bit registers that hold a vector of each row operand: as stored, but bytes as they are computed with.

        The compiler takes bytes apart and converts them all at once, when they have arrived.
        """
        sizes = (self.dtype(name).itemsize for name in self.loaded)
        return sum(max(1, -(-vec * (size if size > 1 else self.compute.itemsize) // 4)) for size in sizes)

    @property
    def slots(self) -> bool:
        """Whether a block's totals fit a slot of ``forge_core.cute.grid``."""
        most = 14 if self.compute is torch.float32 else 7
        return self.compute.is_floating_point and (not self.program.merge or len(self.program.folds) <= most)

    @property
    def name(self) -> str:
        """For kernel names: the program, and the dtypes of what moves."""
        dtypes = "_".join(dict.fromkeys(short_name(dtype) for dtype in self.dtypes))
        via = f"_via_{short_name(self.via)}" if self.via else ""
        return f"{type(self.program).__name__}_{dtypes}{via}"
