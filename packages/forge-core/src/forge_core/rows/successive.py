"""The row pipeline of a team: the next rows are loaded while the current one is computed.

    stages > 0    rows are copied to shared memory by cp.async; a thread reads the vectors that it copied itself
    stages == 0   the elements of the next row are loaded into registers

    stages        a ring [row n | row n + 1 | ... ]; per row, operand and chunk: 16 bytes of thread 0, of thread 1, ...,
                  without bank conflicts
    shifted       the rows of a team are equally far from a boundary, and their vectors begin at boundaries; what the
                  first and the last one have outside the row is read with them, and overwritten in shared memory

No barrier guards a stage: a thread reads only its own copies, after its own commit group has completed, and overwrites
a stage after its last read of it, one iteration later; a single stage chunk by chunk, in the same iteration.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, Uint32, const_expr

from forge_core.cute.copy import (
    copy_bits,
    load_if,
    load_policy,
    load_vector,
    neighbors,
    partition,
    stage,
    stage_all,
    store_if,
    store_vector,
)
from forge_core.cute.memory import elements_at
from forge_core.rows.values import Epoch, Piece, Row, indices


@dataclass(frozen=True)
class Successive:
    """A thread's view of the rows of its team.

    Attributes:
        rColumns: column operands in registers, (vec, chunks) each, for all rows.
        sColumns: the same in shared memory, ((access, accesses), chunks) each, if ``columns_staged``.
        rScalars: scalars of the next row, (1) each.
        rNext: the next row, (vec, chunks) for each row operand; empty with stages.
    """

    kernel: Any  # the row kernel
    arguments: tuple[Any, ...]  # pointers, row length, dims, numbers
    rows: Int64  # number of rows
    first: Int64  # the thread's first row
    step: Int64  # rows per iteration of all teams
    thread_in_row: Int32  # the thread's index among those of a row
    width: int | Int32  # threads per row
    start: Int32  # address of the stages in shared memory
    shift: Int32  # of ``shifted`` rows, elements of the first vector before the row, the same for all of the team
    own: Int32  # a bit for each of the thread's elements that is in the row
    whole: Int32  # the same bits of vectors all of whose elements are
    apart: Boolean  # whether rows are not neighbors in memory, so that what is beside a row is not to be read
    policy: Int64  # L2 cache policy of loads
    rColumns: dict[str, cute.Tensor]  # noqa: N815 - CuTe's grammar of names
    sColumns: dict[str, cute.Tensor]  # noqa: N815
    rScalars: dict[str, cute.Tensor]  # noqa: N815
    rNext: dict[str, cute.Tensor]  # noqa: N815

    @classmethod
    def of(
        cls, kernel: Any, arguments: tuple[Any, ...], rows: tuple[Any, ...], who: tuple[Any, ...], start: Int32
    ) -> Successive:
        """Loads the column operands; ``rows`` is (rows, first, step), ``who`` is (thread_in_row, width)."""
        names, vec, chunks = kernel.binding.operands, kernel.vec, kernel.chunks
        g, at = kernel.row_of(*arguments[:3], Int64(0)), (Int32(0), Int32(0), Int32(0), Boolean(False))
        if kernel.has_edges:
            at = _places(kernel, arguments, cutlass.min(rows[1], rows[0] - 1), who)
        rScalars = {name: kernel.filled(1, name, g) for name in names.scalars}
        loaded = kernel.binding.loaded if not kernel.stages else ()
        rNext = {name: cute.make_rmem_tensor((vec, chunks), g[name].element_type) for name in loaded}
        given: tuple[Any, ...] = (*rows, *who, start, *at, load_policy(), {}, {}, rScalars, rNext)
        made = cls(kernel, arguments, *given)
        for name in names.columns:
            made.rColumns[name] = cute.make_rmem_tensor((vec, chunks), g[name].element_type)
            made._load(g[name], kernel.fill_value(name, g), arguments[1], made.rColumns[name])
        if kernel.columns_staged:
            made._stage_columns()
        return made

    @property
    def ahead(self) -> int:
        """Rows in flight ahead of the current one."""
        return int(max(1, self.kernel.stages - 1))

    def row(self, iteration: Int32) -> tuple[dict[str, cute.Tensor], Boolean]:
        """The row of an iteration as tensors, and whether it exists; if not, the last row."""
        row = self.first + iteration * self.step
        inside = row < self.rows
        return self.kernel.row_of(*self.arguments[:3], cutlass.min(row, self.rows - 1)), inside

    def prefetch(self, iteration: Int32, chunk: int | None = None) -> None:
        """Starts loading the row of an iteration, if it exists; of staged rows a single chunk, if one is given."""
        g, inside = self.row(iteration)
        count, kernel = Int32(cutlass.select_(inside, self.arguments[1], 0)), self.kernel
        for name, rNext in self.rNext.items():
            self._load(g[name], kernel.fill_value(name, g), count, rNext)
        if const_expr(kernel.stages > 0 and len(kernel.binding.loaded) > 0):
            parts = self._parts(g)
            fill = tuple(kernel.fill_value(name, g) for name in parts)
            staged, step = tuple(self._stage(iteration, parts).values()), Int32(self.width * kernel.vec)
            first, row = self.thread_in_row * kernel.vec, self.first + iteration * self.step
            # Vectors are read with what is beside the row, but not before the first and after the last row.
            end = inside & (self.apart | (row == 0) | (row + 1 == self.rows))
            bits = Int32(cutlass.select_(inside, cutlass.select_(end, self.whole, self.own), 0))
            sources, copied = tuple(parts.values()), bits if kernel.has_edges else None
            # Unrolled it is a third of the instructions, for registers that only delayed exchanges leave.
            for c in range(kernel.chunks) if chunk is None and kernel.delayed else (chunk,):
                stage_all(sources, staged, 0, fill, first, step, count, self.policy, copied, chunk=c)
            if kernel.has_edges:
                copy_bits(sources, staged, self.own ^ self.whole, end & (self.own != self.whole))
        if const_expr(kernel.stages > 0):
            cute.arch.cp_async_commit_group()

    def prefetch_scalars(self, iteration: Int32) -> None:
        """Loads the scalars of an iteration's row, one iteration ahead."""
        g, inside = self.row(iteration)
        for name, rX in self.rScalars.items():
            load_if(neighbors(g[name], Int32(0), 1), rX, inside, self.policy, alone=True)

    def scalars(self) -> dict[str, cute.Tensor]:
        """A copy of the scalars that were loaded last."""
        return _copied(self.rScalars)

    def wait(self, iteration: Int32) -> None:
        """Waits for the first row in flight, that of an iteration."""
        if const_expr(self.kernel.stages > 0):
            cute.arch.cp_async_wait_group(max(0, self.kernel.stages - 2))
            cute.arch.sync_warp()  # keeps reads of this stage ahead of the copies that overwrite it
        if const_expr(self.kernel.has_edges):
            g, _ = self.row(iteration)
            staged = self._stage(iteration, self._parts(g))
            nothing = tuple(self.kernel.filled(sX.shape, name, g) for name, sX in staged.items())
            copy_bits(nothing, tuple(staged.values()), ~self.own, self.own != self.whole)

    def at(
        self, iteration: Int32, scalars: dict[str, cute.Tensor]
    ) -> tuple[list[Piece], Row, dict[str, cute.Tensor], Boolean]:
        """The row of an iteration: the thread's pieces, values of the row, its tensors, whether it exists."""
        kernel, vec = self.kernel, self.kernel.vec
        g, inside = self.row(iteration)
        length, numbers = self.arguments[1], self.arguments[3]
        row_values = kernel.row_values(g | scalars, length, numbers)
        count = Int32(cutlass.select_(inside, length, 0))
        if const_expr(kernel.stages > 0):
            staged = self._stage(iteration, self._parts(g))
        rRow, epoch, pieces = _copied(self.rNext), Epoch(), []
        for c in range(kernel.chunks):
            step = self.begin(c)
            whole, within = step < count, step < count
            if kernel.has_edges:
                whole, rWithin = inside, cute.make_rmem_tensor(vec, Boolean)
                for r in range(vec):
                    rWithin[r] = inside & ((self.own >> (c * vec + r)) & 1 != 0)
                within = rWithin.load()
            registers = {name: r[None, c].load for name, r in (self.rColumns | rRow).items()}
            if const_expr(kernel.stages > 0):
                registers |= {name: partial(_read, sX, c) for name, sX in (staged | self.sColumns).items()}

            def store(name: str, y: Any, c: int = c, whole: Boolean = whole) -> None:
                self.store(g[name], whole, c, y)

            index = partial(indices, step, vec)
            pieces.append(kernel.piece(g, registers, index, within, vec, store=store, epoch=epoch))
        return pieces, row_values, g, inside

    def store(self, gY: cute.Tensor, inside: Boolean, c: int, y: Any, *, whole: Int32 | None = None) -> None:
        """Stores chunk ``c`` of a contiguous row, if ``inside``; ``whole``: bits of elements that vectors may store."""
        vec = self.kernel.vec
        if vec == 1:
            store_if(gY, self.begin(c), y[0], inside)
            return
        if self.kernel.has_edges:
            rY, full = cute.make_rmem_tensor(vec, gY.element_type), (1 << vec) - 1
            whole = self.whole if whole is None else whole
            rY.store(y.to(gY.element_type))
            edge = ((self.own ^ whole) >> (c * vec)) & full
            copy_bits((rY,), (self._elements(gY, c),), edge, inside & (edge != 0))
            inside = inside & ((whole >> (c * vec)) & 1 != 0)
        copy, tYgY = self._part(gY, load=False)
        store_vector(copy, y, tYgY, c, inside)

    def begin(self, c: int) -> Int32:
        """Index of the first element of a chunk."""
        first = Int32((self.thread_in_row + c * self.width) * self.kernel.vec)
        return first - self.shift if self.kernel.has_edges else first

    def _elements(self, row: cute.Tensor, c: int) -> cute.Tensor:
        """The elements of a chunk, (vec), at any address."""
        return cute.make_tensor(row.iterator + self.begin(c), cute.make_layout(self.kernel.vec))

    def _part(self, row: cute.Tensor, *, load: bool = True) -> tuple[Any, cute.Tensor]:
        kernel, first = self.kernel, -self.shift if self.kernel.has_edges else Int32(0)
        return partition(row, first, kernel.vec, self.width, kernel.chunks, self.thread_in_row, load=load)

    def _parts(self, g: dict[str, cute.Tensor]) -> dict[str, cute.Tensor]:
        """For each row operand a thread's ((access, accesses), chunks) of a row."""
        return {name: self._part(g[name])[1] for name in self.kernel.binding.loaded}

    def _stage(self, iteration: Int32, parts: dict[str, cute.Tensor]) -> dict[str, cute.Tensor]:
        """The same of the stage of an iteration, in shared memory."""
        kernel = self.kernel
        return stage(self.start + Int32(Uint32(iteration) % kernel.stages) * self._row_bytes(), parts, kernel.chunks)

    def _row_bytes(self) -> Int32:
        kernel = self.kernel
        return Int32(kernel.chunks * kernel.vec * kernel.binding.loaded_bytes * cute.arch.block_dim()[0])

    def _stage_columns(self) -> None:
        """Moves column operands from registers to shared memory, behind the stages."""
        kernel, parts = self.kernel, {}
        for name, rX in self.rColumns.items():
            width = 128 // rX.element_type.width
            layout = cute.make_layout(((width, kernel.vec // width), kernel.chunks))
            parts[name] = cute.make_tensor(rX.iterator, layout)
        self.sColumns.update(stage(self.start + kernel.stages * self._row_bytes(), parts, kernel.chunks))
        for name, sX in self.sColumns.items():
            for c in range(kernel.chunks):
                for a in range(sX.shape[0][1]):
                    cute.autovec_copy(parts[name][(None, a), c], sX[(None, a), c])
        self.rColumns.clear()

    def _load(self, row: cute.Tensor, fill: Any, count: Any, rX: cute.Tensor) -> None:
        """Loads a thread's elements before ``count`` into (vec, chunks) registers."""
        for c in range(self.kernel.chunks):
            inside = self.begin(c) < count
            rX[None, c].fill(fill)
            if self.kernel.vec == 1:
                load_if(neighbors(row, self.begin(c), 1), rX[None, c], inside, self.policy)
            elif self.kernel.has_edges:
                copy_bits((self._elements(row, c),), (rX[None, c],), self.own >> (c * self.kernel.vec), Boolean(True))
            else:
                copy, tXgX = self._part(row)
                width, accesses = tXgX.shape[0]
                layout = cute.make_layout(((width, accesses),), stride=((1, width),))
                rOwn = cute.make_tensor(rX[None, c].iterator, layout)
                load_vector(copy, tXgX, c, rOwn, inside)


def _places(kernel: Any, arguments: tuple[Any, ...], row: Int64, who: tuple[Any, ...]) -> tuple[Any, ...]:
    """``shift``, ``own``, ``whole`` and ``apart`` of rows as far from a boundary as this one."""
    (_, length, dims, _), (thread_in_row, width), vec = arguments, who, kernel.vec
    shift, own, whole = Int32(Uint32(vec - kernel.head(kernel.row_of(*arguments[:3], row))) % vec), Int32(0), Int32(0)
    for c in range(kernel.chunks):
        first = Int32((thread_in_row + c * width) * vec - shift)
        for r in range(vec):
            own = own | cutlass.select_((first + r >= 0) & (first + r < length), 1 << (c * vec + r), 0)
        whole = whole | cutlass.select_((first >= 0) & (first + vec <= length), (2**vec - 1) << (c * vec), 0)
    tensors = kernel.binding.operands.tensors
    gaps = [Int64(dims[1 + tensors.index(name)]) - length for name in kernel.binding.loaded]
    return shift, Int32(own), Int32(whole), reduce(operator.or_, gaps) != 0


def _copied(tensors: dict[str, cute.Tensor]) -> dict[str, cute.Tensor]:
    """Copies of registers, which the next row does not overwrite."""
    found = {}
    for name, rX in tensors.items():
        found[name] = cute.make_rmem_tensor(rX.shape, rX.element_type)
        found[name].store(rX.load())
    return found


def _read(sX: cute.Tensor, c: int) -> Any:
    """Reads chunk ``c`` from shared memory by accesses of 16 bytes."""
    width, accesses = sX.shape[0]
    rX = cute.make_rmem_tensor((width, accesses), sX.element_type)
    for a in range(accesses):
        # The DSL does not infer the alignment of a slice at a runtime index.
        start = sX[(None, a), c].iterator.toint()
        cute.autovec_copy(elements_at(start, sX.element_type, width, cute.AddressSpace.smem), rX[None, a])
    return rX.load().reshape(width * accesses)
