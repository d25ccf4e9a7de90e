"""The canonical form of "write dst[i...] = src[i...]".

``copy`` and ``transpose`` are the same problem with other strides: for every index of the output, read the source
element that belongs there.  :class:`Problem` brings any such pair of strides into one form, in which it no longer
matters what the caller wrote: the copy of a transposed tensor *is* a transposition, and the transposition of a
transposed tensor *is* a linear copy.

    shape and both strides
      -> dimensions of size 1 dropped
      -> ordered by the output's stride, largest first
      -> neighbors merged wherever both strides allow it
      -> a short innermost run of bytes widened into one element
      -> classified: rows | matrix | gather

This is plain arithmetic on integers: no tensor is read, no GPU is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

__all__ = ["Dim", "Matrix", "Problem"]

#: The widest access of a thread, in bytes; an alignment beyond it is not worth knowing.
MAX_ALIGN = 16


class Dim(NamedTuple):
    """One dimension: its size, and its strides in elements on both sides."""

    size: int
    src: int
    dst: int


@dataclass(frozen=True)
class Matrix:
    """A (rows, cols) input matrix to transpose.

    ``dst[c * dst_pitch + r * dst_step] = src[r * src_pitch + c * src_step]``

    Attributes:
        rows: rows of the input, which are contiguous in the source; the length of an output row.
        cols: columns of the input, which are the rows of the output.
        src_pitch: elements from one input row to the next.
        dst_pitch: elements from one output row to the next.
        batch: the dimensions around the matrix, outermost first.
        src_step: elements from one column to the next in the input; 1 unless :meth:`Problem.any_matrix` made this.
        dst_step: elements from one row to the next in an output row; likewise.
    """

    rows: int
    cols: int
    src_pitch: int
    dst_pitch: int
    batch: tuple[Dim, ...]
    src_step: int = 1
    dst_step: int = 1


def alignment_of(address: int) -> int:
    """The largest power of two up to 16 that divides an address (or a distance) in bytes."""
    return MAX_ALIGN if address % MAX_ALIGN == 0 else address & -address


@dataclass(frozen=True)
class Problem:
    """A copy between two strided layouts, in canonical form; make it with :meth:`make`.

    Attributes:
        dims: dimensions of size 2 and more, the output's largest stride first.
        itemsize: bytes of one element of this form (1, 2, 4, 8 or 16), which can differ from the tensor's.
        src_align: what the source's first byte is aligned to, in bytes: a power of two up to 16.
        dst_align: the same of the destination.
        numel: elements of the output, in elements of this form.
    """

    dims: tuple[Dim, ...]
    itemsize: int
    src_align: int = MAX_ALIGN
    dst_align: int = MAX_ALIGN
    numel: int = 1

    @classmethod
    def make(
        cls,
        shape: Sequence[int],
        src_strides: Sequence[int],
        dst_strides: Sequence[int],
        itemsize: int,
        *,
        src_address: int = 0,
        dst_address: int = 0,
    ) -> Problem:
        """The canonical form of a copy.

        Args:
            shape: sizes of the output, any rank.
            src_strides: the source's strides in elements, one for each size; 0 where it is expanded.
            dst_strides: the destination's strides in elements.
            itemsize: bytes of an element: 1, 2, 4, 8 or 16.
            src_address: the source's first byte; only its alignment is kept.
            dst_address: the destination's first byte; 0 stands for a fresh allocation.
        """
        src_align, dst_align, numel = alignment_of(src_address), alignment_of(dst_address), math.prod(shape)
        if numel == 0:
            return cls((Dim(0, 1, 1),), itemsize, src_align, dst_align, 0)
        dims = [Dim(*dim) for dim in zip(shape, src_strides, dst_strides, strict=True) if dim[0] != 1]
        unit = min(itemsize, src_align, dst_align)
        if unit < itemsize:  # A view of foreign memory: move each element as several words.
            parts = itemsize // unit
            dims = [Dim(d.size, d.src * parts, d.dst * parts) for d in dims] + [Dim(parts, 1, 1)]
            numel, itemsize = numel * parts, unit
        # The source's stride breaks ties, so that two spellings of one problem give one form.
        dims.sort(key=lambda d: (d.dst, d.src), reverse=True)
        return _widen(cls(_merge(dims), itemsize, src_align, dst_align, numel))

    @classmethod
    def of(cls, x: torch.Tensor, out: torch.Tensor, *, transposed: bool = False) -> Problem:
        """The copy of ``x``, or of its transposition of the last two dims, into ``out``; reads only their metadata."""
        strides = (*x.stride()[:-2], x.stride(-1), x.stride(-2)) if transposed else x.stride()
        addresses = {"src_address": x.data_ptr(), "dst_address": out.data_ptr()}
        return cls.make(out.shape, strides, out.stride(), x.element_size(), **addresses)

    @property
    def nbytes(self) -> int:
        """Bytes of the output."""
        return self.numel * self.itemsize

    @property
    def read_bytes(self) -> int:
        """Bytes of the source that must be read at least: an expanded dimension is read once."""
        return math.prod(d.size if d.src else min(d.size, 1) for d in self.dims) * self.itemsize

    def rows(self) -> tuple[int, tuple[Dim, ...]] | None:
        """The elements of rows that are contiguous on both sides, and the other dims, outermost first; or None."""
        *outer, inner = self.dims or (Dim(1, 1, 1),)
        return (inner.size, tuple(outer)) if inner.src == 1 and inner.dst == 1 else None

    def matrix(self) -> Matrix | None:
        """The problem as a batch of matrix transpositions, or None where it is none."""
        *outer, inner = self.dims or (Dim(1, 1, 1),)
        columns = [d for d in outer if d.src == 1]
        if inner.dst != 1 or inner.src == 1 or not columns:
            return None
        # Overlapping views can have several dimensions of stride 1; the longest makes the best rows.
        return self._matrix(max(columns, key=lambda d: d.size))

    def any_matrix(self) -> Matrix:
        """The problem as a batch of matrices with whatever steps it has, for a kernel that takes any.

        The rows are along the output's smallest stride, the columns along the smallest source stride that is left.
        """
        columns = min(self.dims[:-1], key=lambda d: (d.src == 0, d.src), default=Dim(1, 0, 0))
        return self.matrix() or self._matrix(columns)

    def _matrix(self, columns: Dim) -> Matrix:
        *outer, inner = self.dims or (Dim(1, 1, 1),)
        batch = tuple(d for d in outer if d is not columns)
        return Matrix(inner.size, columns.size, inner.src, columns.dst, batch, columns.src, inner.dst)

    def widths(self, src: Iterable[int], dst: Iterable[int], dims: Sequence[Dim] = ()) -> tuple[int, int]:
        """Bytes of the widest accesses that all addresses of the source allow, and all of the destination.

        Args:
            src: in elements: with the strides of ``dims``, all that the source's addresses are sums of.
            dst: likewise.
            dims: dimensions.
        """
        source, result = (*src, *(d.src for d in dims)), (*dst, *(d.dst for d in dims))
        return (
            min(self.src_align, *(alignment_of(d * self.itemsize) for d in source), MAX_ALIGN),
            min(self.dst_align, *(alignment_of(d * self.itemsize) for d in result), MAX_ALIGN),
        )


def _merge(dims: Iterable[Dim]) -> tuple[Dim, ...]:
    """Joins an outer dimension with the next inner one where stepping past the inner's end is the outer's step."""
    merged: list[Dim] = []
    for dim in dims:
        outer = merged[-1] if merged else None
        if outer and (outer.src, outer.dst) == (dim.src * dim.size, dim.dst * dim.size):
            merged[-1] = Dim(outer.size * dim.size, dim.src, dim.dst)
        else:
            merged.append(dim)
    return tuple(merged)


def _widen(problem: Problem) -> Problem:
    """Makes one element of a contiguous innermost run of 2, 4, 8 or 16 bytes, so that the rest can be tiled.

    The run becomes the element of a matrix or of rows around it: (..., N, 2) fp32 permuted is a matrix of 8-byte
    elements.
    """
    *outer, inner = problem.dims or (Dim(1, 0, 0),)
    wide = inner.size * problem.itemsize
    if not outer or (inner.src, inner.dst) != (1, 1) or wide not in (2, 4, 8, 16):
        return problem
    if wide > min(problem.src_align, problem.dst_align) or any(d.src % inner.size or d.dst % inner.size for d in outer):
        return problem
    dims = _merge(Dim(d.size, d.src // inner.size, d.dst // inner.size) for d in outer)
    return replace(problem, dims=dims, itemsize=wide, numel=problem.numel // inner.size)
