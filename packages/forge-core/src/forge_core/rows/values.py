"""Arguments of a program's methods at trace time: vectors of operands, and values of the row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import cutlass
import cutlass.cute as cute
import torch
from cutlass import BFloat16, Float32, Int32, Uint32

from forge_core.cute.math import widened
from forge_core.dtypes import cute_dtype
from forge_core.rows.binding import Binding


class Piece:
    """A thread's elements of one row: a vector of each row and column operand, all at the same indices.

    Their order is not guaranteed, nor that they are neighbors: ``column`` gives elements of several steps.

    ``v.x`` is operand ``x`` in the compute dtype; ``v.stored("x")`` in its own dtype, in which a maximum of 16-bit
    numbers is packed, two per instruction; ``v.index()`` the elements' indices in the row.

    Args:
        binding: the program and its dtypes.
        registers: loads each operand by name, as a vector of its own dtype.
        index: computes the indices.
        inside: predicate: whether all elements are inside the row, or none; in ``column`` a vector, of each element.
        store: ``store(name, y)`` writes a vector of an output; None where the kernel stores it.
        held: register tensors with the vectors of row operands.
        epoch: shared by the pieces of a row.
        columns: loads a vector of each column operand, by name.
        size: number of elements.
    """

    def __init__(
        self,
        binding: Binding,
        registers: dict[str, Callable[[], Any]],
        index: Callable[[], Any],
        inside: Any,
        *,
        store: Any,
        held: tuple[cute.Tensor, ...] = (),
        epoch: Epoch | None = None,
        columns: dict[str, Callable[[], Any]] | None = None,
        size: int = 1,
    ) -> None:
        self.index, self.inside, self.store = index, inside, store
        self.held, self.epoch, self.size = held, epoch or Epoch(), size
        self.ahead: dict[str, Any] = {}
        self._binding, self._columns = binding, columns or {}
        self._registers = registers | {name: partial(self._column, name) for name in self._columns}

    @property
    def exact(self) -> bool:
        """Whether an output is wider than 16 bits, so that approximations must be accurate to fp32."""
        operands = self._binding.operands
        return max(self._binding.sizes(operands.writes + operands.results), default=0) > 2

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._registers:
            raise AttributeError(f"{type(self._binding.program).__name__} reads no operand {name!r}")
        x, compute = self._registers[name](), cute_dtype(self._binding.compute)
        if self._binding.dtype(name) is torch.uint8:
            x = x.to(Int32) & 255  # the DSL sign-extends vectors of unsigned bytes
        if self._binding.via is torch.bool and name in self._binding.operands.rows:
            # The DSL converts 0 to true.
            return cute.where(x != cute.full_like(x, 0), *(cute.full_like(x, n, compute) for n in (1, 0)))
        if self._binding.via is not None and name in self._binding.operands.rows:
            x = x.to(cute_dtype(self._binding.via))
        return widened(x) if compute is Float32 and x.dtype is BFloat16 else x.to(compute)

    def within(self, x: Any) -> Any:
        """A scalar for elements inside the row, 0 for those outside."""
        zero = type(x)(0)
        if not isinstance(self.inside, cute.TensorSSA):
            return type(x)(cutlass.select_(self.inside, x, zero))
        return cute.where(self.inside, *(cute.full(self.inside.shape, n, type(x)) for n in (x, zero)))

    def stored(self, name: str) -> Any:
        """An operand in its own dtype; in the compute dtype if it is rounded, an integer or float64."""
        x = self._registers[name]()
        exact = self._binding.via is None and x.dtype.is_float and x.dtype.width <= 32
        return x if exact else getattr(self, name)

    def fetch(self, names: Iterable[str]) -> None:
        """Loads column operands ahead of their use."""
        for name in names:
            if name in self._columns and name not in self.ahead:
                self.ahead[name] = self._columns[name]()

    def _column(self, name: str) -> Any:
        self.fetch((name,))
        return self.ahead[name]


class Epoch:
    """Keeps the compiler from holding values in registers from one fold to the next.

    Attributes:
        zero: 0, opaque to the compiler; replaced after a fold, so that values derived from it are recomputed.
    """

    def __init__(self) -> None:
        self.zero = Uint32(0)


def fetch_ahead(pieces: list[Piece], i: int, names: Iterable[str]) -> None:
    """Loads the column operands of a piece and of the next one, which overlaps the latter with arithmetic."""
    for v in pieces[i : i + 2]:
        v.fetch(tuple(names))


class Row:
    """Values of a whole row: ``row.name`` is a scalar operand or a number.

    Attributes:
        count: elements per row, in the compute dtype.
    """

    def __init__(self, binding: Binding, count: Any, line: dict[str, cute.Tensor], scalars: dict[str, Any]) -> None:
        self.count = count
        self._binding, self._line, self._scalars = binding, line, scalars

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._scalars:
            raise AttributeError(f"the program declares no scalar and no number {name!r}")
        return self._scalars[name]

    def at(self, name: str, index: Any) -> Any:
        """Gathers one element of a row operand; ``index`` must be inside the row."""
        x = self._line[name][index]
        if self._binding.via is not None:
            x = x.to(cute_dtype(self._binding.via))
        return x.to(type(self.count))


def bits(x: Float32) -> Uint32:
    """Reinterprets a float as an unsigned integer."""
    rX = cute.make_rmem_tensor(1, Float32)
    rX[0] = x
    return cute.recast_tensor(rX, Uint32)[0]


def indices(first: Any, count: int) -> Any:
    """The vector first, first + 1, ..."""
    rI = cute.make_rmem_tensor(count, type(first))
    for i in range(count):
        rI[i] = first + i
    return rI.load()
