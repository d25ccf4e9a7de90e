"""Builds the site: all pages, a page for each operator, the API, the report.  `nox -s docs` calls it.

    build.py OUT      OUT/index.html, to be opened from the file system

The sources lie as in the repository, so that links between pages hold; every link inside the site is checked.
"""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sphinx.cmd.build import build_main
from sphinx.ext.napoleon.docstring import GoogleDocstring

from forge_core.bench import pages
from forge_core.bench.html import write_report
from forge_core.op import Operator
from forge_core.proofs.declare import discover

ROOT = Path(__file__).resolve().parents[2]

#: The public modules of the core, in the order of the API's page; a package's operators have pages of their own.
MODULES = (
    *("op", "rows", "errors", "settings", "dims", "dtypes", "checks", "device", "choice", "thresholds", "cache"),
    *("cute.copy", "cute.exchange", "cute.grid", "cute.warp", "cute.math", "timing", "testing", "bench", "profiling"),
)

#: What a part of the table of contents holds.
CONTENTS = {
    "Start": ("docs/settings", "docs/glossary", "CONTRIBUTING"),
    "Weeks": ("docs/week0", "docs/week1", "docs/week2", "docs/week*-cases", "packages/*/README"),
    "Operators": ("operators/*",),
    "Guides": ("docs/rows", "docs/testing", "docs/measurement", "docs/profiling", "docs/proofs", "docs/cache"),
    "More": ("docs/remote", "docs/README", "docs/lab/*", "docs/records/**/*", "SECURITY"),
    "API": ("api/*",),
}

REPORT = '<p><a href="docs/report/index.html">The report</a> has plots and tables of all recorded runs.</p>\n'


def main(out: Path) -> int:
    """Builds into an empty folder; the status is that of the build, or 1 where a link leads nowhere."""
    shutil.rmtree(out, ignore_errors=True)
    source = out / "_sources_of_the_site"
    _mirror(source)
    _report(source / "_extra" / "docs" / "report")
    for operator, text in _operators():
        _write(source / "operators" / f"{operator}.md", text)
    for name in MODULES:
        _write(source / "api" / f"{name}.md", f"# forge_core.{name}\n\n{_rst(f'.. automodule:: forge_core.{name}')}")
    start = [_linked(ROOT / "README.md"), REPORT, *(_toctree(source, *part) for part in CONTENTS.items())]
    _write(source / "index.md", "\n".join(start))
    shutil.copy(Path(__file__).with_name("conf.py"), source)
    status = build_main(["-q", "-W", "--keep-going", "-b", "html", str(source), str(out / "site")])
    lost = sorted(set(_lost(out / "site")))
    for page, link in lost:
        print(f"{page}: {link} leads nowhere", file=sys.stderr)
    print(out / "site" / "index.html")
    return status or bool(lost)


def _mirror(source: Path) -> None:
    """Copies what is tracked, with its links as the site has them."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)  # noqa: S607 - as found
    for name in filter(None, tracked.stdout.split("\0")):
        path = ROOT / name
        if name == "README.md" or not path.is_file():
            continue
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, source / name)
        if path.suffix == ".md":
            _write(source / name, _linked(path))


def _linked(page: Path) -> str:
    """A page's text: README is the first page, and a link to a folder is its name."""

    def linked(link: re.Match[str]) -> str:
        target = (page.parent / link[2]).resolve()
        if target == ROOT / "README.md":
            return f"[{link[1]}]({link[2].removesuffix('README.md')}index.md)"
        return link[1] if target.is_dir() else link[0]

    return re.sub(r"\[([^\]]*)\]\(([^)#:]+)\)", linked, page.read_text(encoding="utf-8"))


def _report(folder: Path) -> None:
    folder.mkdir(parents=True)
    write_report(list(pages.newest(pages.gather([ROOT / "docs" / "records"])).values()), folder)


def _operators() -> Iterator[tuple[str, str]]:
    """Each operator's name and page, from its declaration."""
    for week in discover():
        for subject in week.subjects:
            yield subject.operator.schema.name, _page(subject.operator, week.package, week.name, subject.dtypes)


def _page(operator: Operator, package: str, week: str, dtypes: Sequence[object]) -> str:
    name = operator.schema.name
    signature = re.sub(r"(?<=: |> )'([^']*)'", r"\1", str(inspect.signature(operator)))  # annotations are text
    body = str(GoogleDocstring(inspect.cleandoc(operator.__doc__ or ""), what="function"))
    function = f".. py:function:: {package}.{name}{signature}\n\n" + re.sub(r"^(?=.)", "   ", body, flags=re.MULTILINE)
    variants = "\n".join(f"| `{variant}` | {idea} |" for variant, idea in operator.variants().items())
    folder = next(p for p in (ROOT / "packages").iterdir() if (p / "src" / package).is_dir()).name
    cases = f"; [every measured case](../docs/{week}-cases.md)" if (ROOT / "docs" / f"{week}-cases.md").exists() else ""
    return f"""# {name}

{_rst(function)}
Schema: `{operator.schema.text}`. Tested with {", ".join(str(d).removeprefix("torch.") for d in dtypes)}.
[Limits](../packages/{folder}/README.md#limits){cases}.

| variant | idea |
| --- | --- |
{variants}
"""


def _rst(text: str) -> str:
    return f"```{{eval-rst}}\n{text}\n```\n"


def _toctree(source: Path, caption: str, patterns: tuple[str, ...]) -> str:
    found = [
        p.relative_to(source).with_suffix("") for pattern in patterns for p in sorted(source.glob(f"{pattern}.md"))
    ]
    lines = "\n".join(str(page) for page in found if page.name != "CHANGELOG")
    return f"```{{toctree}}\n:caption: {caption}\n:maxdepth: 1\n:hidden:\n\n{lines}\n```\n"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


class _Links(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes what a tag names and what it is named."""
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in ("href", "src", "srcset") and value:
                self.links.append(value)


def _lost(site: Path) -> Iterator[tuple[str, str]]:
    """Pages, and their links inside the site that lead nowhere."""
    pages = {path: _Links(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    for page, found in pages.items():
        for link in found.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link.startswith("#"):
                continue
            target = (page.parent / unquote(parts.path)).resolve()
            known = pages.get(target)
            if not target.exists() or (parts.fragment and known is not None and parts.fragment not in known.anchors):
                yield str(page.relative_to(site)), link


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
