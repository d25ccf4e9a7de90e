"""The canonical form of "do something to every row of some strided tensors".

    shape, the strides of each tensor, the dimensions that make a row
      -> dimensions of size 1 dropped
      -> split into kept ones (which row) and reduced ones (where in the row), each with a stride for every tensor
      -> each set ordered by stride, largest first
      -> neighbours of a set merged wherever the strides of all tensors allow it
      -> classified: inner   | outer  | strided | empty

    inner      the row is contiguous in every tensor:                     softmax(x, -1)
    outer      neighbouring rows are neighbours in every tensor:          softmax(x, 0)
    strided    neither

A tensor that has one element a row (the result of logsumexp, or an expanded gradient) has stride 0 along the reduced
dimensions and is asked for nothing.

This is plain arithmetic on integers: no tensor is read, no GPU is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

__all__ = ["MAX_ALIGN", "Dim", "Problem"]

#: The widest access of a thread, in bytes; an address is worth knowing modulo this.
MAX_ALIGN = 16


@dataclass(frozen=True)
class Dim:
    """One dimension: its size, and for each tensor its stride in elements."""

    size: int
    steps: tuple[int, ...]


@dataclass(frozen=True)
class Problem:
    """Rows of some tensors, in canonical form; make it with :meth:`forward` or :meth:`backward`.

    The tensors are those that are read, in the order of the operator's arguments, and then the one that is written.

    Attributes:
        kept: the dimensions that number the rows, largest stride first.
        reduced: the dimensions within a row, likewise.
        itemsizes: for each tensor, bytes of an element.
        offsets: for each tensor, its first byte's address modulo 16.
        rows: how many rows.
        length: elements of a row.
    """

    kept: tuple[Dim, ...]
    reduced: tuple[Dim, ...]
    itemsizes: tuple[int, ...]
    offsets: tuple[int, ...]
    rows: int
    length: int

    @classmethod
    def make(
        cls,
        shape: Sequence[int],
        dims: Sequence[int],
        strides: Sequence[Sequence[int]],
        itemsizes: Sequence[int],
        addresses: Sequence[int],
    ) -> Problem:
        """The canonical form.

        Args:
            shape: sizes of the tensors.
            dims: the dimensions that make a row, none negative.
            strides: for each tensor, its strides in elements; 0 along ``dims`` where it has one element a row.
            itemsizes: for each tensor, bytes of an element: 1, 2, 4 or 8.
            addresses: for each tensor, its first byte; only its alignment is kept.
        """
        every = [Dim(size, tuple(s[i] for s in strides)) for i, size in enumerate(shape)]
        kept = [d for i, d in enumerate(every) if i not in dims]
        reduced = [d for i, d in enumerate(every) if i in dims]
        return cls(
            kept=_canonical(kept),
            reduced=_canonical(reduced),
            itemsizes=tuple(itemsizes),
            offsets=tuple(address % MAX_ALIGN for address in addresses),
            rows=math.prod(d.size for d in kept),
            length=math.prod(d.size for d in reduced),
        )

    @classmethod
    def forward(cls, x: torch.Tensor, out: torch.Tensor, dims: Sequence[int]) -> Problem:
        """``out`` from ``x``; only their metadata is read.

        Args:
            x: the input.
            out: of the shape of ``x``, or of that without ``dims`` (or with size 1 there): one element a row.
            dims: none negative; empty for a tensor without dimensions.
        """
        return cls._of(x.shape, dims if x.ndim else (), (x, out))

    @classmethod
    def backward(
        cls, grad: torch.Tensor, saved: Sequence[torch.Tensor], grad_input: torch.Tensor, dims: Sequence[int]
    ) -> Problem:
        """``grad_input`` from ``grad`` and ``saved``; only their metadata is read.

        Args:
            grad: of the shape of ``grad_input``, or of that without ``dims`` (or with size 1 there).
            saved: likewise.
            grad_input: the gradient that is written.
            dims: none negative; empty for a tensor without dimensions.
        """
        return cls._of(grad_input.shape, dims if grad_input.ndim else (), (grad, *saved, grad_input))

    @classmethod
    def _of(cls, shape: Sequence[int], dims: Sequence[int], tensors: Sequence[torch.Tensor]) -> Problem:
        return cls.make(
            shape,
            dims,
            [_strides(t, shape, dims) for t in tensors],
            [t.element_size() for t in tensors],
            [t.data_ptr() for t in tensors],
        )

    @property
    def sides(self) -> int:
        """How many tensors."""
        return len(self.itemsizes)

    @property
    def whole(self) -> tuple[int, ...]:
        """The tensors that have an element for each element of a row, by number."""
        return tuple(i for i in range(self.sides) if any(d.steps[i] for d in self.reduced) or not self.reduced)

    @property
    def kind(self) -> str:
        """``"empty"``, ``"inner"``, ``"outer"`` or ``"strided"``."""
        if self.rows == 0 or self.length == 0:
            return "empty"
        whole = self.whole
        inner = len(self.reduced) == 1 and bool(whole) and all(self.reduced[0].steps[i] == 1 for i in whole)
        outer = bool(self.kept) and all(self.kept[-1].steps[i] == 1 for i in range(self.sides))
        if inner and outer:  # Only overlapping views have both; the longer run makes the better accesses.
            return "inner" if self.length >= self.kept[-1].size else "outer"
        return "inner" if inner else "outer" if outer else "strided"

    @property
    def read_bytes(self) -> int:
        """Bytes that must be read at least: an expanded dimension is read once."""
        return sum(self._bytes(i) for i in range(self.sides - 1))

    @property
    def written_bytes(self) -> int:
        """Bytes that are written."""
        return self._bytes(self.sides - 1)

    def _bytes(self, side: int) -> int:
        dims = (*self.kept, *self.reduced)
        return math.prod(d.size if d.steps[side] else min(d.size, 1) for d in dims) * self.itemsizes[side]

    def vector(self) -> tuple[int, bool]:
        """Elements of a chunk along the rows of an ``inner`` problem, and whether rows begin or end inside one.

        A chunk is at most 16 bytes of every tensor.  A row may begin anywhere in a chunk, but in all tensors at the
        same place, so that one chunk of each belongs together; where tensors differ, chunks get smaller until they
        agree, at last to one element.
        """
        sides = self.whole
        count = MAX_ALIGN // max(self.itemsizes[i] for i in sides)
        while True:
            places = {self._begins(i, count) for i in sides}
            if len(places) == 1:
                edges = any(*places) or self.length % count != 0
                # A row of less than two chunks would be nothing but edges.
                return (1, False) if edges and self.length < 2 * count else (count, edges)
            count //= 2

    def columns(self) -> int:
        """Elements of the widest access along neighbouring rows of an ``outer`` problem: every address allows it."""
        count = MAX_ALIGN // max(self.itemsizes)
        dims = (*self.kept[:-1], *self.reduced)
        while count > 1:
            steps = [d.steps[i] % count for d in dims for i in range(self.sides)]
            starts = [self._begins(i, count)[0] for i in range(self.sides)]
            if not any(steps) and not any(starts) and self.kept[-1].size % count == 0:
                return count
            count //= 2
        return 1

    def _begins(self, side: int, count: int) -> tuple[int, ...]:
        """Where in a chunk of ``count`` elements the tensor begins, and how far each kept dimension moves that."""
        start = self.offsets[side] // self.itemsizes[side] % count
        return (start, *(d.steps[side] % count for d in self.kept))


def _strides(t: torch.Tensor, shape: Sequence[int], dims: Sequence[int]) -> list[int]:
    """The strides of a tensor in terms of the whole shape: 0 along the dimensions that it lacks."""
    if tuple(t.shape) == tuple(shape):
        return list(t.stride())
    own = list(t.stride())
    if t.ndim == len(shape):
        return [0 if i in dims else own[i] for i in range(len(shape))]
    return [0 if i in dims else own.pop(0) for i in range(len(shape))]


def _canonical(dims: Sequence[Dim]) -> tuple[Dim, ...]:
    """Without dimensions of size 1, ordered, merged; a size of 0 stands alone."""
    if any(d.size == 0 for d in dims):
        return (Dim(0, tuple(0 for _ in dims[0].steps)),)
    # The last tensor's stride decides, being that of the tensor that is written; the others break ties.
    ordered = sorted((d for d in dims if d.size != 1), key=lambda d: d.steps[::-1], reverse=True)
    merged: list[Dim] = []
    for dim in ordered:
        if merged and all(a == b * dim.size for a, b in zip(merged[-1].steps, dim.steps, strict=True)):
            merged[-1] = Dim(merged[-1].size * dim.size, dim.steps)
            continue
        merged.append(dim)
    return tuple(merged)
