"""The plots, by matplotlib: panels of one width, which a page puts side by side or below each other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

from forge_core.bench.html.theme import STAND_IN, svg_of
from forge_core.bench.records import CaseRecord, ContenderRecord, Record
from forge_core.bench.report import compared, scaled
from forge_core.bench.schema import AUTO, CEILING, OURS, variant_of
from forge_core.device import SPECS

#: Inches. On a phone the text of a panel is still 9 pixels high.
WIDTH = 4.6
#: Cases that move at most so much show their latency, too.
SMALL_BYTES = 16 * 2**20

DASHED: dict[str, Any] = {"color": STAND_IN["ceiling"], "linestyle": (0, (4, 2)), "linewidth": 1.6}
FORGE: dict[str, Any] = {"color": STAND_IN["forge"], "markeredgecolor": STAND_IN["paper"], "markeredgewidth": 0.8}
PEER: dict[str, Any] = {
    "color": STAND_IN["peer"],
    "markerfacecolor": STAND_IN["paper"],
    "markeredgewidth": 1.4,
    "markersize": 5.5,
}
STYLE: Any = {
    "svg.fonttype": "none",
    "font.family": ["DejaVu Sans"],
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.edgecolor": STAND_IN["grid"],
    "axes.labelcolor": STAND_IN["muted"],
    "text.color": STAND_IN["ink"],
    "xtick.color": STAND_IN["muted"],
    "ytick.color": STAND_IN["muted"],
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
    "grid.color": STAND_IN["grid"],
    "axes.axisbelow": True,
    "figure.constrained_layout.use": True,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "legend.handletextpad": 0.4,
    "legend.columnspacing": 1.4,
    "lines.linestyle": "none",
}


@dataclass(frozen=True)
class Point:
    """One case, by the times in microseconds of `auto`, of the best peer if there is one, and of the copy."""

    case: CaseRecord
    ours: float
    peer: float | None
    ceiling: float | None

    @property
    def nbytes(self) -> int:
        """Bytes that must move at least."""
        return self.case.read + self.case.written

    def gbs(self, microseconds: float) -> float:
        """The bandwidth of a time, in GB/s."""
        return self.nbytes / microseconds / 1e3


def points(record: Record, operator: str = "") -> list[Point]:
    """The cases of an operator, or of all, that have our `auto` and no error, in the record's order.

    A case that does not count as a comparison has no peer: see :func:`forge_core.bench.report.compared`.
    """
    found = []
    for case in record.cases:
        us = {contender.name: contender.median_ms * 1e3 for contender in case.contenders}
        if operator in ("", case.operator) and OURS in us:
            same = [other for other in record.cases if other.operator == case.operator and not other.error]
            peer = us.get(case.best_peer) if case in compared(same) else None
            found.append(Point(case, us[OURS], peer, us.get(CEILING)))
    return found


def ladders(record: Record, operator: str) -> list[tuple[CaseRecord, list[ContenderRecord]]]:
    """The cases of an operator that ran several variants, with these from the slowest to the fastest."""
    found = []
    for case in record.cases:
        variants = [entry for entry in case.contenders if variant_of(entry.name) not in ("", AUTO) and entry.of_ceiling]
        if case.operator == operator and len(variants) > 1:
            found.append((case, sorted(variants, key=lambda entry: entry.gbs or 0.0)))
    return found


@dataclass(frozen=True)
class Plot:
    """A figure of the page: its title, how to read it, and the SVG of each panel by a name for its file."""

    title: str
    note: str
    panels: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def panel(self, name: str, title: str, height: float) -> Iterator[Axes]:
        """Yields axes, and adds what is drawn on them."""
        with mpl.rc_context({**STYLE, "svg.hashsalt": name}):
            figure = Figure(figsize=(WIDTH, height))
            axis = figure.subplots()
            axis.set_title(title)
            yield axis
            if axis.get_legend_handles_labels()[0]:
                figure.legend(loc="outside upper right", ncols=2)
            self.panels[name] = svg_of(figure, f"{self.title}: {title}")


def of_operator(record: Record, title: str, operator: str) -> list[Plot]:
    """The plots of one operator; `title` is what the page calls the record."""
    found, name = points(record, operator), f"{title}-{operator}"
    if not found or record.timer == "cold":
        return []
    if record.timer == "host":
        return [latency(name, "Host time of an eager call", found)]
    plots = [bandwidth(name, found)]
    if compared := [point for point in found if point.peer]:
        plots.append(speedup(name, compared))
    if climbed := ladders(record, operator):
        plots.append(ladder(name, climbed))
    if small := [point for point in found if point.nbytes <= SMALL_BYTES]:
        plots.append(latency(name, "Latency of cases of 16 MB and less", small))
    return plots


def _by_dtype(found: Sequence[Point]) -> dict[str, list[Point]]:
    dtypes = dict.fromkeys(point.case.dtype for point in found)
    return {dtype: [point for point in found if point.case.dtype == dtype] for dtype in dtypes}


def _rows(axis: Axes, labels: Sequence[str], texts: Sequence[str]) -> None:
    """Makes the vertical axis rows from the top, each with its label at the left and a text at the right."""
    axis.set_yticks(range(len(labels)), labels)
    axis.set_ylim(len(labels) - 0.4, -0.6)
    axis.grid(axis="y")
    for row, text in enumerate(texts):
        axis.annotate(text, (1, row), xycoords=("axes fraction", "data"), ha="right", va="center")


def _size_axis(axis: Axes, found: Sequence[Point], pad: float = 0.6) -> None:
    """Makes the horizontal axis bytes, in powers of two, and the vertical one GB/s."""
    axis.set_xscale("log", base=2)
    logs = [math.log2(point.nbytes) for point in found]
    low, high = min(logs) - pad, max(logs) + pad
    step = math.ceil((high - low) / 5)
    axis.set_xlim(2**low, 2**high)
    ticks = [2.0**n for n in range(math.ceil(low), math.ceil(high)) if n % step == 0]
    axis.set_xticks(ticks, [scaled(tick, ("B", "KB", "MB", "GB"), 1024) for tick in ticks])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlabel("bytes that must move")
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.set_ylabel("GB/s")


def bandwidth(name: str, found: Sequence[Point]) -> Plot:
    """Bandwidth against size, with the best peers and the ceiling; a panel for each dtype."""
    plot = Plot("Bandwidth against size", "Each point is a shape; the dashed line is a copy of as many bytes.")
    peers = dict.fromkeys(point.case.best_peer for point in found if point.peer)
    markers = dict(zip(peers, cycle("sD^vP"), strict=False))
    top = max(point.gbs(min(filter(None, (point.ours, point.peer, point.ceiling)))) for point in found)
    for dtype, mine in _by_dtype(found).items():
        with plot.panel(f"{name}-bandwidth-{dtype}", f"{found[0].case.operator} {dtype}", 3.2) as axis:
            copies = sorted((point.nbytes, point.gbs(point.ceiling)) for point in mine if point.ceiling)
            axis.plot(*zip(*copies, strict=True), marker="_", label="ceiling: a copy", **DASHED)
            for peer, marker in markers.items():
                beside = [p for p in mine if p.peer and p.case.best_peer == peer]
                if beside:
                    sizes, speeds = [p.nbytes for p in beside], [p.gbs(p.peer or 1) for p in beside]
                    axis.vlines(sizes, speeds, [p.gbs(p.ours) for p in beside], color=STAND_IN["grid"])
                    axis.plot(sizes, speeds, marker=marker, label=f"best peer: {peer}", **PEER)
            axis.plot([p.nbytes for p in mine], [p.gbs(p.ours) for p in mine], marker="o", label="forge", **FORGE)
            _size_axis(axis, found)
            axis.set_ylim(0, top * 1.06)
            axis.grid(axis="y")
    return plot


def speedup(name: str, found: Sequence[Point]) -> Plot:
    """Time of the best peer over ours, a row for each shape; a panel for each dtype."""
    plot = Plot(
        "Speed-up over the best peer", "To the right of 1 forge is faster than the fastest peer, which is named."
    )
    ratios = {point.case.name: (point.peer or 0) / point.ours for point in found}
    low, high = min(0.93, *ratios.values()), max(1.1, *ratios.values())
    right = high * (high / low) ** 0.5  # the last third is for names
    steps = (0.9, 1, 1.1, 1.2, 1.3) if high < 1.4 else (0.2, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20)
    for dtype, mine in _by_dtype(found).items():
        with plot.panel(f"{name}-speedup-{dtype}", f"{found[0].case.operator} {dtype}", 0.9 + 0.26 * len(mine)) as axis:
            axis.set_xscale("log")
            axis.set_xlim(low / 1.03, right)
            axis.axvspan(1.0, right, color=STAND_IN["faster"], linewidth=0)
            axis.axvline(1.0, color=STAND_IN["muted"], linewidth=1.2, linestyle="-")
            _rows(axis, [point.case.label for point in mine], [point.case.best_peer for point in mine])
            axis.plot([ratios[point.case.name] for point in mine], range(len(mine)), marker="o", **FORGE)
            ticks = [step for step in steps if low / 1.02 <= step <= high * 1.05]
            axis.set_xticks(ticks, [f"{tick:g}x" for tick in ticks])
            axis.xaxis.set_minor_locator(NullLocator())
            axis.set_xlabel("times the best peer's speed")
    return plot


def ladder(name: str, cases: Sequence[tuple[CaseRecord, list[ContenderRecord]]]) -> Plot:
    """The variants of an operator, the slowest first; a panel for each case."""
    plot = Plot("Variants", "The bar in colour is what auto picks; the figures are shares of the ceiling, dashed.")
    for number, (case, variants) in enumerate(cases):
        with plot.panel(f"{name}-variants-{number}", case.name, 0.8 + 0.3 * len(variants)) as axis:
            auto, names = case.contender(OURS), [variant_of(entry.name) for entry in variants]
            speeds, shares = [entry.gbs or 0.0 for entry in variants], [entry.of_ceiling or 1.0 for entry in variants]
            ceiling = max(speed / share for speed, share in zip(speeds, shares, strict=True))
            colours = [STAND_IN["forge" if auto and variant == auto.variant else "peer"] for variant in names]
            axis.barh(range(len(variants)), speeds, height=0.62, color=colours)
            axis.axvline(ceiling, **DASHED)
            _rows(axis, names, [f"{share:.0%}" for share in shares])
            axis.set_xlim(0, ceiling * 1.3)
            axis.xaxis.set_major_formatter("{x:,.0f}")
            axis.locator_params(axis="x", nbins=4)
            axis.set_xlabel("GB/s")
    return plot


def latency(name: str, title: str, found: Sequence[Point]) -> Plot:
    """Microseconds of small cases: ours, the best peer's, and the ceiling's where there is one."""
    plot = Plot(title, "Less is better. The best peer is named at the right.")
    with plot.panel(f"{name}-latency", found[0].case.operator, 0.95 + 0.26 * len(found)) as axis:
        for key, label, style in (
            ("ceiling", "ceiling: a copy", {"marker": "|", "markersize": 12, "color": STAND_IN["ceiling"]}),
            ("peer", "best peer", {"marker": "s", **PEER}),
            ("ours", "forge", {"marker": "o", **FORGE}),
        ):
            times = [(time, row) for row, point in enumerate(found) if (time := getattr(point, key))]
            if times:
                axis.plot(*zip(*times, strict=True), label=label, **style)
        _rows(axis, [f"{p.case.label} {p.case.dtype}" for p in found], [p.case.best_peer for p in found])
        axis.set_xlabel("microseconds")
        axis.set_xlim(0, 1.6 * max(max(filter(None, (p.ours, p.peer, p.ceiling))) for p in found))
    return plot


def roofline(records: Sequence[Record]) -> Plot | None:
    """All cases under the two bounds of an operator that only moves bytes: its launch, and the memory's bandwidth."""
    found = [point for record in records if record.timer == "device" for point in points(record)]
    if not found:
        return None
    launch_us = min(point.ours for point in found)  # a launch takes no less
    reach = max(point.gbs(min(filter(None, (point.ours, point.ceiling)))) for point in found)
    specified = next((s.bandwidth_gbs for s in SPECS.values() if s.name == records[0].environment.gpu), None)
    roof = specified or reach
    plot = Plot(
        "Roofline of bytes",
        f"Two things bound these operators: a launch ({launch_us:.1f} us here, the slope) and the memory (the roof: "
        f"{'specified' if specified else 'the best copy'}, {roof:,.0f} GB/s). Dashed: one after the other.",
    )
    with plot.panel("roofline", "all operators", 4.6) as axis:
        low, high = min(point.nbytes for point in found) / 4, max(point.nbytes for point in found) * 3
        bounds = [low, roof * launch_us * 1e3, high]
        axis.plot(bounds, [low / launch_us / 1e3, roof, roof], color=STAND_IN["ink"], linestyle="-", linewidth=1.6)
        curve = [low * (high / low) ** (n / 80) for n in range(81)]
        axis.plot(curve, [x / (launch_us * 1e3 + x / reach) for x in curve], label="launch, then memory", **DASHED)
        looks = cycle((colour, marker) for marker in "os^D" for colour in ("forge", "blue", "green", "violet"))
        for operator in dict.fromkeys(point.case.operator for point in found):
            mine, (colour, marker) = [point for point in found if point.case.operator == operator], next(looks)
            style = {**FORGE, "color": STAND_IN[colour], "marker": marker, "label": operator}
            axis.plot([point.nbytes for point in mine], [point.gbs(point.ours) for point in mine], **style)
        axis.set_yscale("log")
        _size_axis(axis, found, pad=1.5)
        axis.set_ylim(min(point.gbs(point.ours) for point in found) / 2.5, roof * 1.5)
        axis.yaxis.set_major_locator(FixedLocator([100, 200, 500, 1000, 2000, 5000, 10000]))
        axis.yaxis.set_minor_formatter(NullFormatter())
        axis.grid()
    return plot
