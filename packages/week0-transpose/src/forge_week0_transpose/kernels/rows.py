"""Copy of contiguous rows, 16 bytes a thread: rows that begin at 16-byte boundaries, and rows that begin anywhere.

    Y[b..., i] = X[b..., i]            rows of any length, any outer dimensions and strides

How the data moves.  The rows are cut into chunks; a thread moves one, and a block of 128 threads moves 128 neighboring
ones.  For ``Rows``, where all rows are whole chunks, a chunk is simply a wide element:

    mX, mY  (chunks, b...):(1, s...)    unsigned integers of ``width`` bytes; one contiguous run needs no division

``Realigned`` accesses memory in aligned chunks of 16 bytes all the same; a thread owns one chunk of an output row and
reads the two chunks of the input row that hold its elements:

    input    |....AAAA|AAAABBBB|BBBBCCCC|CCCC....|      two neighboring loads of a thread; the second is the first of
                  ^ gX                                  the next thread, so L1 has it
    thread    0: AA..   1: ...                          funnel-shifted
    output   |..AAAAAA|AABBBBBB|BBCCCCCC|CC......|      whole chunks by one store; the first and the last of a row,
                ^ gY                                    which can hold elements of another row, by element

Nothing is kept, nothing is staged: a grid of one chunk a thread leaves the order to the memory system.  On the H200
more bytes a thread, persistent grids, streaming hints and bulk copies were all slower; docs/lab/week0.md.

Bytes moved: each once; the bound is DRAM bandwidth.  Of ``Realigned`` L1 serves the second load of each thread.

Limits: ``Rows`` needs strides, lengths and both addresses to be multiples of ``width``, except for one contiguous run,
whose last, incomplete chunk is copied by ``tail`` bytes.  ``Realigned`` needs multiples of an element; it reads inside
the 16-byte chunk that holds the tensor's first element, and never past the end of its last.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32

from forge_core.cache import Traceable, compile_cached
from forge_core.cute.check import check
from forge_core.cute.copy import copy_if, head_elements, load_unaligned
from forge_core.cute.memory import elements_at, name_kernel
from forge_week0_transpose.configs import CHUNK, RealignedConfig, RowsConfig
from forge_week0_transpose.kernels.tensors import UNSIGNED, place, tensor, traceable

__all__ = ["Realigned", "Rows", "build", "build_realigned"]


class Rows(RowsConfig):
    """The kernel of a configuration, for rows of whole chunks."""

    @cute.jit
    def __call__(self, pX: Any, pY: Any, chunks: Any, length: Any, outer: tuple, stream: Any):
        """Launches a thread a chunk; strides in chunks, ``length`` in units of the tail, or of a chunk without one."""
        name_kernel(self.kernel, self.kernel_name)
        self.kernel(pX, pY, chunks, length, outer).launch(
            grid=(Int32((chunks * outer[0] + (self.threads - 1)) // self.threads), 1, 1),
            block=(self.threads, 1, 1),
            stream=stream,
        )

    @cute.kernel
    def kernel(self, pX: cute.Pointer, pY: cute.Pointer, chunks: Int64, length: Int64, outer: tuple):
        index = Int64(cute.arch.block_idx()[0]) * self.threads + cute.arch.thread_idx()[0]
        check(((pX.toint() | pY.toint()) & (self.width - 1)) == 0, "rows begin at multiples of an access's width")
        sizes, strides = (chunks, *outer[1::3]), ((1, *outer[2::3]), (1, *outer[3::3]))
        mX, mY = (tensor(p, self.width, sizes, stride) for p, stride in zip((pX, pY), strides, strict=True))
        if index < chunks * outer[0]:
            at = place(index if cutlass.const_expr(self.wide or self.rank == 0) else Uint32(index), sizes)
            check(at[0] < chunks, "the chunk begins inside the row")
            if cutlass.const_expr(self.tail == 0):
                mY[at] = mX[at]
            else:
                each = self.width // self.tail
                if (index + 1) * each <= length:
                    mY[at] = mX[at]
                else:
                    tX, tY = (tensor(p, self.tail, (length,), (1,)) for p in (pX, pY))
                    for i in cutlass.range(index * each, length):
                        tY[i] = tX[i]


class Realigned(RealignedConfig):
    """The kernel of a configuration, for rows that begin anywhere."""

    @cute.jit
    def __call__(self, pX: Any, pY: Any, length: Any, extent: Any, outer: tuple, stream: Any):
        """Launches a thread for each chunk that a row can touch.

        ``length`` of a row and strides in elements, as ``extent``: from the first of x to behind its last.
        """
        vec = CHUNK // self.itemsize
        chunks = (length + 2 * (vec - 1)) // vec
        name_kernel(self.kernel, self.kernel_name)
        self.kernel(pX, pY, length, extent, chunks, outer).launch(
            grid=(Int32((chunks * outer[0] + (self.threads - 1)) // self.threads), 1, 1),
            block=(self.threads, 1, 1),
            stream=stream,
        )

    @cute.kernel
    def kernel(self, pX: cute.Pointer, pY: cute.Pointer, length: Int64, extent: Int64, chunks: Int64, outer: tuple):
        index, size = Int64(cute.arch.block_idx()[0]) * self.threads + cute.arch.thread_idx()[0], self.itemsize
        if index < chunks * outer[0]:
            number = index if cutlass.const_expr(self.wide or self.rank == 0) else Uint32(index)
            at = place(number, (chunks, *outer[1::3]))
            mX, mY = (tensor(p, size, (length, *outer[1::3]), (1, *outer[2 + i :: 3])) for i, p in enumerate((pX, pY)))
            gX, gY = (m[(None, *at[1:])] for m in (mX, mY))
            left = extent - cute.crd2idx((0, *at[1:]), mX.layout)
            check(left >= length, "the row lies inside the source")
            # The chunk's first element: negative where the row begins inside the chunk.
            vec = CHUNK // size
            begin = at[0] * vec - Int64(-head_elements(gY, vec) & (vec - 1))
            whole = (begin >= 0) & (begin + vec <= length)
            rX = cute.make_rmem_tensor(vec, UNSIGNED[size])
            load_unaligned(cute.make_tensor(gX.iterator, cute.make_layout(left)), begin, rX, whole)
            copy_if(rX, elements_at((gY.iterator + begin).toint(), UNSIGNED[size], vec), whole)
            if not whole:
                for i in cutlass.range(cutlass.max(begin, Int64(0)), cutlass.min(begin + vec, length)):
                    gY[i] = gX[i]


@compile_cached
def build(config: RowsConfig) -> Traceable:
    """What to compile for rows of whole chunks."""
    return traceable(Rows(**vars(config)), 2, config.rank)


@compile_cached
def build_realigned(config: RealignedConfig) -> Traceable:
    """What to compile for rows that begin anywhere."""
    return traceable(Realigned(**vars(config)), 2, config.rank)
