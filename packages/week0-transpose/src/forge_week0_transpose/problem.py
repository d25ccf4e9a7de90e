"""The canonical form of "write dst[i...] = src[i...]": the copy of a transposed tensor *is* a transposition.

shape and both strides
  -> dimensions of size 1 dropped
  -> ordered by the output's stride, largest first
  -> neighbors merged wherever both strides allow it
  -> a short innermost run of bytes widened into one element
  -> classified: rows | matrix | gather
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple

import torch

from forge_core.steps import CHUNK
from forge_core.strided import Dim, canonical, entries

#: Elements of contiguous rows, and the other dims, outermost first.
Rows = tuple[int, tuple[Dim, ...]]

#: The most lines of :class:`Few`, gaps included; rows of few columns lie at most so many times their length apart.
MAX_LINES, MAX_APART = 128, 2


class Few(NamedTuple):
    """A batch of matrices of few rows, or few columns: the lines; the other of input and output is nearly dense."""

    gather: bool  # the lines are the input's rows; otherwise the output's
    lines: int  # how many: 2 to 128
    pitch: int  # elements from one line to the next
    apart: int  # elements from one place to the next, on the other side: the lines, and of an input a gap
    length: int  # elements of a line
    batch: tuple[Dim, ...]


class Matrix(NamedTuple):
    """A batch of (rows, cols) input matrices to transpose."""

    rows: Dim  # from one input row to the next, neighbors in an output row: ``dst`` is 1 but of ``any_matrix``
    cols: Dim  # from one output row to the next, neighbors in an input row: ``src`` is 1, likewise
    batch: tuple[Dim, ...]  # the dimensions around the matrix, outermost first

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the input."""
        return self.rows.size, self.cols.size

    def fill(self, tile: tuple[int, int]) -> float:
        """The share of its tiles that the matrix fills."""
        return math.prod(size / edge / math.ceil(size / edge) for size, edge in zip(self.shape, tile, strict=True))


@dataclass(frozen=True)
class Problem:
    """A copy between two strided layouts, in canonical form; make it with :meth:`make`."""

    dims: tuple[Dim, ...]  # of size 2 and more, the output's largest stride first; one of size 0 where one is
    itemsize: int  # bytes of one element of this form (1, 2, 4, 8 or 16), which can differ from the tensor's
    src_align: int = CHUNK  # what the first byte is aligned to, in bytes: a power of two up to 16
    dst_align: int = CHUNK

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
        src_align, dst_align = math.gcd(src_address, CHUNK), math.gcd(dst_address, CHUNK)
        # Each element of a view of foreign memory, which can be less aligned, moves as several words.
        unit = min(itemsize, src_align, dst_align)
        parts = itemsize // unit
        dims = [Dim(n, src * parts, dst * parts) for n, src, dst in zip(shape, src_strides, dst_strides, strict=True)]
        return _widen(cls(canonical([*dims, Dim(parts, 1, 1)]), unit, src_align, dst_align))

    @classmethod
    def of(cls, x: torch.Tensor, out: torch.Tensor, *, transposed: bool = False) -> Problem:
        """The copy of ``x``, or of its transposition of the last two dims, into ``out``; reads only their metadata."""
        strides = (*x.stride()[:-2], x.stride(-1), x.stride(-2)) if transposed else x.stride()
        addresses = {"src_address": x.data_ptr(), "dst_address": out.data_ptr()}
        return cls.make(out.shape, strides, out.stride(), x.element_size(), **addresses)

    @property
    def numel(self) -> int:
        """Elements of the output, in elements of this form."""
        return entries(self.dims)

    @property
    def nbytes(self) -> int:
        """Bytes of the output."""
        return self.numel * self.itemsize

    @property
    def read_bytes(self) -> int:
        """Bytes of the source that must be read at least: an expanded dimension is read once."""
        return math.prod(d.size if d.src else min(d.size, 1) for d in self.dims) * self.itemsize

    def rows(self) -> Rows | None:
        """The problem as rows that are contiguous on both sides, or None where there are none."""
        *outer, inner = self.dims or (Dim(1, 1, 1),)
        return (inner.size, tuple(outer)) if inner.src == 1 and inner.dst == 1 else None

    def matrix(self) -> Matrix | None:
        """The problem as a batch of matrix transpositions, or None where it is none."""
        m = self.any_matrix()
        return m if m.cols.src == m.rows.dst == 1 != m.rows.src else None

    def few(self) -> Few | None:
        """The problem as a batch of few lines, the fewest there are, or None where it is none."""
        if (m := self.matrix()) is None:
            return None
        (rows, x0, _), (cols, _, y1), batch = m
        few_rows = Few(gather=True, lines=rows, pitch=x0, apart=y1, length=cols, batch=batch)
        few_cols = Few(gather=False, lines=cols, pitch=y1, apart=x0, length=rows, batch=batch)
        most = (few_rows, rows), (few_cols, MAX_APART * cols)  # gaps are read, not written
        able = (few for few, apart in most if few.lines <= few.apart <= min(apart, MAX_LINES))
        return min(able, key=attrgetter("lines"), default=None)

    def any_matrix(self) -> Matrix:
        """The problem as a batch of matrices with whatever steps it has, for a kernel that takes any.

        The rows are along the output's smallest stride, the columns along the smallest source stride that is left; of
        overlapping views, which can have several, along the longest dimension.
        """
        *outer, inner = self.dims or (Dim(1, 1, 1),)
        columns = min(outer, key=lambda d: (d.src == 0, d.src, -d.size), default=Dim(1, 0, 0))
        return Matrix(inner, columns, tuple(d for d in outer if d is not columns))

    def widths(self, src: Iterable[int], dst: Iterable[int], dims: Sequence[Dim] = ()) -> tuple[int, int]:
        """Bytes of the widest accesses that all addresses of the source allow, and all of the destination.

        The addresses are sums of ``src`` or of ``dst``, in elements, and of the strides of ``dims``.
        """
        source = (n * self.itemsize for n in (*src, *(d.src for d in dims)))
        result = (n * self.itemsize for n in (*dst, *(d.dst for d in dims)))
        return math.gcd(self.src_align, *source), math.gcd(self.dst_align, *result)

    def row_widths(self, m: Matrix) -> tuple[int, int]:
        """The same of the rows of a matrix on both sides, where all of them begin and end."""
        return self.widths((m.rows.src, m.cols.size), (m.cols.dst, m.rows.size), m.batch)


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
    dims = canonical(Dim(d.size, d.src // inner.size, d.dst // inner.size) for d in outer)
    return replace(problem, dims=dims, itemsize=wide)
