"""Monoids: the operations that reductions are made of.

An accumulator is a tuple of scalars, so that one with several parts, such as the (max, sum) of a softmax, is reduced by
the same code.  An operation must be associative up to rounding, and bitwise commutative: lanes that exchange their
accumulators combine them in either order and must agree.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar, Protocol

import cutlass
import cutlass.cute as cute
from cutlass import Float32


class Monoid(Protocol):
    """The interface of a monoid.

    An implementation is a frozen dataclass: the DSL treats any other object used in a branch or loop as mutable.
    """

    @property
    def types(self) -> tuple[Any, ...]:
        """Type of each part of an accumulator."""

    def identity(self) -> tuple[Any, ...]:
        """The neutral accumulator."""

    def combine(self, a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
        """Combines two accumulators."""


def kept(monoid: Monoid, accs: Sequence[tuple[Any, ...]]) -> list[cute.Tensor]:
    """Registers with the accumulators of adjacent rows, (rows,) for each part of an accumulator."""
    rAcc = [cute.make_rmem_tensor(len(accs), dtype) for dtype in monoid.types]
    put(rAcc, accs)
    return rAcc


def put(rAcc: list[cute.Tensor], accs: Sequence[tuple[Any, ...]]) -> None:
    """Stores the accumulators of adjacent rows to registers: see :func:`kept`."""
    for r, acc in enumerate(accs):
        for part, value in enumerate(acc):
            rAcc[part][r] = value


def get(rAcc: list[cute.Tensor], r: int) -> tuple[Any, ...]:
    """The accumulator of row ``r``."""
    return tuple(part[r] for part in rAcc)


def combine_all(accs: list[tuple[Any, ...]], monoid: Monoid) -> tuple[Any, ...]:
    """Combines accumulators, by the monoid's ``many`` if it has that."""
    many = getattr(monoid, "many", None)
    return many(accs) if many is not None and len(accs) > 1 else reduce(monoid.combine, accs)


def select(condition: Any, a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
    """One of two accumulators."""
    return tuple(type(y)(cutlass.select_(condition, x, y)) for x, y in zip(a, b, strict=True))


def lowest(dtype: Any) -> Any:
    """The least value of a type: minus infinity, or the smallest integer."""
    if dtype.is_float:
        return dtype(float("-inf"))
    return dtype(-(2 ** (dtype.width - 1)) if dtype.signed else 0)


def _highest(dtype: Any) -> Any:
    if dtype.is_float:
        return dtype(float("inf"))
    return dtype(2 ** (dtype.width - 1) - 1 if dtype.signed else 2**dtype.width - 1)


@dataclass(frozen=True)
class Uniform:
    """Base of monoids whose parts, of which ``parts`` is the number, have one type.

    Attributes:
        dtype: type of each part.
    """

    parts: ClassVar[int] = 1
    dtype: Any

    @property
    def types(self) -> tuple[Any, ...]:
        return (self.dtype,) * self.parts


class Sum(Uniform):
    """a + b."""

    def identity(self) -> tuple[Any, ...]:
        return (self.dtype(0),)

    def combine(self, a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
        return (a[0] + b[0],)


class Product(Uniform):
    """a * b."""

    def identity(self) -> tuple[Any, ...]:
        return (self.dtype(1),)

    def combine(self, a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
        return (a[0] * b[0],)


class Maximum(Uniform):
    """max(a, b); propagates NaN."""

    def identity(self) -> tuple[Any, ...]:
        return (lowest(self.dtype),)

    def combine(self, a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
        return (_extreme(self.dtype, a[0], b[0], operator.gt, cute.arch.fmax),)


class Minimum(Uniform):
    """min(a, b); propagates NaN."""

    def identity(self) -> tuple[Any, ...]:
        return (_highest(self.dtype),)

    def combine(self, a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
        return (_extreme(self.dtype, a[0], b[0], operator.lt, cute.arch.fmin),)


def _extreme(dtype: Any, x: Any, y: Any, better: Any, fp32: Any) -> Any:
    if dtype is Float32:
        return fp32(x, y, nan=True)
    take = better(x, y)
    if dtype.is_float:
        take = take | (x != x)  # noqa: PLR0124 - true of NaN only
    return dtype(cutlass.select_(take, x, y))


@dataclass(frozen=True)
class Each:
    """The product of monoids of one part: each part is combined by its own."""

    parts: tuple[Any, ...]

    @property
    def types(self) -> tuple[Any, ...]:
        return tuple(part.dtype for part in self.parts)

    def identity(self) -> tuple[Any, ...]:
        return tuple(part.identity()[0] for part in self.parts)

    def combine(self, a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(m.combine((x,), (y,))[0] for m, x, y in zip(self.parts, a, b, strict=True))


class ComplexProduct(Uniform):
    """(a + bi) (c + di), as parts of fp32 or fp64; an infinite part makes NaN of others, as in PyTorch."""

    parts = 2

    def identity(self) -> tuple[Any, ...]:
        return self.dtype(1), self.dtype(0)

    def combine(self, a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
        return _times(a[0], b[0]) - _times(a[1], b[1]), _times(a[0], b[1]) + _times(a[1], b[0])


def _times(x: Any, y: Any) -> Any:
    """Multiplies and rounds: of the sum of two products the compiler would fuse one, depending on their order."""
    dtype = type(x)
    return cute.arch.inline_ptx(
        f"mul.rn.f{dtype.width} {{$w0}}, {{$r0}}, {{$r1}};", write_only_types=[dtype], read_only_args=[x, y]
    )
