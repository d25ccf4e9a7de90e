"""Base of the row kernels: from launch arguments to tensors, and the arithmetic of a row's pieces.

A row of an operand, or a column operand, is a tensor ``gX`` of (length); a scalar or a result is one of (1).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce
from typing import Any

import cutlass
import cutlass.cute as cute
import torch
from cutlass import Boolean, Float64, Int32, Int64, Uint32

from forge_core.cache import CompileCached
from forge_core.cute import memory
from forge_core.cute.copy import store_if
from forge_core.cute.exchange import Exchange, reduce_row
from forge_core.cute.math import step_dims
from forge_core.cute.memory import GLOBAL, builder, launch_bounds
from forge_core.cute.monoid import Monoid
from forge_core.cute.warp import reduce_lanes, reduce_part
from forge_core.dtypes import cute_dtype
from forge_core.rows.config import RowConfig
from forge_core.rows.folds import FOLDS, across, counted, identity, jointly, masked, merge_of
from forge_core.rows.pieces import Pieces
from forge_core.rows.program import Fold
from forge_core.rows.values import Piece, Row, fetch_ahead


class RowKernel(Pieces):
    """Base of kernels: each inherits from its configuration class too, and is made of a configuration's fields."""

    # ------------------------------------------------------------------------------------------------- arguments

    def unpack(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments of a launch as pointers, row length, sizes, dims and numbers.

        ``args``: pointers in the order of the binding, then that of the workspace if there is one; the row length; the
        sizes, such as threads per block; for each kept dim, outermost first, its size and its stride in each operand;
        the same for each of ``reduced`` dims; the numbers, as float64; the launch's unique number if it has one; the
        stream.  Plain Python, so that tools call it with integers.
        """
        names = self.binding.operands
        count, pointers = len(names.tensors), args[: names.pointers]
        if names.paired:
            parts = enumerate(self.binding.order or names.tensors)
            pointers = tuple(pointers[i // 2] + i % 2 * self.binding.dtype(name).itemsize for i, name in parts)
        at = names.pointers + self.workspace
        first = at + 1 + self.sizes
        end = first + (self.rank + self.reduced) * (1 + count)
        sizes = args[at + 1 : first] if self.sizes > 1 else args[at + 1] if self.sizes else self.threads
        return pointers, args[at], sizes, args[first:end], args[end : -1 - self.in_grid]

    def scratch(self, args: Sequence[Any]) -> Any:
        """The address of the workspace."""
        return args[self.binding.operands.pointers].toint()

    def rows_of(self, dims: Sequence[Any]) -> Any:
        """The number of rows."""
        return reduce(operator.mul, [size for size, *_ in grouped(self, dims)[: self.rank]])

    def resources(self, threads: Any) -> dict[str, Any]:
        """Launch bounds and bytes of shared memory, for blocks of ``threads`` threads."""
        return {**launch_bounds(self.resident), "smem": self.shared(threads)}

    def nested(self, dims: Sequence[Any], *, first: bool = False) -> Int32:
        """1 if all kept dims but the outermost have size 1: made on the host, it spares a kernel reads of constants.

        ``first``: as of :meth:`row_of`, for which the innermost may have another size, too.
        """
        found = reduce(operator.or_, [size for size, *_ in grouped(self, dims)[1 : self.rank - first]], 1)
        return Int32(found & 2**31 - 1 if isinstance(found, int) else found)

    def row_of(
        self, pointers: Any, length: Any, dims: Any, row: Int64, *, first: bool = False, nested: Int32 | None = None
    ) -> dict[str, Any]:
        """A row of each operand as a tensor; with ``first`` the first of the neighboring rows that contain it.

        ``nested``: see :meth:`nested`.
        """
        names, each = self.binding.operands, grouped(self, dims)
        kept, reduced = each[: self.rank - first], each[self.rank :]
        address = dict(zip(self.binding.order or names.tensors, pointers, strict=True))
        per_row = [i for i, name in enumerate(names.tensors) if name not in names.columns + names.accumulates]
        # 32-bit dims: a grid has fewer than 2^31 blocks, and more rows than that are read by lanes and have one dim.
        rest, offsets = row, tuple(Int64(0) for _ in per_row)
        if len(kept) > 1:
            others = tuple((size, tuple(strides[i] for i in per_row)) for size, *strides in kept[:0:-1])
            one = nested if nested is not None else reduce(operator.or_, [Uint32(size) for size, _ in others])
            rest, offsets = step_dims(rest, others, offsets, one)
        begins = {i: offset + rest * kept[0][1 + i] for i, offset in zip(per_row, offsets, strict=True)} if kept else {}
        tensors = {}
        for i, name in enumerate(names.tensors):
            # A bool is a byte of 0 or 1.
            dtype = cute_dtype(self.binding.dtype(name)) if self.binding.dtype(name) != torch.bool else cutlass.Uint8
            start = cute.make_ptr(dtype, address[name].toint(), GLOBAL, assumed_align=max(dtype.width // 8, 1))
            shape: tuple[Any, Any] = (length, int(name not in self.binding.broadcast))
            if reduced:
                # CuTe's coordinate order: the innermost dim first.
                shape = tuple(d[0] for d in reduced[::-1]), tuple(d[1 + i] for d in reduced[::-1])
            along = name in names.elementwise + names.accumulates
            layout = cute.make_layout(shape[0], stride=shape[1]) if along else cute.make_layout(1)
            tensors[name] = cute.make_tensor(start + begins.get(i, 0), layout)
        return tensors

    def neighbor(self, g: dict[str, cute.Tensor], dims: Sequence[Any], column: Int64) -> dict[str, cute.Tensor]:
        """The row at an offset of ``column`` rows along the innermost kept dim."""
        _, *strides = grouped(self, dims)[self.rank - 1]
        return {
            name: t if name in self.binding.operands.columns else cute.make_tensor(t.iterator + column * n, t.layout)
            for (name, t), n in zip(g.items(), strides, strict=True)
        }

    def row_values(self, g: dict[str, cute.Tensor], count: Any, numbers: Any) -> Row:
        """The values of a row that a program can use."""
        names, compute = self.binding.operands, cute_dtype(self.binding.compute)
        scalars = {n: g[n][0] for n in names.scalars} | dict(zip(names.numbers, numbers, strict=True))
        scalars = {n: s.to(compute) if type(s).is_float else s for n, s in scalars.items()}
        return Row(self.binding, compute(count), g, scalars)

    # ------------------------------------------------------------------------------------------------ arithmetic

    @property
    def masks(self) -> bool:
        """Whether folds must be masked because row operands are broadcast or integers, without ``outside``."""
        binding = self.binding
        return bool(binding.broadcast) or not all(binding.dtype(n).is_floating_point for n in binding.loaded)

    def monoid(self, fold: Fold) -> Monoid:
        """The monoid of a fold."""
        return FOLDS[fold.op][0](cute_dtype(self.binding.compute))

    def merge(self) -> Monoid:
        """The monoid that combines all totals at once."""
        return merge_of(self.binding.program, cute_dtype(self.binding.compute))

    def fold_each(
        self, folds: tuple[Fold, ...], pieces: list[Piece], row: Row, totals: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """Folds pieces by all folds of one pass."""
        if self.binding.program.joint:
            return jointly(folds, pieces, row, self.merge())
        own: tuple[Any, ...] = ()
        for fold in folds:
            own = (*own, self.fold(fold, pieces, row, totals + own))
        return own

    def fold(self, fold: Fold, pieces: list[Piece], row: Row, totals: tuple[Any, ...]) -> Any:
        """Folds a thread's pieces: sums elementwise over vectors, then within the vector."""
        compute = cute_dtype(self.binding.compute)
        if fold.op == "count":
            return counted(pieces, compute)
        combine = self.monoid(fold).combine
        sums: list[Any] = []
        found: list[Any] = []
        for i, v in enumerate(pieces):
            fetch_ahead(pieces, i, pieces[0].ahead)
            term = fold.term(v, row, *totals)
            if fold.masked or self.masks or not term.dtype.is_float:
                term = masked(v, term, identity(fold, term.dtype))
            # Accumulate at once instead of keeping terms in registers.
            if fold.op == "sum" and sums and sums[-1].shape == term.shape:
                sums[-1] = sums[-1] + term
            elif fold.op == "sum":
                sums.append(term)
            else:
                one = (across(fold, term, compute),)
                found = [combine(found[0], one)] if found else [one]
        for v in pieces:
            v.ahead = {}
        return reduce(combine, [*found, *((across(fold, x, compute),) for x in sums)])[0]

    def write_results(self, g: dict[str, cute.Tensor], constants: Any, row: Row, when: Boolean) -> None:
        """Computes and writes the outputs with one element per row, if ``when``."""
        names = self.binding.operands.results
        if names:
            for name, y in zip(names, self.binding.program.results(constants, row), strict=True):
                store_if(g[name], 0, y, when)

    def map(self, pieces: list[Piece], constants: Any) -> None:
        """Computes and writes the outputs of pieces."""
        names = self.binding.operands
        for i, v in enumerate(pieces):
            fetch_ahead(pieces, i, names.columns)
            outs = self.binding.program.map(v, constants)
            for name, y in zip(names.writes, outs, strict=True):
                v.store(name, y)


class SharedRowKernel(RowKernel):
    """Mixin of configurations of kernels whose threads share rows on chip."""

    lanes: int  # per row; 0 for all threads of one or several blocks

    def exchanged(self) -> tuple[Monoid, ...]:
        """The monoid of each exchange; none with lanes, which use shuffles."""
        folds = [fold for fold in self.binding.program.folds if self.sized and (self.merges or fold.op != "count")]
        return (self.merge(),) if self.merges and folds else tuple(map(self.monoid, folds))

    def of_lanes(self, total: Any, fold: Fold) -> Any:
        """Reduces over the lanes of a row."""
        return reduce_part(total, self.monoid(fold), self.lanes)

    def reduce(self, pieces: list[Piece], row: Row, exchange: Sequence[Exchange], zero: Uint32) -> tuple[Any, ...]:
        """The totals of a row, in all threads that share it.

        With a merge (``merges``), folds see the totals of the thread's own elements, and one exchange follows the last
        fold.  Lanes reduce each total before the next fold instead, without an exchange.

        Args:
            pieces: the thread's elements.
            row: values of the row.
            exchange: an exchange for each monoid of :meth:`exchanged`; none for the totals of a thread, with a merge.
            zero: 0, of which the compiler knows only that it is 0 or 1.
        """
        program = self.binding.program
        totals: tuple[Any, ...] = ()
        if program.joint:
            totals, monoid = self.fold_each(program.folds, pieces, row, totals), self.merge()
            return reduce_row(totals, monoid, exchange[0]) if self.sized else reduce_lanes(totals, monoid, self.lanes)
        merged, exchanges = self.merges and self.sized and len(program.folds) > 0, iter(exchange)
        for i, fold in enumerate(program.folds):
            if i > 0 and program.folds[i - 1].op != "count":
                self.drop_conversions(pieces, totals, zero << i)
            total = self.fold(fold, pieces, row, totals)
            if not merged and fold.op == "count":
                total = row.count
            elif not self.sized:
                total = self.of_lanes(total, fold)
            elif not merged:
                (total,) = reduce_row((total,), self.monoid(fold), next(exchanges))
            totals = (*totals, total)
        return reduce_row(totals, self.merge(), exchange[0]) if merged and exchange else totals


def grouped(config: RowConfig, dims: Sequence[Any]) -> list[Sequence[Any]]:
    """The size and the strides of each dim of a launch, the kept ones first."""
    each = 1 + len(config.binding.operands.tensors)
    return [dims[i * each : (i + 1) * each] for i in range(config.rank + config.reduced)]


def row_builder(kernel: type[RowConfig]) -> CompileCached[Any]:
    """The ``build`` of a kernel's module."""
    return builder(kernel, arguments=example_arguments)


def example_arguments(config: RowConfig) -> tuple[Any, ...]:
    """Placeholder arguments for tracing, in the order of :meth:`RowKernel.unpack`."""
    names = config.binding.operands
    integers = 1 + config.sizes + (config.rank + config.reduced) * (1 + len(names.tensors))
    *given, stream = memory.example_arguments(pointers=names.pointers + config.workspace, wide=integers)
    return (*given, *(Float64(0) for _ in names.numbers), *(Int64(1) for _ in range(config.in_grid)), stream)
