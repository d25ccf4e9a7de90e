"""The arithmetic of week 3 as row programs.

    forward       folds                                  once a row                     map
    rms_norm      q = sum x^2                            rstd = 1 / sqrt(q / N + eps)   hat = x * rstd
    layer_norm    n, s = sum x, q = sum (x - s / n)^2    mean = s / N, rstd as above    hat = (x - mean) * rstd
                                                                                        y   = hat * w + bias

    gradient      folds, with g = dy * w                 map
    rms_norm      a = sum g * hat                        dx = rstd * (g - hat * a / N)
    layer_norm    a, and b = sum g                       dx = rstd * (g - b / N - hat * a / N)
    of w, bias    dw = sum dy * hat, dbias = sum dy      over the other dims: with dx, or rows side by side

x may be a sum, x + residual, which is rounded as it is stored before anything else is computed of it.  The variance is
that of deviations from the mean: the mean of squares less the square of the mean would lose every digit of a row whose
mean is large.  w is weight + weight_offset.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from forge_core.rows import Fold, Operands, RowProgram, reciprocal, rounded, rsqrt

__all__ = ["Norm", "NormBackward", "NormGradients", "WeightBackward"]


def _names(**there: bool) -> tuple[str, ...]:
    return tuple(name for name, given in there.items() if given)


@dataclass(frozen=True)
class Norm(RowProgram):
    """rms_norm, or with ``center`` layer_norm."""

    center: bool = False  # whether the mean is subtracted
    weight: bool = False  # whether there is one
    bias: bool = False  # whether there is one
    offset: bool = False  # whether a number is added to the weight
    cast: torch.dtype | None = None  # to which the normalized element is rounded before it is multiplied
    total: torch.dtype | None = None  # of the sum with a residual; None without one
    statistics: bool = False  # whether the mean and 1 / sqrt(variance + eps) of each row are results
    takes_vectors = True

    @property
    def operands(self) -> Operands:
        """One tensor or two in, y and perhaps the sum out."""
        added = self.total is not None
        return Operands(
            rows=("x", *_names(residual=added)),
            columns=_names(weight=self.weight, bias=self.bias),
            writes=("y", *_names(total=added)),
            results=_names(mean=self.center and self.statistics, rstd=self.statistics),
            numbers=("eps", *_names(weight_offset=self.weight and self.offset)),
        )

    @property
    def folds(self) -> tuple[Fold, ...]:
        """The sum, if it is centered, and the squares; elements outside the row are 0, and taken from 0."""

        def squares(v: Any, row: Any, *of_part: Any) -> Any:
            x = _element(self, v)
            d = x - v.within(of_part[1] / of_part[0]) if self.center else x
            return d * d

        squared = Fold("sum", squares, masked=False)
        if not self.center:
            return (squared,)
        return Fold("count"), Fold("sum", lambda v, row, count: _element(self, v), masked=False), squared

    @property
    def merge(self) -> str:
        """Moments of a row, which are those of its parts."""
        return "moments" if self.center else "each"

    def constants(self, totals: tuple[Any, ...], row: Any) -> Any:
        """The mean, or 0, rstd, and what is added to the weight."""
        each = reciprocal(row.count)
        mean = totals[1] * each if self.center else 0.0
        return mean, rsqrt(totals[-1] * each + row.eps), _offset(self, row)

    def results(self, constants: Any, row: Any) -> tuple[Any, ...]:
        """The same, where they are asked for."""
        return (constants[0], constants[1]) if self.center else (constants[1],)

    def map(self, v: Any, constants: Any) -> tuple[Any, ...]:
        """The norm of each element, and the sum."""
        mean, rstd, offset = constants
        x = _element(self, v)
        y = _weighted(self, _hat(self, x, mean, rstd, self.cast), v, offset)
        y = y + v.bias if self.bias else y
        return (y,) if self.total is None else (y, x)


def _element(p: Norm, v: Any) -> Any:
    """What is normalized."""
    return v.x if p.total is None else rounded(v.x + v.residual, p.total)


def _hat(p: Norm | NormBackward | WeightBackward, x: Any, mean: Any, rstd: Any, cast: torch.dtype | None = None) -> Any:
    """The normalized element."""
    hat = (x - mean if p.center else x) * rstd
    return hat if cast is None else rounded(hat, cast)


def _weighted(p: Norm | NormBackward, x: Any, v: Any, offset: Any) -> Any:
    if not p.weight:
        return x
    return x * (v.weight + offset) if p.offset else x * v.weight


def _offset(p: Norm | NormBackward, row: Any) -> Any:
    return row.weight_offset if p.weight and p.offset else 0.0


@dataclass(frozen=True)
class NormBackward(RowProgram):
    """The gradient of what is normalized; ``added``: with the gradient of the sum with a residual, which is added."""

    center: bool = False
    weight: bool = False
    offset: bool = False
    added: bool = False
    merge, takes_vectors = "each", True

    @property
    def operands(self) -> Operands:
        """The gradient of y, what was normalized, and the statistics."""
        return Operands(
            rows=("dy", "x", *_names(dtotal=self.added)),
            columns=_names(weight=self.weight),
            scalars=(*_names(mean=self.center), "rstd"),
            writes=("dx",),
            numbers=_names(weight_offset=self.weight and self.offset),
        )

    @property
    def folds(self) -> tuple[Fold, ...]:
        """The sums of g * hat and of g; dy is 0 outside the row."""

        def g(v: Any, row: Any, *_: Any) -> Any:
            return _weighted(self, v.dy, v, _offset(self, row))

        def product(v: Any, row: Any) -> Any:
            return g(v, row) * _hat(self, v.x, row.mean if self.center else 0.0, row.rstd)

        first = Fold("sum", product, masked=False)
        return (first, Fold("sum", g, masked=False)) if self.center else (first,)

    def constants(self, totals: tuple[Any, ...], row: Any) -> Any:
        """Their means times rstd, the row's own mean, rstd, and what is added to the weight."""
        mean, scale = row.mean if self.center else 0.0, row.rstd * reciprocal(row.count)
        return totals[0] * scale, totals[-1] * scale, mean, row.rstd, _offset(self, row)

    def map(self, v: Any, constants: Any) -> tuple[Any, ...]:
        """The gradient of each element."""
        a, b, mean, rstd, offset = constants
        less = _hat(self, v.x, mean, rstd) * a
        dx = _weighted(self, v.dy, v, offset) * rstd - (less + b if self.center else less)
        return (dx + v.dtotal,) if self.added else (dx,)


