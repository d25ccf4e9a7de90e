"""The accesses of a block's threads to memory, and the transactions that follow: sectors, lines, bank conflicts.

global    a warp's request touches 32-byte sectors and 128-byte lines; at least its bytes over 32 sectors
shared    32 banks of 4 bytes; accesses of 16 bytes go by 8 lanes at a time, of 8 bytes by 16, others by 32; lanes
          that access the same word share it; each other word in a bank adds a wavefront (here: a pass)

As SVG, each cell is one thread's access at its address, colored by lane and labelled thread.access.  Bank numbers stand
above shared memory.  Long tiles are cut, with a note; the counts below are those of the whole tile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from forge_core.steps import CHUNK, PLAIN, Layout, Step

WARP, SECTOR, LINE, BANKS, WORD = 32, 32, 128, 32, 4

#: Bytes of a drawn row of a contiguous run.
RUN = 512
CELL_HEIGHT, MARGIN, TITLE = 18, 12, 20
#: Pixels of a byte, and the minimum of a cell.
BYTE, LEAST_CELL = 4, 26
#: Rows of a tile that are drawn.
MOST_ROWS = 64


@dataclass(frozen=True)
class Access:
    """One instruction of a block's threads, such as ``"loads 0"``."""

    name: str
    places: tuple[int | None, ...]  # the first byte of each thread's access; None for an inactive thread
    width: int  # bytes of a thread's access: 1, 2, 4, 8 or 16

    def warps(self) -> list[list[int | None]]:
        """The places of each warp that has an active thread."""
        warps = (list(self.places[i : i + WARP]) for i in range(0, len(self.places), WARP))
        return [warp for warp in warps if any(place is not None for place in warp)]


@dataclass(frozen=True)
class Coalescing:
    """Transactions of accesses to global memory, summed over warps."""

    requests: int  # of active warps
    sectors: int  # of 32 bytes
    ideal: int  # the fewest sectors that hold the bytes
    lines: int  # of 128 bytes

    @property
    def sectors_per_request(self) -> float:
        """What ncu calls sectors/request."""
        return self.sectors / max(self.requests, 1)

    @property
    def used_pct(self) -> float:
        """The used share of the touched sectors, in percent."""
        return 100.0 * self.ideal / max(self.sectors, 1)

    def __str__(self) -> str:
        each, lines = self.sectors_per_request, self.lines / max(self.requests, 1)
        return f"{each:.2f} sectors a request, {self.used_pct:.0f} % of them used, {lines:.2f} lines"


@dataclass(frozen=True)
class Conflicts:
    """Wavefronts of accesses to shared memory, summed over warps."""

    requests: int  # of active warps
    passes: int  # wavefronts
    ideal: int  # wavefronts without bank conflicts
    worst: int  # the highest number of words in one bank of a wavefront; 1 without conflicts

    @property
    def extra(self) -> int:
        """Wavefronts that bank conflicts add."""
        return self.passes - self.ideal

    def __str__(self) -> str:
        if not self.extra:
            return f"{self.passes} passes for {self.requests} requests, no bank conflicts"
        why = f"{self.extra} by bank conflicts, up to {self.worst}-way"
        return f"{self.passes} passes where {self.ideal} would do: {why}"


@dataclass(frozen=True)
class Panel:
    """One tile in one memory, drawn as rows of bytes, with its accesses in program order."""

    title: str
    row_bytes: int
    accesses: tuple[Access, ...]
    shared: bool = False  # whether the tile lies in shared memory

    def summary(self) -> str:
        """The counts of all its accesses, in words."""
        return str((conflicts if self.shared else coalescing)(*self.accesses))


@dataclass(frozen=True)
class Drawing:
    """A kernel's layouts: its tiles in the order of the data flow."""

    title: str
    panels: tuple[Panel, ...]


def of_steps(config: Any) -> Drawing:
    """The drawing of a configuration's ``steps`` (see :mod:`forge_core.steps`), a panel each.

    Drawn is a tile that lies inside the matrix; where rows begin between 16-byte boundaries, from their first chunk on.
    """
    return Drawing(f"{config.kernel_name}: {config.threads} threads", tuple(map(_panel, config.steps)))


