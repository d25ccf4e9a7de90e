"""Layouts as SVG: each cell is what one thread accesses at once, coloured by its lane, at the place where it lies.

A cell's label is thread.access.  Shared memory carries the numbers of the banks above it.  A tile of more rows than
fit is cut, and says so; the counts below it are always those of the whole tile.
"""

from __future__ import annotations

from html import escape

from forge_core.profiling.layouts import BANKS, WARP, WORD, Drawing, Panel

__all__ = ["to_svg"]

CELL_HEIGHT, MARGIN, TITLE = 18, 12, 20
#: Pixels of a byte, and the least of a cell.
BYTE, LEAST_CELL = 4, 26
#: Rows of a tile that are drawn.
MOST_ROWS = 64


def to_svg(drawing: Drawing) -> str:
    """The drawing as a standalone SVG document."""
    parts: list[str] = []
    y, width = MARGIN + TITLE, 0
    for panel in drawing.panels:
        body, panel_width, panel_height = _panel(panel, y)
        parts += body
        y += panel_height + 2 * MARGIN
        width = max(width, panel_width)
    width = max(width, 9 * len(drawing.title)) + 2 * MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y}" viewBox="0 0 {width} {y}" '
        'font-family="monospace" font-size="9">\n'
        f'<rect width="{width}" height="{y}" fill="white"/>\n'
        f'<text x="{MARGIN}" y="{MARGIN + 8}" font-size="13">{escape(drawing.title)}</text>\n'
    )
    return head + "\n".join(parts) + "\n</svg>\n"


def _panel(panel: Panel, top: int) -> tuple[list[str], int, int]:
    width = panel.accesses[0].width
    pixel = max(BYTE, -(-LEAST_CELL // width))
    across = panel.row_bytes * pixel
    used = 1 + max((p for a in panel.accesses for p in a.places if p is not None), default=0) // panel.row_bytes
    rows = min(used, MOST_ROWS)
    parts = [f'<text x="{MARGIN}" y="{top + 10}" font-size="11">{escape(panel.title)}</text>']
    y0 = top + 16
    if panel.shared:
        y0 += 12
        step = max(width, WORD)
        for offset in range(0, panel.row_bytes, step):
            bank = offset // WORD % BANKS
            parts.append(f'<text x="{MARGIN + offset * pixel + 2}" y="{y0 - 3}" fill="#666">b{bank}</text>')
    for number, access in enumerate(panel.accesses):
        for thread, place in enumerate(access.places):
            if place is None:
                continue
            row, column = divmod(place, panel.row_bytes)
            if row >= rows:
                continue
            x, y = MARGIN + column * pixel, y0 + row * CELL_HEIGHT
            label = f"{thread}.{number}"
            title = f"<title>thread {thread}, {escape(access.name)}: byte {place}, {access.width} bytes</title>"
            parts.append(
                f'<g><rect x="{x}" y="{y}" width="{access.width * pixel}" height="{CELL_HEIGHT}" '
                f'fill="{_colour(thread)}" stroke="#fff"/>{title}<text x="{x + 2}" y="{y + 12}">{label}</text></g>'
            )
    bottom = y0 + rows * CELL_HEIGHT
    said = panel.summary() + (f"; the first {rows} of {used} rows are drawn" if rows < used else "")
    parts.append(f'<text x="{MARGIN}" y="{bottom + 13}" font-size="11">{escape(said)}</text>')
    return parts, max(across, 7 * len(said)), bottom + 18 - top


def _colour(thread: int) -> str:
    """A hue for the lane, paler for each further warp."""
    lane, warp = thread % WARP, thread // WARP
    return f"hsl({360 * lane // WARP}, 70%, {72 + 6 * (warp % 4)}%)"
