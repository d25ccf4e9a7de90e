"""What ``kernels/lines.py`` is compiled for, and how it is drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from forge_core.profiling.layouts import Access, Drawing, Panel
from forge_week0_transpose.configs import CHUNK

__all__ = ["LINE", "MAX_LINES", "LinesConfig", "draw"]

#: The longest short side; bytes of the run that share a row of shared memory.
MAX_LINES, LINE = 64, 128

#: The lines that the drawing assumes.
DRAWN = 9


@dataclass(frozen=True)
class LinesConfig:
    """``kernels/lines.py``; how many lines, and where they begin, is known at the launch only.

    Attributes:
        gather: the short side is the rows: lines are read and a run is written; otherwise the inverse.
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


def draw(config: LinesConfig) -> Drawing:
    """Words as they are in rows of shared memory, from which each thread takes the elements of a chunk."""
    size, word, places = config.itemsize, config.word, 1 << config.shift(DRAWN)
    row, total, turn = places * size if config.gather else LINE, DRAWN * places * size, config.threads

    def drawn(what: str, width: int, each: int, place: Callable[[int], int], space: str) -> tuple[Access, ...]:
        """Accesses of ``width`` bytes; a thread has ``each`` bytes at a time."""
        firsts = (range(first, min(first + turn * each, total), each) for first in range(0, total, turn * each))
        begins = ((at, begin) for at in firsts for begin in range(0, each, width))
        return tuple(Access(what, tuple(place(a + begin) for a in at), width, space) for at, begin in begins)

    def padded(at: int) -> int:
        return at + at // row * config.padding

    def element(at: int) -> int:
        """Of the output at a byte: in shared memory."""
        i = at // size
        line, place = (i % DRAWN, i // DRAWN) if config.gather else (i // places, i % places)
        return padded((line * places + place if config.gather else place * DRAWN + line) * size)

    source, target = (f"{DRAWN} lines", "the run")[:: 1 if config.gather else -1]
    kept = row + config.padding
    panels = (
        Panel(f"global memory, {source}: loads", row, drawn("loads", word, word, int, "global")),
        Panel("shared memory, words: writes", kept, drawn("writes", word, word, padded, "shared")),
        Panel("shared memory, elements: reads", kept, drawn("reads", size, CHUNK, element, "shared")),
        Panel(f"global memory, {target}: stores", places * size, drawn("stores", CHUNK, CHUNK, int, "global")),
    )
    return Drawing(f"{config.kernel_name}: {DRAWN} lines of {places} elements", panels)
