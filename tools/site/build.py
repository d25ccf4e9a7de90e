"""Builds the site: all pages, a page for each operator and each step of the course, the API, the report.

`nox -s docs` calls it.

    build.py OUT      OUT/site/index.html, to be opened from the file system; OUT/notebooks, the course's steps

The sources lie as in the repository, so that links between pages hold; every link inside the site is checked.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import jupytext
from sphinx.cmd.build import build_main
from sphinx.ext.napoleon.docstring import GoogleDocstring

from forge_core.bench import pages, plan
from forge_core.bench.html import write_report
from forge_core.bench.pages import Source, in_order
from forge_core.commands.records import with_notes
from forge_core.files import write_atomically
from forge_core.proofs.declare import discover
from forge_core.testing.subject import Subject

ROOT = Path(__file__).resolve().parents[2]

#: The public modules of the core, in the order of the API's page; a package's operators have pages of their own.
MODULES = (
    *("op", "rows", "errors", "settings", "dims", "dtypes", "checks", "device", "choice", "thresholds", "cache"),
    *("cute.copy", "cute.exchange", "cute.grid", "cute.warp", "cute.math", "timing", "testing", "bench", "profiling"),
)

#: The parts of the table of contents, as Sphinx's patterns.
CONTENTS = {
    "Start": ("docs/settings", "docs/glossary", "CONTRIBUTING"),
    "Course": ("docs/intro/README", "docs/intro/[0-9]*"),
    "Weeks": ("docs/week*", "packages/*/README"),
    "Operators": ("operators/*",),
    "Guides": ("docs/rows", "docs/testing", "docs/measurement", "docs/profiling", "docs/proofs", "docs/cache"),
    "More": ("docs/remote", "docs/README", "docs/lab/*", "docs/records/**/*", "SECURITY"),
    "API": ("api/*",),
}

REPORT = "docs/report"


def main(out: Path) -> int:
    """Builds into an empty folder; the status is that of the build, or 1 where a link leads nowhere."""
    shutil.rmtree(out, ignore_errors=True)
    source, site = out / "_sources_of_the_site", out / "site"
    _mirror(source)
    for step in sorted((ROOT / "docs" / "intro").glob("[0-9]*.py")):
        write_atomically(source / "docs" / "intro" / f"{step.stem}.md", _step(step, out / "notebooks"))
    records, report = source / "_extra" / "docs" / "records", source / "_extra" / REPORT
    shutil.copytree(source / "docs" / "records", records)
    shown = in_order(with_notes(pages.newest(pages.gather([records])), ROOT))
    write_report(shown, report, {name: f"../../operators/{subject}.html" for name, subject in _measured().items()})
    for operator, text in operators(shown, report):
        write_atomically(source / "operators" / f"{operator}.md", text)
    for name in MODULES:
        members = _rst(f".. automodule:: forge_core.{name}")
        write_atomically(source / "api" / f"{name}.md", f"# forge_core.{name}\n\n{members}")
    link = f'<p><a href="{REPORT}/index.html">The report</a> has plots and tables of all recorded runs.</p>\n'
    options = ":glob:\n:maxdepth: 1\n:hidden:\n"
    parts = [
        f"```{{toctree}}\n:caption: {caption}\n{options}\n" + "\n".join(patterns) + "\n```\n"
        for caption, patterns in CONTENTS.items()
    ]
    write_atomically(source / "README.md", "\n".join([_linked(ROOT / "README.md"), link, *parts]))
    write_atomically(source / "_extra" / "index.html", '<meta http-equiv="refresh" content="0; url=README.html">')
    shutil.copy(Path(__file__).with_name("conf.py"), source)
    status = build_main(["-q", "-W", "--keep-going", "-b", "html", str(source), str(site)])
    lost = sorted(set(broken_links(site)))
    for page, target in lost:
        print(f"{page}: {target} leads nowhere", file=sys.stderr)
    print(site / "index.html")
    return status or bool(lost)


def _mirror(source: Path) -> None:
    """Copies what is tracked, so that links between pages hold."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)  # noqa: S607 - as found
    for name in filter(None, tracked.stdout.split("\0")):
        path = ROOT / name
        if path.is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, source / name)
            if path.suffix == ".md":
                write_atomically(source / name, _linked(path))


def _linked(page: Path) -> str:
    """A page's text: a link to a folder is its name, for a site has pages only; one to a step leads to its page."""

    def linked(link: re.Match[str]) -> str:
        return link[1] if (page.parent / link[2]).is_dir() else link[0]

    text = re.sub(r"\[([^\]]*)\]\(([^)#:]+)\)", linked, page.read_text(encoding="utf-8"))
    return re.sub(r"(?<=[(/])(\d\d_\w+)\.py\)", r"\1.md)", text)


