"""A thread's column operands; addresses by hand, since unaligned rows are copied by accesses at 16-byte boundaries.

They are loaded where they are used, or staged in shared memory.  An unaligned vector is read through a window of
aligned accesses.  Loaded where they are used, each window waits for the L2 in turn; staged (``columns_staged``), all
are in flight at once.

    row        | . . . a|a a a b|b b b c|c c c . |     vectors a, b, c of threads 0, 1, 2; 16-byte boundaries: |
    accesses   |   0    |   1   |   2   |   3    |     thread t copies access t, and reads t and t + 1
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, Uint32
from cutlass.memory import SmemAllocator

from forge_core.cute.copy import behind, load_unaligned, partition, registers, shift_bytes, vector_predicate
from forge_core.rows.values import Epoch


class Columns:
    """A thread's share of ``count`` elements of a row from ``first`` on, whole vectors, and the column operands there.

    ``g`` is the row of each operand, ``thread`` this thread's index among the ``threads`` of the row.
    """

    def __init__(
        self, config: Any, g: dict[str, cute.Tensor], first: Int32, count: Int32, thread: Int32, threads: int | Int32
    ) -> None:
        self.g, self.first, self.count, self.thread, self.threads = g, first, count, thread, threads
        self.names, self.epoch = config.binding.operands.columns, Epoch()
        self.staged = getattr(config, "columns_staged", False)
        self._config, self._whole = config, config.columns_whole
        self._staged_tensors: dict[str, tuple[cute.Tensor, Int32]] = {}
        self._arrived = False

    def prefetch(self, smem: SmemAllocator, width: int | Int32) -> None:
        """Starts the copies to shared memory behind all allocations, after all other loads of the row.

        ``width``: threads per block.
        """
        start = behind(smem) if self.staged else Int32(0)
        for name in self.names if self.staged else ():
            sX, skip = self._stage(self.g[name], start, width)
            self._staged_tensors[name] = sX, skip
            start = start + cute.size(sX.shape) * 4

    def _stage(self, row: cute.Tensor, start: Int32, width: int | Int32) -> tuple[cute.Tensor, Int32]:
        """Copies a block's vectors to shared memory, by aligned 16-byte ``cp.async``.

        Bytes behind the last whole vector are zero-filled without reading global memory.  Its 16-byte accesses are
        within the row all the same (``HeldConfig.behind``): compute-sanitizer reports those that exceed an allocation.

        Returns:
            ((word, access), place, chunk) in shared memory; a place for each thread, and one more for unaligned rows.
            The bytes of the first access that precede the vector.
        """
        vec, threads, thread = self._config.vec, self.threads, cute.arch.thread_idx()[0]
        ahead = (self.thread - thread) * vec  # elements of preceding blocks
        first, count = self.first + ahead, self.count - ahead
        size = row.element_type.width // 8
        accesses = vec * size // 16
        places = width if self._whole else width + 1
        skip = Int32(0) if self._whole else Int32((row.iterator + first).toint() & 15)
        pointer = cute.make_ptr(Uint32, start, cute.AddressSpace.smem, assumed_align=16)
        shape = ((4, accesses), places, self._config.chunks)
        sX = cute.make_tensor(pointer, cute.make_layout(shape, stride=((1, 4 * places), 4, 4 * places * accesses)))
        if not self._whole:
            # The last access of each chunk, of which only the bytes before the next vector are used.
            step = (width + thread * threads) * vec
            begin = (row.iterator + (first + step)).toint() - skip
            some = Int32(cutlass.select_(step <= count, skip, 0))
            _copy_async_if(sX, width, thread, begin, some, thread < self._config.chunks)
        begin = (row.iterator + (first + thread * vec)).toint() - skip
        step, turn = thread * vec, threads * vec
        zero = Int32(Uint32(width) >> 31)  # 0 at run time, unknown to the compiler
        _copy_each(sX, thread, begin, Int64(turn) * size, step, turn, count, skip, zero, self._whole)
        return sX, skip

    def read(self, name: str, c: int) -> Any:
        """Reads chunk ``c`` of a column operand."""
        if self.staged:
            return self._read_staged(name, c)
        config, g = self._config, self.g[name]
        thread = self.thread
        if getattr(config, "deep", False):  # recompute addresses instead of keeping them in registers
            thread = thread + Int32(self.epoch.zero)
        step = thread * config.vec + c * self.threads * config.vec
        if self._whole:
            copy, tXgX = partition(g, self.first, config.vec, self.threads, config.chunks, thread, load=True)
            rX = registers(tXgX[None, c].shape, g.element_type, 0)
            cute.copy(copy, tXgX[None, c], rX, pred=vector_predicate(tXgX, step < self.count))
        else:
            rX = registers(config.vec, g.element_type, 0)
            load_unaligned(g, self.first + step, rX, step < self.count)
        return rX.load().reshape(config.vec)

    def _read_staged(self, name: str, c: int) -> Any:
        """Waits for the copies; for unaligned rows also for those of other threads of the block."""
        if not self._arrived:
            cute.arch.cp_async_commit_group()
            cute.arch.cp_async_wait_group(0)
            if not self._whole:
                cute.arch.sync_threads()
        self._arrived = True
        # Recompute addresses instead of keeping them in registers.
        own, (sX, skip) = cute.arch.thread_idx()[0] + Int32(self.epoch.zero), self._staged_tensors[name]
        accesses, dtype = sX.shape[0][1], self.g[name].element_type
        rWindow = cute.make_rmem_tensor((4, accesses + (not self._whole)), Uint32)
        for a in range(rWindow.shape[1]):
            place, access = (own, a) if a < accesses else (own + 1, 0)
            cute.autovec_copy(sX[(None, access), place, c], rWindow[None, a])
        if self._whole:
            return cute.recast_tensor(rWindow, dtype).load().reshape(self._config.vec)
        rX = cute.make_rmem_tensor(self._config.vec, dtype)
        shift_bytes(rWindow, skip, rX)
        return rX.load()


def _copy_async(sX: cute.Tensor, access: int, place: Any, c: Any, address: Int64, size: Any) -> None:
    """Copies ``size`` bytes of global memory, zero-filled to 16."""
    slot = sX[(None, access), place, c].iterator.toint()
    cute.arch.inline_ptx(
        "cp.async.ca.shared.global [{$r0}], [{$r1}], 16, {$r2};",
        read_only_args=[Int32(slot), Int64(address), Int32(size)],
    )


@cute.jit
def _copy_each(
    sX: cute.Tensor,
    thread: Int32,
    begin: Int64,
    stride: Int64,
    step: Int32,
    turn: Int32,
    count: Int32,
    skip: Int32,
    zero: Int32,
    whole: cutlass.Constexpr,
):
    # In loops, of one iteration for whole rows: the compiler would move the copies behind arithmetic that waits for
    # other loads.  Not by the sign of ``count``: it is negative in blocks of a cluster past the row's end.
    each = cutlass.const_expr(sX.shape[2] if whole else 1)
    for i in cutlass.range(sX.shape[2] // each + zero, unroll=1):
        for k in cutlass.range_constexpr(each):
            for a in cutlass.range_constexpr(sX.shape[0][1]):
                behind = skip if cutlass.const_expr(a == 0) else Int32(0)
                size = cutlass.select_(step < count, Int32(16), cutlass.select_(step == count, behind, Int32(0)))
                _copy_async(sX, a, thread, i * each + k, begin + 16 * a, size)
            begin += stride
            step += turn


@cute.jit
def _copy_async_if(sX: cute.Tensor, place: Int32, c: Int32, address: Int64, size: Int32, when: Boolean):
    if when:
        _copy_async(sX, 0, place, c, address, size)
