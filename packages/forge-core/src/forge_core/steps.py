"""Steps of a kernel: the accesses of a block's threads to a tile in one memory, as a thread-value layout.

A configuration that is :class:`Stepped` has steps.  A kernel can partition its tile by their layouts; ``forge-cute
layout`` draws them, and tests compare the compiled accesses with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: Bytes of the widest access of a thread.
CHUNK = 16

#: A thread-value layout as ``cute.make_layout`` takes it: ((threads, values), (their strides)), each a tuple.
Layout = tuple[tuple[Any, ...], tuple[Any, ...]]

#: Bits, base and shift of a swizzle over bytes.
Swizzle = tuple[int, int, int]
#: The swizzle that changes nothing.
PLAIN: Swizzle = (0, 4, 3)


@dataclass(frozen=True)
class Step:
    """The accesses of a block to a tile (tile_m, tile_n) in one memory."""

    title: str  # what is done; the last word names the accesses
    size: int  # bytes of an element
    layout: Layout  # maps a thread of the block and the number of its element to m + n * tile_m, its place in the tile
    tile: tuple[int, int]  # (tile_m, tile_n)
    strides: tuple[int, int]  # elements in memory from one m to the next, and from one n; a row is the larger of them
    width: int  # bytes of an access
    swizzle: Swizzle | None = None  # of shared memory; None in global memory
    edge: int = 0  # bytes of the accesses where a whole one does not fit; 0 if it always does
    shifted: bool = False  # a thread also accesses the next 16 bytes, unless its row ends
    run: bool = False  # the tile is one contiguous run


class Stepped:
    """A configuration of a kernel that has steps."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps in the order of the data flow: the first one loads, the last one stores."""
        raise NotImplementedError(f"{type(self).__name__}: expected a property `steps`, got none")


def contiguous(title: str, threads: int, size: int, width: int, chunks: int = 1, **others: Any) -> Step:
    """Neighboring threads access neighboring bytes of a run; each thread ``chunks`` times."""
    vec = width // size
    count = threads * vec * chunks
    layout = ((threads,), (vec, chunks)), ((vec,), (1, threads * vec))
    return Step(title, size, layout, (count, 1), (1, count), width, run=True, **others)
