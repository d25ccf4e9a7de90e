"""Column operands at each distance from a boundary, so that rows at any distance read aligned vectors of them.

    column operand     |a b c d|e f g h|...        16-byte boundaries: |
    copy 0             |a b c d|e f g h|...        for rows that begin at a boundary
    copy 1             |b c d e|f g h i|...        for rows with one element before the first boundary, and so on

A launch before that of the rows makes the copies in the workspace: ``vec`` of each column operand, which the L2 holds.
The rows are loaded before it has ended, by programmatic dependent launch.  Without copies a vector is shifted out of
two, for each row again: two fifths of the instructions of a layer_norm of 16-bit elements.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from forge_core.cute.copy import store_if
from forge_core.cute.grid import lead
from forge_core.cute.memory import GLOBAL, name_kernel
from forge_core.rows.config import realigned_bytes
from forge_core.rows.kernel import SharedRowKernel


class RealigningKernel(SharedRowKernel):
    """Mixin of configurations of kernels that read copies of column operands, if ``columns_realigned``."""

    def launch_realign(self, pointers: tuple[Any, ...], scratch: Int64, length: Int32, dims: Any, stream: Any) -> None:
        """Launches :meth:`realign`."""
        name_kernel(self.realign, f"{self.kernel_name}_columns")
        self.realign(pointers, scratch, length, dims).launch(
            grid=((length + (self.threads - 1)) // self.threads, 1, 1),
            block=(self.threads, 1, 1),
            stream=stream,
            smem=0,
        )

    @cute.kernel
    def realign(self, pointers: tuple, scratch: Int64, length: Int32, dims: tuple):
        """Makes the copies; a thread has an element of each column operand."""
        lead()
        i = Int32(cute.arch.block_idx()[0]) * self.threads + cute.arch.thread_idx()[0]
        g = self.row_of(pointers, length, dims, Int64(0))
        own = {name: g[name][cutlass.min(i, length - 1)] for name in self.binding.operands.columns}
        for before in cutlass.range_constexpr(self.vec):
            for name, gX in self.realigned(g, scratch, Int32(before)).items():
                store_if(gX, i - before, own[name], (i >= before) & (i < length))

    def realigned(self, g: dict[str, cute.Tensor], scratch: Int64, before: Int32) -> dict[str, cute.Tensor]:
        """The copies of column operands from element ``before`` on, each of them at a boundary."""
        found = {}
        for name in self.binding.operands.columns:
            dtype, length = g[name].element_type, cute.size(g[name].shape)
            pitch = Int64(realigned_bytes(length, dtype.width // 8))
            start = cute.make_ptr(dtype, scratch + before * pitch, GLOBAL, assumed_align=16)
            found[name], scratch = cute.make_tensor(start, g[name].layout), scratch + self.vec * pitch
        return found
