"""Colours, and what becomes of them: one drawing serves the light page, the dark page and the pictures.

A plot is drawn once with a stand-in for each colour that occurs nowhere else.  In the page the stand-ins become CSS
variables, which change with the theme; in a picture they become the colours of one theme.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["THEMES", "inline", "picture", "stand_in", "svg_of"]

#: By theme, each colour's name and value; the names are those of the CSS variables.
THEMES: dict[str, dict[str, str]] = {
    "light": {
        "paper": "#ffffff",
        "ink": "#1c1f26",
        "muted": "#667085",
        "grid": "#e4e7ec",
        "forge": "#d9480f",
        "forge-soft": "#fbd5c0",
        "peer": "#5b6b82",
        "ceiling": "#98a2b3",
        "float32": "#d9480f",
        "bfloat16": "#1d6fd1",
        "int8": "#0b8a6a",
        "other": "#8250c4",
        "eager": "#7a8699",
        "compile": "#1d6fd1",
        "third": "#0b8a6a",
        "fourth": "#8250c4",
    },
    "dark": {
        "paper": "#15181e",
        "ink": "#e8eaee",
        "muted": "#98a2b3",
        "grid": "#2c313b",
        "forge": "#ff8a4c",
        "forge-soft": "#5a3421",
        "peer": "#a3b0c4",
        "ceiling": "#667085",
        "float32": "#ff8a4c",
        "bfloat16": "#6cb0ff",
        "int8": "#43d3a8",
        "other": "#bd93f9",
        "eager": "#97a3b6",
        "compile": "#6cb0ff",
        "third": "#43d3a8",
        "fourth": "#bd93f9",
    },
}

#: A colour for each name that no drawing has by chance.
STAND_INS: dict[str, str] = {name: f"#0102{number + 16:02x}" for number, name in enumerate(THEMES["light"])}


def stand_in(name: str) -> str:
    """The colour to draw with for a name in :data:`THEMES`."""
    return STAND_INS[name]


def svg_of(figure: Figure, *, name: str, title: str, tooltips: Mapping[str, str]) -> str:
    """A figure as an SVG element, with its stand-ins, its ids made the plot's own, and nothing that needs a network.

    Args:
        figure: the figure.
        name: what its ids begin with.
        title: what a reader who cannot see it is told.
        tooltips: by an artist's group id, the text that browsers show where the pointer rests.
    """
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = text[text.index("<svg ") :]
    box = re.search(r'viewBox="([^"]*)"', text)
    body = text[text.index(">") + 1 :]
    body = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\g<1>"', body)
    body = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{name}-", body)
    body = _smaller(body, name)
    for group, words in tooltips.items():
        tag = f'<g id="{name}-{group}">'
        body = body.replace(tag, f"{tag}<title>{html.escape(words)}</title>", 1)
    head = (
        '<svg xmlns="http://www.w3.org/2000/svg" '
        f'viewBox="{box[1] if box else "0 0 1 1"}" font-family="sans-serif" stroke-linejoin="round" role="img" '
        f'aria-label="{html.escape(title)}">'
    )
    return head + body.strip() + "\n"


def _smaller(body: str, name: str) -> str:
    """The same drawing in about half the bytes."""
    body = re.sub(r"<!--.*?-->|<style.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r"(\d+\.\d{2})\d+", r"\1", body)  # a hundredth of a point is finer than any screen
    body = re.sub(r"\s*transform=\"rotate\(-0 [^\"]*\"", "", body)
    body = body.replace("font-family: 'DejaVu Sans'; ", "").replace(" 'DejaVu Sans'", " sans-serif")
    referred = set(re.findall(r'(?:href="#|url\(#)([^")]+)', body))
    kept = re.compile(rf"{re.escape(name)}-(?:p|b)\d+")  # the groups that tooltips are tied to
    body = re.sub(r' id="([^"]+)"', lambda m: m[0] if m[1] in referred or kept.fullmatch(m[1]) else "", body)
    body = body.replace("xlink:href", "href")
    body = re.sub(r"<g ?/>|<defs>\s*</defs>", "", body)
    body = re.sub(r">\s+<", "><", body)
    return re.sub(r"\s*\n\s*", " ", body)


def inline(svg: str) -> str:
    """The SVG for the page: its colours are the page's."""
    return _coloured(svg, lambda name: f"var(--{name})")


def picture(svg: str, theme: str, description: str) -> str:
    """The SVG as a file of its own, on its theme's paper.

    Args:
        svg: as :func:`svg_of` returns it.
        theme: a key of :data:`THEMES`.
        description: what it was made from.
    """
    colours = THEMES[theme]
    head, rest = svg.split(">", 1)
    paper = f'<desc>{html.escape(description)}</desc><rect width="100%" height="100%" fill="{colours["paper"]}"/>'
    return _coloured(f"{head}>{paper}{rest}", lambda name: colours[name])


def _coloured(svg: str, colour: Callable[[str], str]) -> str:
    for name, stand in STAND_INS.items():
        svg = svg.replace(stand, colour(name))
    return svg
