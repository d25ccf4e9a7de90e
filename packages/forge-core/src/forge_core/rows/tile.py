"""A thread's part of a tile of neighboring rows: some neighboring places, at each step an element of each.

The places of all threads lie side by side:

    places     p = thread * vec, ...      place p has row p % width of the tile, and there element p // width of a step
    shifted    all rows are contiguous memory, and the first place lies at the boundary before them
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, Uint32

from forge_core.cute.copy import copy_if, load_if, neighbors, store_if
from forge_core.rows.values import Piece

__all__ = ["Tile", "load_tile", "store_tile"]

# From so many elements of a row on, a vector does not reach beyond its end.
_FAR = 16


@dataclass(frozen=True)
class Tile:
    """Which elements a thread has.

    Attributes:
        kernel: the row kernel.
        width: rows.
        place: the thread's first place.
        groups: places of each row: elements of a row from step to step.
        length: elements of a row.
        column: the row of the first place, counted from the tile's first.
        start: its element of that row at step 0; of ``shifted`` ones negative where it has none before a later step.
        inside: whether the thread has rows.
        policy: the L2's, for what is loaded.
    """

    kernel: Any
    width: Int32
    place: Uint32
    groups: Int32
    length: Int32
    column: Int32
    start: Int32
    inside: Boolean
    policy: Int64

    @classmethod
    def of(
        cls,
        kernel: Any,
        base: dict[str, cute.Tensor],
        sizes: tuple[Int32, ...],
        length: Int32,
        left: Any,
        policy: Int64,
    ) -> Tile:
        """Of the first row of all that lie side by side; a tile's width, threads, groups; rows left."""
        width, threads, groups = sizes
        thread, vec, size = cute.arch.thread_idx()[0], kernel.vec, Uint32(width)
        place = first = Uint32(thread * vec)
        if kernel.align == "shifted":
            # Counted from vec * width places before, none is negative.
            first = place + (size * vec - Uint32(vec - kernel.head(base)) % vec)
        n = first // size
        column, start = Int32(first - n * size), Int32(n) - (vec if kernel.align == "shifted" else 0)
        return cls(kernel, width, place, groups, length, column, start, (thread < threads) & (column < left), policy)

    @property
    def shifted(self) -> bool:
        """Whether a thread's places may be of several elements of rows."""
        return bool(self.kernel.align == "shifted")

    def walk(self, first: Int32, n: Int32) -> tuple[list[Int32], list[Int32]]:
        """For each place its column and a number that steps at each new row, from those of the first one."""
        if not self.shifted:
            return [first + r for r in range(self.kernel.vec)], [n] * self.kernel.vec
        columns, numbers = [first], [n]
        for _ in range(1, self.kernel.vec):
            ended = columns[-1] + 1 == self.width
            columns.append(Int32(cutlass.select_(ended, 0, columns[-1] + 1)))
            numbers.append(Int32(cutlass.select_(ended, numbers[-1] + 1, numbers[-1])))
        return columns, numbers

    def columns(self) -> list[Int32]:
        """The rows of the thread's places, counted from the tile's first; of threads without rows that one."""
        columns = self.walk(self.column, Int32(0))[0]
        return [Int32(cutlass.select_(self.inside, column, 0)) for column in columns]

    def turns(self) -> list[Int32]:
        """Which of the places of its row each is."""
        size = Uint32(self.width)
        n = self.place // size
        return self.walk(Int32(self.place - n * size), Int32(n))[1]

    def elements(self, n: Int32) -> list[Int32]:
        """The elements of rows that the places have, where the first one has ``n``."""
        return self.walk(self.column, n)[1]

    def at(self, i: Int32, end: Int32) -> tuple[Int32, list[Any], Boolean, Boolean]:
        """At a step before ``end``: the first place's element; whether each place has one, all have, or only some."""
        n, vec = self.start + i * self.groups, self.kernel.vec
        inside = self.inside & (i < end)
        if not self.shifted:
            ok = inside & (n < self.length)
            return n, [ok] * vec, ok, Boolean(False)
        first = cutlass.max(-n, 0) * self.width - self.column
        last = cutlass.min(self.length - n, _FAR) * self.width - self.column
        whole = (first <= 0) & (vec <= last)
        some = inside & (first < vec) & (last > 0) & (whole == Boolean(False))
        return n, [inside & (r >= first) & (r < last) for r in range(vec)], inside & whole, some


