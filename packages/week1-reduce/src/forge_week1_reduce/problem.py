"""The canonical form of "reduce a strided tensor over some of its dimensions".

    shape, strides, the dimensions to reduce, the result's strides
      -> dimensions of size 1 dropped
      -> split into kept ones (source and destination stride) and reduced ones (source stride)
      -> each set ordered by the source's stride, largest first
      -> neighbours of a set merged wherever the strides allow it
      -> classified: inner   | outer  | strided | empty

    inner      reduced, innermost, contiguous:    x.sum(-1)           (kept..., [reduced...,] N)
    outer      kept, innermost, contiguous:       x.sum(0)            (kept..., reduced..., C)
    strided    neither

What the caller wrote does not matter any more: the sum of a transposed tensor over its first dimension *is* a sum
over the last one.  The order in which a row is added up is free, since every kernel adds in a tree of its own.

This is plain arithmetic on integers: no tensor is read, no GPU is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from forge_core.dims import normalize_dims, result_shape
from forge_core.errors import DimError, ShapeError

__all__ = ["MAX_ALIGN", "Dim", "Problem", "alignment_of", "check_not_empty", "normalize_dims", "result_shape"]

#: The widest access of a thread, in bytes; an alignment beyond it is not worth knowing.
MAX_ALIGN = 16


@dataclass(frozen=True)
class Dim:
    """One dimension: its size, its source stride, and its destination stride (0 where it is reduced), in elements."""

    size: int
    src: int
    dst: int = 0


def check_not_empty(op: str, shape: Sequence[int], dims: Sequence[int]) -> None:
    """Raises DimError where an extreme value of no elements is asked for."""
    for i in dims:
        if shape[i] == 0:
            raise DimError(
                op=op,
                argument="dim",
                expected="dimensions of non-zero size, since nothing has no largest or smallest element",
                got=f"dimension {i} of shape {tuple(shape)}",
            )


def alignment_of(address: int) -> int:
    """The largest power of two up to 16 that divides an address (or a distance) in bytes."""
    return MAX_ALIGN if address % MAX_ALIGN == 0 else address & -address


@dataclass(frozen=True)
class Problem:
    """A reduction of a strided tensor, in canonical form; make it with :meth:`make`.

    Attributes:
        kept: dimensions of the result, the source's largest stride first.
        reduced: dimensions that are reduced, likewise.
        itemsize: bytes of an element of the source.
        out_itemsize: bytes of an element of the result.
        src_align: what the source's first byte is aligned to, in bytes: a power of two up to 16.
        dst_align: the same of the destination.
        rows: elements of the result.
        count: elements that each of them is made of.
    """

    kept: tuple[Dim, ...]
    reduced: tuple[Dim, ...]
    itemsize: int
    out_itemsize: int
    src_align: int = MAX_ALIGN
    dst_align: int = MAX_ALIGN
    rows: int = 1
    count: int = 1

    @classmethod
    def make(
        cls,
        shape: Sequence[int],
        strides: Sequence[int],
        dims: Sequence[int],
        out_strides: Sequence[int],
        itemsize: int,
        out_itemsize: int,
        *,
        src_address: int = 0,
        dst_address: int = 0,
    ) -> Problem:
        """The canonical form of a reduction.

        Args:
            shape: sizes of the source.
            strides: its strides in elements; 0 where it is expanded.
            dims: the reduced dimensions, sorted, none negative.
            out_strides: the destination's strides in elements, one for each dimension that is kept.
            itemsize: bytes of an element of the source: 1, 2, 4 or 8.
            out_itemsize: bytes of an element of the destination.
            src_address: the source's first byte; only its alignment is kept.
            dst_address: the destination's first byte; 0 stands for a fresh allocation.

        Raises:
            ShapeError: the strides are not those of a result of these sizes.
        """
        places = [i for i in range(len(shape)) if i not in dims]
        if len(places) != len(out_strides):
            raise ShapeError(
                op="reduce", argument="out", expected=f"{len(places)} dimensions", got=f"{len(out_strides)} strides"
            )
        kept = [Dim(shape[i], strides[i], step) for i, step in zip(places, out_strides, strict=True)]
        reduced = [Dim(shape[i], strides[i]) for i in dims]
        return cls(
            kept=_canonical(kept),
            reduced=_canonical(reduced),
            itemsize=itemsize,
            out_itemsize=out_itemsize,
            src_align=alignment_of(src_address),
            dst_align=alignment_of(dst_address),
            rows=math.prod(d.size for d in kept),
            count=math.prod(d.size for d in reduced),
        )

    @classmethod
    def of(cls, x: torch.Tensor, dims: Sequence[int], out: torch.Tensor, keepdim: bool) -> Problem:
        """The reduction of ``x`` over ``dims`` into ``out``; only their metadata is read."""
        steps = [s for i, s in enumerate(out.stride()) if not (keepdim and i in dims)]
        return cls.make(
            x.shape,
            x.stride(),
            dims,
            steps,
            x.element_size(),
            out.element_size(),
            src_address=x.data_ptr(),
            dst_address=out.data_ptr(),
        )

    @property
    def kind(self) -> str:
        """``"empty"``, ``"inner"``, ``"outer"`` or ``"strided"``."""
        if self.count == 0 or self.rows == 0:
            return "empty"
        inner = self.reduced and self.reduced[-1].src == 1
        outer = self.kept and self.kept[-1].src == 1
        if inner and outer:  # Only overlapping views have both; the longer run makes the better accesses.
            return "inner" if self.reduced[-1].size >= self.kept[-1].size else "outer"
        return "inner" if inner else "outer" if outer else "strided"

    @property
    def read_bytes(self) -> int:
        """Bytes of the source that must be read at least: an expanded dimension is read once."""
        elements = math.prod(d.size if d.src else min(d.size, 1) for d in (*self.kept, *self.reduced))
        return elements * self.itemsize

    @property
    def written_bytes(self) -> int:
        """Bytes of the result."""
        return self.rows * self.out_itemsize

    def src_vector(self, distances: Sequence[int]) -> int:
        """Bytes of the widest access that every source address allows.

        Args:
            distances: in elements, every distance that the addresses are sums of.
        """
        return min(self.src_align, *(alignment_of(d * self.itemsize) for d in distances), MAX_ALIGN)


def _canonical(dims: Sequence[Dim]) -> tuple[Dim, ...]:
    """Without dimensions of size 1, ordered, merged; a size of 0 stands alone."""
    if any(d.size == 0 for d in dims):
        return (Dim(0, 1, 1),)
    # The destination's stride breaks ties, so that two spellings of one problem give one form.
    ordered = sorted((d for d in dims if d.size != 1), key=lambda d: (d.src, d.dst), reverse=True)
    merged: list[Dim] = []
    for dim in ordered:
        if merged:
            outer = merged[-1]
            if outer.src == dim.src * dim.size and outer.dst == dim.dst * dim.size:
                merged[-1] = Dim(outer.size * dim.size, dim.src, dim.dst)
                continue
        merged.append(dim)
    return tuple(merged)
