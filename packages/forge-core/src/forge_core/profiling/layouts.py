"""Index maps of a warp's accesses, and what memory makes of them: sectors, lines, bank conflicts.

An :class:`Access` is one instruction of one block: for each thread the byte at which it reads or writes, or None where
it does not take part, and how many bytes.  From that alone follows what the hardware does with it:

    global    a warp touches so many 32-byte sectors and 128-byte lines; the fewest are its bytes over 32
    shared    32 banks of 4 bytes; accesses of 16 bytes go by 8 lanes at a time, of 8 bytes by 16, others by 32; lanes
              that ask for the same word share it; the others in a bank wait: each adds a pass
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = [
    "Access",
    "Coalescing",
    "Conflicts",
    "Drawing",
    "Panel",
    "coalescing",
    "conflicts",
    "swizzle",
    "swizzled_tile",
    "tiled_copy",
]

WARP, SECTOR, LINE, BANKS, WORD = 32, 32, 128, 32, 4


@dataclass(frozen=True)
class Access:
    """One instruction of a block's threads.

    Attributes:
        name: what it is, for example ``"load 0"``.
        places: for each thread the byte at which its access begins, or None where it has none.
        width: bytes of a thread's access: 1, 2, 4, 8 or 16.
        space: ``"global"`` or ``"shared"``.
    """

    name: str
    places: tuple[int | None, ...]
    width: int
    space: str = "global"


@dataclass(frozen=True)
class Coalescing:
    """What the warps of a global access touch, added up.

    Attributes:
        requests: warps that take part.
        sectors: 32-byte sectors that they touch.
        ideal: the fewest sectors that could hold their bytes.
        lines: 128-byte lines that they touch.
    """

    requests: int
    sectors: int
    ideal: int
    lines: int

    @property
    def sectors_per_request(self) -> float:
        """Sectors of a warp's request: what ncu calls sectors/request."""
        return self.sectors / max(self.requests, 1)

    @property
    def used_pct(self) -> float:
        """How much of the touched sectors is used, in percent."""
        return 100.0 * self.ideal / max(self.sectors, 1)


@dataclass(frozen=True)
class Conflicts:
    """What the warps of a shared access take, added up.

    Attributes:
        requests: warps that take part.
        passes: passes (wavefronts) that they take.
        ideal: those that they would take without conflicts.
        worst: lanes that meet in one bank in the worst pass; 1 without conflicts.
    """

    requests: int
    passes: int
    ideal: int
    worst: int

    @property
    def extra(self) -> int:
        """Passes that conflicts add."""
        return self.passes - self.ideal


@dataclass(frozen=True)
class Panel:
    """One memory's side of a kernel: accesses to one tile, which is drawn as rows of bytes.

    Attributes:
        title: in words.
        row_bytes: bytes of a row of the tile.
        accesses: the instructions, in the order in which the kernel makes them; all to one memory.
    """

    title: str
    row_bytes: int
    accesses: tuple[Access, ...]

    @property
    def shared(self) -> bool:
        """Whether the tile lies in shared memory."""
        return self.accesses[0].space == "shared"

    def summary(self) -> str:
        """The counts of all its accesses, in words."""
        if self.shared:
            found = [conflicts(access) for access in self.accesses]
            passes, ideal = sum(c.passes for c in found), sum(c.ideal for c in found)
            if passes == ideal:
                return f"{passes} passes for {sum(c.requests for c in found)} requests, no bank conflicts"
            worst = max(c.worst for c in found)
            return f"{passes} passes where {ideal} would do: {passes - ideal} by bank conflicts, up to {worst}-way"
        touched = [coalescing(access) for access in self.accesses]
        requests, sectors = sum(c.requests for c in touched), sum(c.sectors for c in touched)
        ideal = sum(c.ideal for c in touched)
        return (
            f"{sectors / max(requests, 1):.2f} sectors a request, {100 * ideal / max(sectors, 1):.0f} % of them used, "
            f"{sum(c.lines for c in touched) / max(requests, 1):.2f} lines"
        )


@dataclass(frozen=True)
class Drawing:
    """A kernel's layouts: the tiles in the order in which the data passes through them.

    Attributes:
        title: in words.
        panels: the tiles.
    """

    title: str
    panels: tuple[Panel, ...]


def _warps(access: Access) -> list[list[int]]:
    places = access.places
    warps = [[p for p in places[i : i + WARP] if p is not None] for i in range(0, len(places), WARP)]
    return [warp for warp in warps if warp]


