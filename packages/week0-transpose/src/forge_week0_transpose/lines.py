"""Configurations for matrices with few rows or columns: ``skinny`` and ``lines``."""

from __future__ import annotations

from dataclasses import dataclass

from forge_week0_transpose.configs import CHUNK, Step, Swizzle, TileConfig

#: The longest short side that ``skinny`` takes, which is compiled for each, and that ``lines`` takes.
MAX_SKINNY, MAX_LINES = 8, 64


@dataclass(frozen=True)
class SkinnyConfig(TileConfig):
    """``kernels/skinny.py``, of elements of at most 8 bytes; a tile is (lines, elements of each), as a run has them.

    Attributes:
        lines: the short side, 2 to 8.
        gather: the short side is the rows: lines are read and a run is written; otherwise the inverse.
        line_width: bytes of an access to a line: 16 or less, not below the element.
        run_width: bytes of an access to the run, likewise.
    """

    itemsize: int
    lines: int
    gather: bool
    line_width: int = CHUNK
    run_width: int = CHUNK
    batch_rank: int = 0
    flat: bool = False
    threads: int = 32

    by_columns = wide = True

    @property
    def swizzle(self) -> Swizzle:
        """A chunk's number in its line of 128 bytes, XORed with the line's.

        Threads' own chunks lie ``lines`` apart: where 2^bits divides that, every 2^bits-th line has them in the same
        banks.
        """
        return (self.lines & -self.lines).bit_length() - 1, 4, 3

    @property
    def steps(self) -> tuple[Step, ...]:
        """A chunk of each line a thread; in shared memory its chunks of the run, then neighboring chunks of the run."""
        size, n, v, swizzle = self.itemsize, self.lines, CHUNK // self.itemsize, self.swizzle
        tile, threads, values, run = (n, self.threads * v), (self.threads,), (v, n), (1, n)
        lines = (threads, values), ((v * n,), (n, 1))
        own = (threads, values), ((v * n,), (1, v))
        spread = (threads, values), ((v,), (1, v * self.threads))
        across, along = ("loads", "stores") if self.gather else ("stores", "loads")
        steps = (
            Step(f"{n} lines: {across}", lines, tile, (tile[1], 1), self.line_width, edge=size),
            Step("a thread's own chunks", own, tile, run, CHUNK, swizzle, run=True),
            Step("neighboring chunks", spread, tile, run, CHUNK, swizzle, run=True),
            Step(f"the run: {along}", spread, tile, run, self.run_width, edge=size, run=True),
        )
        return steps if self.gather else steps[::-1]

    @property
    def _name(self) -> str:
        way = f"{self.lines}rows" if self.gather else f"{self.lines}cols"
        return f"skinny_{self.itemsize}B_{way}_line{self.line_width}_run{self.run_width}"


@dataclass(frozen=True)
class LinesConfig:
    """``kernels/lines.py``; how many lines, and where they begin, is known at the launch only.

    Attributes:
        gather: the short side is the rows: lines are read and a run is written; otherwise the inverse.
        bits: the logarithm of the largest power of two, up to 8, that divides the number of lines.
        loads: chunks of a thread.
        threads: of a block, 32 or more.
    """

    itemsize: int
    gather: bool
    bits: int = 0
    batch_rank: int = 0
    loads: int = 4
    threads: int = 128

    #: For the drawing, by ``bits``: how many lines.
    drawn = (9, 10, 12, 8)

    @property
    def steps(self) -> tuple[Step, ...]:
        """Eight chunks beside one another of each line, all of one element of them at a time; neighbors of the run."""
        size, v, n = self.itemsize, self.vec, self.drawn[self.bits]
        groups, run, swizzle = self.groups(n), (1, n), self.swizzle
        tile = n, 8 * v * groups
        across = ((8, n), (v, groups)), ((v * n, 1), (n, 8 * v * n))
        along = ((8 * n,), (v, groups)), ((v,), (1, 8 * v * n))
        steps = (
            Step(f"{n} lines: {'loads' if self.gather else 'stores'}", across, tile, (tile[1], 1), CHUNK),
            Step("the run by element", across, tile, run, size, swizzle, run=True),
            Step("the run by chunk", along, tile, run, CHUNK, swizzle, run=True),
            Step(f"the run: {'stores' if self.gather else 'loads'}", along, tile, run, CHUNK, run=True),
        )
        return steps if self.gather else steps[::-1]

    @property
    def vec(self) -> int:
        """Elements of a chunk."""
        return CHUNK // self.itemsize

    @property
    def tile_bytes(self) -> int:
        """At most so many bytes of all lines together are a tile."""
        return self.threads * self.loads * CHUNK

    def groups(self, lines: int) -> int:
        """How many times eight chunks of each line are a tile: a power of two, or 0 where the tile is too small."""
        fitting = self.tile_bytes // (lines * 8 * CHUNK)
        return 1 << fitting.bit_length() >> 1

    def tiles(self, lines: int, length: int) -> int:
        """How many there are."""
        return -(-length // (8 * self.vec * self.groups(lines)))

    @property
    def swizzle(self) -> Swizzle:
        """As for ``skinny``: a chunk's number, XORed with that of its line of eight chunks."""
        return self.bits, 4, 3

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a block, whose run may begin inside a chunk."""
        return self.tile_bytes + CHUNK

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        way = "rows" if self.gather else "cols"
        return f"transpose_lines_{self.itemsize}B_{way}_x{self.loads}_s{self.bits}_b{self.batch_rank}"
