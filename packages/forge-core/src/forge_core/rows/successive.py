"""Successive rows of a team: the next ones are asked for while the present one is computed.

    stages > 0    rows wait in shared memory, vector by vector, each where the thread that asked for it reads it
    stages == 0   the elements of the next row wait in registers

    slot          a ring of stages: [row n | row n + 1 | ... ]; of each row, for each operand and chunk, an access of
                  16 bytes of thread 0, of thread 1, ...: neighboring threads have neighboring banks

No barrier guards a slot.  A thread reads only what itself has copied there, once its own group of copies has arrived,
and asks for another row into the slot behind its last read of it, one turn later.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, Uint32, const_expr

from forge_core.cute.copy import load_if, load_policy, partition, stage, stage_all, store_if, vector_predicate
from forge_core.rows.values import Epoch, Piece, Row, indices

__all__ = ["Successive"]


@dataclass(frozen=True)
class Successive:
    """The rows of a thread.

    Attributes:
        kernel: the row kernel.
        launch: pointers, length of a row, dims, numbers.
        rows: how many there are.
        first: the thread's first one.
        step: rows from one of its turns to the next.
        place: its place among the threads that share a row.
        width: how many those are.
        start: where the ring begins in shared memory.
        policy: the L2's, for what is loaded.
        rColumns: column operands, (vec, chunks) each, for all rows.
        rScalars: of the next row, (1) each.
        rNext: of the next row, (chunks) for each row operand; none where rows wait in shared memory.
    """

    kernel: Any
    launch: tuple[Any, ...]
    rows: Int64
    first: Int64
    step: Int64
    place: Int32
    width: int | Int32
    start: Int32
    policy: Int64
    rColumns: dict[str, cute.Tensor]  # noqa: N815 - CuTe's grammar of names
    rScalars: dict[str, cute.Tensor]  # noqa: N815
    rNext: dict[str, cute.Tensor]  # noqa: N815

    @classmethod
    def of(cls, kernel: Any, launch: tuple[Any, ...], rows: tuple[Any, ...], who: tuple[Any, ...], start: Int32) -> Any:
        """Loads the column operands; ``rows`` and ``who`` as the attributes from ``rows`` and from ``place`` on."""
        names, vec, chunks = kernel.binding.program.operands, kernel.vec, kernel.chunks
        g = kernel.row_of(*launch[:3], Int64(0))
        made = cls(kernel, launch, rows[0], rows[1], rows[2], who[0], who[1], start, load_policy(), {}, {}, {})
        for name in names.columns:
            made.rColumns[name] = cute.make_rmem_tensor((vec, chunks), g[name].element_type)
            made._load(g, name, launch[1], made.rColumns[name])
        for name in names.scalars:
            made.rScalars[name] = cute.make_rmem_tensor(1, g[name].element_type)
            made.rScalars[name].fill(kernel.nothing(name, g))
        for name in kernel.binding.loaded if not kernel.stages else ():
            made.rNext[name] = cute.make_rmem_tensor((vec, chunks), g[name].element_type)
        return made

    @property
    def ahead(self) -> int:
        """Rows that are asked for before their turn."""
        return int(max(1, self.kernel.stages - 1))

    def row(self, turn: Int32) -> tuple[dict[str, cute.Tensor], Int64, Boolean]:
        """The row of a turn, its number, and whether there is one; else some other."""
        row = self.first + turn * self.step
        (pointers, length, dims, _), inside = self.launch, row < self.rows
        return self.kernel.row_of(pointers, length, dims, cutlass.min(row, self.rows - 1)), row, inside

    def ask(self, turn: Int32) -> None:
        """Asks for the row of a turn, maybe none."""
        g, _, inside = self.row(turn)
        count, kernel = Int32(cutlass.select_(inside, self.launch[1], 0)), self.kernel
        for name, rNext in self.rNext.items():
            self._load(g, name, count, rNext)
        if const_expr(kernel.stages > 0 and len(kernel.binding.loaded) > 0):
            parts = [self._part(g, name, load=True)[1] for name in kernel.binding.loaded]
            nothing = tuple(kernel.nothing(name, g) for name in kernel.binding.loaded)
            slots = tuple(self._slots(turn, g).values())
            step = Int32(self.width * kernel.vec)
            stage_all(tuple(parts), slots, 0, nothing, self.place * kernel.vec, step, count, self.policy)
        if const_expr(kernel.stages > 0):
            cute.arch.cp_async_commit_group()

    def ask_scalars(self, turn: Int32) -> None:
        """Asks for the scalars of a turn's row: those of the next one, before the present one is computed."""
        g, _, inside = self.row(turn)
        for name, rX in self.rScalars.items():
            load_if(g[name], Int32(0), rX, inside, self.policy)

    def take(self, turn: Int32) -> tuple[list[Piece], Row, dict[str, cute.Tensor], Boolean]:
        """This thread's pieces of a turn's row, what is known of it, its tensors, and whether there is one."""
        kernel, vec = self.kernel, self.kernel.vec
        g, _, inside = self.row(turn)
        length, numbers = self.launch[1], self.launch[3]
        known = kernel.known(g | self._copied(self.rScalars), length, numbers)
        count = Int32(cutlass.select_(inside, length, 0))
        if const_expr(kernel.stages > 0):
            cute.arch.cp_async_wait_group(kernel.stages - 2)
            cute.arch.sync_warp()  # what the compiler may not move a read of the slot that is asked for next behind
            slots = self._slots(turn, g)
        rRow, epoch, pieces = self._copied(self.rNext), Epoch(), []
        for c in range(kernel.chunks):
            step = self._step(c)
            registers = {name: r[None, c].load for name, r in (self.rColumns | rRow).items()}
            if const_expr(kernel.stages > 0):
                registers |= {name: partial(_read, slot, c) for name, slot in slots.items()}
            more = {"store": partial(self._store, g, step < count, c), "epoch": epoch}
            pieces.append(kernel.piece(g, registers, partial(indices, step, vec), step < count, vec, **more))
        return pieces, known, g, inside

    def store(self, gY: cute.Tensor, c: int, y: Any, when: Boolean) -> None:
        """Writes a thread's vector of a contiguous row where ``when`` holds."""
        self._store({"": gY}, when & (self._step(c) < Int32(self.launch[1])), c, "", y)

    def _step(self, c: int) -> Int32:
        """The first element of a vector."""
        return Int32((self.place + c * self.width) * self.kernel.vec)

    def _part(self, g: dict[str, cute.Tensor], name: str, *, load: bool) -> tuple[Any, cute.Tensor]:
        kernel = self.kernel
        return partition(g[name], Int32(0), kernel.vec, self.width, kernel.chunks, self.place, load=load)

    def _slots(self, turn: Int32, g: dict[str, cute.Tensor]) -> dict[str, cute.Tensor]:
        """For each row operand a thread's ((access, accesses), chunks) of the slot of a turn."""
        found, kernel = {}, self.kernel
        row = kernel.chunks * kernel.vec * kernel.binding.loaded_bytes * cute.arch.block_dim()[0]
        start = self.start + Int32(Uint32(turn) % kernel.stages) * row
        for name in kernel.binding.loaded:
            found[name], start = stage(start, self._part(g, name, load=True)[1], cute.arch.thread_idx()[0])
        return found

    def _load(self, g: dict[str, cute.Tensor], name: str, count: Any, rX: cute.Tensor) -> None:
        """Loads this thread's elements into (vec, chunks) registers, those before ``count``."""
        for c in range(self.kernel.chunks):
            inside, nothing = self._step(c) < count, self.kernel.nothing(name, g)
            rX[None, c].fill(nothing)
            if self.kernel.vec == 1:
                load_if(g[name], self._step(c), rX[None, c], inside, self.policy)
            else:
                copy, tXgX = self._part(g, name, load=True)
                width, accesses = tXgX.shape[0]
                layout = cute.make_layout(((width, accesses),), stride=((1, width),))
                rOwn = cute.make_tensor(rX[None, c].iterator, layout)
                cute.copy(copy, tXgX[None, c], rOwn, pred=vector_predicate(tXgX, inside))

    def _copied(self, tensors: dict[str, cute.Tensor]) -> dict[str, cute.Tensor]:
        """Registers that stay as they are when the next row arrives."""
        found = {}
        for name, rX in tensors.items():
            found[name] = cute.make_rmem_tensor(rX.shape, rX.element_type)
            found[name].store(rX.load())
        return found

    def _store(self, g: dict[str, cute.Tensor], inside: Boolean, c: int, name: str, y: Any) -> None:
        if self.kernel.vec == 1:
            store_if(g[name], self._step(c), y[0], inside)
            return
        copy, tYgY = self._part(g, name, load=False)
        rY = cute.make_rmem_tensor(tYgY[None, c].shape, g[name].element_type)
        rY.store(y.to(rY.element_type).reshape(rY.shape))
        cute.copy(copy, rY, tYgY[None, c], pred=vector_predicate(tYgY, inside))


def _read(sX: cute.Tensor, c: int) -> Any:
    """A thread's vector in shared memory, by 16 bytes."""
    width, accesses = sX.shape[0]
    rX = cute.make_rmem_tensor((width, accesses), sX.element_type)
    for a in range(accesses):
        # What the thread's number is multiplied by is lost on the way, and with it the alignment.
        start = sX[(None, a), c].iterator.toint()
        pointer = cute.make_ptr(sX.element_type, start, cute.AddressSpace.smem, assumed_align=16)
        cute.autovec_copy(cute.make_tensor(pointer, cute.make_layout(width)), rX[None, a])
    return rX.load().reshape(width * accesses)