def coalescing(access: Access) -> Coalescing:
    """The sectors and lines that a global access touches, warp by warp."""
    sectors = lines = ideal = 0
    warps = _warps(access)
    for warp in warps:
        touched = {byte for place in warp for byte in range(place, place + access.width)}
        sectors += len({byte // SECTOR for byte in touched})
        lines += len({byte // LINE for byte in touched})
        ideal += -(-len(touched) // SECTOR)
    return Coalescing(len(warps), sectors, ideal, lines)


def conflicts(access: Access) -> Conflicts:
    """The passes that a shared access takes, warp by warp."""
    passes = ideal = 0
    worst = 1
    lanes = WARP * WORD // max(access.width, WORD)
    count = 0
    for first in range(0, len(access.places), WARP):
        warp = access.places[first : first + WARP]
        count += any(place is not None for place in warp)
        for begin in range(0, WARP, lanes):
            words = {
                word
                for place in warp[begin : begin + lanes]
                if place is not None
                for word in range(place // WORD, (place + access.width - 1) // WORD + 1)
            }
            if not words:
                continue
            banks = [0] * BANKS
            for word in words:
                banks[word % BANKS] += 1
            passes += max(banks)
            ideal += 1
            worst = max(worst, *banks)
    return Conflicts(count, passes, ideal, worst)


def tiled_copy(
    *, threads: tuple[int, int], values: tuple[int, int], row_bytes: int, itemsize: int, by_column: bool = False
) -> Drawing:
    """The thread-value layout of a tiled copy of a row-major tile.

    Threads form a grid of ``threads[0]`` rows and ``threads[1]`` columns, and each has a block of ``values[0]`` rows
    and ``values[1]`` neighbouring elements, as in ``cute.make_tiled_copy_tv``; a row of values is one access where it
    is 16 bytes or less, else several.

    Args:
        threads: rows and columns of the threads.
        values: rows and columns of a thread's values.
        row_bytes: distance from one row of the tile to the next.
        itemsize: bytes of an element.
        by_column: number the threads down the columns first instead of along the rows.

    Raises:
        ValueError: a row of the tile is longer than ``row_bytes``, or a thread's row cannot be cut into accesses.
    """
    rows, columns = threads
    across = values[1] * itemsize
    if columns * across > row_bytes:
        raise ValueError(
            f"expected a row of at least {columns * across} bytes for {columns} threads of {across}, got {row_bytes}"
        )
    width = next((w for w in (16, 8, 4, 2, 1) if across % w == 0 and w <= across), 0)
    if not width or width < itemsize:
        raise ValueError(f"expected values that are 1, 2, 4, 8 or 16 bytes or multiples of 16, got {across} bytes")
    accesses: list[Access] = []
    for down in range(values[0]):
        for part in range(0, across, width):
            places = []
            for thread in range(rows * columns):
                y, x = (thread % rows, thread // rows) if by_column else (thread // columns, thread % columns)
                places.append((y * values[0] + down) * row_bytes + x * across + part)
            accesses.append(Access(f"access {len(accesses)}", tuple(places), width))
    order = "down the columns" if by_column else "along the rows"
    title = f"{rows} x {columns} threads, {values[0]} x {values[1]} elements of {itemsize} B each, numbered {order}"
    return Drawing(title, (Panel("global memory", row_bytes, tuple(accesses)),))


def swizzle(bits: int, base: int, shift: int) -> Callable[[int], int]:
    """CuTe's ``Swizzle<bits, base, shift>`` over byte offsets.

    ``bits`` bits, ``shift`` above those from ``base`` on, are XORed into them.  ``Swizzle<3, 4, 3>`` permutes the
    eight 16-byte chunks of each 128-byte row by the row's number modulo 8.

    Raises:
        ValueError: the two fields overlap, or a count is negative.
    """
    if bits < 0 or base < 0 or abs(shift) < bits:
        raise ValueError(f"expected bits >= 0, base >= 0 and |shift| >= bits, got {bits}, {base}, {shift}")
    mask = (1 << bits) - 1 << base + max(shift, 0)

    def apply(offset: int) -> int:
        field = offset & mask if shift >= 0 else offset & ((1 << bits) - 1 << base)
        return offset ^ (field >> shift if shift >= 0 else field << -shift)

    return apply


def swizzled_tile(bits: int, base: int, shift: int, *, rows: int, row_bytes: int, width: int) -> Drawing:
    """A tile of shared memory under ``Swizzle<bits, base, shift>``, accessed along its rows and down its columns.

    Lanes along the rows take neighbouring chunks of ``width`` bytes; lanes down a column take one row each, all at the
    same chunk.

    Raises:
        ValueError: no such swizzle, or a row that is not whole accesses.
    """
    if row_bytes % width or rows < 1:
        raise ValueError(f"expected rows of whole accesses of {width} bytes, got {rows} rows of {row_bytes}")
    place = swizzle(bits, base, shift)
    chunks = row_bytes // width
    along = [(row, chunk) for row in range(rows) for chunk in range(chunks)]
    down = [(row, chunk) for chunk in range(chunks) for row in range(rows)]
    panels = []
    for title, order in (("along the rows", along), ("down the columns", down)):
        offsets = [place(row * row_bytes + chunk * width) for row, chunk in order]
        accesses = tuple(
            Access(f"warp access {i // WARP}", tuple(offsets[i : i + WARP]), width, "shared")
            for i in range(0, len(offsets), WARP)
        )
        panels.append(Panel(f"shared memory, {title}", row_bytes, accesses))
    name = f"Swizzle<{bits}, {base}, {shift}>: {rows} rows of {row_bytes} bytes, {width} bytes a lane"
    return Drawing(name, tuple(panels))
