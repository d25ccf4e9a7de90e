"""The site's builder: links as the site has them, links that lead nowhere, and the pages of operators."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections import namedtuple

import jupytext
import pytest
from sphinx.ext.napoleon.docstring import GoogleDocstring

from forge_core.bench import pages
from forge_core.bench.html import write_report

TOOLS = ("site", "build", "conf")


def test_a_link_to_a_folder_is_its_name(tools, root):
    text = tools.build._linked(root / "docs" / "README.md")
    assert "[cache.md](cache.md)" in text
    assert "(records/h200/)" not in text and "records/h200/" in text


def test_links_that_lead_nowhere_are_found(tools, tmp_path):
    (tmp_path / "a.html").write_text(
        '<h1 id="here"></h1><a href="b.html#here"></a><a href="b.html#there"></a><a href="c.html"></a><a href="#"></a>'
        '<a href="https://example.org/x"></a><img src="d%20e.svg"><a href="#here"></a><a href="#there"></a>'
    )
    (tmp_path / "b.html").write_text('<p id="here"><a href="a.html#top"></a></p>')
    (tmp_path / "d e.svg").write_text("")
    assert sorted(tools.build.broken_links(tmp_path)) == [
        ("a.html", "#there"),
        ("a.html", "b.html#there"),
        ("a.html", "c.html"),
    ]


@pytest.fixture(scope="module")
def operators(tools, root, tmp_path_factory):
    week2 = pages.newest(pages.gather([root / "docs" / "records"]))["week2"]
    report = tmp_path_factory.mktemp("report")
    write_report([week2], report)
    return dict(tools.build.operators([week2], report))


def test_every_operator_s_page_has_signature_dtypes_variants_limits_and_plots(tools, operators):
    subjects = [(week, subject) for week in tools.build.discover() for subject in week.subjects]
    assert list(operators) == [subject.operator.schema.name for _, subject in subjects]
    for week, subject in subjects:
        name = subject.operator.schema.name
        text = operators[name]
        assert f".. py:currentmodule:: {week.package}\n\n.. py:function:: {name}(" in text
        assert all(f"{parameter}: " in text for parameter in inspect.signature(subject.operator).parameters)
        parts = dict(re.findall(r"^## (\w+)\n\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
        assert list(parts) == ["Dtypes", "Variants", "Limits", "Measured"]
        assert re.findall(r"`torch\.(\w+)`", parts["Dtypes"]) == [str(d).removeprefix("torch.") for d in subject.dtypes]
        shown = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", parts["Variants"], re.MULTILINE))
        assert shown == {**subject.operator.variants(), **subject.absent}
        assert len(parts["Limits"].splitlines()) > 3
        measured = name in {"softmax", "softmax_backward"}
        assert (f'<a href="../docs/report/index.html#week2-{name}">' in parts["Measured"]) == measured
        assert ("No recorded run has this operator." in parts["Measured"]) != measured


def test_plots_of_an_operator_are_the_report_s_in_both_themes(operators):
    pictures = re.findall(r"\(\.\./_extra/docs/report/(\S+)-(light|dark)\.svg\)\{\.only-(\w+)\}", operators["softmax"])
    assert {theme for _, theme, _ in pictures} == {"light", "dark"}
    assert all(theme == only for _, theme, only in pictures)
    kinds = {re.fullmatch(r"week2-softmax-(\w+?)(-\w+)?", picture)[1] for picture, _, _ in pictures}
    assert kinds == {"bandwidth", "speedup", "variants", "latency"}


def test_a_benchmark_under_another_name_belongs_to_its_operator(tools):
    measured = tools.build._measured()
    assert {measured[name] for name in ("sum_rows", "sum_columns")} == {"reduce_sum"}
    assert measured["softmax_grad"] == "softmax"


def test_a_step_s_page_has_its_cells_and_what_it_prints_and_links_to_steps_lead_to_pages(tools, root, tmp_path):
    step = root / "docs" / "intro" / "04_coalescing.py"
    page = tools.build._step(step, tmp_path)
    assert page.startswith("# Step 4: ")
    assert "```python\nfrom pathlib import Path\n" in page
    assert (step.parent / "expected" / "04_coalescing.txt").read_text(encoding="utf-8") in page
    assert "sys.path" not in page
    readme = tools.build._linked(step.parent / "README.md")
    assert "(04_coalescing.md)" in readme and "(04_coalescing.py)" not in readme


def test_a_notebook_of_a_step_runs_where_it_lies(tools, root, tmp_path):
    """Its cells, one after the other in its folder, print what the step does."""
    tools.build._step(root / "docs" / "intro" / "04_coalescing.py", tmp_path / "notebooks")
    notebook = jupytext.read(tmp_path / "notebooks" / "04_coalescing.ipynb")
    cells = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    (tmp_path / "notebooks" / "cells.py").write_text(cells, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "cells.py"],
        cwd=tmp_path / "notebooks",
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected = (root / "docs" / "intro" / "expected" / "04_coalescing.txt").read_text(encoding="utf-8")
    assert expected.splitlines()[0] in done.stdout
    assert expected.splitlines()[-1] in done.stdout


def test_a_property_s_first_line_is_whole_and_aliases_of_fields_are_left_out(tools):
    conf, lines = tools.conf, ["Bytes: of one slot."]
    assert ":type:" in str(GoogleDocstring(lines, what="property", name="x"))
    conf._keep_drawings(None, "property", "x", None, None, lines)
    assert str(GoogleDocstring(lines, what="property", name="x")).strip().splitlines()[-1] == "Bytes: of one slot."
    fields = namedtuple("Pair", "first")  # noqa: PYI024 - as typing.NamedTuple makes them
    assert conf._is_field(None, "class", "first", fields.first, False, None)
    assert conf._is_field(None, "class", "clear", dict.clear, False, None) is None
