"""The canonical form of "apply a row program to strided tensors".

    shape, strides of each operand, the dims that make a row
      -> dims of size 1 dropped
      -> split into kept dims (which row) and reduced dims (where in the row), with a stride for each operand
      -> each set ordered by stride, largest first
      -> neighboring dims merged where the strides of all operands allow it
      -> classified: inner | outer | strided | empty

    inner      a row is contiguous, or one repeated element, in every operand        softmax(x, -1)
    outer      neighboring rows are contiguous in every operand                      softmax(x, 0)
    strided    neither

Scalars, results and expanded gradients have stride 0 along the reduced dims; column operands have stride 0 along the
kept dims.  Integer arithmetic on metadata: no data is read and no GPU is needed.
"""

from __future__ import annotations

import copy
import functools
import math
import operator
from collections.abc import Sequence
from typing import NamedTuple

import torch

from forge_core.rows.program import Operands

#: Bytes of the widest access of a thread; addresses are known modulo it.
ACCESS = 16
#: Maximum elements per vector, which are in the compute dtype while they are used.
VEC = 8
#: Elements from which rows are read by vectors where programs write: of ``shifted`` rows, of ``unaligned`` ones, and of
#: either with column operands.  Shorter ones have most of their elements in head and tail, and loads by element are all
#: in flight at once.
SHIFTED, UNALIGNED, WITH_COLUMNS = 24, 65, 513
#: Elements from which rows of pairs of elements are read by pairs, where there are column operands.
PAIRED = 6


class Dim(NamedTuple):
    """One dim: its size, and a stride in elements for each operand."""

    size: int
    strides: tuple[int, ...]


class Alignment(NamedTuple):
    """Alignment of rows to 16-byte boundaries.

    ``"whole"``: rows begin at a boundary and are whole vectors.  ``"shifted"``: rows begin at any distance from a
    boundary, the same in all row operands and outputs.  ``"unaligned"``: the same in all outputs.  ``"paired"``: rows
    of aligned pairs of elements, with column operands and too short for vectors at any distance.  ``"element"``: none
    of these, or too short.
    """

    kind: str
    vec: int  # elements per vector: 16 bytes of the narrowest row operand or output, or 8; 2 if paired, 1 by element


