"""Neighboring threads have neighboring rows: for rows that are not contiguous, as in softmax(x, 0).

A block has a tile of ``lanes * vec`` neighboring rows, and its threads walk down them:

                 rows ->  lane 0    lane 1   ...      a thread reads ``vec`` rows at once, 16 bytes where it can
    group 0      n = 0    [16 B]    [16 B]
    group 1      n = 1    [16 B]    [16 B]            each place of the 16 bytes is a row of its own, with totals of
      ...                                             its own
    group 0      n = G    [16 B]    [16 B]   ...      chunk 1 of the same threads

    exchange     lanes of a warp that have the same rows: shuffles; warps: shared memory

Bytes moved: rows of at most ``capacity`` elements stay in registers, read once and written once; longer rows are read
twice.

Limits: few and very long rows leave most of the GPU idle, for a tile of rows has one block.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, Uint32, const_expr
from cutlass.memory import SmemAllocator

from forge_core.cache import Traceable, compile_cached
from forge_core.cute.copy import store_if
from forge_core.cute.memory import name_kernel
from forge_core.cute.monoid import Monoid
from forge_core.cute.room import room_for
from forge_core.cute.warp import WARP, reduce_lanes
from forge_core.rows.config import ColumnConfig
from forge_core.rows.kernel import RowKernel, example_arguments
from forge_core.rows.values import Piece

__all__ = ["Column", "build"]


class Column(ColumnConfig, RowKernel):
    """The kernel of a configuration."""

    @cute.jit
    def __call__(self, *args: Any):
        """Launches a block for each tile of rows; ``args`` as ``RowKernel.split`` takes them."""
        pointers, length, _, dims, numbers = self.split(args)
        inner = dims[(self.rank - 1) * (1 + len(pointers))]
        tiles = (inner + (self.tile - 1)) // self.tile
        name_kernel(self.kernel, self.kernel_name)
        self.kernel(pointers, Int32(length), dims, numbers, Uint32(tiles)).launch(
            grid=(Int32(self.rows_of(dims) // inner * tiles), 1, 1),
            block=(self.threads, 1, 1),
            stream=args[-1],
            **room_for(self.resident),
        )

    @cute.kernel
    def kernel(self, pointers: tuple, length: Int32, dims: tuple, numbers: tuple, tiles: Uint32):
        program, names, passes = self.binding.program, self.binding.program.operands, self.passes
        smem, each = SmemAllocator(), 1 + len(pointers)
        m = self.operands(pointers, length, dims)
        thread, block = cute.arch.thread_idx()[0], Uint32(cute.arch.block_idx()[0])
        lane, group = thread % self.lanes, thread // self.lanes
        inner = dims[(self.rank - 1) * each]

        # This thread's first row.  Threads beyond the last row stand in the first one and write nothing.
        column = Int64(block % tiles) * self.tile + lane * self.vec
        inside = column < inner
        first = Int64(block // tiles) * inner + cutlass.select_(inside, column, Int64(0))
        lines = [self.line(m, first + r) for r in range(self.vec)]
        known = [self.known(m, line, at, length, numbers) for line, at in lines]

        step = self.capacity
        turns = Int32(1) if const_expr(self.held) else (length + (step - 1)) // step
        held = self.load(lines, group, length)
        totals = [() for _ in range(self.vec)]
        for p in cutlass.range_constexpr(len(passes)):
            folds, monoid = passes[p]
            rAcc = [cute.make_rmem_tensor(self.vec, dtype) for dtype in monoid.types]
            self.put(rAcc, [self.fold_each(folds, [held[r]], known[r], totals[r]) for r in range(self.vec)])
            if const_expr(not self.held):
                for turn in cutlass.range(1, turns, unroll=1):
                    more = self.load(lines, group + turn * step, length)
                    found = [self.fold_each(folds, [more[r]], known[r], totals[r]) for r in range(self.vec)]
                    self.put(rAcc, [monoid.combine(self.get(rAcc, r), found[r]) for r in range(self.vec)])
            self.exchange(smem, rAcc, monoid, thread, lane)
            totals = [(*totals[r], *self.get(rAcc, r)) for r in range(self.vec)]

        constants = [program.constants(totals[r], known[r]) for r in range(self.vec)]
        if const_expr(len(names.results) > 0):
            for r in cutlass.range_constexpr(self.vec):
                results = program.results(constants[r], known[r])
                for i in cutlass.range_constexpr(len(names.results)):
                    store_if(m[names.results[i]], (lines[r][1],), results[i], inside & (group == 0))
        if const_expr(len(names.writes) > 0):
            self.store(lines, held, constants, group, length, inside)
            if const_expr(not self.held):
                for turn in cutlass.range(1, turns, unroll=1):
                    begin = group + turn * step
                    self.store(lines, self.load(lines, begin, length), constants, begin, length, inside)

    def load(self, lines: list[Any], begin: Int32, length: Int32) -> list[Piece]:
        """For each of this thread's rows, the elements ``begin``, ``begin + groups``, ...: a piece of each row."""
        names, line = self.binding.program.operands, lines[0][0]
        groups = self.threads // self.lanes
        rInside = cute.make_rmem_tensor(self.chunks, Boolean)
        rX = {n: cute.make_rmem_tensor((self.vec, self.chunks), line[n].element_type) for n in self.binding.loaded}
        rW = {n: cute.make_rmem_tensor(self.chunks, line[n].element_type) for n in names.columns}
        for c in range(self.chunks):
            n = begin + c * groups
            rInside[c] = n < length
            own = Int32(cutlass.select_(n < length, n, 0))
            for name, r in rX.items():
                rX_c = cute.make_rmem_tensor(self.vec, r.element_type)
                cute.autovec_copy(self.beside(line[name], own), rX_c)
                for i in range(self.vec):
                    r[i, c] = cutlass.select_(rInside[c], rX_c[i], self.nothing(name, line))
            for name, r in rW.items():
                r[c] = cutlass.select_(rInside[c], line[name][own], self.nothing(name, line))
        index = cute.make_rmem_tensor(self.chunks, Int32)
        for c in range(self.chunks):
            index[c] = begin + c * groups
        pieces = []
        for i in range(self.vec):
            registers = {n: partial(_row, r, i) for n, r in rX.items()} | {n: r.load for n, r in rW.items()}
            pieces.append(self.piece(lines[i][0], registers, index.load, rInside.load(), self.chunks, store=None))
        return pieces

    def store(
        self, lines: list[Any], pieces: list[Piece], constants: list[Any], begin: Int32, length: Int32, inside: Boolean
    ) -> None:
        """Computes and writes the outputs at the places of some pieces."""
        names, line = self.binding.program.operands, lines[0][0]
        rY = {n: cute.make_rmem_tensor((self.vec, self.chunks), line[n].element_type) for n in names.writes}
        for i in range(self.vec):
            for name, y in zip(names.writes, self.binding.program.map(pieces[i], constants[i]), strict=True):
                out = y.to(line[name].element_type)
                for c in range(self.chunks):
                    rY[name][i, c] = out[c]
        for c in range(self.chunks):
            n = begin + c * (self.threads // self.lanes)
            for name, r in rY.items():
                _copy_if(
                    r[None, c], self.beside(line[name], Int32(cutlass.select_(n < length, n, 0))), inside & (n < length)
                )

    def beside(self, row: cute.Tensor, n: Int32) -> cute.Tensor:
        """Element ``n`` of this thread's neighboring rows."""
        dtype = row.element_type
        at = row.iterator + cute.crd2idx(n, row.layout)
        align = min(16, self.vec * dtype.width // 8)
        pointer = cute.make_ptr(dtype, at.toint(), row.memspace, assumed_align=align)
        return cute.make_tensor(pointer, cute.make_layout(self.vec))

    def put(self, rAcc: list[cute.Tensor], accs: list[tuple[Any, ...]]) -> None:
        """Keeps the accumulator of each row."""
        for r, acc in enumerate(accs):
            for part, value in enumerate(acc):
                rAcc[part][r] = value

    def get(self, rAcc: list[cute.Tensor], r: int) -> tuple[Any, ...]:
        """The accumulator of one row."""
        return tuple(part[r] for part in rAcc)

    def exchange(
        self, smem: SmemAllocator, rAcc: list[cute.Tensor], monoid: Monoid, thread: Int32, lane: Int32
    ) -> None:
        """Every thread gets the totals of its rows, over the whole block."""
        warps = self.threads // WARP
        among = [reduce_lanes(self.get(rAcc, r), monoid, WARP // self.lanes, self.lanes) for r in range(self.vec)]
        self.put(rAcc, among)
        if warps == 1:
            return
        layout = cute.make_layout((self.vec, self.lanes, warps))
        sAcc = [smem.allocate_tensor(dtype, layout, byte_alignment=16) for dtype in monoid.types]
        for part, s in enumerate(sAcc):
            _publish(rAcc[part], s, lane, thread // WARP, thread % WARP < self.lanes)
        cute.arch.sync_threads()
        for r in range(self.vec):
            acc = tuple(s[r, lane, 0] for s in sAcc)
            for warp in range(1, warps):
                acc = monoid.combine(acc, tuple(s[r, lane, warp] for s in sAcc))
            for part, value in enumerate(acc):
                rAcc[part][r] = value


def _row(rX: cute.Tensor, i: int) -> Any:
    """One row's elements among those of neighboring rows."""
    rRow = cute.make_rmem_tensor(rX.shape[1], rX.element_type)
    for c in range(rX.shape[1]):
        rRow[c] = rX[i, c]
    return rRow.load()


@cute.jit
def _publish(rAcc: cute.Tensor, sAcc: cute.Tensor, lane: Int32, warp: Int32, when: Boolean):
    if when:
        for r in cutlass.range_constexpr(cute.size(rAcc)):
            sAcc[r, lane, warp] = rAcc[r]


@cute.jit
def _copy_if(rY: cute.Tensor, gY: cute.Tensor, when: Boolean):
    if when:
        cute.autovec_copy(rY, gY)


@compile_cached
def build(config: ColumnConfig) -> Traceable:
    """What to compile for a configuration."""
    return Traceable(Column(**vars(config)), example_arguments(config), name=config.kernel_name)
