"""The page: one HTML file with everything in it, which needs neither a network nor a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from forge_core.bench.html.plots import Plot
from forge_core.bench.html.theme import css, inline
from forge_core.bench.pages import Source
from forge_core.bench.report import Table, headline, imports_table, remarks, summary

__all__ = ["Operator", "Section", "page"]


@dataclass(frozen=True)
class Operator:
    """One operator of a suite: its name, a link to its page or source, its plots and tables."""

    name: str
    link: str
    plots: Sequence[Plot]
    tables: Sequence[Table]


@dataclass(frozen=True)
class Section:
    """One suite: its record, a link to its file, and its operators."""

    entry: Source
    link: str
    operators: Sequence[Operator]

    @property
    def headline(self) -> str:
        """Machine, versions, date and sources."""
        return headline(self.entry.record)

    @property
    def remarks(self) -> list[str]:
        """What stands below the figures."""
        return remarks(self.entry.record)

    @property
    def imports(self) -> list[Table]:
        """The tables that are of no operator."""
        return [imports_table(self.entry.record)] if self.entry.record.imports else []


def page(sections: Sequence[Section], overview: Plot | None, stamp: str) -> str:
    """The whole page.

    Args:
        sections: the suites, in order.
        overview: the plot over all suites.
        stamp: what the page was made from.
    """
    records = [section.entry.record for section in sections]
    compared = [record for record in records if record.timer == "device" and record.suite != "smoke"] or records
    environment = records[0].environment
    loader = Environment(
        loader=PackageLoader(__package__, "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    loader.filters["inline"] = lambda svg: Markup(inline(svg))  # noqa: S704 - drawn here
    return loader.get_template("report.html").render(
        machine=environment.gpu if environment.device == "cuda" else "the CPU",
        sections=sections,
        overview=overview,
        summary=summary(compared),
        stamp=stamp,
        css=Markup(css()),  # noqa: S704 - made here
    )