class Problem:
    """Rows of the operands of a program in canonical form; made by :meth:`of` and immutable.

    Attributes:
        operands: the operands.
        kept: kept dims, largest stride first, but last that along which ``strided`` rows are neighbors; at least one.
        reduced: reduced dims, largest stride first; at least one.
        itemsizes: bytes per element, for each operand.
        offsets: address of the first element modulo 16, for each operand.
        rows: number of rows.
        length: elements per row.
        broadcast: row operands with one element per row: expanded gradients.
        stepping: indices of the operands with an element for each element of a row.
        moving: indices of the row operands and outputs among them.
        kind: ``"empty"``, ``"inner"``, ``"outer"`` or ``"strided"``.
        alignment: alignment of the rows of an ``inner`` problem.
    """

    def __init__(
        self,
        operands: Operands,
        kept: tuple[Dim, ...],
        reduced: tuple[Dim, ...],
        itemsizes: tuple[int, ...],
        offsets: tuple[int, ...],
    ) -> None:
        self.operands, self.kept, self.reduced = operands, kept, reduced
        self.itemsizes, self.offsets = itemsizes, offsets
        self.rows = self.length = 1
        for dim in kept:  # planning a new shape is on the critical path: no comprehension, which is a call
            self.rows *= dim.size
        for dim in reduced:
            self.length *= dim.size
        self.stepping = operands.elementwise_indices
        self.broadcast: tuple[str, ...] = ()
        steps = reduced[0].strides
        if len(reduced) > 1:
            steps = tuple(map(any, zip(*[dim.strides for dim in reduced], strict=True)))
        if self.length > 1 and not all(steps[: len(operands.rows)]):
            self.broadcast = tuple([name for name, step in zip(operands.rows, steps, strict=False) if not step])
            self.stepping = tuple([i for i in self.stepping if operands.tensors[i] not in self.broadcast])
        self.moving = self.stepping
        if operands.columns:
            self.moving = tuple([i for i in self.stepping if i in operands.other_indices])
        self.kind, self.alignment = self._kind(), self._alignment()

    @classmethod
    def of(
        cls, operands: Operands, tensors: Sequence[torch.Tensor], shape: tuple[int, ...], dims: Sequence[int]
    ) -> Problem:
        """The canonical form, from metadata.

        Args:
            operands: the operands of the program.
            tensors: in the order of ``operands.tensors``.  Row operands and outputs have ``shape``; column operands
                that of ``dims``; scalars and results that of the other dims, or with size 1 at ``dims``.
            shape: shape of row operands.
            dims: the reduced dims, none negative; empty for a tensor without dims.
        """
        columns = operands.columns + operands.accumulates
        strides = [
            t.stride() if t.shape == shape else _strides(t, name in columns, shape, dims)
            for name, t in zip(operands.tensors, tensors, strict=True)
        ]
        kept: list[Dim] = []
        reduced: list[Dim] = []
        for i, own in enumerate(zip(*strides, strict=True)):
            (reduced if i in dims else kept).append(Dim(shape[i], own))
        rows = canonical(kept) or (Dim(1, (0,) * len(strides)),)
        rest = (
            canonical(reduced) or (Dim(1, tuple([int(name in operands.elementwise) for name in operands.tensors])),),
            tuple(map(torch.Tensor.element_size, tensors)),
            tuple([t.data_ptr() % ACCESS for t in tensors]),
        )
        problem = cls(operands, rows, *rest)
        if problem.kind == "strided" and len(rows) > 1:
            # Rows that are neighbors in the first operand, unless it is expanded along the dim.
            nearest = min(reversed(rows), key=lambda dim: abs(dim.strides[0]) or math.inf)
            problem = cls(operands, (*(dim for dim in rows if dim is not nearest), nearest), *rest)
        return problem

    def _kind(self) -> str:
        if self.rows == 0 or self.length == 0:
            return "empty"
        row, last = self.reduced[0].strides, self.kept[-1].strides
        sums = self.operands.accumulated_indices if self.length > 1 else ()
        inner = len(self.reduced) == 1 and {row[i] for i in self.stepping + sums} <= {1}
        # Overlapping views can be both; the longer contiguous extent decides.
        if inner and (self.length >= self.kept[-1].size or not self.stepping):
            return "inner"
        if {last[i] for i in self.operands.other_indices} <= {1}:
            return "outer"
        return "inner" if inner else "strided"

    def _alignment(self) -> Alignment:
        if not self.moving:
            return Alignment("element", 1)
        vec, widths = _vector_widths(self.itemsizes, self.moving)
        begins = self._begins(self.kept)
        if self.length % vec == 0 and not [i for i in self.stepping if math.gcd(*begins[i]) % widths[i]]:
            return Alignment("whole", vec)
        written = [i for i in self.moving if i >= self.operands.inputs]
        for kind, same in (("shifted", self.moving), ("unaligned", written)):
            if not same or self.length < self.least(kind, vec):
                continue
            lead = begins[max(same, key=widths.__getitem__)]
            if not any((n - at) % widths[i] for i in same for n, at in zip(begins[i], lead, strict=True)):
                return Alignment(kind, vec)
        even = self.length % 2 == 0 and not [i for i in self.stepping if math.gcd(*begins[i]) % 2]
        return Alignment("paired", 2) if self.pairs and even else Alignment("element", 1)

    @property
    def pairs(self) -> bool:
        """Whether rows of pairs of elements are read by pairs: of several pairs, with column operands."""
        return bool(self.operands.columns) and self.length >= PAIRED

    def least(self, kind: str, vec: int) -> int:
        """Elements from which ``shifted`` or ``unaligned`` rows are read by vectors of ``vec`` elements."""
        if self.operands.columns:
            return WITH_COLUMNS
        return 2 * vec if not self.operands.writes else SHIFTED if kind == "shifted" else UNALIGNED

    def _begins(self, dims: Sequence[Dim]) -> list[tuple[int, ...]]:
        """For each operand, offset of the first element from a boundary, and the stride of each dim, in elements."""
        offsets = map(operator.floordiv, self.offsets, self.itemsizes)
        return list(zip(offsets, *[dim.strides for dim in dims if dim.size > 1], strict=True))

    def column_alignment(self, vec: int, threads: int) -> str:
        """Alignment of neighboring rows that are read by vectors of ``vec`` elements in blocks of ``threads`` threads.

        Returns:
            ``"whole"``: ``vec`` neighboring rows are one aligned vector in every operand.  ``"shifted"``: all
            neighboring rows are contiguous together.  ``"skewed"``: they have the same distance from a boundary in all
            operands.  ``"element"``: none of these.
        """
        inner, outer = self.kept[-1].size, self.kept[:-1]
        if self.kind != "outer" or len(self.reduced) > 1:
            return "element"
        begins = self._begins((*outer, *self.reduced))
        if inner % vec == 0 and not [i for i in self.operands.other_indices if math.gcd(*begins[i]) % vec]:
            return "whole"
        contiguous = {self.reduced[0].strides[i] for i in self.moving} <= {inner}
        if contiguous and inner // math.gcd(inner, vec) <= threads and self._lines(self.length * inner, outer) == vec:
            return "shifted"
        skewed = self.length >= 2 * vec and self._lines(inner, (*outer, *self.reduced)) == vec
        return "skewed" if skewed else "element"

    def _lines(self, length: int, kept: tuple[Dim, ...]) -> int:
        """Elements per vector of contiguous runs of ``length`` elements; 1 unless all begin as far from a boundary."""
        count = len(self.itemsizes)
        one = Dim(length, tuple([int(i in self.stepping) for i in range(count)]))
        kept = kept or (Dim(1, (0,) * count),)
        kind, vec = Problem(self.operands, kept, (one,), self.itemsizes, self.offsets).alignment
        return vec if kind in ("whole", "shifted") else 1

    @property
    def transposes(self) -> bool:
        """Whether rows are contiguous in all outputs of row length, and neighbors in an input: a permuted tensor."""
        kept, step = self.kept[-1].strides, self.reduced[0].strides
        written = [step[i] for i in self.stepping if i >= self.operands.inputs]
        near = any(0 < abs(kept[i]) < abs(step[i]) for i in self.moving if i < self.operands.inputs)
        return self.kind == "strided" and len(self.reduced) == 1 and {*written} == {1} and near

    def neighboring(self, few: int) -> bool:
        """Whether neighboring threads should have neighboring rows, instead of neighboring elements of one row.

        They should if rows are as near to one another as their elements in all operands; if so in one operand, for
        fewer than ``few`` rows; and where outputs are transposed.
        """
        kept, step = self.kept[-1], self.reduced[-1].strides
        near = [abs(kept.strides[i]) <= abs(step[i]) for i in self.stepping]
        return kept.size > 1 and (all(near) or (self.rows < few and any(near)) or self.transposes)

    def row_by_row(self) -> Problem:
        """A copy whose innermost kept dim has size 1, so that tiles have a row each."""
        single = copy.copy(self)
        single.kept = (*self.kept, Dim(1, (0,) * len(self.itemsizes)))
        return single

    def of_rows(self, least: int) -> Problem:
        """A copy with at least ``least`` rows, for a selection that does not depend on their number."""
        many = copy.copy(self)
        many.rows = max(self.rows, least)
        return many

    def across(self, operands: Operands) -> Problem:
        """Rows of one element as elements of longer rows, for a program that writes the results of this one."""
        outer = self.kept[:-1] or (Dim(1, (0,) * len(self.itemsizes)),)
        return Problem(operands, outer, self.kept[-1:], self.itemsizes, self.offsets)

    @property
    def read_bytes(self) -> int:
        """Minimum bytes read, with broadcast dims once."""
        return self._bytes(range(self.operands.inputs))

    @property
    def written_bytes(self) -> int:
        """Bytes written."""
        return self._bytes(range(self.operands.inputs, len(self.itemsizes)))

    def _bytes(self, indices: Sequence[int]) -> int:
        total = 0
        for i in indices:
            nbytes = self.itemsizes[i]
            for dim in self.kept + self.reduced:
                nbytes *= dim.size if dim.strides[i] else min(dim.size, 1)
            total += nbytes
        return total


