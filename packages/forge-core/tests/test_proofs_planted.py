"""Planted changes on a tiny package with two kernels, and on its proof; the GPU shows whatever it is told to show."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import re
import textwrap
import threading
import time
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from forge_core.bench.environment import Environment
from forge_core.commands.prove import prove as commands
from forge_core.device import SPECS
from forge_core.files import read_unpacked, write_atomically
from forge_core.proofs import Kernel, Week
from forge_core.proofs.check import awaiting, check, incomplete, records_in, refreshed
from forge_core.proofs.declare import ProofError, digest_of, measured
from forge_core.proofs.definitions import gpu_tests
from forge_core.proofs.evidence import Evidence, Launched
from forge_core.proofs.execute import TESTS_EACH, TOOLS, Chunk, Result, append_outcome, keep_passed, outcomes
from forge_core.proofs.record import Error, ProofRun, load, stamped
from forge_core.proofs.runner import prove

FILES = {
    "src/tiny_week/__init__.py": "",
    "src/tiny_week/ops.py": "from tiny_week import config\n",
    "src/tiny_week/config.py": "SPLIT_FROM = 4096\n",
    "src/tiny_week/arithmetic.py": "def double(x):\n    return 2 * x\n",
    "src/tiny_week/bench.py": "# What is measured.\n",
    "src/tiny_week/kernels/__init__.py": "",
    "src/tiny_week/kernels/plain.py": "from tiny_week.arithmetic import double\n\nTHREADS = 256\n",
    "src/tiny_week/kernels/wide.py": "THREADS = 128\n",
    "src/tiny_week/thresholds/h200.toml": "split_from = 8192\n",
    "tests/test_tiny.py": """
        import pytest

        DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))

        @pytest.mark.gpu
        @pytest.mark.parametrize("size", [1, 2])
        def test_plain(size): ...

        @pytest.mark.parametrize("device", DEVICES)
        def test_wide(device): ...

        def test_on_the_cpu(): ...
    """,
}

PLAIN, WIDE = "tiny::double/plain", "tiny::double/wide"
TESTS = {
    "tests/test_tiny.py::test_plain[1]": [PLAIN],
    "tests/test_tiny.py::test_plain[2]": [PLAIN],
    "tests/test_tiny.py::test_wide[cuda]": [WIDE],
}


def calls_of(name, size):
    """A call of a kernel, as a test or the measurement made it."""
    call = f"{name.rpartition('/')[2]} {size}"
    return {call: f"run {call}"}


def told_of(name, **changes):
    """What the measurement tells of a kernel."""
    told = {
        "outcome": "passed",
        "reason": "",
        "launched": {name: calls_of(name, 7)},
        "errors": {"float32": [1e-7, 1e-8, 0.5]},
        "repeats": 20,
    }
    return {**told, **changes}


def environment(**changes):
    told = {
        "device": "cuda",
        "gpu": "NVIDIA H200",
        "driver": "1",
        "cuda": "13.0",
        "torch": "2",
        "dsl": importlib.metadata.version("nvidia-cutlass-dsl"),
        "triton": "3",
        "python": "3",
        "system": "Linux",
        "commit": "a" * 40,
        "dirty": False,
        "sources": {},
    }
    return Environment(**{**told, **changes})


class Tiny(Evidence):
    """What lies in the package: its plans and its code are the numbers and the arithmetic that its files hold."""

    declared = "as it was"

    def text(self, name):
        return (self.root / "src/tiny_week" / name).read_text()

    def fingerprints(self, week):
        self._files.clear()
        return super().fingerprints(week)

    def declarations(self, week):
        return {kernel.name: self.declared for kernel in week.kernels}

    def launches(self, calls, device):
        plan = re.findall(r"\d+", self.text("config.py") + self.text("thresholds/h200.toml"))

        def launched(call):
            name = call.partition(" ")[0]
            return Launched(f"run {call}", digest_of([call, plan, device.sm_count]), f"build {name}", name)

        return {(operator, call): launched(call) for operator, call in calls}

    def code(self, kernels, arch):
        return {
            (builder, name): digest_of(
                [self.text(f"kernels/{name}.py"), self.text("arithmetic.py") if name == "plain" else "", arch]
            )
            for builder, name in kernels
        }


class Tree:
    """The package, its records, and its runs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.chunks = []
        self.changes = {}
        for name, text in FILES.items():
            self.write(name, textwrap.dedent(text))
        kernels = tuple(
            Kernel("tiny::double", name, f"tiny_week.kernels.{name}:build", "tiny_week.ops")
            for name in ("plain", "wide")
        )
        self.week = Week("tiny", "tiny_week", "tests", kernels)
        self.records = root / "docs/records"
        self.path = self.records / "h200/proof.json.gz"
        self.state = root / "results/proofs"
        self.evidence = Tiny(root)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def edit(self, name, old, new):
        text = (self.root / name).read_text()
        assert old in text
        self.write(name, text.replace(old, new))

    @property
    def ran(self):
        return [chunk.kind for chunk in self.chunks]

    def tests(self, chunk=None):
        tests = [test for test in sorted(TESTS) if chunk is None or chunk.runs(test)]
        return {
            test: {"outcome": "passed", "reason": "", "launched": {name: calls_of(name, 3) for name in TESTS[test]}}
            for test in (tests if chunk is None else tests[chunk.part - 1 :: chunk.parts])
        }

    def execute(self, chunk, week, showed):
        """The fake GPU: everything is right, unless ``changes`` has a result, or an error, for the kind of chunk."""
        self.chunks.append(chunk)
        if chunk.kind in self.changes:
            change = self.changes[chunk.kind]
            if isinstance(change, BaseException):
                raise change
            return change(self, chunk)
        if chunk.kind == "measure":
            return Result(tests={measured(name): told_of(name) for name in chunk.kernels})
        if chunk.kind == "tests":
            return Result(tests=self.tests(chunk))
        summary = "0 hazards displayed (0 errors, 0 warnings)" if chunk.kind == "racecheck" else "0 errors"
        return Result(tests=self.tests(chunk), verdict=summary)

    def prove(self, *, everything=False, weeks=None, execute=None, **changes):
        self.chunks = []
        return prove(
            weeks or [self.week],
            execute or self.execute,
            environment(**changes),
            SPECS["H200"],
            self.evidence,
            records=self.records,
            state=self.state,
            date="2026-11-21T00:00:00+00:00",
            everything=everything,
        )