def _step(step: Path, notebooks: Path) -> str:
    """The page of a step of the course, with what it prints; its notebook is written too."""
    notebook = jupytext.read(step, fmt="py:percent")
    cells = [c.source if c.cell_type == "markdown" else f"```python\n{c.source}\n```" for c in notebook.cells]
    # A notebook has no file of its own, and is not beside what a step imports.
    beside = Path(os.path.relpath(step.parent, notebooks)).as_posix()
    paths = f'# %%\nimport sys\n\n__file__ = "{beside}/{step.name}"\nsys.path.insert(0, "{beside}")'
    notebook.cells[1:1] = jupytext.reads(paths, fmt="py:percent").cells
    notebooks.mkdir(parents=True, exist_ok=True)
    jupytext.write(notebook, notebooks / f"{step.stem}.ipynb")
    expected = (step.parent / "expected" / f"{step.stem}.txt").read_text(encoding="utf-8")
    return "\n\n".join([*cells, "## What it prints without a GPU", f"```text\n{expected}```\n"])


def _measured() -> dict[str, str]:
    """By the name in benchmarks, the name of the operator that is measured."""
    subjects = [subject.operator for week in discover() for subject in week.subjects]
    benched = [entry for bench in plan.discover() for entry in bench.operators]
    return {b.name: o.schema.name for b in benched for o in subjects if b.variants == o.variants}


def operators(shown: Sequence[Source], report: Path) -> Iterator[tuple[str, str]]:
    """Each operator's name and page, from its declaration and the report that shows these records."""
    measured = _measured()
    for week in discover():
        for subject in week.subjects:
            name = subject.operator.schema.name
            benched = [of for of, operator in measured.items() if operator == name]
            suites = [entry.name for entry in shown if entry.record.suite != "smoke"]
            plots = "".join(_plots(suite, of, report) for suite in suites for of in benched)
            yield name, _page(subject, week.package, plots or "No recorded run has this operator.\n")


def _page(subject: Subject, package: str, plots: str) -> str:
    operator = subject.operator
    signature = re.sub(r"(?<=: |> )'([^']*)'", r"\1", str(inspect.signature(operator)))  # annotations are text
    body = str(GoogleDocstring(inspect.cleandoc(operator.__doc__ or ""), what="function"))
    function = f".. py:currentmodule:: {package}\n\n.. py:function:: {operator.schema.name}{signature}\n\n"
    ideas = {name: subject.absent.get(name, idea) for name, idea in operator.variants().items()}
    variants = "\n".join(f"| `{name}` | {idea} |" for name, idea in ideas.items())
    dtypes = ", ".join(f"`{dtype}`" for dtype in subject.dtypes)
    folder = next(p for p in (ROOT / "packages").iterdir() if (p / "src" / package).is_dir())
    limits = (folder / "README.md").read_text(encoding="utf-8").partition("\n## Limits\n")[2].partition("\n## ")[0]
    return f"""# {operator.schema.name}

{_rst(function + re.sub(r"^(?=.)", "   ", body, flags=re.MULTILINE))}
Schema: `{operator.schema.text}`.

## Dtypes

Tested with {dtypes}.

## Variants

| variant | idea |
| --- | --- |
{variants}

## Limits

{limits.strip().replace("](../../", "](../")}

## Measured

{plots}"""


def _plots(suite: str, name: str, report: Path) -> str:
    """What the report plots of an operator in a suite, in the theme of the page; "" for nothing."""
    pictures = [path.name for path in sorted(report.glob(f"{suite}-{name}-*.svg"))]
    if not pictures:
        return ""
    link = f'<p><a href="../{REPORT}/index.html#{suite}-{name}">All cases of {name} in the report</a></p>'
    images = [
        f"![{stem}](../_extra/{REPORT}/{picture}){{.only-{theme}}}"
        for picture in pictures
        for stem, _, theme in [picture.removesuffix(".svg").rpartition("-")]
    ]
    return "\n".join([f"### {name}: {suite}\n", f"{link}\n", *images, "\n"])


def _rst(text: str) -> str:
    return f"```{{eval-rst}}\n{text}\n```\n"


class _Links(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = {"", "top"}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes what a tag names and what it is named."""
        found: Mapping[str, str | None] = dict(attrs)
        self.anchors.add(found.get("id") or "")
        self.links |= {link for name in ("href", "src", "srcset") if (link := found.get(name))}


def broken_links(site: Path) -> Iterator[tuple[str, str]]:
    """Pages, and their links inside the site that lead nowhere."""
    pages = {path.resolve(): _Links(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    for page, found in pages.items():
        for link in found.links:
            parts = urlsplit(link)
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            there = target.exists() and (target not in pages or parts.fragment in pages[target].anchors)
            if not (parts.scheme or parts.netloc or there):
                yield str(page.relative_to(site.resolve())), link


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
