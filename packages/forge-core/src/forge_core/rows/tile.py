"""A thread's part of a tile of neighboring rows: ``vec`` neighboring *places*, with an element each at every step.

The places of all threads of a block are contiguous:

    places     p = thread * vec, ...      place p is row p % width of the tile, and element p // width of a step
    shifted    all rows together are contiguous memory, and place 0 is the 16-byte boundary before them
    skewed     a thread's places begin at the 16-byte boundary before its row, the same at all steps, since a step
               advances by a multiple of ``vec`` elements of rows.  A tile has ``width - vec`` rows; places before its
               first and after its last row are outside
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, Uint32
from cutlass.memory import SmemAllocator

from forge_core.cute.copy import copy_if, head_elements, load_if, neighbors, stepping
from forge_core.cute.exchange import Places
from forge_core.cute.memory import elements_at
from forge_core.rows.values import Piece

# Elements from a row's end within which a vector may reach beyond it.
_FAR = 16
# Rows of a thread whose outputs are read from shared memory at once.
_AT_ONCE = 4


@dataclass(frozen=True)
class Tile:
    """The elements of a thread."""

    kernel: Any  # the row kernel
    width: Int32  # places per element index, a place for each row of the tile
    place: Int32  # the thread's first place
    rounds: Int32  # ``place // width``
    groups: Int32  # elements of a row per step
    along: Any  # divisor by the size of the inner one of two reduced dims; otherwise None
    length: Int32  # elements per row
    column: Int32  # ``place % width``
    #: Element index of the first place at step 0; for ``shifted`` rows negative if its first element comes at a later
    #: step.
    start: Int32
    first: Int32  # row of the first place, relative to the tile; for ``skewed`` rows negative if it has none
    inside: Boolean  # whether the thread has rows
    policy: Int64  # L2 cache policy of loads
    own: tuple[Int32, Int32]  # for ``skewed`` rows, the range [first, last) of places that have a row of the tile
    near: tuple[Int32, Int32]  # the same of places that have a row of any tile, and may be loaded

    @classmethod
    def of(
        cls, kernel: Any, g: dict[str, cute.Tensor], sizes: tuple[Any, ...], length: Int32, rows: Any, policy: Int64
    ) -> Tile:
        """The tile that begins at the row ``g``, given numbers of rows before that row, and from it on.

        ``sizes``: ``width`` with its divisor, ``along``, rows per tile, threads with elements, and ``groups``.
        """
        (width, divisor, along, most, threads, groups), (before, left) = sizes, rows
        thread, vec = cute.arch.thread_idx()[0], kernel.vec
        place = thread * vec
        rounds, column = divmod(place, divisor)
        n = rounds
        if kernel.align == "shifted":
            # Offset by vec * width places, so that the dividend is not negative.
            n, column = divmod(place + width * vec - Int32(Uint32(vec - kernel.head(g)) % vec), divisor)
        first = column
        own = near = (Int32(0), Int32(vec))
        if kernel.align == "skewed":
            row = neighbors(g[kernel.narrowest], Int32(n), vec=1)
            first = column - Int32(Uint32(vec - head_elements(row, vec)) % vec)
            own = -first, Int32(cutlass.min(left, Int64(most)) - first)
            near = Int32(cutlass.max(-before, Int64(-vec)) - first), Int32(cutlass.min(left, Int64(2**30)) - first)
        start = n - (vec if kernel.align == "shifted" else 0)
        inside = (thread < threads) & (first < left)
        first = Int32(cutlass.select_(inside, first, 0))
        return cls(kernel, width, place, rounds, groups, along, length, column, start, first, inside, policy, own, near)

    @property
    def ragged(self) -> bool:
        """Whether a thread's vector may be partly outside."""
        return self.kernel.align in ("shifted", "skewed")

    def walk(self, first: Int32, n: Int32) -> tuple[list[Int32], list[Int32]]:
        """For each place its column, and a number that increases at each wrap of the column."""
        if self.kernel.align != "shifted":
            return [first + r for r in range(self.kernel.vec)], [n] * self.kernel.vec
        columns, numbers = [first], [n]
        for _ in range(1, self.kernel.vec):
            ended = columns[-1] + 1 == self.width
            columns.append(Int32(cutlass.select_(ended, 0, columns[-1] + 1)))
            numbers.append(Int32(cutlass.select_(ended, numbers[-1] + 1, numbers[-1])))
        return columns, numbers

    def has_row(self) -> list[Boolean]:
        """For each place, whether it has a row of the tile."""
        if self.kernel.align != "skewed":
            return [self.inside] * self.kernel.vec
        return [self.inside & (r >= self.own[0]) & (r < self.own[1]) for r in range(self.kernel.vec)]

    def columns(self) -> list[Int32]:
        """For each place its row, relative to the tile; 0 for places without one."""
        rows = zip(self.has_row(), self.walk(self.first, Int32(0))[0], strict=True)
        return [Int32(cutlass.select_(has_row, row, 0)) for has_row, row in rows]

    @property
    def places(self) -> Places:
        """The places as exchanges take them."""
        if self.kernel.align == "skewed":
            first = self.place - self.column + self.first
            return Places(self.width, self.groups, first, self.columns(), self.has_row())
        rows = self.walk(self.place - self.rounds * self.width, Int32(0))[0]
        return Places(self.width, self.groups, self.place, rows, [])

    def slot(self, row: Int32) -> Int32:
        """Where an exchange has the total of a row: at ``row``, turned by the first place of a ``shifted`` tile."""
        if self.kernel.align != "shifted":
            return row
        at = row - self.column + self.place - self.rounds * self.width
        at = at + cutlass.select_(at < 0, self.width, 0)
        return Int32(at - cutlass.select_(at >= self.width, self.width, 0))

    def first_of_row(self) -> list[Boolean]:
        """For each place, whether it is the first of its row, which one place is."""
        rounds = self.walk(self.place - self.rounds * self.width, self.rounds)[1]
        return [has_row & (wraps == 0) for has_row, wraps in zip(self.has_row(), rounds, strict=True)]

    def elements(self, n: Int32) -> list[Int32]:
        """For each place its element index, where the first has ``n``."""
        return self.walk(self.column, n)[1]

    def coordinate(self, n: Int32) -> Any:
        """The coordinate of an element index, which is faster split here than by its layout."""
        return n if self.along is None else divmod(n, self.along)[::-1]

    def stop(self, end: Int32) -> Int32:
        """``end``, or of rows read by element the step behind this thread's last: a row ends in the last step alone.

        That saves instructions of each element.  Vectors are few, and another register would cost a resident block.
        """
        if self.kernel.align != "element":
            return end
        beyond = self.start + (end - 1) * self.groups >= self.length
        return Int32(cutlass.select_(self.inside, end - Int32(beyond), 0))

    def at(self, i: Int32, stop: Int32, places: tuple[Int32, Int32]) -> tuple[Int32, list[Any], Boolean, Boolean]:
        """At a step: the first place's element index; predicates: each place, all places, some but not all places.

        ``places`` is ``own`` or ``near``.
        """
        n, vec = self.start + i * self.groups, self.kernel.vec
        inside = i < stop
        if self.kernel.align != "element":
            inside = self.inside & inside
        if self.kernel.align in ("whole", "skewed"):
            inside = inside & (n < self.length)
        if self.kernel.align != "shifted":
            first, last = places
        else:
            first = cutlass.max(-n, 0) * self.width - self.column
            last = cutlass.min(self.length - n, _FAR) * self.width - self.column
        if not self.ragged:
            return n, [inside] * vec, inside, Boolean(False)
        whole, some = (first <= 0) & (vec <= last), inside & (first < vec) & (last > 0)
        if self.kernel.align == "skewed" and places is self.near:
            # Vectors are loaded with elements of rows beside the tile, except before the first and after the last
            # element of memory: otherwise threads at the ends would load single elements, one latency after another.
            inner = (n > 0) & (n + 1 < self.length)
            whole = (first < vec) & (last > 0) & (inner | whole)
        some = some & (whole == Boolean(False))
        return n, [inside & (r >= first) & (r < last) for r in range(vec)], inside & whole, some