@pytest.fixture
def tree(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path / "src"))
    return Tree(tmp_path)


@pytest.fixture
def proven(tree):
    outcome = tree.prove()
    assert outcome.failures == []
    assert sorted(outcome.proven) == [PLAIN, WIDE]
    return tree


def findings(tree):
    return {finding.subject: str(finding) for finding in check([tree.week], tree.records, tree.evidence)}


def rewrite(tree, change, *, seal=False):
    """Changes the record on disk as a text editor would; with ``seal``, as one who knows of the seals would."""
    record = change(load(tree.path))
    if seal:
        record = msgspec.structs.replace(record, proofs=[proof.sealed() for proof in record.proofs]).sealed()
    write_atomically(tree.path, record.dumps())


def of_plain(**changes):
    """A change of the proof of the plain kernel."""

    def change(record):
        proofs = [msgspec.structs.replace(p, **changes) if p.name == PLAIN else p for p in record.proofs]
        return msgspec.structs.replace(record, proofs=proofs)

    return change


# ------------------------------------------------------------------------------------------ changes of the sources


def test_without_a_record_every_kernel_is_red(tree):
    found = findings(tree)
    assert sorted(found) == [PLAIN, WIDE]
    assert "no GPU has a record of proofs" in found[PLAIN]
    assert "nox -s prove -- tiny" in found[PLAIN]


def test_what_was_proven_is_green(proven):
    assert findings(proven) == {}
    assert awaiting([proven.week], proven.records, proven.evidence) == []


@pytest.mark.parametrize(
    "name, old, new, red, told",
    [
        (
            "src/tiny_week/kernels/plain.py",
            "256",
            "512",
            [PLAIN],
            "the PTX of 1 of 1 compiled kernels differs",
        ),
        ("src/tiny_week/arithmetic.py", "2 * x", "x + x", [PLAIN], "the PTX of 1 of 1 compiled kernels differs"),
        (
            "src/tiny_week/config.py",
            "4096",
            "2048",
            [PLAIN, WIDE],
            "launches differ in 1 of 1 groups of calls",
        ),
        ("src/tiny_week/thresholds/h200.toml", "8192", "1", [PLAIN, WIDE], "launches differ"),
    ],
)
def test_an_edited_source_is_red_and_what_differs_is_named(proven, name, old, new, red, told):
    proven.edit(name, old, new)
    found = findings(proven)
    assert sorted(found) == red == awaiting([proven.week], proven.records, proven.evidence)
    assert f"h200: {told}" in found[red[0]]
    assert "nox -s prove -- tiny" in found[red[0]]