def load_tile(tile: Tile, gs: list[dict[str, cute.Tensor]], begin: Int32, end: Int32) -> list[Piece]:
    """For each place a piece: its elements at ``chunks`` steps from ``begin`` on, before ``end``."""
    kernel, g, vec, chunks = tile.kernel, gs[0], tile.kernel.vec, tile.kernel.chunks
    columns = kernel.binding.program.operands.columns
    rX = {n: cute.make_rmem_tensor((vec, chunks), g[n].element_type) for n in kernel.binding.loaded}
    rW = {n: cute.make_rmem_tensor((chunks, vec), g[n].element_type) for n in columns}
    rInside, index = (cute.make_rmem_tensor((chunks, vec), dtype) for dtype in (Boolean, Int32))
    for name, r in rX.items():
        r.fill(kernel.nothing(name, g))
    for c in range(chunks):
        n, ok, whole, some = tile.at(begin + c, end)
        elements = tile.elements(n)
        for name, rX_n in rX.items():
            load_if(g[name], n, rX_n[None, c], whole, tile.policy)
            if tile.shifted:
                _load_edge(rX_n[None, c], neighbors(g[name], n, vec), ok, some)
        for r in range(vec):
            rInside[c, r], index[c, r] = ok[r], elements[r]
            for name, rW_n in rW.items():
                # Never past the row: what is outside reads its first element, and is not used.
                x = g[name][cutlass.select_(ok[r], elements[r], 0)]
                rW_n[c, r] = cutlass.select_(ok[r], x, kernel.nothing(name, g))
    pieces = []
    for r in range(vec):
        registers = {n: partial(_row, x, r) for n, x in rX.items()} | {n: w[None, r].load for n, w in rW.items()}
        inside = rInside[None, r].load()
        pieces.append(kernel.piece(gs[r], registers, index[None, r].load, inside, chunks, store=None))
    return pieces


def store_tile(
    tile: Tile, g: dict[str, cute.Tensor], pieces: list[Piece], constants: list[Any], begin: Int32, end: Int32
) -> None:
    """Computes and writes the outputs at the places of some pieces; ``g`` is the row of the first one."""
    program, vec, chunks = tile.kernel.binding.program, tile.kernel.vec, tile.kernel.chunks
    rY = {n: cute.make_rmem_tensor((vec, chunks), g[n].element_type) for n in program.operands.writes}
    for r in range(vec):
        for (name, rY_n), y in zip(rY.items(), program.map(pieces[r], constants[r]), strict=True):
            out = y.to(g[name].element_type)
            for c in range(chunks):
                rY_n[r, c] = out[c]
    for c in range(chunks):
        n, ok, whole, some = tile.at(begin + c, end)
        for name, rY_n in rY.items():
            gY = neighbors(g[name], n, vec)
            copy_if(rY_n[None, c], gY, whole)
            if tile.shifted:
                _store_edge(rY_n[None, c], gY, ok, some)


@cute.jit
def _load_edge(rX: cute.Tensor, gX: cute.Tensor, ok: list, some: Boolean):
    """Of a vector that reaches across the begin or the end of all rows, what is inside."""
    if some:
        for r in cutlass.range_constexpr(len(ok)):
            if ok[r]:
                rX[r] = gX[r]


@cute.jit
def _store_edge(rY: cute.Tensor, gY: cute.Tensor, ok: list, some: Boolean):
    if some:
        for r in cutlass.range_constexpr(len(ok)):
            store_if(gY, r, rY[r], ok[r])


def _row(rX: cute.Tensor, r: int) -> Any:
    """The elements of one place."""
    rRow = cute.make_rmem_tensor(rX.shape[1], rX.element_type)
    for c in range(rX.shape[1]):
        rRow[c] = rX[r, c]
    return rRow.load()