def load_tile(
    tile: Tile, g: dict[str, cute.Tensor], gs: list[dict[str, cute.Tensor]], begin: Int32, end: Int32
) -> list[Piece]:
    """Loads a piece for each place: its elements at ``chunks`` steps from ``begin``, before ``end``.

    ``g`` is the row of the thread's first place, inside or not, ``gs`` the rows of its places.
    """
    kernel, vec, chunks = tile.kernel, tile.kernel.vec, tile.kernel.chunks
    columns = kernel.binding.operands.columns
    rX = {n: kernel.filled((vec, chunks), n, g) for n in kernel.binding.loaded}
    rW = {n: cute.make_rmem_tensor((chunks, vec), g[n].element_type) for n in columns}
    stop = tile.stop(end)
    apart = vec == 1 and kernel.reduced == 1  # several dims have no stride from one step to the next
    gX = {n: stepping(g[n], tile.start + begin * tile.groups, vec, tile.groups, chunks) for n in rX if apart}
    rInside, index = (cute.make_rmem_tensor((chunks, vec), dtype) for dtype in (Boolean, Int32))
    for c in range(chunks):
        n, ok, whole, some = tile.at(begin + c, stop, tile.near)
        elements, at = tile.elements(n), [tile.coordinate(n)]
        if columns:  # elements outside read the row's first element, which is not used
            at = [tile.coordinate(Int32(cutlass.select_(ok[r], elements[r], 0))) for r in range(vec)]
        for name, rX_n in rX.items():
            each = gX[name][None, c] if apart else neighbors(g[name], n if vec > 1 else at[0], vec)
            load_if(each, rX_n[None, c], whole, tile.policy)
            if tile.ragged:
                _copy_edge(each, rX_n[None, c], ok, some)
        for r in range(vec):
            rInside[c, r], index[c, r] = ok[r], elements[r]
            for name, rW_n in rW.items():
                x = g[name][at[r]]
                rW_n[c, r] = cutlass.select_(ok[r], x, kernel.fill_value(name, g))
    pieces = []
    for r in range(vec):
        registers = {n: partial(_row, x, r) for n, x in rX.items()} | {n: w[None, r].load for n, w in rW.items()}
        inside = rInside[None, r].load()
        pieces.append(kernel.piece(gs[r], registers, index[None, r].load, inside, chunks, store=None))
    return pieces


