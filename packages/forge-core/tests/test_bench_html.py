"""The report's page, looked at by a browser: what it shows, in which order, without a network and without a mouse."""

from __future__ import annotations

import functools
import html
import importlib.util
import json
import os
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest

from forge_core.bench import pages, records
from forge_core.bench.html import plots, theme, write_report
from forge_core.errors import BenchmarkError
from forge_core.files import write_atomically

RECORDS = Path(__file__).parents[3] / "docs" / "records" / "h200"
HOST = max(RECORDS.glob("host-*.json.xz"))
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")

#: Runs in the page after its own script: uses it as a reader would, and leaves what it saw in the document.
PROBE = """
<script>
window.addEventListener("load", () => {
  const seen = {};
  const all = (what) => [...document.querySelectorAll(what)];
  seen.network = performance.getEntriesByType("resource").length;
  seen.overflow = document.documentElement.scrollWidth - window.innerWidth;
  seen.panels = all("figure svg").filter((svg) => svg.getBoundingClientRect().height > 80).length;
  seen.text = Math.min(...all("figure svg text").map((text) => text.getBoundingClientRect().height));
  seen.cut = all("figure svg").filter((svg) => {
    const edge = svg.getBoundingClientRect();
    return [...svg.querySelectorAll("text")].some((text) => {
      const box = text.getBoundingClientRect();
      return box.left < edge.left - 1 || box.right > edge.right + 1;
    });
  }).length;
  seen.rows = all("details tbody tr").length;
  const colours = () => [document.body, document.querySelector("figure svg text")].map((element, n) =>
    getComputedStyle(element)[n ? "fill" : "backgroundColor"]);
  const table = document.querySelector("details table");
  const heads = [...table.tHead.rows[0].cells];
  const column = heads.findIndex((head) => head.textContent === "forge GB/s");
  const cells = () => [...table.tBodies[0].rows].map((row) => row.cells[column].textContent);
  const sort = (n) => heads[n].querySelector("button").click();
  sort(column);
  seen.up = cells();
  sort(column);
  seen.down = cells();
  sort(0);
  seen.shapes = [...table.tBodies[0].rows].map((row) => row.cells[0].textContent);
  const search = table.closest("details").querySelector("input");
  search.value = "int8 1024x1024";
  search.dispatchEvent(new Event("input"));
  seen.found = search.nextElementSibling.textContent;
  for (const name of ["light", "dark"]) {
    document.querySelector("button.theme").click();
    seen[name] = colours();
  }
  const out = (parent === window ? document : parent.document).createElement("pre");
  out.id = "seen";
  out.textContent = JSON.stringify(seen);
  (parent === window ? document : parent.document).body.append(out);
});
</script>
"""


@pytest.fixture(scope="module")
def shown():
    """The records of week 0, given in another order than that of the page; that of host time is of every package."""
    newest = pages.newest(pages.gather([RECORDS]))

    def own(entry):
        cases = [case for case in entry.record.cases if case.package == "forge_week0_transpose"]
        return replace(entry, record=msgspec.structs.replace(entry.record, cases=cases))

    def smoke(entry):
        by_operator = {case.operator: case for case in sorted(entry.record.cases, key=lambda case: case.operator)}
        record = msgspec.structs.replace(entry.record, suite="smoke", cases=[*by_operator.values()])
        return replace(entry, name="smoke", record=record)

    noted = replace(newest["week0"], note="Measured on other kernels.")
    return [smoke(newest["week0"]), own(newest["host"]), noted]


@pytest.fixture(scope="module")
def report(shown, tmp_path_factory):
    return write_report(shown, tmp_path_factory.mktemp("report"), {"copy": "copy.html"})


