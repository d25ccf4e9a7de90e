"""The tables and pictures of the documents are those of the newest records, as one command makes them."""

from __future__ import annotations

import json
import re

import pytest

from forge_core.bench import pages
from forge_core.bench.html import stamp_of
from forge_core.bench.report import markdown

COMMAND = "nox -s bench -- report --pages"


@pytest.fixture(scope="module")
def records(root):
    return pages.newest(pages.gather([root / "docs" / "records"]))


def blocks(text):
    """What stands between the markers of a page, by suite."""
    return dict(re.findall(r"<!-- bench:([\w-]+) begin -->\n(.*?)<!-- bench:\1 end -->", text, re.DOTALL))


def stale(page, records):
    """The suites whose tables on a page are not those of the records."""
    found = blocks(page.read_text(encoding="utf-8"))
    return [
        suite
        for suite, shown in found.items()
        if shown.strip() != (markdown(records[suite].record).strip() if suite in records else "")
    ]


def test_every_table_is_that_of_the_newest_record(root, records):
    with_tables = pages.with_markers(root)
    assert root / "README.md" in with_tables
    assert {page.name: stale(page, records) for page in with_tables if stale(page, records)} == {}, COMMAND


def test_a_table_that_was_edited_would_be_seen(root, records, tmp_path):
    page = tmp_path / "README.md"
    text = (root / "README.md").read_text(encoding="utf-8")
    figure = re.search(r"\| (\d{4}) \|", blocks(text)["week0"])[1]
    page.write_text(text.replace(f"| {figure} |", f"| {int(figure) + 1} |", 1), encoding="utf-8")
    assert stale(page, records) == ["week0"]
    assert pages.refresh(page, records) != []
    assert stale(page, records) == []


def test_the_report_and_its_pictures_are_made_from_the_newest_records(root, records):
    folder = root / "docs" / "report"
    files = [folder / "index.html", *sorted(folder.glob("*.svg"))]
    assert len(files) > 2
    stamp = stamp_of(list(records.values()))
    assert [file.name for file in files if stamp not in file.read_text(encoding="utf-8")] == [], COMMAND


def test_readme_shows_pictures_that_are_there(root):
    text = (root / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r'(?:src|srcset)="(docs/report/[^"]+)"', text)
    assert shown
    assert [path for path in shown if not (root / path).exists()] == []
    # No picture lies there that nobody sees: the report's own page has all of them in it.
    assert set((root / "docs" / "report").glob("*.svg")) == {p for p in pages.shown(root) if p.parent.name == "report"}
    assert "docs/report/index.html" in text


def test_the_timers_table_is_that_of_its_record(root):
    record = max((root / "docs" / "records" / "h200").glob("stopwatch-accuracy-*.json"))
    rows = json.loads(record.read_text(encoding="utf-8"))["rows"]
    text = (root / "docs" / "measurement.md").read_text(encoding="utf-8")
    assert record.name in text
    shown = {
        cells[0]: cells[1:]
        for line in text.splitlines()
        if line.startswith(("| spin ", "| copy "))
        and (cells := [cell.strip() for cell in line.strip("| ").split("|")])[0] in {row["work"] for row in rows}
    }
    wanted = {}
    for row in rows:
        cells = wanted.setdefault(row["work"], [f"{row['known']:.2f}" if row["known"] else "-"])
        cells += [f"{row['median']:.2f}", "-" if row["error"] is None else f"{row['error']:+.2f}"]
    assert len(wanted) == 10
    # Medians of the same launches differ by nanoseconds from timer to timer; the column shows those of the events.
    assert shown == wanted
