"""The report's page, looked at by a browser: what is plotted, what can be sorted, and that it needs no network."""

from __future__ import annotations

import functools
import html
import importlib.util
import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from forge_core.bench import pages, records
from forge_core.bench.html import data, stamp_of, write_report
from forge_core.commands.bench import bench as command
from forge_core.errors import BenchmarkError
from forge_core.files import write_atomically

RECORDS = Path(__file__).parents[3] / "docs" / "records" / "h200"
HOST = max(RECORDS.glob("host-*.json.gz"))
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PHONE = 390

#: Runs in the page after its own script: uses it as a reader would, and leaves what it saw in the document.
PROBE = """
<script>
window.addEventListener("load", function () {
  const seen = {};
  const all = function (what) { return [...document.querySelectorAll(what)]; };
  seen.network = performance.getEntriesByType("resource").length;
  seen.overflow = document.documentElement.scrollWidth - window.innerWidth;
  seen.plots = all("figure").filter(function (f) {
    return [...f.querySelectorAll("svg")].some(function (s) { return s.getBoundingClientRect().height > 80; });
  }).length;
  seen.figures = all("figure").length;
  seen.shown = all("figure svg").filter(function (s) { return s.getBoundingClientRect().width > 0; }).length;
  seen.points = all("figure svg g[id] > title").length;
  seen.text = all("figure svg text").length
    ? Math.min(...all("figure svg text").map(function (t) { return t.getBoundingClientRect().height; })
        .filter(function (h) { return h > 0; })) : 0;
  seen.rows = all("tbody tr").length;
  seen.paper = getComputedStyle(document.body).backgroundColor;
  const first = document.querySelector("figure svg text");
  seen.ink = first ? getComputedStyle(first).fill : "";
  const details = document.querySelector("details");
  details.open = true;
  const table = details.querySelector("table");
  const heads = [...table.tHead.rows[0].cells];
  const column = heads.findIndex(function (h) { return h.textContent === "forge GB/s"; });
  const cells = function () {
    return [...table.tBodies[0].rows].map(function (r) { return r.cells[column].textContent; });
  };
  seen.before = cells();
  heads[column].querySelector("button").click();
  seen.up = cells();
  heads[column].querySelector("button").click();
  seen.down = cells();
  heads[0].querySelector("button").click();
  seen.sizes = [...table.tBodies[0].rows].map(function (r) { return Number(r.cells[0].dataset.sort); });
  const search = details.querySelector("input");
  search.value = "int8 1024x1024";
  search.dispatchEvent(new Event("input"));
  seen.found = [...table.tBodies[0].rows].filter(function (r) { return !r.hidden; }).length;
  seen.said = search.nextElementSibling.textContent;
  document.querySelector("button.theme").click();
  document.querySelector("button.theme").click();
  seen.darkPaper = getComputedStyle(document.body).backgroundColor;
  seen.darkInk = first ? getComputedStyle(first).fill : "";
  const out = (parent === window ? document : parent.document).createElement("pre");
  out.id = "seen";
  out.textContent = JSON.stringify(seen);
  (parent === window ? document : parent.document).body.append(out);
});
</script>
"""


@pytest.fixture(scope="module")
def week0():
    newest = pages.newest(pages.gather([RECORDS]))
    # A record of host times has the cases of every package.
    host = newest["host"].record
    own = [case for case in host.cases if case.package == "forge_week0_transpose"]
    assert own
    return [newest["week0"], replace(newest["host"], record=msgspec.structs.replace(host, cases=own))]


@pytest.fixture(scope="module")
def figures(week0):
    """How many plots there are to be: a roofline; bandwidth, speed-up and perhaps a ladder; small shapes; the host."""
    record = week0[0].record
    operators = data.operators_of(data.timed(record))
    climbed = {operator for operator in operators for case in data.ladders(record) if case.startswith(f"{operator} ")}
    assert "transpose" in climbed
    return 1 + 2 * len(operators) + len(climbed) + 1 + 1


