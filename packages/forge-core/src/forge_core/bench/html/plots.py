"""The plots, by matplotlib: each is drawn twice, for a wide page and for a phone.

Colours are stand-ins (see :mod:`forge_core.bench.html.theme`), and each point has a group id, to which the page's
tooltip is tied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from forge_core.bench.html.canvas import DASHED, THOUSANDS, Canvas, Plot, drawn, legend, rows, size_axis
from forge_core.bench.html.data import Dot, Rung, dtypes_of, ladders, operators_of, small_dots, timed
from forge_core.bench.html.theme import THEMES, stand_in
from forge_core.bench.records import Record
from forge_core.device import SPECS

__all__ = ["of_suite", "overview"]

MARKERS = {"float32": "o", "bfloat16": "s", "int8": "^"}
OPERATORS = ("float32", "bfloat16", "int8", "other")


def of_suite(record: Record, title: str) -> list[Plot]:
    """The plots of one suite, which the page calls by a title."""
    dots = timed(record)
    if record.timer == "host" and dots:
        note = "What one eager call costs the thread that makes it, on small tensors."
        return [latency(f"latency-{title}", "Host time of an eager call", note, dots)]
    if record.timer != "device":
        return []
    found, climbed = [], ladders(record)
    for operator in operators_of(dots):
        mine = [dot for dot in dots if dot.operator == operator]
        rungs = {case: steps for case, steps in climbed.items() if case.startswith(f"{operator} ")}
        compared = [dot for dot in mine if dot.speedup]
        found.append(bandwidth(operator, mine))
        found += [speedup(operator, compared)] if compared else []
        found += [ladder(operator, rungs)] if rungs else []
    if small := small_dots(record):
        note = "Cases of 16 MB and less, where a launch costs as much as the memory does."
        found.append(latency(f"latency-{title}", "Latency of small shapes", note, small))
    return found


def overview(records: Sequence[Record]) -> list[Plot]:
    """The plots over all suites of one machine."""
    dots = [dot for record in records if record.timer == "device" for dot in timed(record)]
    if not dots:
        return []
    gpu = records[0].environment.gpu
    specified = next((spec.bandwidth_gbs for spec in SPECS.values() if spec.name == gpu), None)
    return [roofline(dots, specified, launch_us=min(dot.nbytes / dot.ours / 1e3 for dot in dots))]


def _figures_text(dot: Dot, unit: str) -> str:
    lines = [dot.case, f"forge ({dot.variant or 'reference'}): {dot.ours:.4g} {unit}"]
    if dot.peer is not None:
        lines.append(f"best peer ({dot.best_peer}): {dot.peer:.4g} {unit}")
    if dot.ceiling is not None:
        lines.append(f"ceiling: {dot.ceiling:.4g} {unit}")
    if dot.speedup is not None:
        lines.append(f"{dot.speedup:.2f} times the best peer")
    return "\n".join(lines)


HOLLOW = {"markerfacecolor": stand_in("paper"), "markeredgewidth": 1.4}


def bandwidth(operator: str, dots: Sequence[Dot]) -> Plot:
    """Bandwidth against size, with the ceiling; a panel for each dtype."""
    dtypes = dtypes_of(dots)

    def draw(canvas: Canvas) -> None:
        panels = canvas.axes(3.5, len(dtypes), sharey=True, narrow_height=2.7)
        top = max(max(dot.ours, dot.peer or 0, dot.ceiling or 0) for dot in dots)
        for axis, dtype in zip(panels, dtypes, strict=True):
            mine = sorted((dot for dot in dots if dot.dtype == dtype), key=lambda dot: dot.nbytes)
            axis.set_title(dtype)
            ceiling = [dot for dot in mine if dot.ceiling]
            places, heights = [dot.nbytes for dot in ceiling], [dot.ceiling or 0 for dot in ceiling]
            axis.plot(places, heights, color=stand_in("ceiling"), zorder=1, **DASHED)
            for dot in mine:
                if dot.peer:
                    axis.plot([dot.nbytes] * 2, [dot.peer, dot.ours], color=stand_in("grid"), linewidth=2, zorder=1.5)
                    text = _figures_text(dot, "GB/s")
                    canvas.dot(axis, dot.nbytes, dot.peer, text, colour="peer", hollow=True, markersize=5.5)
            for dot in mine:
                canvas.dot(axis, dot.nbytes, dot.ours, _figures_text(dot, "GB/s"), colour="forge", zorder=3)
            size_axis(axis, [dot.nbytes for dot in dots], ticks=5)
            axis.set_ylim(0, top * 1.06)
            axis.grid(axis="y")
            axis.spines["left"].set_visible(False)
            axis.yaxis.set_major_formatter(THOUSANDS)
        panels[0].set_ylabel("GB/s")
        panels[-1].set_xlabel("bytes that must move")
        legend(
            canvas.figure,
            [
                ("forge", "forge", {}),
                ("best peer", "peer", HOLLOW),
                ("ceiling: a copy", "ceiling", {"marker": "", **DASHED}),
            ],
            loc="outside upper right",
            ncols=3,
        )

    note = "Each point is one shape. The dashed line is a copy of as many bytes, measured in the same run."
    return drawn(f"bandwidth-{operator}", f"{operator}: bandwidth against size", note, draw)


def speedup(operator: str, dots: Sequence[Dot]) -> Plot:
    """Time of the best peer over ours, a row for each shape."""
    labels = list(dict.fromkeys(dot.label for dot in dots))
    looks: dict[str, tuple[str, dict[str, Any]]] = {
        dtype: (dtype if dtype in THEMES["light"] else "other", {"marker": MARKERS.get(dtype, "D"), "markersize": 7})
        for dtype in dtypes_of(dots)
    }

    def draw(canvas: Canvas) -> None:
        height = 0.9 + 0.3 * len(labels)
        (axis,) = canvas.axes(height)
        values = [dot.speedup or 1.0 for dot in dots]
        low, high = min(0.93, *values), max(1.1, *values)
        axis.set_xscale("log")
        axis.set_xlim(low / 1.03, high * 1.05)
        axis.axvspan(1.0, high * 1.05, color=stand_in("forge-soft"), alpha=0.28, linewidth=0)
        axis.axvline(1.0, color=stand_in("muted"), linewidth=1.2)
        rows(axis, labels)
        for dot in sorted(dots, key=lambda dot: labels.index(dot.label)):
            text, row = _figures_text(dot, "GB/s"), labels.index(dot.label)
            colour, style = looks[dot.dtype]
            canvas.dot(axis, dot.speedup or 1.0, row, text, colour=colour, zorder=3, **style)
        axis.xaxis.set_major_locator(FixedLocator(_ratio_ticks(low, high)))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
        axis.set_xlabel("times the best peer's speed")
        entries = [(dtype, *look) for dtype, look in looks.items()]
        legend(canvas.figure, entries, loc="outside upper right", ncols=len(entries))

    note = "To the right of 1 forge is faster than whatever a user would call instead, the fastest of the peers."
    return drawn(f"speedup-{operator}", f"{operator}: speed-up over the best peer", note, draw)


def _ratio_ticks(low: float, high: float) -> list[float]:
    steps = (0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.5, 2, 3, 5, 10) if high < 2.2 else (0.2, 0.5, 1, 1.5, 2, 3, 5, 10, 20)
    return [step for step in steps if low / 1.02 <= step <= high * 1.05]


def ladder(operator: str, cases: dict[str, list[Rung]]) -> Plot:
    """The variants of an operator from the slowest to the fastest; a panel for each case."""

    def draw(canvas: Canvas) -> None:
        most = max(len(rungs) for rungs in cases.values())
        panels = canvas.axes(0.9 + 0.34 * most, len(cases), narrow_height=0.75 + 0.34 * most)
        for axis, (case, rungs) in zip(panels, cases.items(), strict=True):
            ceiling = max(rung.gbs / rung.of_ceiling for rung in rungs)
            for row, rung in enumerate(rungs):
                group = f"b{len(canvas.tooltips)}"
                share = f"{rung.of_ceiling:.1%} of the ceiling"
                canvas.tooltips[group] = f"{case}\n{rung.variant}: {rung.gbs:.4g} GB/s\n{share}"
                colour = stand_in("forge" if rung.chosen else "peer")
                bar = axis.barh(row, rung.gbs, height=0.62, color=colour, alpha=1.0 if rung.chosen else 0.55)
                bar.patches[0].set_gid(group)
                inside = rung.gbs > 0.5 * ceiling
                axis.annotate(
                    f"{rung.of_ceiling:.0%}", (rung.gbs, row), xytext=(-6 if inside else 6, 0),
                    textcoords="offset points", va="center", ha="right" if inside else "left", fontsize=9,
                    color=stand_in("paper" if inside else "ink"), fontweight="bold",
                )  # fmt: skip
            axis.axvline(ceiling, color=stand_in("ceiling"), **DASHED)
            axis.set_yticks(range(len(rungs)), [rung.variant for rung in rungs])
            axis.tick_params(axis="y", colors=stand_in("ink"))
            axis.set_xlim(0, ceiling * 1.08)
            axis.set_ylim(-0.6, most - 0.4)
            axis.xaxis.set_major_formatter(THOUSANDS)
            axis.locator_params(axis="x", nbins=4)
            axis.set_title(case.removeprefix(f"{operator} "))
            axis.spines["left"].set_visible(False)
        panels[-1].set_xlabel("GB/s; dashed: the ceiling")

    note = "Each step up is one idea. The bar in colour is what auto picks; the figures are shares of the ceiling."
    return drawn(f"ladder-{operator}", f"{operator}: from the naive kernel to the best", note, draw)


def latency(name: str, title: str, note: str, dots: Sequence[Dot]) -> Plot:
    """Microseconds of small cases: ours, the best peer's, and the ceiling's where there is one."""

    def draw(canvas: Canvas) -> None:
        (axis,) = canvas.axes(0.95 + 0.3 * len(dots))
        most = max(max(dot.ours, dot.peer or 0, dot.ceiling or 0) for dot in dots)
        rows(axis, [dot.case for dot in dots])
        for row, dot in enumerate(dots):
            text = _figures_text(dot, "us")
            if dot.peer:
                axis.plot([dot.ours, dot.peer], [row, row], color=stand_in("grid"), linewidth=4, zorder=1)
                canvas.dot(axis, dot.peer, row, text, colour="peer", hollow=True, markersize=6.5)
            if dot.ceiling:
                tick = {"marker": "|", "markersize": 13, "markeredgewidth": 1.6}
                canvas.dot(axis, dot.ceiling, row, text, colour="ceiling", hollow=True, **tick)
            canvas.dot(axis, dot.ours, row, text, colour="forge", markersize=7, zorder=3)
        axis.set_xlim(0, most * 1.08)
        axis.set_xlabel("microseconds; less is better")
        entries: list[tuple[str, str, dict[str, Any]]] = [("forge", "forge", {}), ("best peer", "peer", HOLLOW)]
        if any(dot.ceiling for dot in dots):
            entries.append(("ceiling", "ceiling", {"marker": "|", "markersize": 12, "markeredgewidth": 1.6}))
        legend(canvas.figure, entries, loc="outside upper right", ncols=3)

    return drawn(name, title, note, draw)


def roofline(dots: Sequence[Dot], specified_gbs: float | None, launch_us: float) -> Plot:
    """All cases under the two bounds of an operator that only moves bytes: its launch, and the memory.

    Args:
        dots: the cases.
        specified_gbs: the memory's specified bandwidth, where it is known.
        launch_us: the shortest time of any case, which a launch does not fall below.
    """
    # Colours first, then other shapes of the same colours.
    shapes = "os^Dv"
    looks = {
        name: (OPERATORS[n % len(OPERATORS)], shapes[n // len(OPERATORS) % len(shapes)])
        for n, name in enumerate(operators_of(dots))
    }

    def draw(canvas: Canvas) -> None:
        (axis,) = canvas.axes(4.2, narrow_height=3.8)
        sizes = [dot.nbytes for dot in dots]
        roof = specified_gbs or max(max(dot.ceiling or 0, dot.ours) for dot in dots)
        low, high = min(sizes) / 4, max(sizes) * 3
        knee = roof * launch_us * 1e3
        axis.plot([low, knee, high], [low / (launch_us * 1e3), roof, roof], color=stand_in("ink"), linewidth=1.6)
        curve = [low * (high / low) ** (n / 80) for n in range(81)]
        reach = max(max(dot.ceiling or 0, dot.ours) for dot in dots)
        bound = [x / (launch_us * 1e3 + x / reach) for x in curve]
        axis.plot(curve, bound, color=stand_in("ceiling"), **DASHED)
        for dot in dots:
            colour, marker = looks[dot.operator]
            canvas.dot(axis, dot.nbytes, dot.ours, _figures_text(dot, "GB/s"), colour=colour, marker=marker, zorder=3)
        size_axis(axis, [low * 1.5, high / 1.5], ticks=7)
        axis.set_yscale("log")
        axis.set_ylim(min(dot.ours for dot in dots) / 2.5, roof * 1.5)
        axis.yaxis.set_major_locator(FixedLocator([100, 200, 500, 1000, 2000, 5000, 10000]))
        axis.yaxis.set_minor_formatter(NullFormatter())
        axis.yaxis.set_major_formatter(THOUSANDS)
        axis.grid()
        label = f"specified: {roof:,.0f} GB/s" if specified_gbs else f"best copy: {roof:,.0f} GB/s"
        axis.annotate(
            label, (high, roof), xytext=(-4, 5), textcoords="offset points", ha="right", color=stand_in("ink")
        )
        axis.set_ylabel("GB/s")
        axis.set_xlabel("bytes that must move")
        entries: list[tuple[str, str, dict[str, Any]]] = [
            (name, colour, {"marker": marker}) for name, (colour, marker) in looks.items()
        ]
        entries.append(("launch, then memory", "ceiling", {"marker": "", **DASHED}))
        legend(canvas.figure, entries, loc="outside upper right", ncols=2 if canvas.narrow else 4)

    note = (
        f"These operators calculate next to nothing, so two things bound them: a launch ({launch_us:.1f} us here, the "
        "slope) and the memory (the roof). The dashed line pays one after the other."
    )
    return drawn("roofline", "Roofline of bytes", note, draw)
