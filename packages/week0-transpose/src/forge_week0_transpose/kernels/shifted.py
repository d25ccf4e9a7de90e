"""Transposition of matrices whose rows begin anywhere; addresses by hand, since accesses begin at 16-byte boundaries.

    Y[b, n, m] = X[b, m, n]            (B, M, N) -> (B, N, M), elements of 1, 2, 4 or 8 bytes

Tensors, layouts and steps are those of ``vectorized``, but for two:
    src_shift: input rows do not begin at 16-byte boundaries
        global     |....AAAA|AAAABBBB|BBBBCCCC|CCCC....|      each thread loads the two aligned chunks that hold its
                        ^ the tile's first column             V elements of a row; the second is its neighbor's
        registers  AAAAAAAA BBBBBBBB CCCCCCCC                 first, so L1 has it; funnel-shifted right
    dst_shift: output rows do not begin at 16-byte boundaries
        shared     |aaaaaaaa|bbbbbbbb|cccccccc|               an output row of the tile, which is V rows longer
        registers  ....aaaa aaaabbbb bbbbcccc                 two neighboring chunks, funnel-shifted right
        global     |....aaaa|aaaabbbb|bbbbcccc|               aligned chunks; the first and the last of an output
                        ^ the output row's first element      row, which belong to two rows, element by element

The tensor's last chunk is not loaded where it reaches past the last element: ``fill`` loads its elements one by one.

Bytes moved: 2 * B * M * N * itemsize, and when dst_shift one of ``row_chunks`` chunks of input rows again, for the tile
below, mostly from L2; the bound is DRAM bandwidth.
Limits: addresses are multiples of the element; shifted input rows have at least 16 bytes and do not overlap.  Reads
begin in the 16-byte chunk that holds the tensor's first element, and never pass the end of its last.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32
from cutlass.cute.nvgpu import CopyG2ROp
from cutlass.cute.testing import assert_ as check

from forge_core.cute.copy import copy_if, load_policy, shift_bytes
from forge_core.cute.memory import builder, elements_at
from forge_core.steps import CHUNK
from forge_week0_transpose.config import ShiftedConfig
from forge_week0_transpose.kernels.tensors import tile_at, tiled_copy
from forge_week0_transpose.kernels.vectorized import Vectorized


class Shifted(ShiftedConfig, Vectorized):
    """The kernel of a configuration."""

    def load(self, mX: cute.Tensor, shape: tuple, origin: tuple, thread: Any) -> cute.Tensor:
        """A thread's rows of the tile; beyond an edge the nearest row or chunk is loaded instead of branching."""
        check((mX.stride[0] >= shape[1]) | (not self.src_shift), "shifted input rows do not overlap")
        _, part = tiled_copy(self.steps[0], mX, thread, CopyG2ROp)
        m, n = part.partition_S(cute.make_identity_tensor(self.loaded))[0]
        policy, atom = load_policy(), cute.make_copy_atom(CopyG2ROp(), Uint32, num_bits_per_copy=128)
        parts, last, skips = 1 + self.src_shift, (self.end(mX, shape) & -CHUNK) - CHUNK, []
        tXrX = cute.make_rmem_tensor(((4, parts), self.vec), Uint32)
        for k in range(self.vec):
            row = cutlass.min(origin[0] + m + k, shape[0] - 1)
            start = (mX.iterator + cute.crd2idx((row, origin[1] + n), mX.layout)).toint()
            skips.append(Int32(start) & (CHUNK - 1))
            for i in range(parts):
                gChunk = elements_at(cutlass.min((start & -CHUNK) + CHUNK * i, last), Uint32, 4)
                cute.copy(atom, gChunk, tXrX[(None, i), k], cache_policy=policy)
        if not self.src_shift:
            return tXrX
        rRows = cute.make_rmem_tensor((self.vec, self.vec), mX.element_type)
        for k in range(self.vec):
            shift_bytes(tXrX[None, k], skips[k], rRows[None, k])
        return rRows

    @cute.jit
    def fill(self, sX: cute.Tensor, mX: cute.Tensor, shape: tuple, origin: tuple, thread: Int32):
        """Loads also the elements of the tensor's last, incomplete chunk: the last columns of its last row."""
        Vectorized.fill(self, sX, mX, shape, origin, thread)
        if cutlass.const_expr(self.src_shift):
            (rows, cols), (m, n) = shape, self.loaded
            if (origin[0] + m >= rows) & (origin[1] + n + self.vec > cols):
                cute.arch.sync_threads()
                count = Int32(self.end(mX, shape) & (CHUNK - 1)) // self.itemsize
                col = cols - count + thread
                if (thread < count) & (col >= origin[1]) & (col < origin[1] + n):
                    sX[(rows - 1 - origin[0], col - origin[1])] = mX[(rows - 1, col)]

    def end(self, mX: cute.Tensor, shape: tuple[Any, Any]) -> Int64:
        """The address behind the last element of a matrix."""
        return (mX.iterator + cute.crd2idx((shape[0] - 1, shape[1]), mX.layout)).toint()

    def store(self, sX: cute.Tensor, mY: cute.Tensor, shape: tuple, origin: tuple, thread: Any) -> None:
        """Writes the aligned chunks of the tile's output rows, and the ends of those rows."""
        if not self.dst_shift:
            super().store(sX, mY, shape, origin, thread)
            return
        gY, cX = tile_at(mY, origin, self.steps[3], self.itemsize), cute.make_identity_tensor(self.loaded)
        copy, part = tiled_copy(self.steps[3], gY, thread)
        tYsX, tYgY, tYcX = part.partition_S(sX), part.partition_D(gY), part.partition_D(cX)
        # The next chunk of a row is the next thread's; the row's last thread stores nothing.
        last = thread % self.row_chunks == self.row_chunks - 1
        tNsX = copy.get_slice(thread + Int32(cutlass.select_(last, Int32(0), Int32(1)))).partition_S(sX)
        group = min(self.vec, 8)  # chunks that are read before they are stored
        for i in range(self.vec):
            if i % group == 0:
                rPairs = [cute.make_rmem_tensor((self.vec, 2), gY.element_type) for _ in range(group)]
                for h, rPair in enumerate(rPairs):
                    cute.autovec_copy(tYsX[(None, i + h), 0, 0], rPair[None, 0])
                    cute.autovec_copy(tNsX[(None, i + h), 0, 0], rPair[None, 1])
            start, (m, n) = tYgY[(None, i), 0, 0].iterator.toint(), tYcX[(0, i), 0, 0]
            skip, rChunk = Int32(-start) & (CHUNK - 1), cute.make_rmem_tensor(self.vec, gY.element_type)
            shift_bytes(cute.recast_tensor(rPairs[i % group], Uint32), skip, rChunk)
            end = origin[0] + m + skip // self.itemsize + self.vec
            whole = (end <= shape[0]) & (m < self.tile[0]) & (origin[1] + n < shape[1])
            copy_if(cute.recast_tensor(rChunk, Uint32), elements_at(start + skip, Uint32, 4), whole)
        self.store_ends(sX, mY, shape, origin, thread)

    @cute.jit
    def store_ends(self, sX: cute.Tensor, mY: cute.Tensor, shape: tuple, origin: tuple, thread: Int32):
        """Stores what lies before the first and after the last whole chunk of the tile's output rows, by element.

        Such a chunk is shared with the neighboring output row, which another block may be writing.
        """
        v, (rows, cols), (first, _) = self.vec, shape, origin
        if (first == 0) | (first + self.tile[0] + 2 * v > rows):
            for step in cutlass.range_constexpr(-(-self.tile[1] // self.threads)):
                n = thread + step * self.threads
                if (n < self.tile[1]) & (origin[1] + n < cols):
                    line, column = sX[None, n], mY[None, origin[1] + n]
                    before = Uint32(-column.iterator.toint() & (CHUNK - 1)) // self.itemsize
                    head = cutlass.min(type(rows)(before), rows)
                    if first == 0:
                        for row in cutlass.range(head):
                            column[row] = line[row]
                    behind = (rows - head) // v * v  # elements in whole chunks
                    if (behind >= first) & (behind < first + self.tile[0]):
                        for row in cutlass.range(head + behind, rows):
                            column[row] = line[Int32(row - first)]


build = builder(Shifted, wide=4, dims="batch_rank")
