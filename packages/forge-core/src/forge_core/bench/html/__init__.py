"""The report: one self-contained HTML page from records, and the pictures on it as files of their own."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forge_core.bench.pages import Source
from forge_core.bench.report import remarks, tables
from forge_core.device import SPECS
from forge_core.errors import UnsupportedError

if TYPE_CHECKING:
    from forge_core.bench.html.canvas import Plot
    from forge_core.bench.html.data import Dot

__all__ = ["PAGE", "stamp_of", "write_report"]

PAGE = "index.html"


def stamp_of(sources: Sequence[Source]) -> str:
    """What a page is made from: each record's file and the beginning of its SHA-256."""
    return "; ".join(f"{entry.source} {entry.digest}" for entry in sorted(sources, key=lambda entry: entry.source))


def write_report(sources: Sequence[Source], folder: Path) -> list[Path]:
    """Writes the page and its pictures.

    Args:
        sources: the records, one a suite, of one machine.
        folder: where to; it is made if need be.

    Returns:
        The files, the page first.

    Raises:
        UnsupportedError: the plotting library is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise UnsupportedError(
            "the report's plots are drawn by matplotlib, which is not installed. Install it with: "
            "pip install 'forge-cute-core[report]'; the tables need nothing: --markdown",
            requirement="matplotlib",
        )
    from forge_core.bench.html.data import figures_of, timed
    from forge_core.bench.html.page import Section, page
    from forge_core.bench.html.theme import picture

    ordered = sorted(sources, key=lambda entry: (entry.record.timer != "device", entry.title))
    sections = [
        Section(
            entry.record,
            entry.title,
            entry.source,
            figures_of(entry.record),
            _plots(entry),
            tables(entry.record),
            remarks(entry.record),
        )
        for entry in ordered
    ]
    overview = _overview(
        [dot for entry in ordered if entry.record.timer == "device" for dot in timed(entry.record)], ordered
    )
    environment = ordered[0].record.environment
    machine = environment.gpu if environment.device == "cuda" else "the CPU"
    stamp = stamp_of(sources)
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / PAGE]
    written[0].write_text(page(machine, sections, overview, stamp), encoding="utf-8")
    for plot in [*overview, *(plot for section in sections for plot in section.plots)]:
        for theme in ("light", "dark"):
            path = folder / f"{plot.name}-{theme}.svg"
            path.write_text(picture(plot.wide, theme, stamp), encoding="utf-8")
            written.append(path)
    return written


def _plots(entry: Source) -> list[Plot]:
    """The plots of one suite."""
    from forge_core.bench.html import plots
    from forge_core.bench.html.data import host_dots, ladders, operators_of, small_dots, timed

    record, found = entry.record, []
    dots = timed(record)
    if record.timer != "device":
        if host := host_dots(record):
            note = "What one eager call costs the thread that makes it, on small tensors."
            found.append(plots.latency(f"latency-{entry.title}", "Host time of an eager call", note, host))
        return found
    for operator in operators_of(dots):
        mine = [dot for dot in dots if dot.operator == operator]
        rungs = {case: steps for case, steps in ladders(record).items() if case.startswith(f"{operator} ")}
        found.append(plots.bandwidth(operator, mine))
        found += [plot for plot in [plots.speedup(operator, mine)] if plot is not None]
        found += [plots.ladder(operator, rungs)] if rungs else []
    if small := small_dots(record):
        note = "Cases of 16 MB and less, where a launch costs as much as the memory does."
        found.append(plots.latency(f"latency-{entry.title}", "Latency of small shapes", note, small))
    return found


def _overview(dots: Sequence[Dot], sources: Sequence[Source]) -> list[Plot]:
    from forge_core.bench.html import plots

    if not dots:
        return []
    gpu = sources[0].record.environment.gpu
    specified = next((spec.bandwidth_gbs for spec in SPECS.values() if spec.name == gpu), None)
    launch_us = min(dot.nbytes / dot.ours / 1e3 for dot in dots)
    return [plots.roofline(dots, specified, launch_us)]
