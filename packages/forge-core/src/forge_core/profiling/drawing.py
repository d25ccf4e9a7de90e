"""Layouts as SVG: each cell is one thread's access at its address, colored by lane.

A cell's label is thread.access.  Bank numbers stand above shared memory.  Long tiles are cut, with a note; the counts
below are those of the whole tile.
"""

from __future__ import annotations

from html import escape

from forge_core.profiling.layouts import BANKS, WARP, WORD, Drawing, Panel

CELL_HEIGHT, MARGIN, TITLE = 18, 12, 20
#: Pixels of a byte, and the minimum of a cell.
BYTE, LEAST_CELL = 4, 26
#: Rows of a tile that are drawn.
MOST_ROWS = 64


def to_svg(drawing: Drawing) -> str:
    """The drawing as a standalone SVG document."""
    parts: list[str] = []
    y, width = MARGIN + TITLE, 9 * len(drawing.title)
    for panel in drawing.panels:
        body, panel_width, panel_height = _panel(panel, y)
        parts += body
        y += panel_height + 2 * MARGIN
        width = max(width, panel_width)
    width += 2 * MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y}" viewBox="0 0 {width} {y}" '
        'font-family="monospace" font-size="9">\n'
        f'<rect width="{width}" height="{y}" fill="white"/>\n'
        f"{_text(MARGIN, MARGIN + 8, drawing.title, size=13)}\n"
    )
    return head + "\n".join(parts) + "\n</svg>\n"


def _panel(panel: Panel, top: int) -> tuple[list[str], int, int]:
    """The elements of a panel, its width and its height."""
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
    return parts, max(panel.row_bytes * pixel, 7 * len(said)), bottom + 18 - top


def _text(x: int, y: int, text: str, size: int = 11) -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}">{escape(text)}</text>'
