"""What every plot is drawn on: a figure in one width, with stand-ins for colours and a tooltip for each point."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from forge_core.bench.html.theme import stand_in, svg_of

__all__ = ["DASHED", "THOUSANDS", "Canvas", "Plot", "drawn", "legend", "rows", "size_axis"]

WIDE, NARROW = 9.2, 4.6
#: The line of a bound.
DASHED: dict[str, Any] = {"linestyle": (0, (4, 2)), "linewidth": 1.6}
#: Ticks such as ``2,000``.
THOUSANDS = "{x:,.0f}"

STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "forge",
    "font.family": ["DejaVu Sans"],
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": stand_in("grid"),
    "axes.labelcolor": stand_in("muted"),
    "axes.titlecolor": stand_in("ink"),
    "text.color": stand_in("ink"),
    "xtick.color": stand_in("muted"),
    "ytick.color": stand_in("muted"),
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "grid.color": stand_in("grid"),
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "figure.constrained_layout.use": True,
    "legend.frameon": False,
    "legend.labelcolor": stand_in("muted"),
    "legend.fontsize": 9,
}


@dataclass(frozen=True)
class Plot:
    """One plot in both widths.

    Attributes:
        name: for ids and for the pictures' files.
        title: what it shows.
        note: how to read it, in a sentence.
        wide, narrow: the SVG, with stand-ins for colours.
    """

    name: str
    title: str
    note: str
    wide: str
    narrow: str


class Canvas:
    """The figure of one width, with the tooltips of what is on it."""

    def __init__(self, *, narrow: bool) -> None:
        self.narrow = narrow
        self.width = NARROW if narrow else WIDE
        self.tooltips: dict[str, str] = {}
        self.figure = Figure()

    def axes(self, height: float, columns: int = 1, *, sharey: bool = False, narrow_height: float = 0) -> list[Axes]:
        """Axes side by side; on a phone, below each other."""
        rows, cols = (columns, 1) if self.narrow else (1, columns)
        tall = (narrow_height or height) * rows if self.narrow else height
        self.figure.set_size_inches(self.width, tall)
        if self.narrow:  # panels below each other: room between one's axis and the next one's title
            self.figure.set_layout_engine("constrained", h_pad=0.09)
        grid = self.figure.subplots(rows, cols, squeeze=False, sharey=sharey)
        return [axis for row in grid for axis in row]

    def dot(
        self, axis: Axes, x: float, y: float, text: str, *, colour: str, hollow: bool = False, **style: Any
    ) -> None:
        """A point with a tooltip."""
        group = f"p{len(self.tooltips)}"
        self.tooltips[group] = text
        plain = {
            "marker": "o",
            "markersize": 6,
            "color": stand_in(colour),
            "markerfacecolor": stand_in("paper" if hollow else colour),
            "markeredgecolor": stand_in(colour if hollow else "paper"),
            "markeredgewidth": 1.4 if hollow else 0.8,
            "clip_on": False,
        }
        axis.plot([x], [y], gid=group, linestyle="none", **{**plain, **style})

    def svg(self, name: str, title: str) -> str:
        """The finished drawing; a phone has no pointer to rest, so its drawing has no tooltips."""
        return svg_of(self.figure, name=name, title=title, tooltips={} if self.narrow else self.tooltips)


def drawn(name: str, title: str, note: str, draw: Callable[[Canvas], None]) -> Plot:
    """Draws a plot in both widths."""

    def svg(*, narrow: bool) -> str:
        canvas = Canvas(narrow=narrow)
        draw(canvas)
        # The prefix of ids stands at every point, so it is short: it only has to differ from plot to plot.
        return canvas.svg(f"p{zlib.crc32(name.encode()):x}{'n' if narrow else 'w'}", title)

    with mpl.rc_context(STYLE):
        return Plot(name, title, note, svg(narrow=False), svg(narrow=True))


def rows(axis: Axes, labels: Sequence[str]) -> None:
    """Makes the vertical axis one of rows, a line for each label, the first at the top."""
    for row in range(len(labels)):
        axis.axhline(row, color=stand_in("grid"), linewidth=0.8, zorder=0)
    axis.set_yticks(range(len(labels)), labels)
    axis.set_ylim(len(labels) - 0.4, -0.6)
    for side in ("left", "bottom"):
        axis.spines[side].set_visible(False)


def size_text(nbytes: float) -> str:
    """Bytes by 1024s, for an axis: ``"64 MB"``."""
    for unit in ("B", "KB", "MB"):
        if nbytes < 1024:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1024
    return f"{nbytes:.3g} GB"


def size_axis(axis: Axes, sizes: Iterable[float], *, ticks: int = 6) -> None:
    """Makes the horizontal axis one of bytes, in powers of two, that holds the sizes."""
    sizes = list(sizes)
    axis.set_xscale("log", base=2)
    low, high = math.log2(min(sizes)), math.log2(max(sizes))
    pad = max(0.6, (high - low) * 0.06)
    axis.set_xlim(2 ** (low - pad), 2 ** (high + pad))
    step = max(1, math.ceil((high - low + 2 * pad) / ticks))
    places = [2.0**n for n in range(math.floor(low - pad), math.ceil(high + pad) + 1) if n % step == 0]
    axis.xaxis.set_major_locator(FixedLocator(places))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: size_text(value)))


def legend(axis: Axes | Figure, entries: Sequence[tuple[str, str, dict[str, Any]]], **place: Any) -> None:
    """A legend of points, or of what the entries' styles say.

    Args:
        axis: where.
        entries: label, colour's name, and style of each.
        **place: as matplotlib's legend takes it.
    """
    handles = [
        Line2D([], [], color=stand_in(colour), label=label, **{"linestyle": "none", "marker": "o", **style})
        for label, colour, style in entries
    ]
    axis.legend(handles=handles, handletextpad=0.4, columnspacing=1.4, **place)
