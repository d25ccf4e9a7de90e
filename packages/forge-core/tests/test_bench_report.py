"""Records and reports: nothing is lost on the way to disk, and a page changes between its markers only."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

import msgspec
import pytest
import torch

from forge_core.bench.environment import _digest, read_environment
from forge_core.bench.pages import Source, fill
from forge_core.bench.records import ContenderRecord, ImportRecord, Run, Verdict, figures, load
from forge_core.bench.report import markdown
from forge_core.errors import BenchmarkError

RECORD = max((Path(__file__).parents[3] / "docs" / "records" / "h200").glob("week0-*.json.xz"))


def contender(name, kind, median_ms, of_ceiling, of_best_peer, variant=""):
    run = Run(median_ms, median_ms * 0.99, median_ms * 1.01, 30, of_ceiling, of_best_peer, "1980 MHz to 1980 MHz")
    return ContenderRecord(
        name=name,
        kind=kind,
        **figures([run], 2 * 4096 * 4096 * 4),
        runs=[run],
        samples_ms=[median_ms, 0.0333],
        variant=variant,
    )


@pytest.fixture
def record():
    measured = load(RECORD)
    (case,) = [case for case in measured.cases if case.name == "transpose 4096x4096 float32"]
    good = msgspec.structs.replace(
        case,
        contenders=[
            contender("forge", "ours", 0.0364, 0.981, 1.5, "vectorized"),
            contender("forge:naive", "ours", 0.2, 0.18, 0.27, "naive"),
            contender("eager", "peer", 0.126, 0.29, 0.43),
            contender("compile", "peer", 0.0546, 0.66, 1.0),
            contender("ceiling", "ceiling", 0.0357, 1.0, 1.53),
        ],
        best_peer="compile",
        left_out={"forge:rows": "the rows are long"},
        targets=[
            Verdict(of="ceiling", value=0.981, met=True, at_least=0.96),
            Verdict(of="best_peer", value=0.985, met=False, at_least=1.0, met_from=0.99),
        ],
    )
    bad = msgspec.structs.replace(
        good, name="transpose 8x8 int8", shape=[8, 8], dtype="int8", contenders=[], targets=[], error="it broke | badly"
    )
    return msgspec.structs.replace(
        measured,
        notes=["A note."],
        environment=msgspec.structs.replace(measured.environment, commit="a" * 40, dirty=False, sources={}),
        repeats=3,
        cases=[good, bad],
        imports=[ImportRecord("m", 0.1, [0.1], "fresh", [Verdict(of="import", value=0.1, met=True, at_most=0.3)])],
    )


@pytest.fixture
def source(record, tmp_path):
    path = tmp_path / "record.json"
    path.write_text(record.dumps())
    return path


def test_a_record_survives_the_disk(record, source):
    assert load(source) == record
    lines = source.read_text().splitlines()
    assert len([line for line in lines if line.startswith('  {"name":"transpose')]) == 2
    assert record.errors == ["transpose 8x8 int8: it broke | badly"]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"schema_version": 3}, r"Invalid enum value 3 - at `\$\.schema_version`"),
        ({"schema_version": None}, r"Expected `int`, got `null` - at `\$\.schema_version`"),
        ({"cases": 3}, r"Expected `array`, got `int` - at `\$\.cases`"),
    ],
)
def test_a_file_that_is_no_record_is_refused(record, tmp_path, change, message):
    path = tmp_path / "record.json"
    path.write_text(json.dumps({**json.loads(record.dumps()), **change}))
    with pytest.raises(BenchmarkError, match=message):
        load(path)
    path.write_text("{")
    with pytest.raises(BenchmarkError, match="expected a record of a benchmark"):
        load(path)


def test_markdown_says_what_was_reached_and_what_was_not(record):
    text = markdown(record)
    assert f"NVIDIA H200, driver {record.environment.driver}" in text
    assert "commit aaaaaaaaaaaa;" in text
    assert "median over 3 runs" in text
    assert (
        "| 4096x4096 | float32 | vectorized | 3687 | 0.981 | 1.500 | compile | 1065 | 2458 | 3760 | 2.0% "
        "| 0.96 of ceiling: reached; 1 of best peer: NOT reached (0.9850) |" in text
    )
    assert "| transpose | week0 | 2 | 1.500 | 1.500 | 0.981 | 0.981 | compile (1) | 1 of 2 |" in text
    assert "| 8x8 | int8 | ERROR |" in text
    assert "| 4096x4096 | float32 | naive | 671.1 | 0.180 | 0.270 | compile |" in text
    assert "ERROR: transpose 8x8 int8: it broke" in text
    assert "Targets: 2 of 3 reached." in text
    assert "is at least 0.99" in text
    assert "Left out: forge:rows: the rows are long." in text
    assert "| m | 0.100 | at most 0.3: reached |" in text
    assert "**A note.**" in text
    heads = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.count(" | ") >= 2 for line in heads)


def test_a_page_changes_between_its_markers_only(forge, record, source, tmp_path):
    page = tmp_path / "README.md"
    page.write_text("above\n<!-- bench:week0 begin -->\nold\n<!-- bench:week0 end -->\nbelow\n")
    result = forge("bench", "report", source, "--into", page)
    assert result.exit_code == 0, result.output
    text = page.read_text()
    assert text.startswith("above\n<!-- bench:week0 begin -->\n")
    assert text.endswith("<!-- bench:week0 end -->\nbelow\n")
    assert markdown(record) in text
    assert "old" not in text
    assert fill(page, {"week0": Source(record, source)}) == ["week0"]
    assert page.read_text() == text


@pytest.mark.parametrize(
    "text",
    [
        "nothing\n",
        "<!-- bench:week0 begin -->\n",
        "<!-- bench:week0 end -->\n<!-- bench:week0 begin -->\n",
        "<!-- bench:smoke begin -->\n<!-- bench:smoke end -->\n",
        "<!-- bench:week0 begin -->\n<!-- bench:week0 end -->\n" * 2,
    ],
)
def test_a_page_without_its_markers_is_left_alone(forge, source, tmp_path, text):
    page = tmp_path / "README.md"
    page.write_text(text)
    result = forge("bench", "report", source, "--into", page)
    assert result.exit_code == 1
    assert "expected the line '<!-- bench:week0 begin -->'" in result.output
    assert page.read_text() == text


def test_show_prints_the_tables(forge, source):
    result = forge("bench", "show", source)
    assert result.exit_code == 0, result.output
    for text in ("4096x4096", "0.981", "NOT reached (0.9850)", "variants side by side", "it broke | badly"):
        assert text in result.output


def test_a_record_gets_the_commit_that_its_sources_prove(forge, git, record, tmp_path, monkeypatch):
    package = tmp_path / "repo" / "stamped_package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    kernel = package / "kernel.py"
    kernel.write_text("fast = 1\n")
    monkeypatch.syspath_prepend(str(package.parent))
    sources = {"stamped_package": _digest("stamped_package")}
    environment = msgspec.structs.replace(record.environment, commit="not a checkout", dirty=None, sources=sources)
    path = tmp_path / "record.json"
    path.write_text(msgspec.structs.replace(record, environment=environment).dumps())

    def stamp():
        result = forge("bench", "stamp", path)
        return result.exit_code, " ".join(result.output.split())

    git(package.parent, "init", "-q")
    assert stamp()[0] == 1
    assert "not in a git checkout" in stamp()[1]
    git(package.parent, "add", ".")
    assert "changes here that are not committed" in stamp()[1]
    git(package.parent, "commit", "-q", "-m", "first")
    kernel.write_text("fast = 2\n")
    assert "made from other sources of stamped_package" in stamp()[1]
    kernel.write_text("fast = 1\n")
    assert load(path).environment.commit == "not a checkout"
    assert stamp()[0] == 0
    stamped = load(path).environment
    assert (stamped.commit, stamped.dirty) == (git(package.parent, "rev-parse", "HEAD"), False)


def test_the_environment_names_versions_and_sources():
    environment = read_environment(torch.device("cpu"), ["forge_core"])
    assert environment.gpu == "none"
    assert environment.torch == str(torch.__version__)
    assert set(environment.sources) == {"forge_core"}
    assert len(environment.commit) == 40 or environment.commit in ("not a checkout", "not read")
    assert environment.peers == {}
    beside = read_environment(torch.device("cpu"), ["json"], ["numpy", "no-such-package"])
    assert beside.commit == "not a checkout"
    assert beside.peers == {"numpy": importlib.metadata.version("numpy")}
