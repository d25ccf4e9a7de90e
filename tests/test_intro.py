"""The course: steps run without a GPU and print what is expected; they have one form, and lead to the weeks."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import jupytext
import pytest
import torch

ROOT = Path(__file__).parents[1]
INTRO = ROOT / "docs" / "intro"
STEPS = sorted(INTRO.glob("[0-9][0-9]_*.py"))
#: How many registers there are, and how far a loop of loads is unrolled, follow from the compiler's version.
COMPILERS = re.compile(r"\d+(?= registers| (?:ld|st)\.)")
#: What the prose of a step says of compiled code, whatever the version.
SAID = {
    "05_warp_block": (" 8 barriers", " 1 barriers"),
    "06_vectors": (" 4 ld.global.16",),
    "11_softmax": (" 8 ld.global.16",),
}


def test_the_steps_are_there():
    assert [int(step.stem[:2]) for step in STEPS] == list(range(1, 12))


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.stem)
def test_a_step_prints_what_is_expected(step):
    command = [sys.executable, str(step.relative_to(ROOT))]
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=hidden, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    expected = (INTRO / "expected" / f"{step.stem}.txt").read_text(encoding="utf-8")
    assert COMPILERS.sub("#", done.stdout) == COMPILERS.sub("#", expected), (
        f"if the change is right: python docs/intro/{step.name} > docs/intro/expected/{step.stem}.txt"
    )
    assert [claim for claim in SAID.get(step.stem, ()) if claim not in done.stdout] == []
    assert "\nrecorded on NVIDIA H200, torch " in done.stdout


def test_nothing_but_an_h200_is_recorded():
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "docs/intro/01_bound.py", "--record"]
    done = subprocess.run(command, cwd=ROOT, env=hidden, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1
    assert done.stderr == "--record: expected an NVIDIA H200, got no CUDA GPU\n"


RECORDING = """
import sys
from pathlib import Path
import torch
sys.path.insert(0, "docs/intro")
import course
course.RECORDED = Path(sys.argv.pop())
there = "--record" in sys.argv
torch.cuda.is_available, torch.cuda.current_device = lambda: there, lambda: 0
torch.cuda.get_device_name = lambda *_: "NVIDIA H200"
for word in ("before", "behind", "again"):
    print(word)
    course.device()
course.finish("docs/intro/01_bound.py")
"""


def test_what_is_recorded_on_a_gpu_is_shown_without_one(tmp_path):
    def step(*words):
        command = [sys.executable, "-c", RECORDING, *words, str(tmp_path)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    printed = "before\nbehind\nagain\n"
    assert step("--record") == printed
    title, text = (tmp_path / "01_bound.txt").read_text(encoding="utf-8").split("\n", 1)
    assert re.fullmatch(r"NVIDIA H200, torch \S+, CuTe DSL \S+", title)
    assert text == "behind\nagain\n"
    assert step() == f"{printed}recorded on {title}:\n{text}"


def test_sums_are_checked_before_they_are_measured(monkeypatch, capsys):
    monkeypatch.syspath_prepend(INTRO)
    course = importlib.import_module("course")
    monkeypatch.setattr(course, "device", lambda: torch.device("cpu"))
    measured = []
    monkeypatch.setattr(course, "measure", lambda call, moved: measured.append(moved))
    course.time_sums({"right": lambda x, y: torch.sum(x, 1, out=y)}, (8, 6))
    assert capsys.readouterr().out.splitlines() == ["  8 x 6 predicted: 224 bytes", "  right, 8 x 6"]
    assert measured == [224]
    with pytest.raises(AssertionError):
        course.time_sums({"does nothing": lambda x, y: None}, (8, 6))
    assert measured == [224]


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


#: "16384 x 8192 float32 536,936,448 bytes" or "16384 x 8192 predicted: ..." of a sum; "... read 3 times: ..." else.
CLAIM = re.compile(r"(\d+) x +(\d+) (?:(float32|bfloat16)|predicted:|read (\d) times:) +([\d,]+) bytes")


def test_bytes_that_are_claimed_are_those_of_the_shapes():
    for path in sorted((INTRO / "expected").glob("*.txt")):
        text = path.read_text(encoding="utf-8")
        claims = CLAIM.findall(text)
        # Every other number of bytes repeats one.
        others = set(re.findall(r"(\d[\d,]+,\d+) bytes", text))
        assert others == {claim[-1] for claim in claims}, path.name
        for rows, columns, dtype, reads, said in claims:
            elements = int(rows) * int(columns)
            written = elements if reads else int(rows)
            size = 2 if dtype == "bfloat16" else 4
            assert size * (int(reads or 1) * elements + written) == int(said.replace(",", "")), path.name


def test_each_rung_of_weeks_1_and_2_is_linked_from_a_step_and_links_resolve():
    links = {
        (step.parent / link.partition("#")[0]).resolve()
        for step in STEPS
        for link in re.findall(r"\]\((\.\.?/[^)\s]+)\)", step.read_text(encoding="utf-8").replace("\n# ", " "))
    }
    assert [str(link) for link in sorted(links) if not link.exists()] == []
    for week in ("forge_week1_reduce", "forge_week2_softmax"):
        config = importlib.import_module(f"{week}.config")
        files = {Path(config.__file__).parent / "kernels" / f"{rung}.py" for rung in config.LADDER}
        assert files <= links, files - links
