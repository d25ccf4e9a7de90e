"""Copy of contiguous rows, 16 bytes a thread: rows that begin at 16-byte boundaries, and rows that begin anywhere.

    Y[b..., i] = X[b..., i]            rows of any length, any outer dimensions and strides

A thread moves a chunk of a row.  For ``Rows``, where all rows are whole chunks, a chunk is a wide element:

    mX, mY  (chunks, b...):(1, s...)    unsigned integers of ``width`` bytes; one contiguous run needs no division

``Realigned`` accesses memory in aligned chunks of 16 bytes all the same; a thread owns one chunk of an output row and
reads the two chunks of the input row that hold its elements:

    input    |....AAAA|AAAABBBB|BBBBCCCC|CCCC....|      two neighboring loads of a thread; the second is the first of
                  ^ gX                                  the next thread, so L1 has it
    thread    0: AA..   1: ...                          funnel-shifted
    output   |..AAAAAA|AABBBBBB|BBCCCCCC|CC......|      whole chunks by one store; the first and the last of a row,
                ^ gY                                    which can hold elements of another row, by element

On the H200 more bytes a thread, persistent grids, streaming hints and bulk copies were all slower; docs/lab/week0.md.

Bytes moved: each once; the bound is DRAM bandwidth.
Limits: ``Rows`` needs strides, lengths and both addresses to be multiples of ``width``, except for one contiguous run,
whose last, incomplete chunk is copied by ``tail`` bytes a thread.  ``Realigned`` needs multiples of an element; it
reads inside the 16-byte chunk that holds the tensor's first element, and never past the end of its last.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass.cute.testing import assert_ as check

from forge_core.cute.copy import copy_if, head_elements, load_unaligned
from forge_core.cute.math import divisor
from forge_core.cute.memory import builder, elements_at, name_kernel
from forge_core.cute.strided import operands, place, tensor
from forge_week0_transpose.config import RealignedConfig, RowsConfig
from forge_week0_transpose.kernels.tensors import UNSIGNED


class Rows(RowsConfig):
    """Rows of whole chunks."""

    @cute.jit
    def __call__(self, pX: Any, pY: Any, chunks: Any, length: Any, outer: tuple, stream: Any):
        """Launches a thread for each of the ``chunks`` that a row can touch; ``length`` in elements.

        With tails ``length`` is in tails; ``chunks`` counts whole chunks up to a whole warp, and tails.
        """
        name_kernel(self.kernel, self.kernel_name)
        # From the first element of x to behind its last.
        extent = length + sum((n - 1) * stride for n, stride in zip(outer[1::3], outer[2::3], strict=True))
        sizes = (chunks, *outer[1::3])
        sizes = sizes if cutlass.const_expr(self.wide or self.rank == 0) else tuple(divisor(Int32(n)) for n in sizes)
        self.kernel(pX, pY, chunks, length, extent, outer, sizes).launch(
            grid=(Int32((chunks * outer[0] + (self.threads - 1)) // self.threads), 1, 1),
            block=(self.threads, 1, 1),
            stream=stream,
        )

    @cute.kernel
    def kernel(self, pX: Any, pY: Any, chunks: Int64, length: Int64, extent: Int64, outer: tuple, sizes: tuple):
        index = Int64(cute.arch.block_idx()[0]) * self.threads + cute.arch.thread_idx()[0]
        if index < chunks * outer[0]:
            number = index if cutlass.const_expr(self.wide or self.rank == 0) else Int32(index)
            chunk, *row = place(number, sizes)
            check(chunk < chunks, "the chunk begins inside the row")
            mX, mY = operands((pX, pY), UNSIGNED[self.itemsize], outer, (length,), ((1,), (1,)))
            left = extent - cute.crd2idx((0, *row), mX.layout)
            self.move(mX[(None, *row)], mY[(None, *row)], chunk, chunks, length, left)

    @cute.jit
    def move(self, gX: cute.Tensor, gY: cute.Tensor, chunk: Int64, chunks: Int64, length: Int64, left: Int64):
        """Moves a chunk of a row, behind whose first element x has ``left`` elements."""
        if cutlass.const_expr(self.tail == 0):
            gY[chunk] = gX[chunk]
        elif (chunk + 1) * (self.itemsize // self.tail) <= length:
            gY[chunk] = gX[chunk]
        elif chunks - chunk <= length % (self.itemsize // self.tail):
            # The last threads have an element each, of an incomplete last chunk.
            tX, tY = (tensor(g.iterator, UNSIGNED[self.tail], (length,), (1,)) for g in (gX, gY))
            tY[length - (chunks - chunk)] = tX[length - (chunks - chunk)]


class Realigned(RealignedConfig, Rows):
    """Rows that begin anywhere."""

    @cute.jit
    def move(self, gX: cute.Tensor, gY: cute.Tensor, chunk: Int64, chunks: Int64, length: Int64, left: Int64):
        """Moves a chunk of memory of an output row, as far as the row has it."""
        check(left >= length, "the row lies inside the source")
        # The chunk's first element: negative where the row begins inside the chunk.
        vec = self.vec
        begin = chunk * vec - Int64(-head_elements(gY, vec) & (vec - 1))
        whole = (begin >= 0) & (begin + vec <= length)
        rX = cute.make_rmem_tensor(vec, gX.element_type)
        load_unaligned(cute.make_tensor(gX.iterator, cute.make_layout(left)), begin, rX, whole)
        copy_if(rX, elements_at((gY.iterator + begin).toint(), gY.element_type, vec), whole)
        if not whole:
            for i in cutlass.range(cutlass.max(begin, Int64(0)), cutlass.min(begin + vec, length)):
                gY[i] = gX[i]


build = builder(Rows, Realigned, wide=2, dims="rank")
