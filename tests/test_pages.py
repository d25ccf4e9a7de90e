"""The tables and pictures of the documents are those of the newest records, as one command makes them."""

from __future__ import annotations

import json
import re

import pytest

from forge_core.bench import pages
from forge_core.bench.html import stamp_of
from forge_core.bench.pages import block
from forge_core.proofs.evidence import Evidence
from forge_core.proofs.results import note

COMMAND = "nox -s bench -- report --pages"


@pytest.fixture(scope="module")
def records(root):
    return pages.newest(pages.gather([root / "docs" / "records"]))


def blocks(text):
    """What stands between the markers of a page, by suite."""
    return dict(re.findall(r"<!-- bench:([\w-]+) begin -->\n(.*?)<!-- bench:\1 end -->", text, re.DOTALL))


@pytest.fixture(scope="module")
def notes(root, records):
    """Of each suite, which kernels its record was measured on; says so where these have changed since."""
    evidence = Evidence(root)
    return {
        name: note(root / "docs" / "records", entry.source, entry.record, evidence)
        for name, entry in records.items()
        if entry.record.environment.gpu != "none"
    }


def stale(page, records, notes):
    """The suites whose tables on a page, or what is said of their kernels, are not those of the records."""
    found = blocks(page.read_text(encoding="utf-8"))
    return [
        suite
        for suite, shown in found.items()
        if shown.strip() != (block(records[suite].record, notes.get(suite, "")).strip() if suite in records else "")
    ]


def test_every_table_is_that_of_the_newest_record_and_says_of_which_kernels(root, records, notes):
    with_tables = pages.with_markers(root)
    assert root / "docs" / "week0-cases.md" in with_tables
    assert {page.name: told for page in with_tables if (told := stale(page, records, notes))} == {}, COMMAND


def test_a_table_that_was_edited_would_be_seen(root, records, notes, tmp_path):
    page = tmp_path / "cases.md"
    text = (root / "docs" / "week0-cases.md").read_text(encoding="utf-8")
    figure = re.search(r"\| (\d{4}) \|", blocks(text)["week0"])[1]
    page.write_text(text.replace(f"| {figure} |", f"| {int(figure) + 1} |", 1), encoding="utf-8")
    assert stale(page, records, notes) == ["week0"]
    assert pages.refresh(page, records, notes=notes) != []
    assert stale(page, records, notes) == []


def test_a_table_of_other_kernels_would_be_marked(root, records, tmp_path):
    """By a digest in the list of kernels that is not theirs."""
    known = json.loads((root / "docs/records/h200/kernels.json").read_text(encoding="utf-8"))
    entry = records["week0"]
    known[entry.source] |= {"code": "0" * 16, "sources": "0" * 16}
    (tmp_path / "h200").mkdir()
    (tmp_path / "h200" / "kernels.json").write_text(json.dumps(known), encoding="utf-8")
    assert "These kernels have changed since" in note(tmp_path, entry.source, entry.record, Evidence(root))


def test_the_report_and_its_pictures_are_made_from_the_newest_records(root, records):
    folder = root / "docs" / "report"
    files = sorted(folder.glob("*.svg"))  # the page itself is not tracked
    assert files
    stamp = stamp_of(list(records.values()))
    assert [file.name for file in files if stamp not in file.read_text(encoding="utf-8")] == [], COMMAND


def test_readme_shows_pictures_that_are_there(root):
    text = (root / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r'(?:src|srcset)="(docs/report/[^"]+)"', text)
    assert shown
    assert [path for path in shown if not (root / path).exists()] == []
    # No picture lies there that nobody sees: the report's own page has all of them in it.
    assert set((root / "docs" / "report").glob("*.svg")) == {p for p in pages.shown(root) if p.parent.name == "report"}


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