@pytest.fixture(scope="module")
def report(week0, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    return write_report(week0, folder)


@pytest.fixture(scope="module")
def look(report, tmp_path_factory):
    """Opens the page in a browser, and returns what the probe saw."""
    found = [path for name in BROWSERS if (path := shutil.which(name))]
    if not found:
        lacking = f"no Chromium on PATH to look at the report with, by one of these names: {', '.join(BROWSERS)}"
        # Continuous integration looks at it.
        (pytest.fail if "CI" in os.environ else pytest.skip)(lacking)
    folder = tmp_path_factory.mktemp("browser")

    @functools.cache
    def look(*, width=1280):
        text = report[0].read_text(encoding="utf-8").replace("</body>", PROBE + "</body>")
        if width < 500:  # a window is no narrower than that; a frame in it is
            frame = f'<iframe style="border:0;width:{width}px;height:900px" srcdoc="{html.escape(text)}"></iframe>'
            text = f"<!doctype html><body>{frame}</body>"
        page = folder / f"page-{width}.html"
        page.write_text(text, encoding="utf-8")
        done = subprocess.run(
            [
                found[0],
                "--headless",
                "--no-sandbox",  # a container's root has no sandbox to give
                "--disable-gpu",
                "--disable-dev-shm-usage",
                f"--user-data-dir={folder / f'profile-{width}'}",
                "--blink-settings=preferredColorScheme=1",
                "--window-size=1280,900",
                "--virtual-time-budget=4000",
                "--dump-dom",
                page.as_uri(),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        seen = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
        assert seen, done.stderr[-2000:] or done.stdout[-2000:]
        return json.loads(html.unescape(seen[1]))

    return look


def numbers(cells):
    return [float(cell.replace(",", "")) for cell in cells if cell != "-"]


def test_a_browser_shows_every_plot_and_row_and_sorts_them(look, week0, figures):
    seen = look()
    assert seen["figures"] == seen["plots"] == seen["shown"] == figures
    cases = sum(len(entry.record.cases) for entry in week0)
    assert seen["points"] > 4 * cases
    variants = sum(len(c.contenders) for entry in week0 for c in entry.record.cases if len(c.contenders) > 4)
    assert seen["rows"] >= cases + variants / 2
    assert seen["up"] == sorted(seen["before"], key=float)
    assert numbers(seen["down"]) == numbers(seen["up"])[::-1]
    assert seen["sizes"] == sorted(seen["sizes"])
    # 1024x1024, and the batch 64x1024x1024
    assert (seen["found"], seen["said"]) == (2, f"2 of {len(seen['before'])} rows")


def test_the_page_needs_no_network(look, report):
    assert look()["network"] == 0
    text = report[0].read_text(encoding="utf-8")
    assert re.findall(r'(?:src|href)="(?!#)([^"]*)"', text) == []
    assert "@import" not in text
    assert re.findall(r"url\((?!#)", text) == []


def test_dark_and_light_differ_in_paper_and_plots(look):
    seen = look()

    def brightness(colour):
        return sum(map(int, re.findall(r"\d+", colour)[:3]))

    assert brightness(seen["paper"]) > 600
    assert brightness(seen["darkPaper"]) < 150
    assert brightness(seen["ink"]) < 400 < brightness(seen["darkInk"])


def test_a_phone_gets_plots_that_can_be_read_and_no_sideways_scrolling(look, figures):
    seen = look(width=PHONE)
    assert seen["overflow"] <= 0
    assert seen["shown"] == seen["figures"] == figures
    assert seen["text"] >= 9  # pixels of the smallest text in a plot


class Balanced(HTMLParser):
    """Notes tags that are closed in another order than they were opened."""

    VOID = ("meta", "input", "br", "link", "img", "hr")

    def __init__(self):
        super().__init__()
        self.open, self.wrong, self.ids = [], [], []

    def handle_starttag(self, tag, attrs):
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def test_the_page_is_well_formed_and_its_ids_are_unique(report):
    parser = Balanced()
    parser.feed(report[0].read_text(encoding="utf-8"))
    assert parser.wrong == []
    assert parser.open == []
    assert len(parser.ids) == len(set(parser.ids))
    assert report[0].stat().st_size < 2**20


def test_pictures_are_files_of_their_own_in_both_themes(report, week0, figures):
    pictures = report[1:]
    assert len(pictures) == 2 * figures
    assert {path.name.rsplit("-", 1)[1] for path in pictures} == {"light.svg", "dark.svg"}
    for path in pictures:
        text = path.read_text(encoding="utf-8")
        assert text.startswith("<svg ")
        assert stamp_of(week0) in text
        assert "var(--" not in text
        assert "#0102" not in text  # no stand-in is left


def test_the_same_records_give_the_same_files(report, week0, tmp_path):
    again = write_report(week0, tmp_path)
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in report]


def test_the_numbers_behind_the_plots_are_the_record_s(week0):
    record = next(entry.record for entry in week0 if entry.record.suite == "week0")
    dots = data.timed(record)
    assert len(dots) == len(record.cases)
    dot, case = dots[0], record.cases[0]
    assert dot.ours == pytest.approx(case.contender("forge").gbs, rel=1e-3)
    assert dot.speedup == pytest.approx(case.contender("forge").of_best_peer, rel=0.01)
    rungs = data.ladders(record)["transpose 4096x4096 float32"]
    assert [rung.variant for rung in rungs][:2] == ["naive", "tiled"]
    assert [rung.chosen for rung in rungs] == [rung.variant == "vectorized" for rung in rungs]
    small = data.small_dots(record)
    assert small[0].ours == pytest.approx(case.contender("forge").median_ms * 1e3, rel=1e-6)
    figures = data.figures_of(record)
    assert (figures.reached, figures.targets) == (sum(v.met for v in record.verdicts), len(record.verdicts))
    assert 1.0 < figures.speedup < 3.0


def test_the_command_writes_the_page_and_says_what_it_lacks(tmp_path, monkeypatch):
    out = tmp_path / "out"
    result = CliRunner().invoke(command, ["report", str(HOST), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert str(out / "index.html") in result.output.splitlines()
    assert (out / "latency-host-dark.svg").exists()
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "matplotlib" else real(name, *a))
    result = CliRunner().invoke(command, ["report", str(HOST), "--out", str(out)])
    assert result.exit_code == 1
    assert "pip install 'forge-cute-core[report]'" in result.output


def test_a_folder_without_records_and_records_of_two_machines_are_refused(week0, tmp_path):
    with pytest.raises(BenchmarkError, match="found none"):
        pages.gather([tmp_path])
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(BenchmarkError, match="found none"):
        pages.gather([tmp_path])
    other = msgspec.structs.replace(
        week0[0].record, suite="elsewhere", environment=msgspec.structs.replace(week0[0].record.environment, gpu="B200")
    )
    with pytest.raises(BenchmarkError, match="several machines, B200 and NVIDIA H200"):
        pages.newest([*week0, pages.Source(other, "other.json")])


def test_of_each_suite_and_package_the_newest_record_counts(week0, tmp_path):
    record, host = week0[0].record, week0[1].record
    moved = msgspec.structs.replace(
        host, cases=[msgspec.structs.replace(case, package="forge_week1_reduce") for case in host.cases]
    )
    later = msgspec.structs.replace(record, date="2099-01-01T00:00:00+00:00")
    for name, made in {
        "week0-2026-11-21": record,
        "week0-2099-01-01": later,
        "week0-2099-01-02-again": later,
        "host-2026-11-21": host,
        "week1-host-2026-11-21": moved,
    }.items():
        (tmp_path / f"{name}.json").write_text(made.dumps())
    found = pages.newest(pages.gather([tmp_path]))
    assert {name: entry.source.removesuffix(".json") for name, entry in found.items()} == {
        "week0": "week0-2099-01-01",
        "host-week0": "host-2026-11-21",
        "host-week1": "week1-host-2026-11-21",
    }
    # A page names a package's part of a suite as the report does.
    page = tmp_path / "page.md"
    page.write_text("<!-- bench:host-week1 begin -->\n<!-- bench:host-week1 end -->\n")
    assert pages.refresh(page, found) == ["host-week1"]
    assert "host time of an eager call" in page.read_text()
    # What was named is taken, whatever its name.
    assert len(pages.gather([tmp_path / "week0-2099-01-02-again.json"])) == 1


def test_packed_records_are_records(tmp_path):
    plain = records.load(HOST).dumps()
    for name in ("host-2099-01-02.json.gz", "host-2099-01-02-again.json.gz"):
        write_atomically(tmp_path / name, plain)
    (found,) = pages.gather([tmp_path])
    assert (found.source, found.record) == ("host-2099-01-02.json.gz", records.load(HOST))
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "host-2099-01-02.json").write_text(plain)
    assert pages.gather([tmp_path / "plain"])[0].digest == found.digest
    done = CliRunner().invoke(command, ["show", str(tmp_path / "host-2099-01-02.json.gz")])
    assert done.exit_code == 0, done.output
    assert "host" in done.output