@functools.lru_cache(maxsize=1024)
def _vector_widths(itemsizes: tuple[int, ...], moving: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """Elements per vector, and for each operand elements per access; powers of two."""
    vec = min(VEC, ACCESS // min(itemsizes[i] for i in moving))
    return vec, tuple(min(vec, ACCESS // size) for size in itemsizes)


def _strides(t: torch.Tensor, column: bool, shape: tuple[int, ...], dims: Sequence[int]) -> list[int]:
    """A stride for each dim of ``shape``; 0 along dims that the tensor lacks."""
    if not column and t.ndim == len(shape):
        return [0 if i in dims else stride for i, stride in enumerate(t.stride())]
    own = iter(t.stride())
    return [next(own) if (i in dims) == column else 0 for i in range(len(shape))]


def canonical(dims: Sequence[Dim]) -> tuple[Dim, ...]:
    """Drops dims of size 1, orders and merges the others; a dim of size 0 replaces all."""
    if len(dims) == 1 and dims[0].size > 1:
        return (dims[0],)
    if 0 in [d.size for d in dims]:
        return (Dim(0, (0,) * len(dims[0].strides)),)
    # By the strides of the last operand, an output; the others break ties.
    ordered = sorted([d for d in dims if d.size != 1], key=lambda d: d.strides[::-1], reverse=True)
    merged: list[Dim] = []
    for dim in ordered:
        if merged and merged[-1].strides == tuple([stride * dim.size for stride in dim.strides]):
            merged[-1] = Dim(merged[-1].size * dim.size, dim.strides)
        else:
            merged.append(dim)
    return tuple(merged)
