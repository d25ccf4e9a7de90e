"""Sphinx's settings for the site; ``build.py`` starts it."""

from __future__ import annotations

import re
from typing import Any

project, author = "Forge", "the Forge authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
html_theme, html_title, html_show_copyright = "furo", "Forge", False
html_extra_path = ["_extra"]
# As it lies among the sources, which are a copy of the repository.
html_static_path, html_css_files = ["tools/site/site.css"], ["site.css"]
root_doc = "README"
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]
exclude_patterns = ["_extra/**", "**/CHANGELOG.md", "**/scaffold/template/**", ".github"]
highlight_language = "text"
napoleon_use_ivar = True
autodoc_default_options = {"members": True}
autodoc_typehints, autodoc_member_order = "signature", "bysource"
autodoc_mock_imports = ["cutlass"]
# Docstrings are plain text with drawings in them, and each name has one page: what is left to warn of is links.
suppress_warnings = ["docutils", "ref.python", "autodoc.mocked_object", "myst.header"]


def setup(app: Any) -> None:
    """Keeps the drawings of docstrings and the first lines of properties as they are; leaves out aliases of fields."""
    app.connect("autodoc-process-docstring", _keep_drawings, priority=1)
    app.connect("autodoc-skip-member", _is_field)


def _is_field(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Whether to leave a member out: a field of a NamedTuple, which its class documents."""
    return True if str(getattr(obj, "__doc__", "")).startswith("Alias for field number") else None


def _keep_drawings(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Marks an indented block that stands behind an empty line as literal, unless it is a section's."""
    # Napoleon takes what stands before a colon in a property's first line for its type: an empty comment comes first.
    kept: list[str] = ["..", ""] if what in ("attribute", "property") else []
    section = False
    for i, line in enumerate(lines):
        if re.fullmatch(r"(Args|Attributes|Returns|Raises|Yields|Note):", line):
            section = True
        elif line and not line.startswith(" "):
            section = False
        begins = line.startswith("    ") and i > 0 and not lines[i - 1].strip()
        if begins and not section and not (kept and kept[-2:][0].endswith("::")):
            before = next((text for text in reversed(kept) if text.strip()), "")
            if not before.startswith("    "):
                kept += ["::", ""]
        kept.append(line)
    lines[:] = kept