def test_an_edited_source_that_changes_neither_code_nor_launch_is_green(proven):
    proven.edit("src/tiny_week/ops.py", "import config", "import config, arithmetic")
    assert findings(proven) == {}
    assert awaiting([proven.week], proven.records, proven.evidence) == [PLAIN, WIDE]  # nothing was recomputed for that


def test_the_slowest_tests_are_named(tree):
    def tests(tree, chunk):
        return Result(
            tests={t: {**told, "seconds": 2.5 if "wide" in t else 0.2} for t, told in tree.tests(chunk).items()}
        )

    tree.changes["tests"] = tests
    [note] = tree.prove().notes
    assert note.startswith(
        "tiny: its tests took 3 s in all processes; the slowest: test_tiny.py::test_wide[cuda] 2 s, "
    )


def test_a_refreshed_record_has_nothing_to_recompute(proven):
    proven.edit("src/tiny_week/ops.py", "import config", "import config, arithmetic")
    proven.edit("src/tiny_week/kernels/plain.py", "256", "512")
    before = load(proven.path)
    write_atomically(proven.path, refreshed([proven.week], before, proven.evidence).dumps())
    after = load(proven.path)
    assert after.proof(PLAIN) == before.proof(PLAIN)  # its code differs
    assert after.proof(WIDE).fingerprint == proven.evidence.fingerprints(proven.week)[WIDE]
    assert after.proof(WIDE).run == before.proof(WIDE).run
    assert sorted(findings(proven)) == [PLAIN] == awaiting([proven.week], proven.records, proven.evidence)


def test_another_declaration_is_red(proven):
    proven.evidence.declared = "samples cut short"
    assert "its declared samples, bounds or planted faults" in findings(proven)[WIDE]


def test_another_compiler_is_said(proven):
    rewrite(proven, of_plain(run=ProofRun("2026", environment(dsl="1.0"))), seal=True)
    assert "the CuTe DSL here is" in findings(proven)[PLAIN]
    assert WIDE not in findings(proven)


def test_a_kernel_that_is_declared_no_more_is_said_until_it_is_proven_anew(proven):
    proven.week = dataclasses.replace(proven.week, kernels=proven.week.kernels[:1])
    assert "the record has a proof of it, and it is declared no more" in findings(proven)[WIDE]
    proven.prove()
    assert findings(proven) == {}
    assert load(proven.path).proof(WIDE) is None


def test_a_call_that_launches_something_else_than_is_planned_does_not_count(tree):
    patched = {PLAIN: {"plain 3": "run otherwise", **calls_of(PLAIN, 4)}}

    def tests(tree, chunk):
        found = tree.tests(chunk)
        return Result(tests={test: {**told, "launched": patched} for test, told in found.items() if "plain" in test})

    tree.changes["tests"] = tests
    outcome = tree.prove()
    assert "1 of 3 calls were launched otherwise than they are planned here" in "".join(outcome.notes)
    assert load(tree.path).proof(PLAIN).calls == ["plain 4", "plain 7"]


def test_an_edited_comment_in_an_unrelated_file_is_green(proven):
    proven.edit("src/tiny_week/bench.py", "# What is measured.", "# What is measured, and why.")
    assert findings(proven) == {}


def test_a_new_kernel_is_red(proven):
    proven.write("src/tiny_week/kernels/cube.py", "")
    cube = Kernel("tiny::double", "cube", "tiny_week.kernels.cube:build", "tiny_week.ops")
    proven.week = dataclasses.replace(proven.week, kernels=(*proven.week.kernels, cube))
    assert "there is no proof" in findings(proven)["tiny::double/cube"]


def test_a_new_gpu_test_is_red_until_it_ran(proven):
    test = "@pytest.mark.gpu\ndef test_more(): ...\n"
    proven.edit("tests/test_tiny.py", "def test_on_the_cpu", f"{test}\ndef test_on_the_cpu")
    assert "tests without a result: tests/test_tiny.py::test_more" in findings(proven)[WIDE]
    more = {"tests/test_tiny.py::test_more": {"outcome": "passed", "reason": "", "launched": {}}}
    proven.changes["tests"] = lambda tree, chunk: Result(tests=more | tree.tests(chunk))
    outcome = proven.prove()
    assert (proven.ran, outcome.proven, outcome.failures) == (["tests"], [], [])
    assert findings(proven) == {}


