"""Transposition of a matrix with few rows, or few columns, of any number and alignment, through shared memory.

    few rows (``gather``)      Y[l * N + n] = X[n * pitch + l]       N = 2 to 128 lines, any number of places l
    few columns                Y[n * pitch + l] = X[l * apart + n]      apart is N, and a gap

One side is N long lines, the other a single run.  N is an argument of the launch, and lines and run begin anywhere.  A
chunk is V neighboring elements, aligned to its bytes.  A tile is 8 * groups chunks of each line; shared memory holds
its run, each chunk of it as aligned as in global memory.  For N = 3, V = 4, few rows:

    global, N lines             registers of a thread     shared memory, by element      global, one run
    r0 ..|a0 a1 a2 a3|...       a0 a1 a2 a3               |..a0b0|c0a1b1c1|a2b2c2a3|..   neighboring threads take
    r1 ..|b0 b1 b2 b3|...       b0 b1 b2 b3                                              neighboring chunks
    r2 ..|c0 c1 c2 c3|...       c0 c1 c2 c3

    gL (N, length):(pitch, 1)     the lines; eight neighboring threads take eight neighboring chunks of one
    gR (1, count):(1, 1)          the run of the tile, N times its places
    sR (run)                      the same, swizzled: chunks that neighbors access by element lie N chunks apart

Few columns go the other way, with the gaps of their run.  What fills no chunk, at either end of a line or of the run,
is moved by element.

Bytes moved: 2 * B * N * L * itemsize, each once, and the gaps; the bound is DRAM bandwidth.
Limits: a run that is written has no gaps.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32
from cutlass.cute.testing import assert_ as check
from cutlass.memory import SmemAllocator

from forge_core.cute.copy import head_elements, load_if, load_policy, neighbors
from forge_core.cute.memory import builder, name_kernel
from forge_week0_transpose.config import LinesConfig
from forge_week0_transpose.kernels.tensors import matrices


class Lines(LinesConfig):
    """The kernel of a configuration."""

    @cute.jit
    def __call__(
        self, pX: Any, pY: Any, lines: Any, length: Any, pitch: Any, apart: Any, groups: Any, batch: tuple, stream: Any
    ):
        """Launches a block a tile of ``8 * groups`` chunks of each line; ``pitch`` and ``apart`` in elements."""
        places = groups * (8 * self.vec)
        tiles = (length + (places - 1)) // places
        name_kernel(self.kernel, self.kernel_name)
        distances = (pitch, apart) if cutlass.const_expr(self.gaps) else pitch
        self.kernel(pX, pY, (lines, length), distances, Int32(groups), Uint32(tiles), batch).launch(
            grid=(Int32(tiles * batch[0]), 1, 1), block=(self.threads, 1, 1), smem=self.smem_bytes, stream=stream
        )

    @cute.kernel
    def kernel(self, pX: Any, pY: Any, shape: tuple, distances: Any, groups: Int32, tiles: Uint32, batch: tuple):
        block, (lines, length), places = Uint32(cute.arch.block_idx()[0]), shape, groups * (8 * self.vec)
        pitch, apart = distances if cutlass.const_expr(self.gaps) else (distances, lines)
        tile = block % tiles if cutlass.const_expr(self.batch_rank > 0) else block
        first = Int64(tile) * places
        check(apart * groups * 8 <= self.threads * self.loads, "the threads have all chunks of a tile")
        check(first < length, "the tile begins inside the lines")
        strides = ((pitch, 1), (1, apart)) if cutlass.const_expr(self.gather) else ((1, apart), (pitch, 1))
        mats = matrices((pX, pY), self.itemsize, shape, strides, batch, block // tiles)
        gL, gR = (cute.domain_offset((0, first), mat) for mat in (mats if self.gather else mats[::-1]))
        lines, left = Int32(lines), Int32(cutlass.min(length - first, Int64(places)))
        apart, gap = (Int32(apart), Int32(apart) - lines) if cutlass.const_expr(self.gaps) else (lines, 0)
        gL = cute.make_tensor(gL.iterator, cute.make_layout((lines, left), stride=(pitch, 1)))
        gR = cute.make_tensor(gR.iterator, cute.make_layout((1, left * apart - gap), stride=(1, 1)))
        run, swizzle = cute.make_layout(self.smem_bytes // self.itemsize), cute.make_swizzle(*self.swizzle)
        sR = SmemAllocator().allocate_tensor(gR.element_type, run, byte_alignment=1024, swizzle=swizzle)
        # Elements of the run's first chunk that are before the tile.
        skip = (self.vec - head_elements(gR[0, None], self.vec)) & (self.vec - 1)
        across, along = (gL, self.of_lines(gL, groups, skip, apart), apart), (gR, self.of_run(gR, skip), 1)
        (gX, loads, step), (gY, stores, step_y) = (across, along) if self.gather else (along, across)
        # All loads are in flight, and all places found, before the first load is waited for.
        rX, policy = cute.make_rmem_tensor((self.vec, self.loads), gX.element_type), load_policy()
        for m, (place, _, inside) in enumerate(loads):
            load_if(neighbors(gX, place, self.vec), rX[None, m], inside, policy)
        self.move_ends(gX, sR, skip, step, load=True)
        for m, (_, at, inside) in enumerate(loads):
            self.put(rX[None, m], self.chunk(sR, at, step), inside)
        cute.arch.sync_threads()
        self.move_ends(gY, sR, skip, step_y, load=False)
        for place, at, inside in stores:
            self.store(self.chunk(sR, at, step_y), gY, place, inside)

    def of_lines(self, gL: cute.Tensor, groups: Int32, skip: Int32, apart: Int32) -> list:
        """A thread's chunks of the lines: where they begin there and in the run, and whether they are in the tile."""
        (lines, left), v, found = gL.shape, self.vec, []
        for m in range(self.loads):
            i = Uint32(cute.arch.thread_idx()[0] + m * self.threads)
            group, n = Int32((i >> 3) // Uint32(lines)), Int32((i >> 3) % Uint32(lines))
            place = (group * 8 + Int32(i & 7)) * v + head_elements(gL[n, None], v)
            found.append(((n, place), skip + place * apart + n, (group < groups) & (place + v <= left)))
        return found

    def of_run(self, gR: cute.Tensor, skip: Int32) -> list:
        """A thread's chunks of the run; likewise."""
        chunks = (cute.arch.thread_idx()[0] + m * self.threads + Int32(skip > 0) for m in range(self.loads))
        places = ((chunk * self.vec - skip, cute.assume(chunk * self.vec, divby=self.vec)) for chunk in chunks)
        return [((0, place), at, place + self.vec <= gR.shape[1]) for place, at in places]

    def chunk(self, sR: cute.Tensor, at: Int32, step: Any) -> cute.Tensor:
        """Elements of the run in shared memory, ``step`` apart."""
        return cute.make_tensor(sR.iterator + at, cute.make_layout(self.vec, stride=step))

    @cute.jit
    def put(self, rX: cute.Tensor, sX: cute.Tensor, inside: Any):
        if inside:
            if cutlass.const_expr(isinstance(sX.stride, int)):
                cute.autovec_copy(rX, sX)
            else:
                for k in cutlass.range_constexpr(self.vec):
                    sX[k] = rX[k]

    @cute.jit
    def store(self, sX: cute.Tensor, gY: cute.Tensor, place: tuple, inside: Any):
        """Stores a chunk."""
        if inside:
            rY = cute.make_rmem_tensor(self.vec, gY.element_type)
            cute.autovec_copy(sX, rY)
            cute.autovec_copy(rY, neighbors(gY, place, self.vec))

    @cute.jit
    def move_ends(self, gX: cute.Tensor, sR: cute.Tensor, skip: Int32, step: Any, *, load: cutlass.Constexpr):
        """Moves the elements of each line before its first chunk and behind its last: fewer than two chunks."""
        v, (lines, count) = self.vec, gX.shape
        aligned = ((gX.iterator.toint() | gX.stride[0] * self.itemsize) & (v * self.itemsize - 1)) == 0
        ends = cutlass.select_(aligned & (count & (v - 1) == 0), 0, lines * (2 * v))
        for i in cutlass.range(cute.arch.thread_idx()[0], ends, self.threads, unroll=1):
            n, k = i // (2 * v), i % (2 * v)
            head = cutlass.min(head_elements(gX[n, None], v), count)
            behind = (count - head) & -v  # the first of those behind the chunks, but for the head
            if k < count - behind:
                place = k + Int32(cutlass.select_(k < head, 0, behind))
                if cutlass.const_expr(load):
                    sR[skip + place * step + n] = gX[n, place]
                else:
                    gX[n, place] = sR[skip + place * step + n]


build = builder(Lines, wide=5, dims="batch_rank")
