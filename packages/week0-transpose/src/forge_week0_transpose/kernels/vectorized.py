r"""Transposition with 128-bit accesses on both sides, through swizzled shared memory.

    Y[b, n, m] = X[b, m, n]            (B, M, N) -> (B, N, M), elements of 1, 2, 4, 8 or 16 bytes

The steps are those of ``tiled``.  V = 16 / itemsize elements are a chunk.  A tile is ``row_chunks`` chunks of an output
row by ``col_chunks`` loads of an input row; each thread owns V rows of a load:

    tXgX   ((cols, V), 1, 1)      loads: neighboring threads have neighboring loads of a row
    tXrX   by rows; transposed in registers: a renaming for 4 bytes and more, one prmt a word for 2 bytes, two for 1
    sX     (tile_m, tile_n):(1, tile_m)    swizzled: neither writes nor reads have bank conflicts
    tXsX   ((V, cols), 1, 1)      a chunk of each column
    tYsX   ((V, cols), 1, 1)      stores: neighboring threads have neighboring chunks of an output row

Loads ask the L2 to evict their lines last.  Blocks walk down the input's rows first, so that neighbors in time extend
the same output rows; ``by_columns`` turns that round for input rows that share lines of memory (docs/week0.md).

Bytes moved: 2 * B * M * N * itemsize, each once; the bound is DRAM bandwidth.
Limits: input rows begin and end at multiples of the width of loads (16 or 8 bytes, not below the element), output rows
at multiples of 16 bytes; ``shifted`` takes what is left.
"""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Uint32

from forge_core.cute.memory import builder
from forge_week0_transpose.config import VectorizedConfig
from forge_week0_transpose.kernels.tensors import UNSIGNED
from forge_week0_transpose.kernels.tiled import TileKernel
from forge_week0_transpose.kernels.words import interleave


class Vectorized(VectorizedConfig, TileKernel):
    """The kernel of a configuration."""

    def view(self, rows: Any, cols: Any, x0: Any, y1: Any) -> tuple[tuple, tuple, tuple]:
        """Rows of mX are contiguous, and columns of mY; strides between rows of x (0) and of y (1)."""
        return (rows, cols), (x0, 1), (1, y1)

    def shuffle(self, rX: cute.Tensor) -> cute.Tensor:
        """Columns, a chunk each, from V rows."""
        words = cute.size(rX) * rX.element_type.width // 32 // self.vec
        # Not recast_tensor, which makes one word of one element of 16 bytes.
        rWords = cute.make_tensor(cute.recast_ptr(rX.iterator, dtype=Uint32), cute.make_layout((words, self.vec)))
        rows = [[rWords[w, i] for w in range(words)] for i in range(self.vec)]
        columns = interleave(rows, self.itemsize, lambda a, b, selector: Uint32(cute.arch.prmt(a, b, selector)))
        rWords = cute.make_rmem_tensor(words * self.vec, Uint32)
        for i, word in enumerate(word for chunk in columns for word in chunk):
            rWords[i] = word
        return cute.recast_tensor(rWords, UNSIGNED[self.itemsize])


build = builder(Vectorized, wide=4, dims="batch_rank")