def test_a_proof_that_stays_names_the_tests_that_there_are(proven, monkeypatch):
    """A parametrization may go without its function, or come."""
    gone, came = (f"tests/test_tiny.py::test_plain[{n}]" for n in (2, 3))
    monkeypatch.setitem(TESTS, came, [PLAIN])
    monkeypatch.delitem(TESTS, gone)
    proven.edit("tests/test_tiny.py", "def test_plain(size): ...", "def test_plain(size): assert size")
    outcome = proven.prove()
    assert (proven.ran, outcome.proven, outcome.failures) == (["tests"], [], [])
    assert findings(proven) == {}
    tests = load(proven.path).proof(PLAIN).tests
    assert came in tests
    assert gone not in tests
    assert (proven.prove().failures, proven.ran) == ([], [])


# ------------------------------------------------------------------------------------------- changes of the record


def test_a_shortened_test_list_is_red(proven):
    rewrite(proven, of_plain(tests=load(proven.path).proof(PLAIN).tests[:1]))
    found = findings(proven)
    assert "seal is broken" in found[PLAIN]
    assert "restore docs/records/h200/proof.json.gz" in found[f"h200: {PLAIN}"]
    assert WIDE not in found


def test_a_week_without_one_of_its_tests_is_red_even_where_it_was_sealed_again(proven):
    def change(record):
        def kept(tests):
            return [test for test in tests if "test_wide" not in test]

        week = msgspec.structs.replace(record.weeks["tiny"], tests=kept(record.weeks["tiny"].tests))
        proofs = [msgspec.structs.replace(proof, tests=kept(proof.tests)) for proof in record.proofs]
        return msgspec.structs.replace(record, weeks={"tiny": week}, proofs=proofs)

    rewrite(proven, change, seal=True)
    assert "tests without a result: tests/test_tiny.py::test_wide" in findings(proven)[WIDE]


def test_a_changed_and_a_deleted_gpu_test_are_red_until_they_ran(proven):
    proven.edit("tests/test_tiny.py", "def test_plain(size): ...", "def test_plain(size): assert size")
    assert "tests changed since they ran: tests/test_tiny.py::test_plain" in findings(proven)[WIDE]
    outcome = proven.prove()
    assert (proven.ran, outcome.proven, outcome.failures) == (["tests"], [], [])
    assert findings(proven) == {}
    proven.edit("tests/test_tiny.py", "def test_plain(size): assert size", "def plain(size): assert size")
    assert "tests that ran and are gone: tests/test_tiny.py::test_plain" in findings(proven)[WIDE]


def test_a_forged_fingerprint_is_red(proven):
    proven.edit("src/tiny_week/kernels/plain.py", "256", "512")
    rewrite(proven, of_plain(fingerprint=proven.evidence.fingerprints(proven.week)[PLAIN]))
    assert "seal is broken" in findings(proven)[PLAIN]


def test_a_forged_fingerprint_that_was_sealed_again_is_found_by_computing_everything(proven):
    """The shortcut trusts the seal; whoever does not asks for `--recompute`."""
    proven.edit("src/tiny_week/kernels/plain.py", "256", "512")
    rewrite(proven, of_plain(fingerprint=proven.evidence.fingerprints(proven.week)[PLAIN]), seal=True)
    assert findings(proven) == {}
    proven.evidence.recompute = True
    assert sorted(findings(proven)) == [PLAIN]


def test_forged_code_is_red_even_where_it_was_sealed_again(proven):
    proven.edit("src/tiny_week/ops.py", "import config", "import config, arithmetic")
    rewrite(proven, of_plain(code={"plain 3": "0" * 16}), seal=True)
    assert "the PTX of 1 of 1 compiled kernels differs" in findings(proven)[PLAIN]


