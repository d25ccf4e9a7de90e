"""Colours of the report in both themes: CSS variables on the page, plain colours in a picture.

matplotlib takes no CSS variables, so a plot is drawn once in placeholder colours, which occur nowhere else.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable

from matplotlib.figure import Figure

#: By the name of the CSS variable: the colour of the light theme and of the dark one.
COLOURS: dict[str, tuple[str, str]] = {
    # Backgrounds.
    "page": ("#f6f7f9", "#0e1014"),
    "paper": ("#ffffff", "#15181e"),
    "faster": ("#fdeee6", "#2c1c14"),
    "grid": ("#e4e7ec", "#2c313b"),
    # Text.
    "ink": ("#1c1f26", "#e8eaee"),
    "muted": ("#586174", "#98a2b3"),
    "link": ("#b93d0a", "#ff9d66"),
    "bad": ("#c01c28", "#ff7b72"),
    # Marks.
    "forge": ("#d9480f", "#ff8a4c"),
    "peer": ("#5b6b82", "#a3b0c4"),
    "ceiling": ("#7c879b", "#7b879c"),
    "blue": ("#1d6fd1", "#6cb0ff"),
    "green": ("#0b8a6a", "#43d3a8"),
    "violet": ("#8250c4", "#bd93f9"),
}

STAND_IN = {name: f"#0102{number + 16:02x}" for number, name in enumerate(COLOURS)}


def css() -> str:
    """The variables, by the system's theme unless the page's root element names one."""
    variables = "".join(f"  --{name}: light-dark({light}, {dark});\n" for name, (light, dark) in COLOURS.items())
    named = "".join(f":root[data-theme={theme}] {{ color-scheme: {theme}; }}\n" for theme in ("light", "dark"))
    return f":root {{\n  color-scheme: light dark;\n{variables}}}\n{named}"


def svg_of(figure: Figure, title: str) -> str:
    """A figure as an SVG element in placeholder colours, without metadata and unused ids."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True)
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", buffer.getvalue(), flags=re.DOTALL)
    text = re.sub(r' id="[\w.]+_\d+"', "", text[text.index("<svg ") :])
    # To a tenth of a point, in tags: labels are text.
    text = re.sub(r"<[^>]+>", lambda found: re.sub(r"(\d+\.\d)\d+", r"\1", found[0]), text)
    text = re.sub(r">\s+<", "><", text).replace("\n", " ").replace(" font-family: 'DejaVu Sans';", "")
    text = re.sub(r' transform="rotate\(-0 [^"]*"|<g/>|<defs></defs>', "", text)
    named = f'<svg role="img" aria-label="{html.escape(title)}" font-family="sans-serif" '
    return text.replace("<svg ", named, 1).strip()


def inline(svg: str) -> str:
    """A plot for the page, whose variables it takes."""
    return _coloured(svg, lambda name: f"var(--{name})")


def picture(svg: str, theme: str, description: str) -> str:
    """A plot as a file of its own, in the theme ``"light"`` or ``"dark"``; `description` says what it was made from."""
    head, rest = svg.split(">", 1)
    paper = f'<rect width="100%" height="100%" fill="{STAND_IN["paper"]}"/>'
    rest = re.sub(r"\b([mp][0-9a-f]{4})[0-9a-f]{6}\b", r"\1", rest)  # the few ids of a file
    text = f"{head}><desc>{html.escape(description)}</desc>{paper}{rest}\n"
    return _coloured(text, lambda name: COLOURS[name][theme == "dark"])


def _coloured(svg: str, colour: Callable[[str], str]) -> str:
    for name, stand_in in STAND_IN.items():
        svg = svg.replace(stand_in, colour(name))
    return svg