def store_tile(
    tile: Tile, g: dict[str, cute.Tensor], pieces: list[Piece], constants: list[Any], begin: Int32, end: Int32
) -> None:
    """Computes and writes the outputs of pieces; ``g`` is the row of the first place."""
    binding, vec, chunks = tile.kernel.binding, tile.kernel.vec, tile.kernel.chunks
    rY = {n: cute.make_rmem_tensor((vec, chunks), g[n].element_type) for n in binding.operands.writes}
    for r in range(vec):
        for (name, rY_n), y in zip(rY.items(), binding.program.map(pieces[r], constants[r]), strict=True):
            out = y.to(g[name].element_type)
            for c in range(chunks):
                rY_n[r, c] = out[c]
    stop = tile.stop(end)
    for c in range(chunks):
        n, ok, whole, some = tile.at(begin + c, stop, tile.own)
        for name, rY_n in rY.items():
            gY = neighbors(g[name], tile.coordinate(n), vec)
            copy_if(rY_n[None, c], gY, whole)
            if tile.ragged:
                _copy_edge(rY_n[None, c], gY, ok, some)


def writer(tile: Tile, g: dict[str, cute.Tensor], smem: SmemAllocator, row: Any, left: Int64) -> Any:
    """:func:`store_tile` of a tile, or a function that writes outputs along the rows.

    ``g`` is the row of the thread's first place, ``row(r)`` row ``r`` of the tile, of ``left`` rows to the last.
    """
    kernel, names = tile.kernel, tile.kernel.binding.operands.writes
    if not kernel.transposes:
        return partial(store_tile, tile, g)
    most = cute.make_layout(kernel.threads * (kernel.chunks + 1))
    sY = [smem.allocate_tensor(g[name].element_type, most, byte_alignment=16) for name in names]
    rows = Int32(cutlass.min(Int64(tile.width), left))

    def store(pieces: list[Piece], constants: list[Any], begin: Int32, end: Int32) -> None:
        outs = zip(sY, kernel.binding.program.map(pieces[0], constants[0]), strict=True)
        _store_rows(tile, sY, [y.to(s.element_type) for s, y in outs], row, rows, begin, end)

    return store


@cute.jit
def _store_rows(tile: Tile, sY: list, out: list, row: cutlass.Constexpr, rows: Int32, begin: Int32, end: Int32):
    """Writes a thread's elements at ``chunks`` steps from ``begin``, before ``end``."""
    thread, groups, chunks = cute.arch.thread_idx()[0], tile.groups, tile.kernel.chunks
    names = tile.kernel.binding.operands.writes
    first, pitch = begin * groups, chunks * groups | 1  # odd: neighboring rows are in different banks
    count = cutlass.min(cutlass.min(chunks, end - begin) * groups, tile.length - first)
    cute.arch.sync_threads()  # the iteration before is written
    if tile.inside:
        for k in cutlass.range_constexpr(len(sY)):
            for c in cutlass.range_constexpr(chunks):
                sY[k][tile.first * pitch + c * groups + tile.start] = out[k][c]
    cute.arch.sync_threads()
    # Threads along the elements of a row, and then down the rows; several rows of a thread are in flight at once.
    threads = cute.arch.block_dim()[0]
    lanes = cutlass.min(chunks * groups, threads)
    r0, down = thread // lanes, threads // lanes
    for k in cutlass.range_constexpr(len(sY)):
        gY, below = row(Int64(r0))[names[k]], row(Int64(r0 + down))[names[k]]
        stride = below.iterator.toint() - gY.iterator.toint()
        for n in cutlass.range(thread % lanes, count, lanes, unroll=1):
            address = (gY.iterator + cute.crd2idx(first + n, gY.layout)).toint()
            for r in cutlass.range(r0, rows, _AT_ONCE * down, unroll=1):
                rY = cute.make_rmem_tensor(_AT_ONCE, gY.element_type)
                for c in cutlass.range_constexpr(_AT_ONCE):
                    if r + c * down < rows:
                        rY[c] = sY[k][(r + c * down) * pitch + n]
                for c in cutlass.range_constexpr(_AT_ONCE):
                    if r + c * down < rows:
                        elements_at(address, gY.element_type, 1)[0] = rY[c]
                    address = address + stride


@cute.jit
def _copy_edge(source: cute.Tensor, target: cute.Tensor, ok: list, some: Boolean):
    """Copies the elements of a vector that are inside."""
    if some:
        for r in cutlass.range_constexpr(len(ok)):
            if ok[r]:
                target[r] = source[r]


def _row(rX: cute.Tensor, r: int) -> Any:
    """The elements of one place, as a vector."""
    rRow = cute.make_rmem_tensor(rX.shape[1], rX.element_type)
    for c in range(rX.shape[1]):
        rRow[c] = rX[r, c]
    return rRow.load()
