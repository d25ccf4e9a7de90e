"""Which of several records counts, and the pages that show one.

A page holds the tables of a suite between ``<!-- bench:SUITE begin -->`` and ``<!-- bench:SUITE end -->``:

    forge-cute bench report RECORD --into PAGE
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
from forge_core.bench.records import SWEEP, Record
from forge_core.errors import BenchmarkError
from forge_core.files import read_unpacked, write_atomically

#: A record that is not the one to show, such as week0-2026-11-21-again.json: its name goes on behind the date.
FURTHER = re.compile(r"\d{4}-\d{2}-\d{2}-.+\.json(\.[gx]z)?$")
MARKER = re.compile(r"^<!-- bench:([\w-]+) begin -->$", re.MULTILINE)
PICTURE = re.compile(r'(?:src|srcset)="([^"]+[.]svg)"|[(]([^()\s]+[.]svg)[)]')


@dataclass(frozen=True)
class Source:
    """A record, its file, and the beginning of its text's SHA-256.

    `name` is what a page calls it, see :func:`newest`; `note` says which kernels it was measured on.
    """

    record: Record
    path: Path
    digest: str = ""
    name: str = ""
    note: str = ""


def gather(places: Iterable[Path]) -> list[Source]:
    """The records in some files and folders, packed ones too.

    In a folder, other JSON files, further runs and sweeps, which are not of a suite, are passed over.

    Raises:
        BenchmarkError: a file that was named is not a record, or there is none at all.
    """
    found = []
    for place in places:
        files = [place] if place.is_file() else sorted([*place.rglob("*.json"), *place.rglob("*.json.[gx]z")])
        for path in files:
            if place.is_file() or (not FURTHER.search(path.name) and _is_record(path)):
                digest = hashlib.sha256(read_unpacked(path)).hexdigest()[:16]
                found.append(Source(records.load(path), path, digest))
    if not found:
        raise BenchmarkError(f"expected a record or a folder of records, found none in {', '.join(map(str, places))}")
    return found


class _Head(msgspec.Struct):
    schema_version: msgspec.Raw
    cases: msgspec.Raw
    suite: str = ""


def _is_record(path: Path) -> bool:
    """Whether a JSON file says that it is a record of a suite."""
    try:
        head = msgspec.json.decode(read_unpacked(path), type=_Head)
    except (OSError, msgspec.DecodeError):
        return False
    return not head.suite.startswith(SWEEP)


def newest(found: Iterable[Source]) -> dict[str, Source]:
    """The newest record of each suite and package, by the name of the suite, or, where it has several, of both.

    Raises:
        BenchmarkError: the records are of several machines; one page shows one.
    """
    latest: dict[tuple[str, ...], Source] = {}
    for entry in sorted(found, key=lambda entry: entry.record.date):
        latest[entry.record.suite, *sorted({case.package for case in entry.record.cases})] = entry
    suites = [suite for suite, *_ in latest]
    chosen = {}
    for (suite, *packages), entry in latest.items():
        weeks = [package.removeprefix("forge_").split("_")[0] for package in packages]
        name = suite if suites.count(suite) == 1 else "-".join([suite, *weeks])
        chosen[name] = replace(entry, name=name)
    machines = sorted({entry.record.environment.gpu for entry in chosen.values()})
    if len(machines) > 1:
        raise BenchmarkError(f"the records are of several machines, {' and '.join(machines)}: name those of one")
    return chosen


def in_order(sources: Iterable[Source]) -> list[Source]:
    """The records in a report's order: device time, host time, and smoke last."""
    return sorted(sources, key=lambda e: (e.record.suite == "smoke", e.record.timer != "device", e.name))


def stamp_of(sources: Iterable[Source]) -> str:
    """What a report is made from: each record's file and the beginning of its SHA-256."""
    return "; ".join(sorted(f"{entry.path.name} {entry.digest}" for entry in sources))


def pictures(root: Path) -> set[Path]:
    """The SVG files that README and the pages below `root` show."""
    pages = [page for pattern in ("README.md", "docs/**/*.md", "packages/*/README.md") for page in root.glob(pattern)]
    shown = [(page, match) for page in pages for match in PICTURE.finditer(page.read_text(encoding="utf-8"))]
    return {Path(os.path.normpath(page.parent / (match[1] or match[2]))) for page, match in shown}


def fill(page: Path, found: Mapping[str, Source]) -> list[str]:
    """Puts the tables of records between their markers on a page; returns the names of the records it has markers for.

    Raises:
        BenchmarkError: the page cannot be read, or does not have both markers of a record once each, in this order.
    """
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise BenchmarkError(f"{page}: {error.strerror}") from error
    names = [name for name in dict.fromkeys(MARKER.findall(text)) if name in found]
    for name in names or list(found)[:1]:  # without any, the error says what was expected
        begin, end = (f"<!-- bench:{name} {edge} -->" for edge in ("begin", "end"))
        if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
            raise BenchmarkError(f"{page}: expected the line {begin!r} and below it the line {end!r}, once each.")
        text = f"{text.split(begin)[0]}{begin}\n\n{report.markdown(found[name].record)}\n{end}{text.split(end)[1]}"
    write_atomically(page, text)
    return names
