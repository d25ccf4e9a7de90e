"""The pictures and tables of the documents are those of the newest records, and generated pages are not tracked."""

from __future__ import annotations

import json
import subprocess

import pytest

from forge_core.bench import pages
from forge_core.bench.pages import stamp_of
from forge_core.files import read_unpacked
from forge_core.proofs.evidence import Evidence
from forge_core.proofs.results import note

COMMAND = "nox -s bench -- report --pages"


@pytest.fixture(scope="module")
def records(root):
    return pages.newest(pages.gather([root / "docs" / "records"]))


def test_a_record_of_other_kernels_is_marked(root, records, tmp_path):
    """By a digest in the list of kernels that is not theirs."""
    known = json.loads((root / "docs/records/h200/kernels.json").read_text(encoding="utf-8"))
    entry = records["week0"]
    known[entry.path.name] |= {"code": "0" * 16, "sources": "0" * 16}
    (tmp_path / "h200").mkdir()
    (tmp_path / "h200" / "kernels.json").write_text(json.dumps(known), encoding="utf-8")
    assert "These kernels have changed since" in note(tmp_path, entry.path.name, entry.record, Evidence(root))


def test_there_is_one_record_for_each_suite_and_gpu(root):
    found = [(entry.record.suite, entry.record.environment.gpu) for entry in pages.gather([root / "docs" / "records"])]
    assert len(found) >= 5
    assert len(found) == len(set(found))


def test_of_the_report_only_the_pictures_that_pages_show_are_tracked(root, records):
    done = subprocess.run(["git", "ls-files", "docs/report"], cwd=root, capture_output=True, text=True, check=True)
    tracked = {root / name for name in done.stdout.split()}
    assert tracked
    assert tracked == {path for path in pages.pictures(root) if path.parent == root / "docs" / "report"}
    stamp = stamp_of(list(records.values()))
    assert [path.name for path in tracked if stamp not in path.read_text(encoding="utf-8")] == [], COMMAND
    marked = [page for page in root.glob("docs/**/*.md") if pages.MARKER.search(page.read_text(encoding="utf-8"))]
    assert marked == []  # a page of generated tables


def test_the_timers_table_is_that_of_its_record(root):
    record = max((root / "docs" / "records" / "h200").glob("stopwatch-accuracy-*.json.xz"))
    rows = json.loads(read_unpacked(record))["rows"]
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
