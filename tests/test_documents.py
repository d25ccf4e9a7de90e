"""The Python in the READMEs runs as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys

DOCUMENTS = ["README.md", "packages/*/README.md"]


def examples(root):
    for pattern in DOCUMENTS:
        for file in sorted(root.glob(pattern)):
            blocks = re.findall(r"^```python\n(.*?)^```", file.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
            if blocks:
                yield file, "\n".join(blocks)


def run(code, folder):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, cwd=folder, check=False
    )


def test_every_readme_shows_how_it_is_used(root, packages):
    shown = {file for file, _ in examples(root)}
    assert shown == {root / "README.md", *(package.path / "README.md" for package in packages)}


def test_the_examples_run(root, tmp_path):
    for file, code in examples(root):
        done = run(code, tmp_path)
        assert done.returncode == 0, f"{file}\n{done.stderr}"


def test_a_broken_example_would_be_seen(tmp_path):
    assert run("from forge_core import nothing_of_that_name", tmp_path).returncode != 0