@pytest.fixture(scope="module")
def text(report):
    return report[0].read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def look(text, tmp_path_factory):
    """Opens the page in a browser, and returns what the probe saw."""
    found = [path for name in BROWSERS if (path := shutil.which(name))]
    if not found:
        lacking = f"no Chromium on PATH to look at the report with, by one of these names: {', '.join(BROWSERS)}"
        # Continuous integration looks at it.
        (pytest.fail if "CI" in os.environ else pytest.skip)(lacking)
    folder = tmp_path_factory.mktemp("browser")

    @functools.cache
    def look(width):
        probed = text.replace("</body>", PROBE + "</body>")
        if width < 500:  # a window is no narrower than that; a frame in it is
            frame = f'<iframe style="border:0;width:{width}px;height:900px" srcdoc="{html.escape(probed)}"></iframe>'
            probed = f"<!doctype html><body>{frame}</body>"
        page = folder / f"page-{width}.html"
        page.write_text(probed, encoding="utf-8")
        done = subprocess.run(
            [
                found[0],
                "--headless",
                "--no-sandbox",  # a container's root has no sandbox to give
                "--disable-gpu",
                "--disable-dev-shm-usage",
                f"--user-data-dir={folder / f'profile-{width}'}",
                f"--window-size={max(width, 500)},900",
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


@pytest.mark.parametrize("width", [1400, 400])
def test_every_panel_can_be_read_at_any_width_without_sideways_scrolling(look, text, width):
    seen = look(width)
    assert seen["overflow"] <= 0
    assert seen["panels"] == text.count("<svg ")
    assert seen["text"] >= 9  # pixels
    assert seen["cut"] == 0
    assert seen["network"] == 0


def test_tables_have_every_case_and_are_sorted_and_filtered(look, shown):
    seen = look(1400)
    cases = [case for entry in shown for case in entry.record.cases]
    ours = [sum(contender.kind == "ours" for contender in case.contenders) for case in cases]
    assert seen["rows"] >= len(cases) + sum(count for count in ours if count > 1)
    numbers = [float(cell) for cell in seen["up"]]
    assert numbers == sorted(numbers)
    assert [float(cell) for cell in seen["down"]] == numbers[::-1]
    sizes = [functools.reduce(lambda a, b: a * int(b), shape.split("x"), 1) for shape in seen["shapes"]]
    assert sizes == sorted(sizes)
    # 1024x1024, and the batch 64x1024x1024
    assert seen["found"] == f"2 of {len(numbers)} rows"


def test_the_theme_changes_page_and_plots(look):
    seen = look(1400)
    for n, name in enumerate(("light", "dark")):
        wanted = [theme.COLOURS["page"][n], theme.COLOURS["muted"][n]]
        rgb = [re.findall(r"\d+", colour)[:3] for colour in seen[name]]
        assert [f"#{int(r):02x}{int(g):02x}{int(b):02x}" for r, g, b in rgb] == wanted


def contrast(one, other):
    """The ratio of WCAG 2."""

    def luminance(colour):
        channels = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    light, dark = sorted([luminance(one), luminance(other)], reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_text_and_marks_stand_out_in_both_themes(dark):
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)
    colours = {name: pair[dark] for name, pair in theme.COLOURS.items()}
    texts = {"ink", "muted", "link", "bad"}
    backgrounds = {"page", "paper", "faster"}
    low = {}
    for name in colours.keys() - backgrounds - {"grid"}:  # lines of the grid say nothing
        for below in backgrounds:
            ratio = contrast(colours[name], colours[below])
            if ratio < (4.5 if name in texts else 3):
                low[name, below] = round(ratio, 2)
    assert low == {}
    # The page has no colours but these, and text none but those of text; nothing is made fainter.
    css = (Path(theme.__file__).parent / "assets" / "report.css").read_text(encoding="utf-8")
    assert set(re.findall(r"(?<![-\w])color: var\(--(\w+)\)", css)) <= texts
    assert re.findall(r"opacity|rgb|hsl|#[0-9a-f]{3,8}\b", css) == []


class Page(HTMLParser):
    """Ids, links and the tags of a page, and those that are closed in another order than they were opened."""

    VOID = ("meta", "input", "br", "link", "img", "hr")

    def __init__(self, text):
        super().__init__()
        self.open, self.wrong, self.ids, self.links, self.attributes = [], [], [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.ids += [value for name, value in attrs if name == "id"]
        self.links += [value for name, value in attrs if name in ("href", "src", "xlink:href")]
        self.attributes |= {name for name, _ in attrs}
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def test_the_page_is_well_formed_and_its_links_lead_somewhere(text, report, shown):
    page = Page(text)
    assert (page.wrong, page.open) == ([], [])
    assert len(page.ids) == len(set(page.ids))
    assert len(text) < 2**20
    inside = {link[1:] for link in page.links if link.startswith("#")}
    assert inside <= set(page.ids)
    assert {"summary", "week0", "week0-transpose", "host-copy", "smoke"} <= inside
    files = {link for link in page.links if not link.startswith("#")}
    assert not any(urlsplit(link).scheme or urlsplit(link).netloc for link in files)
    assert "copy.html" in files
    targets = {(report[0].parent / link).resolve() for link in files - {"copy.html"}}
    assert all(path.is_file() for path in targets)
    assert targets >= {entry.path.resolve() for entry in shown}
    assert re.findall(r"@import|url\((?!#)", text) == []


def test_an_operator_links_to_its_benchmark_where_no_links_are_given(shown, tmp_path):
    smoke = next(entry for entry in shown if entry.record.suite == "smoke")
    written = write_report([smoke], tmp_path)[0]
    targets = {(tmp_path / link).resolve() for link in Page(written.read_text(encoding="utf-8")).links}
    assert any(path.parts[-2:] == ("forge_week0_transpose", "bench.py") and path.is_file() for path in targets)


def test_the_summary_comes_first_then_the_contents_and_smoke_is_last(text, shown):
    assert re.findall(r'<section id="([\w-]+)"', text) == [
        "summary",
        *("week0", "week0-transpose", "week0-copy"),
        *("host", "host-transpose", "host-copy"),
        *("smoke", "smoke-copy", "smoke-transpose"),
    ]
    assert text.index("<nav") < text.index("<main") < text.index("<table") < text.index("<figure")
    summary = text[text.index('id="summary"') : text.index('id="week0"')]
    cells = re.findall(r"<td[^>]*>(.*?)</td>", summary)
    best: Counter[str] = Counter()
    for case in (case for case in shown[-1].record.cases if case.operator == "transpose"):
        peers = [contender for contender in case.contenders if contender.kind == "peer"]
        best[min(peers, key=lambda peer: peer.median_ms).name] += 1
    assert cells[:3] == ["transpose", "week0", str(best.total())]
    assert cells[7] == ", ".join(f"{peer} ({count})" for peer, count in best.most_common())
    assert "smoke" not in cells
    assert "Measured on other kernels." in text
    assert f"commit {shown[-1].record.environment.commit}" in text


def test_the_best_peer_is_named_in_tables_and_plots(text):
    section = text[text.index('id="week0-transpose"') : text.index('id="week0-copy"')]
    tables, plots = section[section.index("<table") :], section[: section.index("<table")]
    assert tables.count(">best peer</button>") == tables.count("<table") == 2
    compilers = ("compile", "autotune")
    assert sum(tables.count(f">{peer}</td>") for peer in compilers) >= 36
    assert plots.count(">best peer: autotune<") == 3  # a legend for each dtype
    assert sum(plots.count(f">{peer}</text>") for peer in compilers) >= 36  # a row for each case


def test_nothing_needs_a_mouse(text):
    assert not {name for name in Page(text).attributes if name == "title" or name.startswith("on")}
    assert "<title>" not in text.replace("<title>Forge on", "", 1)  # what a plot says stands in it
    assert set(re.findall(r'addEventListener\("(\w+)"', text)) == {"click", "input"}
    assert ":hover" not in text
    # What is clicked can be reached by keyboard, and so can what scrolls.
    assert set(re.findall(r'querySelector\("(\w+)[.\w]*"\)', text)) == {"button", "input"}
    assert text.count('class="scroll" tabindex="0"') == text.count("<table")


def test_pictures_are_files_of_their_own_in_both_themes(report, text, shown):
    pictures = report[1:]
    assert len(pictures) == len(set(pictures)) == 2 * text.count("<svg ")
    names = {path.name.rsplit("-", 1)[0] for path in pictures}
    assert names > {"roofline", "host-copy-latency", "smoke-copy-speedup-int8"}
    assert names > {f"week0-transpose-{kind}" for kind in ("bandwidth-int8", "speedup-int8", "variants-2", "latency")}
    assert {path.name.rsplit("-", 1)[1] for path in pictures} == {"light.svg", "dark.svg"}
    for path in pictures:
        picture = path.read_text(encoding="utf-8")
        assert picture.startswith("<svg ")
        assert pages.stamp_of(shown) in picture
        assert "var(--" not in picture
        assert "#0102" not in picture  # no stand-in is left


def test_coordinates_are_rounded_and_labels_are_not(report):
    plot = plots.Plot("title", "note")
    with plot.panel("name", "panel", 2.0) as axis:
        axis.plot([0.123456, 1.0], [0.25, 0.75], marker="o")
        axis.text(0.5, 0.5, "0.257 us")
    (svg,) = plot.panels.values()
    assert ">0.257 us<" in svg
    assert not re.search(r"<[^>]*\d[.]\d\d", svg)
    for path in report[1:]:
        picture = path.read_text(encoding="utf-8")
        assert set(re.findall(r"#([mp][0-9a-f]{4,})", picture)) <= set(re.findall(r' id="(\w+)"', picture))


def test_the_same_records_give_the_same_files(report, shown):
    before = [path.read_bytes() for path in report]
    again = write_report(shown, report[0].parent, {"copy": "copy.html"})
    assert [path.read_bytes() for path in again] == before


def test_the_numbers_behind_the_plots_are_the_record_s(shown):
    record = shown[-1].record
    points = plots.points(record)
    assert len(points) == len(record.cases)
    point, case = points[0], record.cases[0]
    assert point.ours == pytest.approx(case.contender("forge").median_ms * 1e3)
    assert point.gbs(point.ours) == pytest.approx(case.contender("forge").gbs, rel=1e-3)
    assert point.peer / point.ours == pytest.approx(case.contender("forge").of_best_peer, rel=0.01)
    (variants,) = [v for case, v in plots.ladders(record, "transpose") if case.name == "transpose 4096x4096 float32"]
    assert [entry.name for entry in variants][:2] == ["forge:naive", "forge:tiled"]


def test_a_case_beside_eager_alone_is_no_comparison_where_others_have_more_peers():
    record = records.load(max(RECORDS.glob("week2-*.json.xz")))
    peers = {point.case.name: point.peer for point in plots.points(record, "softmax")}
    assert [name for name, peer in peers.items() if peer is None] == [
        "softmax 16384x8192 bfloat16",
        "softmax 16384x8192 float32",
    ]


def test_the_command_writes_the_page_and_says_what_it_lacks(forge, tmp_path, monkeypatch):
    out = tmp_path / "out"
    result = forge("bench", "report", HOST, "--out", out)
    assert result.exit_code == 0, result.output
    assert str(out / "index.html") in result.output.splitlines()
    assert (out / "host-softmax-latency-dark.svg").exists()
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "matplotlib" else real(name, *a))
    result = forge("bench", "report", HOST, "--out", out)
    assert result.exit_code == 1
    assert "pip install 'forge-cute-core[report]'" in result.output


def test_a_folder_without_records_and_records_of_two_machines_are_refused(shown, tmp_path):
    with pytest.raises(BenchmarkError, match="found none"):
        pages.gather([tmp_path])
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(BenchmarkError, match="found none"):
        pages.gather([tmp_path])
    other = msgspec.structs.replace(
        shown[-1].record,
        suite="elsewhere",
        environment=msgspec.structs.replace(shown[-1].record.environment, gpu="B200"),
    )
    with pytest.raises(BenchmarkError, match="several machines, B200 and NVIDIA H200"):
        pages.newest([*shown, pages.Source(other, tmp_path / "other.json")])


def test_of_each_suite_and_package_the_newest_record_counts(shown, tmp_path):
    record, host = shown[-1].record, shown[1].record
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
        "sweep-transpose-2099-01-01": msgspec.structs.replace(later, suite="sweep transpose"),
    }.items():
        (tmp_path / f"{name}.json").write_text(made.dumps())
    found = pages.newest(pages.gather([tmp_path]))
    assert {name: entry.path.stem for name, entry in found.items()} == {
        "week0": "week0-2099-01-01",
        "host-week0": "host-2026-11-21",
        "host-week1": "week1-host-2026-11-21",
    }
    # A page names a package's part of a suite as the report does.
    page = tmp_path / "page.md"
    page.write_text("<!-- bench:host-week1 begin -->\n<!-- bench:host-week1 end -->\n")
    assert pages.fill(page, found) == ["host-week1"]
    assert "host time of an eager call" in page.read_text()
    # What was named is taken, whatever its name.
    assert len(pages.gather([tmp_path / "week0-2099-01-02-again.json"])) == 1


def test_packed_records_are_records(forge, tmp_path):
    plain = records.load(HOST).dumps()
    for name in ("host-2099-01-02.json.xz", "host-2099-01-02-again.json.xz"):
        write_atomically(tmp_path / name, plain)
    (found,) = pages.gather([tmp_path])
    assert (found.path.name, found.record) == ("host-2099-01-02.json.xz", records.load(HOST))
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "host-2099-01-02.json").write_text(plain)
    assert pages.gather([tmp_path / "plain"])[0].digest == found.digest
    done = forge("bench", "show", tmp_path / "host-2099-01-02.json.xz")
    assert done.exit_code == 0, done.output
    assert "host" in done.output
