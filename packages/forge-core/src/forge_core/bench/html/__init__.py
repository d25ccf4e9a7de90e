"""The report: one self-contained HTML page from records, and its plots as files of their own."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from forge_core.bench.pages import Source
from forge_core.errors import UnsupportedError

__all__ = ["PAGE", "in_order", "stamp_of", "write_report"]

PAGE = "index.html"


def stamp_of(sources: Sequence[Source]) -> str:
    """What a report is made from: each record's file and the beginning of its SHA-256."""
    return "; ".join(
        f"{entry.path.name} {entry.digest}" for entry in sorted(sources, key=lambda entry: entry.path.name)
    )


def in_order(sources: Sequence[Source]) -> list[Source]:
    """The records as the page shows them: device time, host time, and smoke last."""
    return sorted(sources, key=lambda e: (e.record.suite == "smoke", e.record.timer != "device", e.title))


def write_report(sources: Sequence[Source], folder: Path, links: Mapping[str, str] | None = None) -> list[Path]:
    """Writes the page and its plots.

    Args:
        sources: the records, one a suite, of one machine.
        folder: where to; it is made if need be.
        links: where the page links an operator's name to; by default to the source of its package's benchmark.

    Returns:
        The files, the page first.

    Raises:
        UnsupportedError: a library is not installed.
    """
    if lacking := [name for name in ("matplotlib", "jinja2") if importlib.util.find_spec(name) is None]:
        raise UnsupportedError(
            f"the report needs {' and '.join(lacking)}, not installed here. Install with: "
            "pip install 'forge-cute-core[report]'; the tables need nothing: --markdown",
            requirement=lacking[0],
        )
    from forge_core.bench.html.page import Operator, Section, page
    from forge_core.bench.html.plots import of_operator, roofline
    from forge_core.bench.html.theme import picture
    from forge_core.bench.report import tables

    def link(operator: str, package: str) -> str:
        spec = importlib.util.find_spec(package)
        at_home = os.path.relpath(Path(spec.origin).with_name("bench.py"), folder) if spec and spec.origin else ""
        return (links or {}).get(operator, at_home)

    ordered = in_order(sources)
    sections = []
    for entry in ordered:
        record = entry.record
        packages = {case.operator: case.package for case in record.cases}
        operators = [
            Operator(name, link(name, package), of_operator(record, entry.title, name), tables(record, name))
            for name, package in packages.items()
        ]
        sections.append(Section(entry, os.path.relpath(entry.path, folder), operators))
    overview = roofline([entry.record for entry in ordered])
    stamp = stamp_of(sources)
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / PAGE]
    written[0].write_text(page(sections, overview, stamp), encoding="utf-8")
    plots = [plot for section in sections for operator in section.operators for plot in operator.plots]
    for plot in [overview, *plots] if overview else plots:
        for name, svg in plot.panels.items():
            for theme in ("light", "dark"):
                written.append(folder / f"{name}-{theme}.svg")
                written[-1].write_text(picture(svg, theme, stamp), encoding="utf-8")
    return written
