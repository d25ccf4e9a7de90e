"""The page: one HTML file with everything in it, which needs neither a network nor a server."""

from __future__ import annotations

import html
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources

from forge_core.bench.html.canvas import Plot
from forge_core.bench.html.data import Figures, figures_of
from forge_core.bench.html.theme import THEMES, inline
from forge_core.bench.pages import Source
from forge_core.bench.report import TARGET, Table, headline, remarks, tables

__all__ = ["Section", "page"]

LEAD = (
    "How fast the kernels are, against what a user would call instead, and against a copy of as many bytes in the same "
    "run. Every figure is the median of interleaved launches with a cold L2, checked against PyTorch before and after "
    "the timing. <span class=pointer>Rest the pointer on a point for its figures.</span>"
)

#: How often a style has to occur to become a class.
OFTEN = 6

#: Colours of the page that no plot needs.
EXTRA = {
    "light": {"page": "#f6f7f9", "hover": "#fafbfc", "link": "#b93d0a", "bad": "#c01c28"},
    "dark": {"page": "#0e1014", "hover": "#1b1f27", "link": "#ff9d66", "bad": "#ff7b72"},
}


@dataclass(frozen=True)
class Section:
    """One suite of the page: its record, and the plots of it."""

    entry: Source
    plots: Sequence[Plot]


def page(machine: str, sections: Sequence[Section], overview: Sequence[Plot], stamp: str) -> str:
    """The whole page.

    Args:
        machine: the GPU's name, or ``"CPU"``.
        sections: the suites.
        overview: the plots over all suites.
        stamp: what the page was made from, for the test that it is up to date.
    """
    links = "".join(f'<a href="#{_e(s.entry.title)}">{_e(s.entry.title)}</a>' for s in sections)
    parts = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta name="forge-records" content="{_e(stamp)}">',
        f"<title>Forge on {_e(machine)}</title>",
        f"<style>\n{_theme()}{_asset('report.css')}</style>",
        "</head>",
        "<body>",
        '<header><div class="inside"><div class="top"><div>',
        '<div class="brand">Forge</div>',
        f"<h1>Measured on {_e(machine)}</h1>",
        "</div>",
        '<button class="theme" type="button" data-now="auto">theme: auto</button></div>',
        f'<p class="lead">{LEAD}</p>',
        f'<nav aria-label="suites">{"<a href=#overview>overview</a>" if overview else ""}{links}</nav>',
        "</div></header>",
        "<main>",
    ]
    if overview:
        parts += ['<section id="overview">', "<h2>Overview</h2>", *map(_figure, overview), "</section>"]
    parts += [_section(section) for section in sections]
    figures, classes = _classes("\n".join(parts))
    parts = [figures.replace("</style>", f"{classes}</style>", 1)]
    parts += ["</main>", _footer(sections), f"<script>\n{_asset('report.js')}</script>", "</body>", "</html>"]
    return "\n".join(parts) + "\n"


def _classes(text: str) -> tuple[str, str]:
    """The text with the styles that occur often as classes, and the classes: half of a plot is its points' styles."""
    counted = Counter(re.findall(r' style="([^"]+)"', text))
    names = {style: f"s{number}" for number, (style, count) in enumerate(counted.most_common()) if count >= OFTEN}
    text = re.sub(r' style="([^"]+)"', lambda m: f' class="{names[m[1]]}"' if m[1] in names else m[0], text)
    return text, "".join(f".{name} {{ {style} }}\n" for style, name in names.items())


def _e(text: object) -> str:
    return html.escape(str(text))


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def _theme() -> str:
    def block(selector: str, theme: str) -> str:
        colours = {**THEMES[theme], **EXTRA[theme]}
        return f"{selector} {{ color-scheme: {theme}; {' '.join(f'--{k}: {v};' for k, v in colours.items())} }}\n"

    dark = block(":root:not([data-theme=light])", "dark")
    return (
        block(":root", "light")
        + f"@media (prefers-color-scheme: dark) {{\n{dark}}}\n"
        + block(":root[data-theme=dark]", "dark")
    )


