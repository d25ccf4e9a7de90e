"""A thread's pieces of a row: loads of vectors and elements, with the stores that belong to them.

    tXgX  ((access, accesses), chunks)        a thread's vectors, in accesses of at most 16 bytes
    tXrX  ((access, accesses), chunks)        the same in registers, as stored

A *piece* is a vector of each operand; or one element of each, in the head and tail of a row and in rows that are read
by element.  In ``column`` it is a thread's elements of one row at several steps.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64, Uint32
from cutlass.memory import SmemAllocator

from forge_core.cute.copy import (
    Window,
    behind,
    head_elements,
    load_if,
    load_policy,
    load_vector,
    neighbors,
    opaque,
    partition,
    registers,
    stage,
    stage_all,
    store_if,
    store_vector,
)
from forge_core.rows.columns import Columns
from forge_core.rows.config import RowConfig
from forge_core.rows.values import Epoch, Piece, bits, indices

#: Range of bytes read in which rows that are only read are loaded with evict_first: up to 15 % faster on an H200, since
#: fewer dirty lines of others are written back meanwhile.  Fewer bytes stay in the L2 for their next reader; beyond the
#: range evict_first is 4 % slower.
READ_ONCE = (2**25, 2**28)

#: Predicate registers of a thread.
PREDICATES = 7


class Pieces(RowConfig):
    """Loads and stores of row kernels."""

    def policy(self, rows: Any, length: Any) -> Int64:
        """The L2 cache policy of loads: evict_last, or evict_first where ``READ_ONCE`` says so."""
        if self.binding.operands.writes:
            return load_policy()
        nbytes = Int64(rows) * Int64(length) * self.binding.loaded_bytes
        return load_policy((nbytes > READ_ONCE[0]) & (nbytes <= READ_ONCE[1]))

    @property
    def narrowest(self) -> str:
        """The operand with the narrowest elements, an output if ``unaligned``; its alignment is that of vectors."""
        written = self.binding.operands.writes if self.align == "unaligned" else ()
        return min(written or self.binding.moving, key=lambda name: self.binding.dtype(name).itemsize)

    def head(self, g: dict[str, cute.Tensor]) -> Int32:
        """Elements of a row before its first vector."""
        return head_elements(g[self.narrowest], self.vec) if self.has_edges else Int32(0)

    def inner(self, head: Int32, body: Any) -> tuple[Int32, Any]:
        """Elements before the vectors of a row, and in them: of an ``unaligned`` row without those of ``outer``."""
        if not self.outer:
            return head, body
        inner = cutlass.max(body - 2 * self.outer, 0)
        return Int32(cutlass.select_(inner > 0, head + self.outer, head)), inner

    def vectors(
        self, columns: Columns, part: Any, policy: Int64, smem: SmemAllocator | None = None, staged: int = 0
    ) -> list[Piece]:
        """Loads a thread's aligned vectors of a row, all in flight at once.

        ``part`` is the ``first`` and the ``count`` of the thread's share, which the caller may compute again behind
        other loads.  The last ``staged`` vectors are staged in shared memory.
        """
        (first, count), g, thread, threads = part, columns.g, columns.thread, columns.threads
        epoch, kept = columns.epoch, self.chunks - staged
        vec, binding = self.vec, self.binding
        steps = [thread * vec + c * threads * vec for c in range(self.chunks)]
        inside = [step < count for step in steps]
        parts = {}
        for name in binding.moving:
            load = name in binding.loaded
            parts[name] = partition(g[name], first, vec, threads, self.chunks, thread, load=load)
        sources = {name: parts[name][1] for name in binding.loaded}
        slots = stage(behind(smem), sources, staged) if staged else {}
        held: dict[str, cute.Tensor] = {}
        for name, tXgX in sources.items():
            held[name] = self.filled((tXgX.shape[0], kept), name, g)
        windows: dict[tuple[str, int], Window] = {}
        for c in range(kept):
            for name in binding.loaded:
                if self.align == "unaligned":
                    at, fill = first + steps[c], self.fill_value(name, g)
                    windows[name, c] = Window(g[name], at, vec, fill, inside[c], policy)
                    continue
                load_vector(*parts[name], c, held[name][None, c], inside[c], policy)
        if staged:
            fill, stride = tuple(self.fill_value(name, g) for name in slots), Int32(threads * vec)
            once, staging = bool(binding.operands.columns), (tuple(sources.values()), tuple(slots.values()))
            stage_all(*staging, kept, fill, steps[kept], stride, count, policy, once=once)
        arrived: list[bool] = []

        def read(name: str, c: int) -> Any:
            if (name, c) in windows:
                windows.pop((name, c)).read(held[name][None, c])
            if c < kept:
                return held[name][None, c].load().reshape(vec)
            if not arrived:
                cute.arch.cp_async_commit_group()
                cute.arch.cp_async_wait_group(0)
                arrived.append(True)
            cute.arch.sync_warp()  # read again at each use instead of being kept in registers
            return slots[name][None, c - kept].load().reshape(vec)

        def store(c: int, name: str, y: Any) -> None:
            copy, tYgY, own = *parts[name], inside[c]
            if not isinstance(threads, int):  # recompute addresses instead of keeping them in registers
                width = threads + Int32(epoch.zero)
                own = thread * vec + c * width * vec < count
                copy, tYgY = partition(g[name], first, vec, width, self.chunks, thread, load=False)
            store_vector(copy, y, tYgY, c, own)

        pieces = []
        for c in range(self.chunks):
            loads = {n: partial(read, n, c) for n in binding.loaded}
            later = {n: partial(columns.read, n, c) for n in columns.names}
            if self.columns_early:
                later = {n: partial(_same, columns.read(n, c)) for n in columns.names}
            if self.columns_early or columns.staged:  # no need to load a vector ahead
                loads, later = loads | later, {}
            more = {
                "store": partial(store, c),
                "held": tuple(r[None, c] for r in held.values() if c < kept),
                "epoch": epoch,
                "columns": later,
            }
            index = partial(indices, first + steps[c], vec)
            pieces.append(self.piece(g, loads, index, inside[c], vec, **more))
        return pieces

    def element(
        self, g: dict[str, cute.Tensor], i: Any, inside: Boolean, *, end: Int32 | None = None, alone: bool = False
    ) -> Piece:
        """Loads one element of a row of each operand, if ``inside``; ``alone``: at an end of a row, beside vectors.

        ``end``: of the row, with which ``i`` is compared again for the store.  There are seven predicates, and loads
        wait for one that is kept for a store.
        """
        loads, epoch = {}, Epoch()
        for name in (*self.binding.loaded, *self.binding.operands.columns):
            rX = self.filled(1, name, g)
            load_if(neighbors(g[name], i, 1), rX, inside, load_policy(), alone=alone)
            loads[name] = rX.load

        def store(name: str, y: Any) -> None:
            store_if(g[name], i, y[0], inside if end is None else i < end + Int32(epoch.zero))

        return self.piece(g, loads, partial(indices, i, 1), inside, 1, store=store, epoch=epoch)

    def piece(
        self, g: dict[str, cute.Tensor], loads: dict[str, Any], index: Any, inside: Any, vec: int, **more: Any
    ) -> Piece:
        """A piece, with broadcast row operands added."""
        for name in self.binding.broadcast:
            x = g[name][0]
            loads[name] = partial(cute.full, (vec,), x, type(x))
        return Piece(self.binding, loads, index, inside, size=vec, **more)

    def fill_value(self, name: str, g: dict[str, cute.Tensor]) -> Any:
        """The value of an operand outside the row."""
        dtype, names = g[name].element_type, self.binding.operands
        outside = self.binding.program.outside if name in names.rows else 0.0
        return dtype(outside if dtype.is_float else 0)

    def filled(self, shape: Any, name: str, g: dict[str, cute.Tensor]) -> cute.Tensor:
        """Registers for elements of an operand, with :meth:`fill_value`."""
        return registers(shape, g[name].element_type, self.fill_value(name, g))

    def drop_conversions(self, pieces: list[Piece], totals: tuple[Any, ...], zero: Uint32) -> None:
        """Makes later uses of 8- and 16-bit elements depend on the last total, so that they are converted again.

        See :func:`forge_core.cute.copy.opaque`.
        """
        if isinstance(totals[-1], Float32):
            zero = zero & bits(totals[-1])
        for piece in pieces:
            piece.epoch.zero = zero
        for rX in (r for piece in pieces for r in piece.held if self.rematerializes):
            if rX.element_type.width in (8, 16):
                opaque(rX, zero)


def _same(x: Any) -> Any:
    """A vector that is loaded."""
    return x