@pytest.mark.parametrize(
    "change, told",
    [
        ({"tests": []}, "no test of it passed"),
        ({"code": {}}, "its code is not that of its calls"),
        ({"code": {"plain 3": "! no compiler"}}, "a kernel of it does not compile: no compiler"),
        ({"code": {"plain 9": "0"}}, "its code is not that of its calls"),
        ({"repeats": 1}, "determinism was not shown"),
        ({"errors": {}}, "error was not measured"),
        ({"errors": {"float32": Error(float("inf"), 0.0)}}, "not a number"),
        ({"sanitizers": {"memcheck": "0 errors", "initcheck": "0 errors"}}, "racecheck did not run it"),
        ({"sanitizers": {"memcheck": "2 errors", "racecheck": "0 hazards", "initcheck": "0 errors"}}, "memcheck: 2"),
    ],
)
def test_an_incomplete_proof_is_refused_even_where_it_was_sealed_again(proven, change, told):
    # JSON has no infinity, so that figure is looked at without a file between.
    proof = msgspec.structs.replace(load(proven.path).proof(PLAIN), **change).sealed()
    assert told in "; ".join(incomplete(proof))


def test_any_changed_line_breaks_a_seal(proven):
    text = read_unpacked(proven.path).decode()
    for old, new in (
        ("NVIDIA H200", "NVIDIA B200"),
        ("1e-7", "1e-9"),
        ('"repeats":20', '"repeats":99'),
        ("2026", "2027"),
    ):
        assert old in text, text
        write_atomically(proven.path, text.replace(old, new))
        assert findings(proven), old


def test_a_file_that_is_no_record_is_an_error(proven):
    text = read_unpacked(proven.path).decode()
    for broken in ("", "[]", "{}", text.replace('"schema_version": 2', '"schema_version": 1'), text[:-200]):
        write_atomically(proven.path, broken)
        with pytest.raises(ProofError, match=r"proof\.json\.gz: expected a "):
            records_in(proven.records)


def test_a_proof_without_a_commit_is_refused_until_it_is_stamped(tree):
    tree.prove(commit="not a checkout", dirty=None)
    assert "names no commit (not a checkout): forge-cute prove stamp" in findings(tree)[PLAIN]


def test_the_record_says_all_and_reads_back(proven):
    record = load(proven.path)
    proof = record.proof(PLAIN)
    assert proof.tests == [measured(PLAIN), *(f"tests/test_tiny.py::test_plain[{n}]" for n in (1, 2))]
    assert proof.calls == ["plain 3", "plain 7"]
    assert list(proof.code) == ["plain 3"]
    assert proof.errors == {"float32": Error(1e-7, 1e-8, 0.5)}
    assert set(proof.sanitizers) == {"memcheck", "racecheck", "initcheck"}
    assert proof.run.environment == environment()
    assert record.device == SPECS["H200"]
    assert record.dumps() == read_unpacked(proven.path).decode()
    assert json.loads(read_unpacked(proven.path).decode())["gpu"] == "NVIDIA H200"


# --------------------------------------------------------------------------------------------------------- proving


def test_the_second_run_proves_nothing(proven):
    before = proven.path.read_bytes()
    outcome = proven.prove()
    assert (proven.ran, outcome.proven, sorted(outcome.kept)) == ([], [], [PLAIN, WIDE])
    assert proven.path.read_bytes() == before


def test_all_proves_everything_anew(proven):
    outcome = proven.prove(everything=True, commit="b" * 40)
    assert sorted(outcome.proven) == [PLAIN, WIDE]
    assert {proof.run.environment.commit for proof in load(proven.path).proofs} == {"b" * 40}


def test_only_what_changed_is_proven(proven):
    proven.edit("src/tiny_week/kernels/plain.py", "256", "512")
    proven.changes["tests"] = lambda tree, chunk: Result(tests=left.setdefault("tests", tree.tests(chunk)))
    left = {}
    outcome = proven.prove(commit="b" * 40)
    assert (outcome.proven, outcome.kept) == ([PLAIN], [WIDE])
    assert sorted(left["tests"]) == [f"tests/test_tiny.py::test_plain[{n}]" for n in (1, 2)]
    record = load(proven.path)
    assert record.proof(PLAIN).run.environment.commit == "b" * 40
    assert record.proof(WIDE).run.environment.commit == "a" * 40
    assert findings(proven) == {}


def failed(test):
    def tests(tree, chunk):
        found = tree.tests(chunk)
        found[test] = {**found[test], "outcome": "failed", "reason": "AssertionError: off by one"}
        return Result(tests=found, verdict="0 errors")

    return tests


