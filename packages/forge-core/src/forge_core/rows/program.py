"""Row programs: the arithmetic of a row-wise operator, apart from how rows move.

    fold          x -> t         what each element contributes to a reduction of its row; a fold may use those before it
    constants     totals -> k    once a row
    results       k -> r         the outputs with one element a row
    map           x, k -> y      the outputs with an element for each element of the row

A program is a frozen dataclass: its fields are part of the compile key.  Its methods run while a kernel is traced, so a
plain ``if`` on the program's own fields costs nothing.  ``v.x`` is a vector of neighboring elements (``TensorSSA``) in
the compute dtype; totals and constants are numbers, the same for all threads of a row.  Threads, layouts, predicates
and the ends of rows are the engine's; the same program runs on rows of any dims, strides and dtypes.

This module imports no DSL, so that an operator is planned without it; the functions below import it when called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

__all__ = ["Fold", "Operands", "RowProgram", "exp", "log", "reciprocal", "rounded", "rsqrt", "where"]


@dataclass(frozen=True)
class Operands:
    """The names of what a program reads and writes, in the order of the kernel's arguments.

    Attributes:
        rows: (rows, length), read; ``v.name`` in ``fold`` and ``map``.
        columns: (length,), read, the same for every row; ``v.name`` too.
        scalars: (rows,), read; ``row.name``.
        writes: (rows, length), returned by ``map``.
        results: (rows,), returned by ``results``.
        numbers: floats of the call; ``row.name``.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...] = ()
    scalars: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        """All but the numbers."""
        return self.rows + self.columns + self.scalars + self.writes + self.results

    @cached_property
    def elementwise(self) -> tuple[str, ...]:
        """Those with an element for each element of a row."""
        return self.rows + self.columns + self.writes

    @cached_property
    def elementwise_places(self) -> tuple[int, ...]:
        """Their indices in ``tensors``."""
        return self._places(self.elementwise)

    @cached_property
    def other_places(self) -> tuple[int, ...]:
        """The indices of all but column operands."""
        return self._places(self.rows + self.scalars + self.writes + self.results)

    @cached_property
    def read_places(self) -> tuple[int, ...]:
        """The indices of what is read."""
        return self._places(self.rows + self.columns + self.scalars)

    @cached_property
    def written_places(self) -> tuple[int, ...]:
        """The indices of what is written."""
        return self._places(self.writes + self.results)

    def _places(self, names: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(map(self.tensors.index, names))


@dataclass(frozen=True)
class Fold:
    """A reduction of a row to one value of the compute dtype.

    Attributes:
        op: ``"sum"``, ``"prod"``, ``"max"`` or ``"min"``.
        term: ``term(v, row, *totals)``: what a vector of elements contributes, given the totals of the folds before.
        masked: the engine leaves out elements outside the row.  False promises that the terms of
            ``RowProgram.outside`` contribute nothing, which saves a select an element.
    """

    op: str
    term: Callable[..., Any]
    masked: bool = True


@dataclass(frozen=True)
class RowProgram:
    """Base of row programs, which are frozen dataclasses.

    The first five may be overridden by class attributes or by properties.
    """

    @property
    def operands(self) -> Operands:
        """What is read and written."""
        raise NotImplementedError(
            f"{type(self).__name__}: expected a class attribute `operands`, an Operands, got none"
        )

    @property
    def folds(self) -> tuple[Fold, ...]:
        """The reductions, in order."""
        return ()

    @property
    def linear(self) -> bool:
        """Whether results are sums of the row operands' elements times real numbers.

        Real and imaginary parts of complex operands are rows of their own then, which is how they are computed.
        """
        return False

    @property
    def merge(self) -> str:
        """How the totals of two parts of a row become one.

        ``"max_sum"`` for a maximum and a sum of exponentials below it; ``"each"`` where no fold uses another's total.
        A program with a merge exchanges all totals at once, and runs on rows that are not held on chip.  ``""``: each
        total is exchanged before the next fold begins.
        """
        return "each" if len(self.folds) == 1 else ""

    @property
    def outside(self) -> float:
        """The value of row operands outside the row."""
        return 0.0

    def compute(self, dtypes: Sequence[torch.dtype], via: torch.dtype | None) -> torch.dtype:
        """The dtype of values and totals: float64 where an operand has it, else float32.

        A program of integers has int32 or int64 instead, which must hold all values of its operands.

        Args:
            dtypes: in the order of ``operands.tensors``.
            via: the dtype that row operands are rounded to when they are loaded; None for their own.
        """
        return torch.float64 if torch.float64 in (*dtypes, via) else torch.float32

    def of_one(self) -> RowProgram | None:
        """What this one is of rows of one element: a program that writes its results, in their order; None for none."""
        return None

    def constants(self, totals: tuple[Any, ...], row: Any) -> Any:
        """What ``results`` and ``map`` need of the row; computed once a row."""
        return totals

    def results(self, constants: Any, row: Any) -> tuple[Any, ...]:
        """One value a row, in the order of ``operands.results``."""
        return ()

    def map(self, v: Any, constants: Any) -> tuple[Any, ...]:
        """The elements written, in the order of ``operands.writes``."""
        return ()


def exp(x: Any, *, exact: bool = True) -> Any:
    """e^x of a vector or a number; see :func:`forge_core.cute.math.exp`."""
    from forge_core.cute import math

    return math.exp(x, exact=exact)


def log(x: Any) -> Any:
    """The natural logarithm of a vector or a number."""
    import cutlass.cute as cute

    return cute.math.log(x)


def rsqrt(x: Any) -> Any:
    """1 / sqrt(x) of a vector or a number."""
    import cutlass.cute as cute

    return cute.math.rsqrt(x)


def reciprocal(x: Any) -> Any:
    """1 / x of a number from 1 to 2^126, rounded once; see :func:`forge_core.cute.online.reciprocal`."""
    from forge_core.cute import online

    return online.reciprocal(x)


def rounded(x: Any, dtype: torch.dtype) -> Any:
    """A vector rounded to a dtype, in the dtype that it has."""
    from forge_core.dtypes import cute_dtype

    own, other = x.dtype, cute_dtype(dtype)
    return x if own is other else x.to(other).to(own)


def where(condition: Any, a: Any, b: Any) -> Any:
    """``a`` where a number's condition holds, else ``b``; both numbers of one dtype."""
    import cutlass

    return type(b)(cutlass.select_(condition, a, b))