@dataclass(frozen=True)
class NormGradients(NormBackward):
    """The same, and those of weight and bias: sums over rows of what each read of dy and x contributes."""

    bias: bool = False
    cast: torch.dtype | None = None

    @property
    def operands(self) -> Operands:
        """A sum over rows or two besides."""
        return replace(super().operands, accumulates=("dweight", *_names(dbias=self.bias)))

    def accumulate(self, v: Any, constants: Any) -> tuple[Any, ...]:
        """What each element adds: dy * hat, and dy."""
        *_, mean, rstd, _ = constants
        product = v.dy * _hat(self, v.x, mean, rstd, self.cast)
        return (product, v.dy) if self.bias else (product,)


@dataclass(frozen=True)
class WeightBackward(RowProgram):
    """The gradients of weight and bias: its rows are the columns of the norm, whose rows have a mean and rstd each."""

    center: bool = False
    bias: bool = False
    cast: torch.dtype | None = None
    merge, takes_vectors = "each", True

    @property
    def operands(self) -> Operands:
        """The gradient of y and what was normalized; the statistics; a result or two."""
        return Operands(
            rows=("dy", "x"),
            columns=(*_names(mean=self.center), "rstd"),
            results=("dweight", *_names(dbias=self.bias)),
        )

    @property
    def folds(self) -> tuple[Fold, ...]:
        """The sums of dy * hat and of dy, which is 0 outside the row."""

        def product(v: Any, row: Any) -> Any:
            return v.dy * _hat(self, v.x, v.mean if self.center else 0.0, v.rstd, self.cast)

        first = Fold("sum", product, masked=False)
        return (first, Fold("sum", lambda v, row, *_: v.dy, masked=False)) if self.bias else (first,)

    def results(self, totals: Any, row: Any) -> tuple[Any, ...]:
        """The sums themselves."""
        return tuple(totals)
