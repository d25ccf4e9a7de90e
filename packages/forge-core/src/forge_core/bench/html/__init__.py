"""The report: one self-contained HTML page from records, and the pictures on it as files of their own."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from forge_core.bench.pages import Source
from forge_core.errors import UnsupportedError

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
    from forge_core.bench.html import plots
    from forge_core.bench.html.page import Section, page
    from forge_core.bench.html.theme import picture

    ordered = sorted(sources, key=lambda entry: (entry.record.timer != "device", entry.title))
    environment = ordered[0].record.environment
    overview = plots.overview([entry.record for entry in ordered])
    sections = [Section(entry, plots.of_suite(entry.record, entry.title)) for entry in ordered]
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
