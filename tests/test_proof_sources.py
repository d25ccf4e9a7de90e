"""Planted changes in a copy of this repository's own sources: which kernels ask for a new proof, and which do not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

#: Edits each file in turn, and prints the kernels whose sources are others than before.
PROGRAM = """
import json, re, sys
from pathlib import Path
from forge_core.testing.proofs.declare import digest_of, discover, sources_of

root = Path(sys.argv[1])
kernels = [kernel for week in discover() for kernel in week.kernels]
now = lambda: {name: digest_of(sources) for name, sources in sources_of(kernels).items()}
before, found = now(), {}
for what, (name, pattern, new) in json.loads(sys.argv[2]).items():
    path = root / name
    text = path.read_text()
    edited, count = re.subn(pattern, new, text, count=1, flags=re.MULTILINE)
    assert count == 1, f"{name} has nothing like {pattern}"
    path.write_text(edited)
    after = now()
    path.write_text(text)
    found[what] = sorted(kernel for kernel in before if after[kernel] != before[kernel])
assert now() == before
print(json.dumps({"all": sorted(before), "found": found}))
"""

WEEK0, WEEK2 = "week0-transpose/src/forge_week0_transpose", "week2-softmax/src/forge_week2_softmax"

#: File, what is looked for, and what is put in its place.
EDITS = {
    "kernel": (f"{WEEK2}/kernels/held.py", r"room_for\(config\.resident\)", "room_for(0)"),
    "helper of the package": (f"{WEEK0}/kernels/words.py", r"key % 8", "key % 4"),
    "helper of the core": ("forge-core/src/forge_core/device_code/cluster.py", r"^_COUNTER = 16$", "_COUNTER = 32"),
    "threshold": (f"{WEEK2}/parting.py", r"^(LONG_SPLIT = 2\*\*20)$", r"\1 + 1"),
    "launch": ("forge-core/src/forge_core/op/launch.py", r"\Z", "\n# Another line.\n"),
    "comment of a benchmark": (f"{WEEK2}/bench.py", r"\Z", "\n# Another line.\n"),
    "comment of an index map": (f"{WEEK2}/layouts.py", r"\Z", "\n# Another line.\n"),
    "comment of a tolerance": ("forge-core/src/forge_core/testing/tolerances.py", r"\Z", "\n# Another line.\n"),
}


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    copy = tmp_path_factory.mktemp("copy")
    sources = sorted((Path(__file__).parents[1] / "packages").glob("*/src"))
    for source in sources:
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(source, copy / source.parent.name / "src", ignore=ignored)
    paths = os.pathsep.join(str(copy / source.parent.name / "src") for source in sources)
    variables = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", PROGRAM, str(copy), json.dumps(EDITS)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def variants_of(kernels, package=""):
    return {name.rpartition("/")[2] for name in kernels if name.startswith(package)}


def test_an_edited_kernel_asks_for_its_proof_alone(answer):
    found = answer["found"]["kernel"]
    assert "forge_week2::softmax/cluster" in found and "forge_week2::softmax_backward/single_pass" in found
    assert variants_of(found) == {"single_pass", "cluster"}


def test_an_edited_helper_asks_for_the_proofs_of_all_that_import_it(answer):
    found = answer["found"]["helper of the package"]
    assert {"forge_week0::transpose/vectorized", "forge_week0::transpose/shifted"} <= set(found)
    assert all(name.startswith("forge_week0::") for name in found)
    found = answer["found"]["helper of the core"]
    assert {"forge_week1::reduce_sum/cluster", "forge_week2::softmax/cluster"} <= set(found)
    assert not {"forge_week1::reduce_sum/naive", "forge_week2::softmax/online"} & set(found)
    assert not any(name.startswith("forge_week0::") for name in found)


def test_an_edited_threshold_asks_for_the_proofs_of_all_that_it_chooses_among(answer):
    found = answer["found"]["threshold"]
    assert found == [name for name in answer["all"] if name.startswith("forge_week2::")] != []


def test_an_edited_launch_asks_for_every_proof(answer):
    assert answer["found"]["launch"] == answer["all"] != []


@pytest.mark.parametrize("what", [what for what in EDITS if what.startswith("comment")])
def test_an_edited_comment_in_an_unrelated_file_asks_for_none(answer, what):
    assert answer["found"][what] == []
