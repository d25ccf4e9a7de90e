"""Column operands of a thread's vectors: loaded where they are used, or staged in shared memory with the row.

An unaligned vector is read through a window of aligned accesses.  Loaded where they are used, each window waits for the
L2 in turn; staged (``columns_staged``), all are in flight at once.
"""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Int32
from cutlass.memory import SmemAllocator

from forge_core.cute.copy import behind, load_staged, load_unaligned, partition, stage_unaligned, vector_predicate
from forge_core.rows.values import Epoch


class Columns:
    """The column operands of a kernel.

    Args:
        config: the kernel's configuration.
        g: the row of each operand.
        first: index of the first element.
        count: elements from there on, whole vectors.
        thread: this thread's index among those of the row.
        threads: threads of the row.
    """

    def __init__(
        self, config: Any, g: dict[str, cute.Tensor], first: Int32, count: Int32, thread: Int32, threads: int | Int32
    ) -> None:
        self.names, self.epoch = config.binding.program.operands.columns, Epoch()
        self.staged = getattr(config, "columns_staged", False)
        self._g, self._config, self._whole = g, config, config.align == "whole"
        self._first, self._count, self._thread, self._threads = first, count, thread, threads
        self._staged_tensors: dict[str, tuple[cute.Tensor, Int32]] = {}
        self._arrived = False

    def prefetch(self, smem: SmemAllocator, width: int | Int32) -> None:
        """Starts the copies to shared memory, after all other loads of the row.

        Args:
            smem: allocator of shared memory; the staged operands follow its last allocation.
            width: threads per block.
        """
        if not self.staged:
            return
        own, start = cute.arch.thread_idx()[0], behind(smem)
        for name in self.names:
            ahead = (self._thread - own) * self._config.vec  # elements of preceding blocks
            at = (self._first + ahead, self._count - ahead, self._config.vec, self._threads, self._config.chunks)
            sX, skip = stage_unaligned(self._g[name], start, *at, own, width, aligned=self._whole)
            self._staged_tensors[name] = sX, skip
            start = start + cute.size(sX.shape) * 4

    def read(self, name: str, c: int) -> Any:
        """Reads chunk ``c`` of a column operand."""
        config, g = self._config, self._g[name]
        rX = cute.make_rmem_tensor(config.vec, g.element_type)
        if self.staged:
            self._arrive()
            # Recompute addresses instead of keeping them in registers.
            own = cute.arch.thread_idx()[0] + Int32(self.epoch.zero)
            load_staged(*self._staged_tensors[name], own, c, rX, aligned=self._whole)
            return rX.load()
        step = self._thread * config.vec + c * self._threads * config.vec
        rX.fill(rX.element_type(0))
        if self._whole:
            copy, tXgX = partition(g, self._first, config.vec, self._threads, config.chunks, self._thread, load=True)
            rX = cute.make_rmem_tensor(tXgX[None, c].shape, rX.element_type)
            rX.fill(rX.element_type(0))
            cute.copy(copy, tXgX[None, c], rX, pred=vector_predicate(tXgX, step < self._count))
        else:
            load_unaligned(g, self._first + step, rX, step < self._count)
        return rX.load().reshape(config.vec)

    def _arrive(self) -> None:
        """Waits for the copies; for unaligned rows also for those of other threads of the block."""
        if not self._arrived:
            cute.arch.cp_async_commit_group()
            cute.arch.cp_async_wait_group(0)
            if not self._whole:
                cute.arch.sync_threads()
        self._arrived = True