def _figure(plot: Plot) -> str:
    return (
        f'<figure id="plot-{_e(plot.name)}"><h3>{_e(plot.title)}</h3><p class="note">{_e(plot.note)}</p>\n'
        f'<div class="wide-plot">{inline(plot.wide)}</div>\n<div class="narrow">{inline(plot.narrow)}</div></figure>'
    )


def _section(section: Section) -> str:
    record, title = section.entry.record, _e(section.entry.title)
    shown = enumerate(tables(record))
    parts = [
        f'<section id="{title}">',
        f"<h2>{title}</h2>",
        f'<p class="meta">{_e(headline(record))}</p>',
        *(f'<p class="bad">{_e(note)}</p>' for note in record.notes),
        _cards(figures_of(record)),
        *map(_figure, section.plots),
        *(_table(table, opened=not section.plots and number == 0) for number, table in shown),
        '<ul class="remarks">',
        *(f"<li{' class=bad' if line.startswith('ERROR') else ''}>{_e(line)}</li>" for line in remarks(record)),
        "</ul>",
        "</section>",
    ]
    return "\n".join(parts)


def _cards(figures: Figures) -> str:
    cards = []
    if figures.speedup is not None:
        cards.append(("hot", f"{figures.speedup:.2f}x", "the best peer's speed, geometric mean"))
    if figures.of_ceiling is not None:
        cards.append(("hot", f"{figures.of_ceiling:.1%}", "of the ceiling, median"))
    if figures.targets:
        cards.append(("", f"{figures.reached} of {figures.targets}", "targets reached"))
    cards.append(
        ("", str(figures.cases), "cases measured" if not figures.errors else f"cases, {figures.errors} errors")
    )
    shown = "".join(
        f'<div class="card {kind}"><b>{_e(value)}</b><span>{_e(what)}</span></div>' for kind, value, what in cards
    )
    return f'<div class="cards">{shown}</div>'


def _table(table: Table, *, opened: bool) -> str:
    heads = "".join(
        f'<th scope="col"{_class("text" if table.is_text(n) else "")}><button type="button">{_e(head)}</button></th>'
        for n, head in enumerate(table.head)
    )
    rows = "".join(f"<tr>{''.join(_cells(table, row))}</tr>\n" for row in table.rows)
    return (
        f"<details{' open' if opened else ''}><summary>{_e(table.title)}</summary>"
        '<div class="tools"><input type="search" placeholder="filter rows" '
        f'aria-label="filter the rows of {_e(table.title)}"><span class="note">{len(table.rows)} rows</span></div>'
        f'<div class="scroll"><table><thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}</tbody></table></div></details>'
    )


def _class(*names: str) -> str:
    kept = " ".join(filter(None, names))
    return f' class="{kept}"' if kept else ""


def _cells(table: Table, row: Sequence[str]) -> Iterable[str]:
    for number, (head, cell) in enumerate(zip(table.head, row, strict=True)):
        attributes = _class(
            "text" if table.is_text(number) else "",
            "wide" if head == TARGET else "",
            "bad" if "NOT reached" in cell or cell == "ERROR" else "",
        )
        sizes = re.match(r"\d+(x\d+)+", cell) if head == "shape" else None
        if sizes:  # a shape sorts by how many elements it has
            attributes += f' data-sort="{math.prod(map(int, sizes[0].split("x")))}"'
        yield f"<td{attributes}>{_e(cell)}</td>"


def _footer(sections: Sequence[Section]) -> str:
    rows = []
    for section in sections:
        entry, environment = section.entry, section.entry.record.environment
        commit = environment.commit + (" with changes" if environment.dirty else "")
        rows += [f"<dt>{_e(entry.title)}</dt><dd>{_e(entry.source)}; made from commit {_e(commit)}</dd>"]
    return (
        "<footer><p>Bandwidth is GB/s of 1e9 bytes over the bytes that must move at least: each input read once, each "
        "output written once. The ceiling is a device-to-device copy of the same bytes in the same run. How it is "
        "measured is told in docs/measurement.md of the repository; this page is made from these records:</p>"
        f"<dl>{''.join(rows)}</dl></footer>"
    )
