"""Transposition of a matrix with two to eight rows, or two to eight columns: an interleave, or its inverse.

Lines, run and chunks are those of ``lines``, with N = 2 to 8; the steps are those of ``tiled``.  For N = 3, few rows:

    global, N lines           registers of a thread                  shared memory           global, one run
    r0 [a0 a1 a2 a3]...       a0 a1 a2 a3                            chunks 3 t + 0, 1, 2    neighboring threads take
    r1 [b0 b1 b2 b3]...   ->  b0 b1 b2 b3  -> a0b0c0a1 b1c1a2b2  ->  of thread t         ->  neighboring chunks
    r2 [c0 c1 c2 c3]...       c0 c1 c2 c3     c2a3b3c3

    mX, mY (N, L)                 both sides, of which one has the strides (pitch, 1), the other (1, N)
    tXgX   ((V, N), 1, 1)         a thread's chunk of each line of the tile
    sX     (N, tile):(1, N)       the run; of even N swizzled: neither writes nor reads have bank conflicts
    tXsX   ((V, N), 1, 1)         a thread's own chunks of the run
    tYsX   ((V, N), 1, 1)         neighboring threads' chunks of the run

Few columns go the other way.

Bytes moved: 2 * B * N * L * itemsize, each once; the bound is DRAM bandwidth.
Limits: the pitch of the short side is N (no gap); lines and run begin at multiples of 16 bytes, and so does the next
matrix of a batch.  One kernel is compiled for each N.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from forge_core.cute.memory import builder
from forge_core.steps import Step
from forge_week0_transpose.configs import SkinnyConfig
from forge_week0_transpose.kernels.tensors import shuffled
from forge_week0_transpose.kernels.tiled import TileKernel
from forge_week0_transpose.kernels.words import deinterleave, interleave


class Skinny(SkinnyConfig, TileKernel):
    """The kernel of a configuration."""

    def view(self, length: Any, pitch: Any) -> tuple[tuple, tuple, tuple]:
        """N lines, ``pitch`` apart, on the one side, and their run on the other."""
        lines, run = (pitch, 1), (1, self.lines)
        return (self.lines, length), *((lines, run) if self.gather else (run, lines))

    @cute.jit
    def move(self, mX: cute.Tensor, mY: cute.Tensor, shape: tuple, origin: tuple, thread: Int32):
        """A whole tile by its steps; the last, incomplete one element by element, in the order of the run."""
        first = origin[1]
        left = Int32(cutlass.min(shape[1] - first, Int64(self.tile[1])))
        if left == self.tile[1]:
            TileKernel.move(self, mX, mY, shape, (0, first), thread)
        else:
            for i in cutlass.range(thread, left * self.lines, self.threads):
                place = (i % self.lines, first + i // self.lines)
                mY[place] = mX[place]

    def inside(self, step: Step, part: Any, origin: tuple, shape: tuple) -> None:
        """All accesses to a whole tile are."""

    def shuffle(self, rX: cute.Tensor, *, loaded: bool) -> cute.Tensor:
        """Of lines, the thread's chunks of the run, before they are written; or the inverse, after they are read."""
        by = interleave if loaded else deinterleave
        return shuffled(rX, self.lines, by, self.itemsize) if loaded is self.gather else rX


build = builder(Skinny, wide=2, dims="batch_rank")