@pytest.mark.parametrize("kind", ["tests", "memcheck"])
def test_a_kernel_with_a_failed_test_is_not_proven_and_loses_its_proof(proven, kind):
    proven.changes[kind] = failed("tests/test_tiny.py::test_plain[1]")
    outcome = proven.prove(everything=True)
    assert outcome.proven == [WIDE]
    assert any("test_plain[1] failed: AssertionError: off by one" in told for told in outcome.failures)
    assert load(proven.path).proof(PLAIN) is None
    del proven.changes[kind]
    assert proven.prove().proven == [PLAIN]
    assert findings(proven) == {}


@pytest.mark.parametrize(
    "kind, result, told",
    [
        ("tests", Result(problem="pytest ended with 3"), "pytest ended with 3"),
        ("racecheck", Result(problem="it took more than 9 s"), "more than 9 s"),
        ("initcheck", Result(tests={}, verdict="0 errors"), "initcheck did not run it"),
        ("measure", Result({measured(PLAIN): told_of(PLAIN, errors={}, outcome="failed", reason="bits")}), "bits"),
    ],
)
def test_a_part_that_fails_proves_nothing(tree, kind, result, told):
    tree.changes[kind] = lambda tree, chunk: result
    outcome = tree.prove()
    assert outcome.proven == []
    assert any(told in failure for failure in outcome.failures)
    assert sorted(findings(tree)) == [PLAIN, WIDE]


def test_a_sanitizer_that_finds_something_is_in_the_way(tree):
    tree.changes["racecheck"] = lambda tree, chunk: Result(tests=tree.tests(), verdict="1 hazards displayed")
    assert any("racecheck: 1 hazards displayed" in told for told in tree.prove().failures)
    assert load(tree.path).proofs == []


def test_another_call_of_the_same_builder_is_named(tree):
    kernels = (*tree.week.kernels, Kernel("tiny::triple", "plain", tree.week.kernels[0].builder, "tiny_week.ops"))
    tree.week = dataclasses.replace(tree.week, kernels=kernels)
    assert tree.prove().failures == []
    assert load(tree.path).proof("tiny::triple/plain").sanitizers["memcheck"] == f"0 errors (seen as {PLAIN})"


