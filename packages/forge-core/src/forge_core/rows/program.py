"""Row programs: the arithmetic of a row-wise operator, apart from how rows move.

    fold          x -> t         terms of a reduction of the row; a fold may use the totals of those before it
    constants     totals -> k    once per row
    results       k -> r         outputs with one element per row
    map           x, k -> y      outputs with an element for each element of the row
    accumulate    x, k -> s      terms of an output that is a sum over rows, one for each index within a row

A program is a frozen dataclass, whose fields are part of the compile key.  Its methods run at trace time, so that an
``if`` on its fields costs nothing.  ``v.x`` holds a thread's elements of one row (a ``TensorSSA``) in the compute
dtype, in no guaranteed order or adjacency: ``v.index()`` gives their indices.  Totals and constants are scalars, equal
in all threads of a row.  Threads, layouts and predicates are the engine's: the same program runs on rows of any dims,
strides, lengths and dtypes.

This module does not import the DSL, so that planning does not; the functions below import it when called.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch


@dataclass(frozen=True)
class Operands:
    """The operands of a program by name, in the order of the kernel's arguments.

    Attributes:
        rows: (rows, length), read; ``v.name`` in ``fold`` and ``map``.
        columns: (length,), read, the same for every row; ``v.name`` too.
        scalars: (rows,), read; ``row.name``.
        writes: (rows, length), returned by ``map``.
        results: (rows,), returned by ``results``.
        numbers: floats of the call; ``row.name``.
        accumulates: (length,), sums over rows of what ``accumulate`` returns: the gradient of a weight.
        paired: every two tensors are the real and the imaginary part of one, of which a launch is passed one pointer.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...] = ()
    scalars: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    accumulates: tuple[str, ...] = ()
    paired: bool = False

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        """All operands that are tensors."""
        return self.rows + self.columns + self.scalars + self.writes + self.results + self.accumulates

    @cached_property
    def pointers(self) -> int:
        """The number of pointers to them."""
        return len(self.tensors) // (1 + self.paired)

    @cached_property
    def elementwise(self) -> tuple[str, ...]:
        """Operands with an element for each element of a row."""
        return self.rows + self.columns + self.writes

    @cached_property
    def elementwise_indices(self) -> tuple[int, ...]:
        """The indices of ``elementwise`` in ``tensors``."""
        return self._indices(self.elementwise)

    @cached_property
    def other_indices(self) -> tuple[int, ...]:
        """The indices of operands with a stride between rows."""
        return self._indices(self.rows + self.scalars + self.writes + self.results)

    @cached_property
    def inputs(self) -> int:
        """The number of inputs, the first of ``tensors``."""
        return len(self.rows + self.columns + self.scalars)

    @cached_property
    def accumulated_indices(self) -> tuple[int, ...]:
        """The indices of sums over rows."""
        return self._indices(self.accumulates)

    def _indices(self, names: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(map(self.tensors.index, names))


def _one(v: Any, row: Any, *totals: Any) -> int:
    """The term of a count."""
    return 1


@dataclass(frozen=True)
class Fold:
    """A reduction of a row to one value of the compute dtype.

    Attributes:
        op: ``"sum"``, ``"prod"``, ``"max"`` or ``"min"``; or ``"count"``, the number of elements, which has no term.
        term: ``term(v, row, *totals)``: the terms of a vector of elements, given the totals of the folds before.
        masked: elements outside the row are masked.  False promises that the term of ``RowProgram.outside`` is the
            identity of the fold, which saves a select per element.
    """

    op: str
    term: Callable[..., Any] = _one
    masked: bool = True


@dataclass(frozen=True)
class RowProgram:
    """Base of row programs, which are frozen dataclasses.

    The first five may be overridden by class attributes or by properties.
    """

    @property
    def operands(self) -> Operands:
        """The operands."""
        raise NotImplementedError(
            f"{type(self).__name__}: expected a class attribute `operands`, an Operands, got none"
        )

    @property
    def folds(self) -> tuple[Fold, ...]:
        """The reductions, in order."""
        return ()

    @property
    def linear(self) -> bool:
        """Whether results are linear in the row operands, with real coefficients.

        Complex operands are then computed as rows of real and rows of imaginary parts.
        """
        return False

    @property
    def merge(self) -> str:
        """How the totals of two parts of a row are combined.

        ``"max_sum"``: a maximum, and a sum of exponentials relative to it; ``"moments"``: a count, a sum, and a sum of
        squared deviations from the mean; ``"complex_prod"``: the real and the imaginary part of a product, whose folds
        use no totals; ``"each"``: every total by its own fold, if no fold uses another's total.
        With a merge, all totals are exchanged at once, folds see the totals of a part of the row, and rows that are
        not held on chip are read once for all folds.  Rows held by lanes are the exception: each total is reduced by
        shuffles before the next fold begins, so that folds see those of the whole row.  ``""``: each total is exchanged
        before the next fold begins.
        """
        return "each" if len(self.folds) == 1 else ""

    @property
    def outside(self) -> float:
        """The value of row operands outside the row."""
        return 0.0

    @property
    def joint(self) -> bool:
        """Whether a thread's elements are combined by the merge, too, instead of by each fold."""
        return self.merge == "complex_prod"

    def compute(self, dtypes: Sequence[torch.dtype], via: torch.dtype | None) -> torch.dtype:
        """The compute dtype: float64 if an operand has it, else float32.

        Programs of integers return int32 or int64, which must hold all values of the operands.

        Args:
            dtypes: dtypes of ``operands.tensors``.
            via: dtype to which row operands are rounded on load, or None.
        """
        return torch.float64 if torch.float64 in (*dtypes, via) else torch.float32

    @property
    def takes_vectors(self) -> bool:
        """Whether methods accept vectors as totals, constants and scalars, so that rows of one element are a map."""
        return False

    def of_one(self) -> RowProgram | None:
        """An elementwise program that computes the results for rows of one element, or None."""
        return OfOne(self) if self.takes_vectors and not self.operands.accumulates else None

    def of_parts(self) -> RowProgram | None:
        """A program with ``paired`` operands that computes the same of complex ones, in their order; or None."""
        return None

    def constants(self, totals: tuple[Any, ...], row: Any) -> Any:
        """Values for ``results`` and ``map``, computed once per row."""
        return totals

    def results(self, constants: Any, row: Any) -> tuple[Any, ...]:
        """The outputs with one element per row, in the order of ``operands.results``."""
        return ()

    def map(self, v: Any, constants: Any) -> tuple[Any, ...]:
        """The outputs of row length, in the order of ``operands.writes``."""
        return ()

    def accumulate(self, v: Any, constants: Any) -> tuple[Any, ...]:
        """Terms of sums over rows, in the order of ``operands.accumulates``."""
        return ()


@dataclass(frozen=True)
class OfOne(RowProgram):
    """A program for rows of one element as a map over longer rows: the total of a fold is its only term.

    Column operands and scalars are read, and results written, as operands with an element for each element.

    Attributes:
        program: the program, without sums over rows and paired operands, that ``takes_vectors``.
    """

    program: RowProgram

    @property
    def operands(self) -> Operands:
        """Those of the program, in its order."""
        own = self.program.operands
        return Operands(own.rows + own.columns + own.scalars, writes=own.writes + own.results, numbers=own.numbers)

    def compute(self, dtypes: Sequence[torch.dtype], via: torch.dtype | None) -> torch.dtype:
        """The program's."""
        return self.program.compute(dtypes, via)

    def constants(self, totals: tuple[Any, ...], row: Any) -> Any:
        """The numbers."""
        return tuple(getattr(row, name) for name in self.program.operands.numbers)

    def map(self, v: Any, constants: Any) -> tuple[Any, ...]:
        """The outputs and the results of the program."""
        element = _Element(v, dict(zip(self.program.operands.numbers, constants, strict=True)))
        totals: tuple[Any, ...] = ()
        for fold in self.program.folds:
            totals += (element.count if fold.op == "count" else fold.term(element, element, *totals),)
        found = self.program.constants(totals, element)
        results = self.program.results(found, element) if self.program.operands.results else ()
        return *self.program.map(element, found), *results


class _Element:
    """What the methods of a program of :class:`OfOne` are passed, for a vector of elements and for the row."""

    count = 1.0

    def __init__(self, v: Any, numbers: dict[str, Any]) -> None:
        self._v, self._numbers = v, numbers

    def __getattr__(self, name: str) -> Any:
        return self._numbers[name] if name in self._numbers else getattr(self._v, name)

    def within(self, x: Any) -> Any:
        """A total is that of each element's own row."""
        return x

    def index(self) -> Any:
        """The index in a row of one element."""
        return self._v.index() * 0


@functools.lru_cache(maxsize=1024)
def operands_of(program: RowProgram) -> Operands:
    """The operands of a program; the same object for equal programs, with its cached properties."""
    return program.operands


def exp(x: Any, *, exact: bool = True) -> Any:
    """e^x of a vector or a scalar; see :func:`forge_core.cute.math.exp`."""
    from forge_core.cute import math

    return math.exp(x, exact=exact)


def log(x: Any) -> Any:
    """The natural logarithm of a vector or a scalar."""
    import cutlass.cute as cute

    return cute.math.log(x)


def erf(x: Any) -> Any:
    """The error function of a vector or a scalar."""
    import cutlass.cute as cute

    return cute.math.erf(x)


def tanh(x: Any) -> Any:
    """The hyperbolic tangent of a vector or a scalar."""
    import cutlass.cute as cute

    return cute.math.tanh(x)


def rsqrt(x: Any) -> Any:
    """1 / sqrt(x) of a vector or a scalar."""
    import cutlass.cute as cute

    return cute.math.rsqrt(x)


def reciprocal(x: Any) -> Any:
    """1 / x of a scalar from 1 to 2^126, correctly rounded; see :func:`forge_core.cute.online.reciprocal`."""
    from forge_core.cute import online

    return online.reciprocal(x)


def rounded(x: Any, dtype: torch.dtype) -> Any:
    """Rounds a vector to a dtype and converts it back."""
    from forge_core.dtypes import cute_dtype

    own, other = x.dtype, cute_dtype(dtype)
    return x if own is other else x.to(other).to(own)


def where(condition: Any, a: Any, b: Any) -> Any:
    """Selects ``a`` if the condition holds, else ``b``: vectors by element, or scalars of one dtype."""
    import cutlass

    if isinstance(condition, cutlass.cute.TensorSSA):
        return cutlass.cute.where(condition, a, b)
    return type(b)(cutlass.select_(condition, a, b))
