"""Of the kernels for a short side."""

from __future__ import annotations

from dataclasses import dataclass

from forge_week0_transpose.configs.layout import CHUNK, LINE, MAX_LINES, Layout

__all__ = ["LinesConfig", "SkinnyConfig"]


@dataclass(frozen=True)
class SkinnyConfig:
    """``kernels/skinny.py``; a tile is (lines, elements of each), so that places are those of the run.

    Attributes:
        itemsize: bytes of an element: 1, 2, 4 or 8.
        lines: the short side, 2 to 8.
        gather: the short side is the rows: lines are read and a run is written; otherwise the inverse.
        line_width: bytes of an access to a line: 16 or less, not below the element.
        run_width: bytes of an access to the run, likewise.
        batch_rank: dimensions around the matrix.
        threads: of a block.
    """

    itemsize: int
    lines: int
    gather: bool
    line_width: int = CHUNK
    run_width: int = CHUNK
    batch_rank: int = 0
    threads: int = 32

    @property
    def vec(self) -> int:
        """Elements of a chunk."""
        return CHUNK // self.itemsize

    @property
    def tile(self) -> tuple[int, int]:
        """Lines, and elements of each in a tile."""
        return self.lines, self.threads * self.vec

    @property
    def line_layout(self) -> Layout:
        """A chunk of each line a thread."""
        return ((self.threads,), (self.vec, self.lines)), ((self.vec * self.lines,), (self.lines, 1))

    @property
    def own_layout(self) -> Layout:
        """The same elements in the order of the run: its neighboring chunks."""
        return ((self.threads,), (self.vec, self.lines)), ((self.vec * self.lines,), (1, self.vec))

    @property
    def run_layout(self) -> Layout:
        """Neighboring threads have neighboring chunks of the run."""
        return ((self.threads,), (self.vec, self.lines)), ((self.vec,), (1, self.vec * self.threads))

    @property
    def swizzle(self) -> tuple[int, int, int]:
        """Bits, base and shift over bytes, so that threads ``lines`` chunks apart do not share banks.

        An odd distance visits all eight chunks of 128 bytes.  An even one, 2^a times an odd number, comes back to its
        first one after 8 / 2^a threads, an odd multiple of 128 bytes on, whose number mod 2^a is another each time.
        """
        return (self.lines & -self.lines).bit_length() - 1, 4, 3

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a block."""
        return self.threads * self.lines * CHUNK

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        way = f"{self.lines}rows" if self.gather else f"{self.lines}cols"
        return f"transpose_skinny_{self.itemsize}B_{way}_line{self.line_width}_run{self.run_width}_b{self.batch_rank}"


@dataclass(frozen=True)
class LinesConfig:
    """``kernels/lines.py``; how many lines, and where they begin, is known at the launch only.

    Attributes:
        itemsize: bytes of an element: 1, 2, 4, 8 or 16.
        gather: the short side is the rows: lines are read and a run is written; otherwise the inverse.
        batch_rank: dimensions around the matrix.
        threads: of a block, a power of two, 32 or more.
        tile_bytes: at most so many bytes of all lines together are a tile; 2048 or more.
    """

    itemsize: int
    gather: bool
    batch_rank: int = 0
    threads: int = 256
    tile_bytes: int = 16384

    @property
    def vec(self) -> int:
        """Elements of a chunk."""
        return CHUNK // self.itemsize

    @property
    def word(self) -> int:
        """Bytes of a word, which is what a thread loads."""
        return max(4, self.itemsize)

    def shift(self, lines: int) -> int:
        """The logarithm of the places of a tile."""
        return (self.tile_bytes // (lines * self.itemsize)).bit_length() - 1

    @property
    def padding(self) -> int:
        """Bytes behind a line in shared memory, or behind ``LINE`` bytes of the run, in whole words.

        No distance suits every number of lines.  By these a read takes two passes on the mean over 2 to 32 lines and
        four at most; by one word it takes up to ten, at 13 rows of 4 bytes.
        """
        words = {1: 5, 2: 3, 4: 2, 8: 3, 16: 1} if self.gather else {1: 5, 2: 5, 4: 5, 8: 5, 16: 1}
        return words[self.itemsize] * self.word

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a block."""
        if self.gather:
            return self.tile_bytes + MAX_LINES * (self.padding + self.word - 1) + self.word
        return (self.tile_bytes // LINE + 1) * (LINE + self.padding)

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        way = "rows" if self.gather else "cols"
        return f"transpose_lines_{self.itemsize}B_{way}_{self.tile_bytes}_b{self.batch_rank}"
