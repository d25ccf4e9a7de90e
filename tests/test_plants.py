"""Plants: changes of a copy of this repository, and what the check of the proofs has to say of each (docs/proofs.md).

Red is what changes the machine code, a launch, or what was shown of them; green is what changes none of that.  Changes
are named by symbols, not by files, so that they outlive a move.  ``plants/driver.py`` makes them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = Path(__file__).parent / "plants" / "driver.py"
#: Copies that are worked on at once.
COPIES = 2

#: What is expected: "" for green, else what the check says.
GREEN = ""
PTX, PLAN, NOTHING = "the PTX of", "launches differ", "launch nothing"
DECLARED = "declared samples, bounds or planted faults, or the tolerance policy"
CHANGED, GONE = "tests changed since they ran", "tests that ran and are gone"
NO_RESULT = "tests without a result"

TABLES = "packages/week0*/src/*/thresholds/*.toml"

PLANTS = {
    # The machine code.
    "arithmetic of softmax": ([("edit", "week2:Softmax.map", r"v\.x - base", "v.x - base - base")], PTX),
    "arithmetic of a monoid": ([("edit", "MaxSum.base", r"return .*", "return top + top")], PTX),
    "a device helper's constant": ([("edit", "forge-core:FINISHED", r"= .*", "= 16")], PTX),
    "a barrier left out": ([("edit", "combine_places", r"cute\.arch\.sync_threads\(\)", "pass")], PTX),
    "the cache policy of loads": ([("edit", "load_policy", r"_EVICT_LAST\) if", "_EVICT_FIRST) if")], PTX),
    "a shuffle of bytes": ([("edit", "week0:interleave", r"\], place % 4", "], (place + 1) % 4")], PTX),
    "registers for fewer blocks": ([("edit", "launch_bounds", r"if not blocks:", "if blocks:")], PTX),
    "another option of the compiler": (
        [("edit", "compile_options", r"if debug:", "options.append('--opt-level 0')\n    if debug:")],
        PTX,
    ),
    "a kernel that does not compile": (
        [("edit", "reduce_lanes", r"^    together = ", "    raise ValueError\n    together = ")],
        PTX,
    ),
    # The launch.
    "smaller clusters": ([("edit", "max_cluster", r"16 if", "8 if")], PLAN),
    "a threshold of a table": ([("data", TABLES, r"^value = 20", "value = 0")], PLAN),
    "launch integers in another order": (
        [("edit", "forge-core:arguments", r"\(problem\.length, (\*_sizes\(.*?\)),", r"(\1, problem.length,")],
        PLAN,
    ),
    "a grid of one block more": ([("edit", "week0:Naive.__call__", r"grid=\(Int32\(", "grid=(Int32(1 + ")], PLAN),
    "a larger workspace": ([("edit", "forge-core:workspace", r"\(parts \+ 1\) \* 8 \*", "(parts + 1) * 16 *")], PLAN),
    "a kernel's pointers in another order": (
        [("edit", "week0:Naive.__call__", r"self\.kernel\(pX, pY,", "self.kernel(pY, pX,")],
        PLAN,
    ),
    "a workspace of the second pass": (
        [("edit", "PartedKernel.launch_all", r"\*own, pass", "*own[:1], own[1] + pass_index, *own[2:], pass")],
        PLAN,
    ),
    "a variant deleted": ([("edit", "week1-reduce/src:LADDER", r'^ *"shuffle": .*\n', "")], "it is declared no more"),
    "settings that ask for the reference": (
        [
            ("edit", "_requested", r"^(?=        changes = )", "        return name == 'backend' and 'ref'\n"),
            ("edit", "untouched", r"^    return ", "    return False and "),
        ],
        NOTHING,
    ),
    "a router to the reference": ([("edit", "LaunchTable.resolve", r"return asked or", "return 'ref' or")], NOTHING),
    "a plan that refuses": (
        [("edit", "power_of_two", r"^    return ", "    raise UnsupportedError('no', requirement='')\n    return ")],
        NOTHING,
    ),
    # What was shown.
    "samples cut short": ([("edit", "week2-softmax/src:MEASURED", r"\(300, 64\), ", "")], DECLARED),
    "a policy that allows more": (
        [("edit", "assert_near_float64", r"half_ulp\(exact, got\.dtype\)", "1000 * half_ulp(exact, got.dtype)")],
        DECLARED,
    ),
    "a bound a thousand times as large": (
        [("edit", "softmax_bound", r"\* info\.eps", "* 1000 * info.eps")],
        DECLARED,
    ),
    "a declaration changed after it was made": (
        [("edit", "week2:PROOFS", r"\APROOFS", '_FORWARD["dtypes"] = (torch.float32,)\nPROOFS')],
        DECLARED,
    ),
    "an imported bound bound anew": (
        [("edit", "week2:PROOFS", r"\APROOFS", "softmax_bound = lambda *args: 1e9\nPROOFS")],
        DECLARED,
    ),
    "a GPU test below a condition": (
        [("edit", "check_bound", r"\A", "if FLOATS:\n\n    @pytest.mark.gpu\n    def test_more(): ...\n\n\n")],
        NO_RESULT,
    ),
    "GPU tests in a class": (
        [("edit", "check_bound", r"\A", "@pytest.mark.gpu\nclass TestMore:\n    def test_it(self): ...\n\n\n")],
        NO_RESULT,
    ),
    "a planted fault that does nothing": ([("edit", "shifted_by_one", r"roll\(1\)", "roll(0)")], CHANGED),
    "a GPU test's body": ([("edit", "check_bound", r"subject\.judge", "print")], CHANGED),
    "a GPU test's helper": ([("edit", "week2:KINDS", r'"huge", ', "")], CHANGED),
    "a file of GPU tests deleted": ([("delete", "check_bound")], GONE),
    "a GPU test renamed": ([("rename", "week2:test_conformance", "test_other")], GONE),
    # What changes nothing.
    "a comment in a kernel": ([("comment", "Held.load")], GREEN),
    "a comment in the operator helper": ([("comment", "LaunchTable.find_or_compile")], GREEN),
    "a docstring of the operator helper": ([("docstring", "LaunchTable.find_or_compile")], GREEN),
    "a docstring of a kernel": ([("docstring", "reduce_lanes")], GREEN),
    "a method of a kernel renamed": ([("rename", "RowKernel.fold_each", "fold_pieces")], GREEN),
    "a private function of the core renamed": ([("rename", "_butterfly", "_exchange_lanes")], GREEN),
    "a function of the plan renamed": ([("rename", "row_parts", "parts_of_a_row")], GREEN),
    "a device helper's module moved": ([("move", "reduce_lanes", "warp_lanes")], GREEN),
    "a module of the plan moved": ([("move", "row_parts", "row_choices")], GREEN),
    "imports in another order": ([("imports", "Held")], GREEN),
    "a kernel's file formatted": ([("format", "reduce_lanes")], GREEN),
    "the host's code formatted": ([("format", "LaunchTable")], GREEN),
    "a host function written otherwise": (
        [("edit", "max_cluster", r"return 16 if (.*) else 8", r"large = \1\n    return 16 if large else 8")],
        GREEN,
    ),
    "a comment in a table of thresholds": ([("data", TABLES, r"\A", "# Another line.\n")], GREEN),
    "a helper of the policy renamed": ([("rename", "half_ulp", "half_a_unit")], GREEN),
    "a helper of GPU tests renamed": ([("rename", "check_bound", "assert_within_bound")], GREEN),
    "a docstring of a GPU test": ([("docstring", "test_errors_are_not_larger_than_pytorchs")], GREEN),
    "a comment in the declarations": ([("comment", "week2:LAUNCHES")], GREEN),
    "a benchmark's case": ([("comment", "forge-core:poison")], GREEN),
    "a test that needs no GPU": ([("delete", "test_a_call_seen_before_is_not_planned_again")], GREEN),
}


@pytest.fixture(scope="module")
def told(root, tmp_path_factory):
    """What the check says of each plant, and of the copies as they are."""
    folder = tmp_path_factory.mktemp("plants")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "dist")
    processes = []
    for i in range(COPIES):
        copy = folder / str(i)
        for package in sorted((root / "packages").glob("*/pyproject.toml")):
            for part in ("src", "tests"):
                source = package.parent / part
                shutil.copytree(source, copy / source.relative_to(root), ignore=ignored)
        own = [(name, edits) for name, (edits, _) in list(PLANTS.items())[i::COPIES]]
        (folder / f"plants-{i}.json").write_text(json.dumps(own))
        files = (copy, folder / f"plants-{i}.json", folder / f"told-{i}.json")
        words = [sys.executable, str(DRIVER), *map(str, files)]
        processes.append(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    found = {}
    for i, process in enumerate(processes):
        text, _ = process.communicate(timeout=1200)
        assert process.returncode == 0, text[-3000:]
        answer = json.loads((folder / f"told-{i}.json").read_text())
        assert answer.pop("") == []
        found |= {name: each["says"] for name, each in answer.items()}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTS)
def test_what_the_check_says_of_a_plant(told, plant):
    _, expected = PLANTS[plant]
    text = "\n".join(told[plant])
    if expected:
        assert expected in text
    else:
        assert text == ""
