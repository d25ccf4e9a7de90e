"""The canonical form of "write dst[i...] = src[i...]".

``copy`` and ``transpose`` are the same problem with other strides: for every index of the output, read the source
element that belongs there.  :class:`Problem` brings any such pair of strides into one form, in which it no longer
matters what the caller wrote: the copy of a transposed tensor *is* a transposition, and the transposition of a
transposed tensor *is* a linear copy.

    shape and both strides
      -> dimensions of size 1 dropped
      -> ordered by the output's stride, largest first
      -> neighbours merged wherever both strides allow it
      -> a short innermost run of bytes widened into one element
      -> classified: rows | matrix | gather

This is plain arithmetic on integers: no tensor is read, no GPU is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["Dim", "Matrix", "Problem", "Rows", "alignment_of", "contiguous_strides"]

#: The widest access of a thread, in bytes; an alignment beyond it is not worth knowing.
MAX_ALIGN = 16


@dataclass(frozen=True)
class Dim:
    """One dimension: its size, and its strides in elements on both sides."""

    size: int
    src: int
    dst: int


@dataclass(frozen=True)
class Rows:
    """A problem whose rows are contiguous on both sides.

    Attributes:
        length: elements of a row.
        outer: the other dimensions, outermost first; empty for one contiguous run.
    """

    length: int
    outer: tuple[Dim, ...]


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
        numel = 1
        for size in shape:
            numel *= size
        dims = [
            Dim(size, src, dst) for size, src, dst in zip(shape, src_strides, dst_strides, strict=True) if size != 1
        ]
        src_align, dst_align = alignment_of(src_address), alignment_of(dst_address)
        if numel == 0:
            return cls((Dim(0, 1, 1),), itemsize, src_align, dst_align, 0)
        unit = min(itemsize, src_align, dst_align)
        if unit < itemsize:  # A view of foreign memory: move each element as several words.
            parts = itemsize // unit
            dims = [Dim(d.size, d.src * parts, d.dst * parts) for d in dims] + [Dim(parts, 1, 1)]
            numel, itemsize = numel * parts, unit
        # The source's stride breaks ties, so that two spellings of one problem give one form.
        dims.sort(key=lambda d: (d.dst, d.src), reverse=True)
        problem = cls(tuple(_merge(dims)), itemsize, src_align, dst_align, numel)
        return _widen(problem)

    @classmethod
    def transpose(cls, x: torch.Tensor, out: torch.Tensor) -> Problem:
        """The transposition of the last two dimensions of ``x`` into ``out``; only their metadata is read."""
        stride = x.stride()
        return cls.make(
            out.shape,
            (*stride[:-2], stride[-1], stride[-2]),
            out.stride(),
            x.element_size(),
            src_address=x.data_ptr(),
            dst_address=out.data_ptr(),
        )

    @classmethod
    def copy(cls, x: torch.Tensor, out: torch.Tensor) -> Problem:
        """The copy of ``x`` into ``out``; only their metadata is read."""
        return cls.make(
            out.shape,
            x.stride(),
            out.stride(),
            x.element_size(),
            src_address=x.data_ptr(),
            dst_address=out.data_ptr(),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the output."""
        return self.numel * self.itemsize

    @property
    def read_bytes(self) -> int:
        """Bytes of the source that must be read at least: an expanded dimension is read once."""
        elements = 1
        for dim in self.dims:
            elements *= dim.size if dim.src else min(dim.size, 1)
        return elements * self.itemsize

    @property
    def kind(self) -> str:
        """``"empty"``, ``"rows"``, ``"matrix"`` or ``"gather"``."""
        if self.numel == 0:
            return "empty"
        if self.rows() is not None:
            return "rows"
        return "gather" if self.matrix() is None else "matrix"

    def rows(self) -> Rows | None:
        """The problem as contiguous rows, or None where the innermost dimension is not contiguous on both sides."""
        if not self.dims:
            return Rows(1, ())
        inner = self.dims[-1]
        return Rows(inner.size, self.dims[:-1]) if inner.src == 1 and inner.dst == 1 else None

    def matrix(self) -> Matrix | None:
        """The problem as a batch of matrix transpositions, or None where it is none."""
        if self.numel == 0 or len(self.dims) < 2 or self.dims[-1].dst != 1 or self.dims[-1].src == 1:
            return None
        inner = self.dims[-1]
        # Overlapping views can have several dimensions of stride 1; the longest makes the best rows.
        found = max(
            (i for i, d in enumerate(self.dims[:-1]) if d.src == 1), key=lambda i: self.dims[i].size, default=None
        )
        if found is None:
            return None
        batch = tuple(d for i, d in enumerate(self.dims[:-1]) if i != found)
        return Matrix(inner.size, self.dims[found].size, inner.src, self.dims[found].dst, batch)

    def any_matrix(self) -> Matrix:
        """The problem as a batch of matrices with whatever steps it has, for a kernel that takes any.

        The rows are along the output's smallest stride, the columns along the smallest source stride that is left.
        """
        found = self.matrix()
        if found is not None:
            return found
        *outer, inner = self.dims or (Dim(1, 1, 1),)
        columns = min(outer, key=lambda d: (d.src == 0, d.src), default=Dim(1, 0, 0))
        batch = tuple(d for d in outer if d is not columns)
        return Matrix(inner.size, columns.size, inner.src, columns.dst, batch, columns.src, inner.dst)

    def src_vector(self, distances: Sequence[int]) -> int:
        """Bytes of the widest access that every source address allows.

        Args:
            distances: in elements, every distance that the addresses are sums of.
        """
        return min(self.src_align, *(alignment_of(d * self.itemsize) for d in distances), MAX_ALIGN)

    def dst_vector(self, distances: Sequence[int]) -> int:
        """Bytes of the widest access that every destination address allows; see :meth:`src_vector`."""
        return min(self.dst_align, *(alignment_of(d * self.itemsize) for d in distances), MAX_ALIGN)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a contiguous tensor of ``shape``, in elements."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _merge(dims: list[Dim]) -> list[Dim]:
    """Joins an outer dimension with the next inner one where stepping past the inner's end is the outer's step."""
    merged: list[Dim] = []
    for dim in dims:
        if merged:
            outer = merged[-1]
            if outer.src == dim.src * dim.size and outer.dst == dim.dst * dim.size:
                merged[-1] = Dim(outer.size * dim.size, dim.src, dim.dst)
                continue
        merged.append(dim)
    return merged


def _widen(problem: Problem) -> Problem:
    """Makes one element of a contiguous innermost run of 2, 4, 8 or 16 bytes, so that the rest can be tiled.

    The run becomes the element of a matrix or of rows around it: (..., N, 2) fp32 permuted is a matrix of 8-byte
    elements.
    """
    if len(problem.dims) < 2:
        return problem
    inner = problem.dims[-1]
    wide = inner.size * problem.itemsize
    if inner.src != 1 or inner.dst != 1 or wide not in (2, 4, 8, 16):
        return problem
    outer = problem.dims[:-1]
    if wide > min(problem.src_align, problem.dst_align) or any(d.src % inner.size or d.dst % inner.size for d in outer):
        return problem
    dims = [Dim(d.size, d.src // inner.size, d.dst // inner.size) for d in outer]
    return replace(problem, dims=tuple(_merge(dims)), itemsize=wide, numel=problem.numel // inner.size)
