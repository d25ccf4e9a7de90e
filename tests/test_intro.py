"""The course: steps run without a GPU and print what is expected; they have one form, and lead to the weeks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import jupytext
import pytest

ROOT = Path(__file__).parents[1]
INTRO = ROOT / "docs" / "intro"
STEPS = sorted(INTRO.glob("[0-9][0-9]_*.py"))
#: Registers follow from the compiler's version; what they are is no claim of a step.
REGISTERS = re.compile(r"\d+ registers")


def test_the_steps_are_there():
    assert [int(step.stem[:2]) for step in STEPS] == list(range(1, 12))


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.stem)
def test_a_step_prints_what_is_expected(step):
    command = [sys.executable, str(step.relative_to(ROOT))]
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=hidden, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    expected = (INTRO / "expected" / f"{step.stem}.txt").read_text(encoding="utf-8")
    assert REGISTERS.sub("# registers", done.stdout) == REGISTERS.sub("# registers", expected), (
        f"if the change is right: python docs/intro/{step.name} > docs/intro/expected/{step.stem}.txt"
    )


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.stem)
def test_a_step_has_a_title_a_command_a_question_and_its_answer(step):
    cells = jupytext.read(step, fmt="py:percent").cells
    first, *_, last = cells
    command = f"    python docs/intro/{step.name}"
    assert first.cell_type == "markdown"
    assert first.source.startswith(f"# Step {int(step.stem[:2])}: ")
    assert command in first.source.splitlines()
    assert last.cell_type == "code"
    assert last.source.splitlines()[-1] == "course.finish(__file__)"
    prose = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    assert prose.count("## Question") == prose.count("<details>") == prose.count("</details>") == 1
    readme = (INTRO / "README.md").read_text(encoding="utf-8")
    assert f"]({step.name}) |" in readme
    assert f"`{command.strip()}`" in readme


def test_bytes_that_are_predicted_are_those_of_the_shapes():
    claims = [
        tuple(int(number.replace(",", "")) for number in found)
        for path in sorted((INTRO / "expected").glob("*.txt"))
        for found in re.findall(r"(\d+) x (\d+) predicted: ([\d,]+) bytes", path.read_text(encoding="utf-8"))
    ]
    assert len(claims) > 5
    assert [claim for claim in claims if 4 * (claim[0] * claim[1] + claim[0]) != claim[2]] == []


def test_each_rung_of_weeks_1_and_2_is_linked_from_a_step_and_links_resolve():
    links = {
        (step.parent / link.partition("#")[0]).resolve()
        for step in STEPS
        for link in re.findall(r"\]\((\.\.?/[^)\s]+)\)", step.read_text(encoding="utf-8").replace("\n# ", " "))
    }
    assert [str(link) for link in sorted(links) if not link.exists()] == []
    for week, rungs in (
        ("week1-reduce/src/forge_week1_reduce", ("naive", "shared", "shuffle", "vectorized")),
        ("week2-softmax/src/forge_week2_softmax", ("naive", "online", "single_pass")),
    ):
        files = {ROOT / "packages" / week / "kernels" / f"{rung}.py" for rung in rungs}
        assert files <= links, files - links
