"""Transposition of a matrix with few rows, or few columns, of any number and alignment, through shared memory.

    few rows (``gather``)      Y[l * N + n] = X[n * pitch + l]       N = 2 to 64 lines, any number of places l
    few columns                Y[n * pitch + l] = X[l * N + n]

As for ``skinny``, one side is N long lines and the other a single run; here N is an argument of the launch, and lines
and run begin anywhere.  Addresses by hand, since words and chunks begin at their own boundaries of memory.

How the data moves.  A tile is 2^shift places of all lines.  Words of 4 bytes, or elements, go to shared memory as they
are, and a thread gathers an aligned chunk of 16 bytes of the output from there by element.  With elements of 2 bytes:

            global, words                 shared memory         registers of a thread     global, chunks
    line 0  |.a|bc|de|f.|             ->  |.a|bc|de|f.|     ->  aAbBcCdD            ->    run |..|aA|bB|cC|dD|eE|fF|
    line 1  |AB|CD|EF|..|                 |AB|CD|EF|..|

    run     |..|aA|bB|cC|dD|eE|fF|    ->  the same, padded  ->  abcdef..            ->    line 0  |.a|bc|de|f.|
                                                                ABCDEF..                  line 1  |AB|CD|EF|..|

The pitch of lines in shared memory is congruent to that in global memory modulo a word, so that an element keeps its
place in a word.  What fills no chunk, at either end of a line or of a tile's run, is stored by element.

Bytes moved: 2 * B * N * L * itemsize, each once, but for words that two tiles share; the bound is DRAM bandwidth.
Limits: the pitch of the short side is N (no gap).  Reads begin in the word of the first element and end with the last.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32

from forge_core.cache import Traceable, compile_cached
from forge_core.cute.check import check
from forge_core.cute.memory import elements_at, name_kernel
from forge_week0_transpose.configs import CHUNK
from forge_week0_transpose.kernels import stage
from forge_week0_transpose.kernels.tensors import UNSIGNED, matrices, traceable
from forge_week0_transpose.lines import LINE, MAX_LINES, LinesConfig

__all__ = ["Lines", "build"]


class Lines(LinesConfig):
    """The kernel of a configuration."""

    @cute.jit
    def __call__(self, pX: Any, pY: Any, lines: Any, length: Any, pitch: Any, shift: Any, batch: tuple, stream: Any):
        """Launches a block a tile of ``2 ** shift`` places; ``pitch`` between lines in elements."""
        tiles = (length + ((Int64(1) << shift) - 1)) >> shift
        name_kernel(self.kernel, self.kernel_name)
        self.kernel(pX, pY, (lines, length), pitch, Int32(shift), Uint32(tiles), batch).launch(
            grid=(Int32(tiles * batch[0]), 1, 1), block=(self.threads, 1, 1), smem=self.smem_bytes, stream=stream
        )

    @cute.kernel
    def kernel(self, pX: Any, pY: Any, shape: tuple, pitch: Int64, shift: Int32, tiles: Uint32, batch: tuple):
        size, block = self.itemsize, Uint32(cute.arch.block_idx()[0])
        tile = block % tiles if cutlass.const_expr(self.batch_rank > 0) else block
        (lines, length), first = shape, Int64(tile) << Int64(shift)
        check((lines <= MAX_LINES) & ((lines << Int64(shift)) * size <= self.tile_bytes), "a tile fits shared memory")
        check(first < length, "the tile begins inside the lines")
        strides = ((pitch, 1), (1, lines)) if cutlass.const_expr(self.gather) else ((1, lines), (pitch, 1))
        mats = matrices((pX, pY), size, shape, strides, batch, block // tiles)
        source, target = ((mat.iterator + cute.crd2idx((0, first), mat.layout)).toint() for mat in mats)
        left = Int32(cutlass.min(length - first, Int64(1) << Int64(shift)))
        start = cute.arch.get_dyn_smem(UNSIGNED[size], alignment=CHUNK).toint()
        move = self.gather_run if self.gather else self.scatter_run
        move(source, target, start, Int32(lines), pitch * size, shift, left)

    @cute.jit
    def gather_run(self, line: Int64, run: Int64, start: Int32, lines: Int32, pitch: Int64, shift: Int32, left: Int32):
        """Few rows: ``left`` places from the bytes ``line`` and ``run`` on; ``pitch`` in bytes."""
        size, word, v, thread = self.itemsize, self.word, self.vec, cute.arch.thread_idx()[0]
        length, start = left * size, start + (Int32(line) & (word - 1))
        down = (size << shift) + self.padding + (Int32(pitch) & (word - 1))
        stage.rows(self, line, start, lines, pitch, down, shift - stage.log2(word // size), length >> stage.log2(word))
        if cutlass.const_expr(size < word):
            # Lines that begin or end inside a word have up to two more.
            for i in cutlass.range(thread, 2 * lines, self.threads):
                at = (length & -word) + (i & 1) * word
                stage.end(self, line + (i >> 1) * pitch + at, start + (i >> 1) * down + at, length - at)
        stage.arrive()

        # Element i of the run is in line i % lines at place i // lines.  One further on is a line below, or one place
        # on in the first line: the lesser of two unsigned numbers.  A thread's next chunk is ``far`` elements on.
        total, step, around = left * lines, Uint32(down), Uint32(down * lines - size)
        far = self.place(self.threads * v - v, lines, down)
        head = cutlass.min(stage.head(self, run), total)
        chunks = (total - head) >> stage.log2(v)
        at, target = self.place(head + thread * v, lines, down), run + head * size + thread * CHUNK
        for _ in cutlass.range(thread, chunks, self.threads, unroll=2):
            rY = cute.make_rmem_tensor(v, UNSIGNED[size])
            for k in cutlass.range_constexpr(v):
                rY[k] = stage.element(self, start + Int32(at))
                at = cutlass.min(at + step, at + (step - around))
            cute.autovec_copy(rY, elements_at(target, UNSIGNED[size], v))
            at, target = cutlass.min(at + far, at + (far - around)), target + self.threads * CHUNK
        if thread < total - chunks * v:
            i = thread + Int32(cutlass.select_(thread < head, 0, chunks * v))
            stage.move(self, start + Int32(self.place(i, lines, down)), run + i * size)

    @cute.jit
    def scatter_run(self, run: Int64, line: Int64, start: Int32, lines: Int32, pitch: Int64, shift: Int32, left: Int32):
        """Few columns: the inverse."""
        size, word, v, thread = self.itemsize, self.word, self.vec, cute.arch.thread_idx()[0]
        skip, column = Int32(run) & (word - 1), lines * size
        run, length = run - skip, left * column + skip
        rows, across = length >> stage.log2(LINE), Int32(stage.log2(LINE // word))
        stage.rows(self, run, start, rows, Int64(LINE), Int32(LINE + self.padding), across, 1 << across)
        if thread < LINE // word:
            at = rows * LINE + thread * word
            stage.end(self, run + at, start + stage.padded(self, at)[0], length - at)
        stage.arrive()
        across = shift - stage.log2(v)
        for c in cutlass.range(thread & ((1 << across) - 1), 1 << across, self.threads):
            first, steps, lanes = stage.share(lines, across, self.threads)
            target = line + first * pitch
            for _ in cutlass.range(steps, unroll=1):
                place = c * v + stage.head(self, target)
                if place + v <= left:
                    rY, at = cute.make_rmem_tensor(v, UNSIGNED[size]), skip + first * size + place * column
                    for k in cutlass.range_constexpr(v):
                        source, at = stage.padded(self, at, column)
                        rY[k] = stage.element(self, start + source)
                    cute.autovec_copy(rY, elements_at(target + place * size, UNSIGNED[size], v))
                first, target = first + lanes, target + lanes * pitch
        if cutlass.const_expr(v > 1):
            # Before the first chunk of a line and behind the last, together one of a whole tile or up to two.
            across = stage.log2(v) + Int32(left < (1 << shift))
            for i in cutlass.range(thread, lines << across, self.threads):
                n, k = i >> across, i & ((1 << across) - 1)
                head = cutlass.min(stage.head(self, line + n * pitch), left)
                whole = (left - head) & -v
                if k < left - whole:
                    k += Int32(cutlass.select_(k < head, 0, whole))
                    source = start + stage.padded(self, skip + k * column + n * size)[0]
                    stage.move(self, source, line + n * pitch + k * size)

    def place(self, i: Any, lines: Int32, down: Int32) -> Uint32:
        """Bytes in shared memory from the first element to element ``i`` of the run."""
        place = Uint32(i) // Uint32(lines)
        return (Uint32(i) - place * Uint32(lines)) * Uint32(down) + place * self.itemsize


@compile_cached
def build(config: LinesConfig) -> Traceable:
    """What to compile for a configuration."""
    return traceable(Lines(**vars(config)), 4, config.batch_rank)
