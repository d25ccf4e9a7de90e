"""The report: one self-contained HTML page from records, and its plots as files of their own.

The page needs neither a network nor a server.  Importing this module takes the extra ``report``: Jinja2 and matplotlib.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from forge_core.bench import report
from forge_core.bench.html.plots import of_operator, roofline
from forge_core.bench.html.theme import css, inline, picture
from forge_core.bench.pages import Source, in_order, stamp_of
from forge_core.toolchain import package_folder

__all__ = ["write_report"]


def write_report(sources: Sequence[Source], folder: Path, links: Mapping[str, str] | None = None) -> list[Path]:
    """Writes the page and its plots into a folder; returns the files, the page first.

    `sources` are the records, one a suite, of one machine.  `links` are those of the operators' names, by default to
    the source of the package's benchmark.
    """

    def link(operator: str, package: str) -> str:
        if links is not None:
            return links.get(operator, "")
        home = package_folder(package)
        return os.path.relpath(home / "bench.py", folder) if home else ""

    ordered, stamp = in_order(sources), stamp_of(sources)
    records = [entry.record for entry in ordered]
    overview = roofline(records)
    plots, sections = [overview] if overview else [], []
    for entry in ordered:
        operators = []
        for name, package in {case.operator: case.package for case in entry.record.cases}.items():
            drawn = of_operator(entry.record, entry.name, name)
            plots += drawn
            operators.append({"name": name, "link": link(name, package), "plots": drawn})
        sections.append({"entry": entry, "link": os.path.relpath(entry.path, folder), "operators": operators})
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "index.html"]
    compared = [record for record in records if record.timer == "device" and record.suite != "smoke"] or records
    loader = PackageLoader(__package__, "assets")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters["inline"] = lambda svg: Markup(inline(svg))  # noqa: S704 - drawn here
    text = made.get_template("report.html").render(
        machine=records[0].environment.machine.replace("CPU", "the CPU"),
        sections=sections,
        overview=overview,
        report=report,
        summary=report.summary(compared),
        stamp=stamp,
        css=Markup(css()),  # noqa: S704 - made here
    )
    written[0].write_text(text, encoding="utf-8")
    for name, svg in [panel for plot in plots for panel in plot.panels.items()]:
        for theme in ("light", "dark"):
            written.append(folder / f"{name}-{theme}.svg")
            written[-1].write_text(picture(svg, theme, stamp), encoding="utf-8")
    return written
