"""How two accumulators become one.

A reduction among threads needs to know three things: what an accumulator is made of, which one stands for "nothing
yet", and how two become one.  A :class:`Monoid` says them; the reductions in ``warp``, ``block`` and ``cluster`` take
any.  An accumulator is a tuple of scalars, so that one with several parts, such as a softmax's running (max, sum), is
reduced by the same code; ``grid`` takes those of floats, as they fit its slots.

Combining must be associative up to rounding, and commutative bit by bit: lanes that exchange their accumulators
combine them in either order and must agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import cutlass
import cutlass.cute as cute
from cutlass import Float32

__all__ = ["Each", "Maximum", "Minimum", "Monoid", "Product", "Sum", "lowest"]


class Monoid(Protocol):
    """What the reductions among threads need to know.

    An implementation is a frozen dataclass: the DSL takes any other object that is used inside a branch or a loop for
    one that might change there.
    """

    @property
    def types(self) -> tuple[Any, ...]:
        """The DSL's type of each part of an accumulator."""
        ...

    def identity(self) -> tuple[Any, ...]:
        """The accumulator of nothing."""
        ...

    def combine(self, a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
        """The accumulator of both."""
        ...


def lowest(dtype: Any) -> Any:
    """What no value of a type is below: minus infinity, or the smallest integer."""
    if dtype.is_float:
        return dtype(float("-inf"))
    return dtype(-(2 ** (dtype.width - 1)) if dtype.signed else 0)


def _highest(dtype: Any) -> Any:
    if dtype.is_float:
        return dtype(float("inf"))
    return dtype(2 ** (dtype.width - 1) - 1 if dtype.signed else 2**dtype.width - 1)


@dataclass(frozen=True)
class _Scalar:
    """An accumulator of one part.

    Attributes:
        dtype: the DSL's type of the part.
    """

    dtype: Any

    @property
    def types(self) -> tuple[Any, ...]:
        """The type of each part."""
        return (self.dtype,)


@dataclass(frozen=True)
class Sum(_Scalar):
    """a + b."""

    def identity(self) -> tuple[Any, ...]:
        """Zero."""
        return (self.dtype(0),)

    def combine(self, a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
        """One rounding, for floating-point types."""
        return (a[0] + b[0],)


@dataclass(frozen=True)
class Product(_Scalar):
    """a * b."""

    def identity(self) -> tuple[Any, ...]:
        """One."""
        return (self.dtype(1),)

    def combine(self, a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
        """One rounding, for floating-point types."""
        return (a[0] * b[0],)


@dataclass(frozen=True)
class Maximum(_Scalar):
    """The larger one; a NaN wins over any number."""

    def identity(self) -> tuple[Any, ...]:
        """What no value is below."""
        return (lowest(self.dtype),)

    def combine(self, a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
        """Exact."""
        x, y = a[0], b[0]
        if self.dtype is Float32:
            return (cute.arch.fmax(x, y, nan=True),)
        take = x > y
        if self.dtype.is_float:
            take = take | (x != x)  # noqa: PLR0124  # true of a NaN alone
        return (self.dtype(cutlass.select_(take, x, y)),)


@dataclass(frozen=True)
class Minimum(_Scalar):
    """The smaller one; a NaN wins over any number."""

    def identity(self) -> tuple[Any, ...]:
        """What no value is above."""
        return (_highest(self.dtype),)

    def combine(self, a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
        """Exact."""
        x, y = a[0], b[0]
        if self.dtype is Float32:
            return (cute.arch.fmin(x, y, nan=True),)
        take = x < y
        if self.dtype.is_float:
            take = take | (x != x)  # noqa: PLR0124  # true of a NaN alone
        return (self.dtype(cutlass.select_(take, x, y)),)


@dataclass(frozen=True)
class Each:
    """Several monoids of one part, side by side."""

    parts: tuple[Any, ...]

    @property
    def types(self) -> tuple[Any, ...]:
        """The type of each part."""
        return tuple(part.dtype for part in self.parts)

    def identity(self) -> tuple[Any, ...]:
        """The accumulator of nothing."""
        return tuple(part.identity()[0] for part in self.parts)

    def combine(self, a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
        """Each part by its own monoid."""
        return tuple(m.combine((x,), (y,))[0] for m, x, y in zip(self.parts, a, b, strict=True))
