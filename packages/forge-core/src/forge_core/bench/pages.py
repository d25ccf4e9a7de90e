"""Which record a page shows, and the pages that show one.

A page holds the tables of a suite between ``<!-- bench:SUITE begin -->`` and ``<!-- bench:SUITE end -->``.  They are
those of the newest record of that suite; one command brings every page up to date, and a test holds them together:

    forge-cute bench report --pages
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from forge_core.bench import records, report
from forge_core.bench.records import Record
from forge_core.errors import BenchmarkError
from forge_core.files import read_unpacked, write_atomically

__all__ = [
    "PAGES",
    "Source",
    "block",
    "gather",
    "markers",
    "newest",
    "refresh",
    "replace_between_markers",
    "shown",
    "with_markers",
]

#: Where the pages of a checkout are looked for.
PAGES = ("README.md", "docs/*.md", "docs/*/*.md", "packages/*/README.md")
FURTHER = re.compile(r"\d{4}-\d{2}-\d{2}-.+$")
PICTURE = re.compile(r'(?:src|srcset)="([^"]+[.]svg)"|[(]([^()\s]+[.]svg)[)]')
MARKER = re.compile(r"^<!-- bench:([\w-]+) begin -->$", re.MULTILINE)


@dataclass(frozen=True)
class Source:
    """A record on a page.

    Attributes:
        record: the record.
        source: the name of its file.
        digest: the beginning of its text's SHA-256.
        name: what the page calls it: its suite, with the packages where several records are of parts of it.
    """

    record: Record
    source: str
    digest: str = ""
    name: str = ""

    @classmethod
    def of(cls, path: Path) -> Source:
        """The record in a file."""
        return cls(records.load(path), path.name, hashlib.sha256(read_unpacked(path)).hexdigest()[:16])

    @property
    def title(self) -> str:
        """The name, or the suite's."""
        return self.name or self.record.suite

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages whose cases it has."""
        return tuple(sorted({case.package for case in self.record.cases}))


def gather(places: Iterable[Path]) -> list[Source]:
    """The records in some files and folders.

    Packed ones count too.  In a folder, other JSON files are passed over, and so is what has more in its name than a
    date at its end: a further run, such as ``week0-2026-11-21-again.json``, is evidence beside the record that the
    pages show.

    Raises:
        BenchmarkError: a file that was named is no record, or there is none at all.
    """
    found = []
    for place in places:
        if place.is_file():
            found.append(Source.of(place))
            continue
        files = sorted([*place.rglob("*.json"), *place.rglob("*.json.gz")])
        found += [Source.of(path) for path in files if not FURTHER.search(_stem(path)) and _is_record(path)]
    if not found:
        raise BenchmarkError(f"expected a record or a folder of records, found none in {', '.join(map(str, places))}")
    return found


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".json")


def _is_record(path: Path) -> bool:
    """Whether a JSON file says that it is a record; what else is wrong with it, loading it tells."""
    try:
        raw = msgspec.json.decode(read_unpacked(path))
    except (OSError, msgspec.DecodeError):
        return False
    return isinstance(raw, dict) and "schema_version" in raw and "cases" in raw


def newest(found: Iterable[Source]) -> dict[str, Source]:
    """Of each suite, the newest record; of a suite that several packages have, the newest of each.

    Returns:
        By the name on the page: the suite's, or, where there are several of it, with that of the packages.

    Raises:
        BenchmarkError: the records are of several machines; one page shows one.
    """
    latest: dict[tuple[str, tuple[str, ...]], Source] = {}
    for entry in sorted(found, key=lambda entry: entry.record.date):
        latest[entry.record.suite, entry.packages] = entry
    suites = [suite for suite, _ in latest]
    chosen = {}
    for (suite, packages), entry in latest.items():
        words = [suite, *(package.removeprefix("forge_").split("_")[0] for package in packages)]
        name = suite if suites.count(suite) == 1 else "-".join(words)
        chosen[name] = replace(entry, name=name)
    machines = sorted({entry.record.environment.gpu for entry in chosen.values()})
    if len(machines) > 1:
        raise BenchmarkError(f"the records are of several machines, {' and '.join(machines)}: name those of one")
    return chosen


def markers(text: str) -> list[str]:
    """The suites whose tables a page has a place for, in order."""
    return MARKER.findall(text)


def with_markers(root: Path) -> list[Path]:
    """The pages of a checkout that have a place for tables."""
    pages = [page for pattern in PAGES for page in sorted(root.glob(pattern))]
    return [page for page in dict.fromkeys(pages) if markers(page.read_text(encoding="utf-8"))]


def shown(root: Path) -> set[Path]:
    """The pictures of a checkout that its pages show, as paths that begin with ``root``."""
    found = set()
    for page in (page for pattern in PAGES for page in root.glob(pattern)):
        for match in PICTURE.finditer(page.read_text(encoding="utf-8")):
            found.add(Path(os.path.normpath(page.parent / (match[1] or match[2]))))
    return found


def block(record: Record, note: str = "") -> str:
    """What stands between the markers of a page: the record's tables, and a sentence below them."""
    return f"{report.markdown(record)}\n{note}\n" if note else report.markdown(record)


def replace_between_markers(page: Path, record: Record, name: str = "", note: str = "") -> None:
    """Puts the record's Markdown between ``<!-- bench:SUITE begin -->`` and ``<!-- bench:SUITE end -->`` of a page.

    Args:
        page: the page.
        record: the record.
        name: what the markers call it, where several records are of parts of a suite; by default its suite.
        note: a sentence below the tables.

    Raises:
        BenchmarkError: the page cannot be read, or does not have the two markers once each, in this order.
    """
    begin, end = (f"<!-- bench:{name or record.suite} {edge} -->" for edge in ("begin", "end"))
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise BenchmarkError(f"{page}: {error.strerror}") from error
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise BenchmarkError(f"{page}: expected the line {begin!r} and below it the line {end!r}, once each.")
    before, rest = text.split(begin)
    after = rest.split(end)[1]
    write_atomically(page, f"{before}{begin}\n\n{block(record, note)}\n{end}{after}")


def refresh(
    page: Path, found: Mapping[str, Source], *, strict: bool = True, notes: Mapping[str, str] | None = None
) -> list[str]:
    """Brings a page's tables up to date; returns the suites whose tables it has.

    Args:
        page: the page.
        found: the records by suite.
        strict: whether a page without a place for any of the records is an error.
        notes: a sentence for each suite that has one, below its tables.

    Raises:
        BenchmarkError: the page cannot be read or its markers do not pair; or, with `strict`, it has none of them.
    """
    wanted = [name for name in markers(page.read_text(encoding="utf-8")) if name in found]
    if strict and not wanted:
        wanted = list(found)[:1]  # which says what was expected
    for suite in dict.fromkeys(wanted):
        replace_between_markers(page, found[suite].record, suite, (notes or {}).get(suite, ""))
    return wanted