def test_an_interrupted_run_is_taken_up_where_it_was(tree):
    tree.changes["measure"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        tree.prove()
    assert {"tests", "measure"} >= {kind for kind in tree.ran if kind not in TOOLS}
    assert not tree.path.exists()
    tree.changes.clear()
    assert tree.prove().failures == []
    assert "measure" in tree.ran and "tests" not in tree.ran
    assert findings(tree) == {}
    assert not tree.state.exists()


def test_a_week_that_is_whole_is_on_record_where_another_is_interrupted(tree):
    triple = dataclasses.replace(tree.week.kernels[0], operator="tiny::triple")
    other = dataclasses.replace(tree.week, name="other", kernels=(triple,))

    def execute(chunk, week, showed):
        if (chunk.week, chunk.kind) == ("other", "memcheck"):
            until = time.monotonic() + 30
            while not tree.path.exists() and time.monotonic() < until:
                time.sleep(0.01)
            raise KeyboardInterrupt
        return tree.execute(chunk, week, showed)

    with pytest.raises(KeyboardInterrupt):
        tree.prove(weeks=[tree.week, other], execute=execute)
    assert findings(tree) == {}
    assert load(tree.path).proof(f"{triple.operator}/{triple.variant}") is None


def test_sanitizers_run_beside_the_tests(tree):
    begun = threading.Event()

    def execute(chunk, week, showed):
        if chunk.kind == "tests":
            assert begun.wait(30)
        elif chunk.kind in TOOLS:
            begun.set()
        return tree.execute(chunk, week, showed)

    assert tree.prove(execute=execute).failures == []


@pytest.fixture
def parted(tree, monkeypatch):
    """A kernel that was changed since its proof, with so many tests under sanitizers that each tool has three parts."""
    tree.edit("tests/test_tiny.py", "def test_plain", "@pytest.mark.sanitizer\ndef test_plain")
    for n in range(3 * TESTS_EACH):
        monkeypatch.setitem(TESTS, f"tests/test_tiny.py::test_plain[{n}]", [PLAIN])
    assert tree.prove().failures == []
    tree.edit("src/tiny_week/kernels/plain.py", "256", "512")
    return tree


def test_a_sanitizer_with_many_tests_has_parts(parted, capsys):
    outcome = parted.prove()
    assert (outcome.proven, outcome.failures) == ([PLAIN], [])
    assert set(load(parted.path).proof(PLAIN).sanitizers) == set(TOOLS)
    assert load(parted.path).proof(PLAIN).sanitizers["memcheck"] == "0 errors"
    names = sorted(chunk.name for chunk in parted.chunks if chunk.kind == "memcheck")
    assert names == [f"tiny memcheck {part}/3" for part in (1, 2, 3)]
    assert [chunk.workers for chunk in parted.chunks if chunk.kind == "tests"] == [4]  # 36 tests, and the measurement's
    assert "tiny memcheck 2/3: 12 passed, 0 errors" in capsys.readouterr().err


def test_sanitizers_run_a_changed_test_whatever_its_parameters(parted, monkeypatch):
    parted.edit("tests/test_tiny.py", "def test_plain(size): ...", "def test_plain(size): assert size")
    monkeypatch.setitem(TESTS, "tests/test_tiny.py::test_plain[new]", [PLAIN])
    seen = set()

    def execute(chunk, week, showed):
        result = parted.execute(chunk, week, showed)
        if chunk.kind == "memcheck":
            seen.update(result.tests)
        return result

    assert parted.prove(execute=execute).failures == []
    assert "tests/test_tiny.py::test_plain[new]" in seen


def test_an_error_in_one_part_is_the_verdict(parted):
    parted.changes["memcheck"] = lambda tree, chunk: Result(
        tests=tree.tests(chunk), verdict="3 errors" if chunk.part == 2 else "0 errors"
    )
    assert any("memcheck: 3 errors" in told for told in parted.prove().failures)
    assert load(parted.path).proof(PLAIN) is None
    parted.changes.clear()
    # The proof is gone, so all tests run again; under the sanitizers, in the same number of parts.
    outcome = parted.prove()
    assert (outcome.proven, outcome.failures) == ([PLAIN], [])
    assert sum(kind in TOOLS for kind in parted.ran) == 9


def test_after_an_interruption_only_the_parts_that_were_not_done_run(parted):
    def interrupted(tree, chunk):
        if chunk.part == 3:
            raise KeyboardInterrupt
        return Result(tests=tree.tests(chunk), verdict="0 errors")

    parted.changes["initcheck"] = interrupted
    with pytest.raises(KeyboardInterrupt):
        parted.prove()
    parted.changes.clear()
    assert parted.prove().failures == []
    names = {chunk.name for chunk in parted.chunks}
    assert "tiny initcheck 3/3" in names
    assert "tiny memcheck 1/3" not in names


def test_a_long_run_tells_how_many_tests_have_ended(tree, monkeypatch, capsys):
    monkeypatch.setattr("forge_core.proofs.runner.LOOK", 0.01)
    monkeypatch.setattr("forge_core.progress.NOTES", 0.0)
    told = []

    def execute(chunk, week, showed):
        if chunk.kind == "tests":
            until = time.monotonic() + 30
            showed.parent.mkdir(parents=True, exist_ok=True)
            for count, (test, outcome) in enumerate(tree.tests().items(), start=1):
                append_outcome(showed, test, outcome)
                while f"tiny tests ({count} ended)" not in "".join(told) and time.monotonic() < until:
                    time.sleep(0.01)
                    told.append(capsys.readouterr().err)
        return tree.execute(chunk, week, showed)

    assert tree.prove(execute=execute).failures == []
    for count in (1, 2, 3):
        assert f"running: tiny tests ({count} ended)" in "".join(told)


def test_all_does_not_go_on_with_what_a_run_without_it_left(tree):
    tree.changes["measure"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        tree.prove()
    tree.changes.clear()
    tree.prove(everything=True)
    assert "tests" in tree.ran


def test_tests_are_taken_up_where_they_were(tree):
    """The second run has only those that had not passed; what passed before counts all the same."""
    journals, ran = [], []

    def execute(chunk, week, showed):
        if chunk.kind != "tests":
            return tree.execute(chunk, week, showed)
        journals.append(showed)
        passed = keep_passed(showed)
        for test, told in tree.tests(Chunk("tiny", "tests", without=tuple(passed))).items():
            if len(journals) == 1 and test == "tests/test_tiny.py::test_wide[cuda]":
                raise KeyboardInterrupt
            ran.append(test)
            append_outcome(showed, test, told)
        return Result(tests=outcomes(showed))

    with pytest.raises(KeyboardInterrupt):
        tree.prove(execute=execute)
    assert tree.prove(execute=execute).failures == []
    assert journals[0] == journals[1]
    assert ran == sorted(TESTS)
    assert findings(tree) == {}
    assert not journals[0].exists()


@pytest.mark.parametrize("what", ["sources", "tests", "file"])
def test_what_was_interrupted_under_other_sources_is_not_taken_up(tree, what):
    tree.changes["measure"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        tree.prove()
    tree.changes.clear()
    old = tree.state / "0123/4567.jsonl"
    old.parent.mkdir(parents=True, exist_ok=True)
    old.write_text("")
    if what == "tests":
        tree.edit("tests/test_tiny.py", "[1, 2]", "[1, 2, 3]")
    if what == "file":
        for result in tree.state.glob("*/*.json"):
            result.write_text(result.read_text()[:-9])
    tree.prove(**({"sources": {"tiny_week": "0"}} if what == "sources" else {}))
    assert "tests" in tree.ran
    assert not old.exists()


def test_a_dirty_tree_a_missing_gpu_and_a_changed_record_are_refused(proven):
    with pytest.raises(ProofError, match="not committed"):
        proven.prove(dirty=True)
    with pytest.raises(ProofError, match="there is none here"):
        proven.prove(device="cpu")
    rewrite(proven, of_plain(repeats=99))
    with pytest.raises(ProofError, match="cannot be added to"):
        proven.prove()
    assert sorted(proven.prove(everything=True).proven) == [PLAIN, WIDE]


def test_a_skipped_test_counts_only_where_the_machine_lacks_something(tree):
    def skipped(reason):
        def tests(tree, chunk):
            test = "tests/test_tiny.py::test_wide[cuda]"
            wide = {**tree.tests()["tests/test_tiny.py::test_plain[1]"], "launched": {WIDE: calls_of(WIDE, 1)}}
            left_out = {"outcome": "skipped", "reason": reason, "launched": {}}
            return Result(tests={**tree.tests(), test: left_out, "tests/test_tiny.py::test_plain[1]": wide})

        return tests

    tree.changes["tests"] = skipped("Skipped: 2 GPUs are needed, 1 found")
    assert tree.prove().failures == []
    assert findings(tree) == {}
    tree.changes["tests"] = skipped("Skipped: not today")
    tree.prove(everything=True)
    assert "tests without a result: tests/test_tiny.py::test_wide" in findings(tree)[PLAIN]


def test_gpu_tests_are_read_off_the_files(tree):
    assert list(gpu_tests(tree.root, "tests")) == [
        f"tests/test_tiny.py::{name}" for name in ("test_plain", "test_wide")
    ]


# -------------------------------------------------------------------------------------------------------- the table


def test_the_table_names_what_is_proven_and_what_is_not(proven, monkeypatch):
    proven.edit("src/tiny_week/kernels/wide.py", "128", "64")
    monkeypatch.setattr("forge_core.commands.prove.discover", lambda: [proven.week])
    monkeypatch.setattr("forge_core.commands.prove.Evidence", lambda root: proven.evidence)
    text = CliRunner().invoke(commands, ["table", "--root", str(proven.root)]).output
    assert "| `tiny::double` | plain | NVIDIA H200 | 2026-11-21 |" in text
    assert "| `tiny::double` | wide | not proven |  |" in text


# ------------------------------------------------------------------------------------------------------- the stamp


def test_a_stamp_writes_the_commit_and_refuses_a_changed_proof(tree, monkeypatch):
    tree.prove(commit="not a checkout", dirty=None)
    known = environment(commit="c" * 40)
    monkeypatch.setattr("forge_core.proofs.record.stamp", lambda found: known)
    record = stamped(load(tree.path))
    rewrite(tree, lambda before: record)
    assert findings(tree) == {}
    assert {proof.run.environment.commit for proof in record.proofs} == {"c" * 40}
    tree.prove(everything=True, commit="not a checkout", dirty=None)
    rewrite(tree, of_plain(repeats=99))
    with pytest.raises(ProofError, match="was changed after it was made; it cannot be stamped"):
        stamped(load(tree.path))