def _panel(step: Step) -> Panel:
    row, place = max(step.strides), swizzle(*(step.swizzle or PLAIN))

    def accesses(name: str, more: int = 0) -> tuple[Access, ...]:
        def address(index: int) -> int | None:
            m, n = index % step.tile[0], index // step.tile[0]
            first = m * step.strides[0] + n * step.strides[1]
            if step.strides[0] == 1 and m >= row:
                return None
            return place(first * step.size + (more if first % row * step.size + more < row * step.size else 0))

        return thread_value(name, step.layout, step.width, vec=step.width // step.size, address=address)

    shared = step.swizzle is not None
    title = f"{'shared' if shared else 'global'} memory, {step.title}"
    found = accesses(step.title.rsplit(maxsplit=1)[-1]) + (accesses("next", CHUNK) if step.shifted else ())
    return Panel(title, RUN if step.run else row * step.size, found, shared)


def coalescing(*accesses: Access) -> Coalescing:
    """The sectors and lines that accesses to global memory touch, warp by warp."""
    touched = [
        {byte for place in warp if place is not None for byte in range(place, place + access.width)}
        for access in accesses
        for warp in access.warps()
    ]
    sectors, lines = (sum(len({byte // size for byte in warp}) for warp in touched) for size in (SECTOR, LINE))
    return Coalescing(len(touched), sectors, sum(-(-len(warp) // SECTOR) for warp in touched), lines)


def conflicts(*accesses: Access) -> Conflicts:
    """The wavefronts that accesses to shared memory take, warp by warp."""
    requests, depths = 0, []
    for access in accesses:
        lanes = WARP * WORD // max(access.width, WORD)
        for warp in access.warps():
            requests += 1
            for begin in range(0, WARP, lanes):
                places = [place for place in warp[begin : begin + lanes] if place is not None]
                words = {word for p in places for word in range(p // WORD, (p + access.width - 1) // WORD + 1)}
                if words:
                    depths.append(max(Counter(word % BANKS for word in words).values()))
    return Conflicts(requests, sum(depths), len(depths), max(depths, default=1))


def thread_value(
    name: str, layout: Layout, width: int, *, vec: int = 1, address: Callable[[int], int | None] = int
) -> tuple[Access, ...]:
    """The accesses of a thread-value layout.

    Args:
        name: names the accesses, which are numbered.
        layout: from threads and their values to indices.
        width: bytes of an access.
        vec: consecutive values of an access.
        address: the byte of an index, or None where nothing is accessed; by default indices are bytes.
    """
    (threads, values), (thread_stride, value_stride) = layout
    firsts = indices(threads, thread_stride)
    return tuple(
        Access(f"{name} {i}", tuple(address(first + value) for first in firsts), width)
        for i, value in enumerate(indices(values, value_stride)[::vec])
    )


def indices(shape: Sequence[int], stride: Sequence[int]) -> list[int]:
    """The indices that a layout maps 0, 1, 2, ... to, first mode fastest."""
    found = [0]
    for size, step in zip(shape, stride, strict=True):
        found = [index + i * step for i in range(size) for index in found]
    return found


def swizzle(bits: int, base: int, shift: int) -> Callable[[int], int]:
    """CuTe's ``Swizzle<bits, base, shift>`` over byte offsets.

    XORs the ``bits`` bits from ``base + shift`` up into those from ``base`` up (the reverse for a negative shift).
    ``Swizzle<3, 4, 3>`` permutes the eight 16-byte chunks of each 128-byte row by the row's index modulo 8.

    Raises:
        ValueError: the two fields overlap, or a count is negative.
    """
    if bits < 0 or base < 0 or abs(shift) < bits:
        raise ValueError(f"expected bits >= 0, base >= 0 and |shift| >= bits, got {bits}, {base}, {shift}")
    mask = (1 << bits) - 1 << base + max(shift, 0)

    def apply(offset: int) -> int:
        field = offset & mask
        return offset ^ (field >> shift if shift >= 0 else field << -shift)

    return apply


def to_svg(drawing: Drawing) -> str:
    """The drawing as a standalone SVG document."""
    parts = [_text(MARGIN, MARGIN + 8, drawing.title, size=13)]
    y, width = MARGIN + TITLE, 9 * len(drawing.title)
    for panel in drawing.panels:
        cells, panel_width, bottom = _cells(panel, y)
        parts += cells
        y, width = bottom + 2 * MARGIN, max(width, panel_width)
    width, body = width + 2 * MARGIN, "\n".join(parts)
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y}" viewBox="0 0 {width} {y}" \
font-family="monospace" font-size="9">
<rect width="{width}" height="{y}" fill="white"/>
{body}
</svg>
"""


def _cells(panel: Panel, top: int) -> tuple[list[str], int, int]:
    """The elements of a panel, its width and where it ends."""
    width = panel.accesses[0].width
    pixel = max(BYTE, -(-LEAST_CELL // width))
    used = 1 + max((p for a in panel.accesses for p in a.places if p is not None), default=0) // panel.row_bytes
    rows, y0 = min(used, MOST_ROWS), top + 16
    parts = [_text(MARGIN, top + 10, panel.title)]
    if panel.shared:
        y0 += 12
        for offset in range(0, panel.row_bytes, max(width, WORD)):
            bank = offset // WORD % BANKS
            parts.append(f'<text x="{MARGIN + offset * pixel + 2}" y="{y0 - 3}" fill="#666">b{bank}</text>')
    for number, access in enumerate(panel.accesses):
        for thread, place in enumerate(access.places):
            if place is None or place // panel.row_bytes >= rows:
                continue
            row, column = divmod(place, panel.row_bytes)
            x, y = MARGIN + column * pixel, y0 + row * CELL_HEIGHT
            title = f"<title>thread {thread}, {escape(access.name)}: byte {place}, {access.width} bytes</title>"
            # Hue by lane, lightness by warp.
            lane, warp = thread % WARP, thread // WARP
            color = f"hsl({360 * lane // WARP}, 70%, {72 + 6 * (warp % 4)}%)"
            parts.append(
                f'<g><rect x="{x}" y="{y}" width="{access.width * pixel}" height="{CELL_HEIGHT}" fill="{color}" '
                f'stroke="#fff"/>{title}<text x="{x + 2}" y="{y + 12}">{thread}.{number}</text></g>'
            )
    bottom = y0 + rows * CELL_HEIGHT
    said = panel.summary() + (f"; the first {rows} of {used} rows are drawn" if rows < used else "")
    parts.append(_text(MARGIN, bottom + 13, said))
    return parts, max(panel.row_bytes * pixel, 7 * len(said)), bottom + 18


def _text(x: int, y: int, text: str, size: int = 11) -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}">{escape(text)}</text>'
