"""The example of docs/testing.md, as an author outside this repository would run it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from forge_core.testing.battery import CHECKS

PAGE = Path(__file__).parents[3] / "docs" / "testing.md"


def run(folder, source):
    (folder / "test_mine.py").write_text(source)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "forge_core.pytest_plugin", "-p", "no:cacheprovider"]
    words += ["-rfs", "--tb=line", "-m", "not gpu", "--rootdir", str(folder), str(folder)]
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd=folder, timeout=300)


def example():
    [block] = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return block


def test_the_example_passes(tmp_path):
    done = run(tmp_path, example())
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d\d passed", done.stdout)
    # What does not apply is shown, with its reason.
    assert "does not apply: the operator has no out form" in done.stdout
    assert "does not apply: the kernel reads single elements, wherever they lie" in done.stdout


FAULTS = {
    "x.new_empty([size": ("x.new_zeros(1).expand([size", "fake_strides"),
    ".clamp_min(0).sum(dim)": (".nan_to_num(0.0).clamp_min(0).sum(dim)", "nan_and_inf"),
    "return lambda x, dim: x.sum(dim)": ("return lambda x, dim: right(x, dim)", "planted-negatives_added_too"),
}


@pytest.mark.parametrize("found_by", [found_by for _, found_by in FAULTS.values()])
def test_a_wrong_line_in_the_example_is_found(found_by, tmp_path):
    [(line, wrong)] = [(line, wrong) for line, (wrong, name) in FAULTS.items() if name == found_by]
    source = example()
    assert line in source
    done = run(tmp_path, source.replace(line, wrong))
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"FAILED test_mine.py::test_conformance[relu_sum-{found_by}" in done.stdout


def test_the_page_names_every_check():
    rows = re.findall(r"^\| `([\w-]+)`", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == list(CHECKS)
