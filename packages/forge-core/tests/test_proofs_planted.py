"""Validation of a tiny package with two kernels on a simulated GPU, and changes of the package and its record."""

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

from forge_core.bench.environment import Environment
from forge_core.device import SPECS
from forge_core.files import read_unpacked, write_atomically
from forge_core.proofs import Kernel, Week
from forge_core.proofs.check import check, incomplete, records_in, refreshed
from forge_core.proofs.chunks import TESTS_EACH, TOOLS, Chunk, Result, append_outcome, keep_passed, outcomes
from forge_core.proofs.declare import ProofError, digest_of, measured
from forge_core.proofs.evidence import Evidence, Launched
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

PLAIN, WIDE, CUBE = (f"tiny::double/{variant}" for variant in ("plain", "wide", "cube"))
#: The tests that run on the GPU, and the kernels that they launch.
TESTS = {
    "tests/test_tiny.py::test_plain[1]": [PLAIN],
    "tests/test_tiny.py::test_plain[2]": [PLAIN],
    "tests/test_tiny.py::test_wide[cuda]": [WIDE],
}


def calls_of(name, size):
    """A call of a kernel, as a test or the measurement made it."""
    call = f"{name.rpartition('/')[2]} {size}"
    return {call: f"run {call}"}


def measured_as(name, **changes):
    """What the measurement shows of a kernel."""
    errors = {"float32": [1e-7, 1e-8, 0.5]}
    shown = {"outcome": "passed", "reason": "", "launched": {name: calls_of(name, 7)}, "errors": errors, "repeats": 20}
    return {**shown, **changes}


DSL = importlib.metadata.version("nvidia-cutlass-dsl")
HERE = Environment("cuda", "NVIDIA H200", "1", "13.0", "2", DSL, "3", "3", "Linux", "a" * 40, dirty=False, sources={})


class Tiny(Evidence):
    """What lies in the package: its plans and its code are the numbers and the arithmetic that its files hold."""

    declared = "as it was"

    def text(self, name):
        return (self.root / "src/tiny_week" / name).read_text()

    def fingerprints(self, week):
        self._sources.cache_clear()
        return super().fingerprints(week)

    def declarations(self, week):
        return {kernel.name: self.declared for kernel in week.kernels}

    def launches(self, calls, device):
        plan = re.findall(r"\d+", self.text("config.py") + self.text("thresholds/h200.toml"))

        def launched(call):
            name = call.partition(" ")[0]
            return Launched(f"run {call}", digest_of([call, plan, device.sm_count]), (f"build {name}", name))

        return {(operator, call): launched(call) for operator, call in calls}

    def code(self, kernels, arch):
        files = {"plain": ("kernels/plain.py", "arithmetic.py"), "wide": ("kernels/wide.py",), "cube": ()}
        return {(builder, name): digest_of([[*map(self.text, files[name])], arch]) for builder, name in kernels}


class Tree:
    """The package, its records, and its runs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.chunks = []
        self.changes = {}
        self.launched = dict(TESTS)
        for name, text in FILES.items():
            self.write(name, textwrap.dedent(text))
        kernels = tuple(
            Kernel("tiny::double", name, f"tiny_week.kernels.{name}:build", "tiny_week.ops")
            for name in ("plain", "wide")
        )
        self.week = Week("tiny", "tiny_week", "tests", kernels)
        self.records = root / "docs/records"
        self.path = self.records / "h200/proof.json.xz"
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
        tests = [test for test in sorted(self.launched) if chunk is None or chunk.runs(test)]
        return {
            test: {"outcome": "passed", "reason": "", "launched": {k: calls_of(k, 3) for k in self.launched[test]}}
            for test in (tests if chunk is None else tests[chunk.part - 1 :: chunk.parts])
        }

    def execute(self, chunk, week, journal):
        """The fake GPU: everything is right, unless ``changes`` has a result, or an error, for the kind of chunk."""
        self.chunks.append(chunk)
        if chunk.kind in self.changes:
            change = self.changes[chunk.kind]
            if isinstance(change, BaseException):
                raise change
            return change(self, chunk)
        if chunk.kind == "measure":
            return Result(tests={test: measured_as(test.partition("::")[2]) for test in chunk.tests})
        if chunk.kind == "tests":
            return Result(tests=self.tests(chunk))
        summary = "0 hazards displayed (0 errors, 0 warnings)" if chunk.kind == "racecheck" else "0 errors"
        return Result(tests=self.tests(chunk), verdict=summary)

    def prove(self, *, everything=False, weeks=None, execute=None, **changes):
        self.chunks = []
        return prove(
            weeks or [self.week],
            execute or self.execute,
            ProofRun("2026-11-21T00:00:00+00:00", msgspec.structs.replace(HERE, **changes)),
            SPECS["H200"],
            self.evidence,
            records=self.records,
            state=self.state,
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


def rewrite(tree, *, seal=False, weeks=None, **changes):
    """Changes the plain kernel's proof on disk, or the weeks; with ``seal``, all seals are computed anew."""
    record = load(tree.path)
    proofs = [msgspec.structs.replace(p, **changes) if p.name == PLAIN else p for p in record.proofs]
    record = msgspec.structs.replace(record, proofs=proofs, weeks=weeks or record.weeks)
    if seal:
        record = record.with_proofs(proof.sealed() for proof in proofs)
    record.save(tree.path)


# ------------------------------------------------------------------------ what the check says, and what runs again

KERNEL, CONFIG, TABLE = (f"src/tiny_week/{name}" for name in ("kernels/plain.py", "config.py", "thresholds/h200.toml"))
OPS, TEST = "src/tiny_week/ops.py", "tests/test_tiny.py"
BOTH, PTX = [PLAIN, WIDE], "the PTX of 1 of 1 compiled kernels differs"


def edit(name, old, new):
    return lambda tree: tree.edit(name, old, new)


def declare_otherwise(tree):
    tree.evidence.declared = "samples cut short"


def declare_another_kernel(tree):
    tree.write("src/tiny_week/kernels/cube.py", "")
    cube = dataclasses.replace(tree.week.kernels[0], variant="cube", builder="tiny_week.kernels.cube:build")
    tree.week = dataclasses.replace(tree.week, kernels=(*tree.week.kernels, cube))
    tree.launched[f"{TEST}::test_plain[1]"] = [PLAIN, CUBE]


def declare_one_kernel_less(tree):
    tree.week = dataclasses.replace(tree.week, kernels=tree.week.kernels[:1])


def another_test(tree):
    tree.edit(TEST, "def test_on_the_cpu", "@pytest.mark.gpu\ndef test_more(): ...\n\ndef test_on_the_cpu")
    tree.launched[f"{TEST}::test_more"] = []


def a_test_less(tree):
    tree.edit(TEST, "def test_plain", "def plain")
    tree.launched = {f"{TEST}::test_wide[cuda]": [PLAIN, WIDE]}


#: Change; the kernels that the check names and what it says of them; what `prove` proves of it.
CHANGES = {
    "nothing": (lambda tree: None, [], "", []),
    "no record": (lambda tree: tree.path.unlink(), BOTH, "no GPU has a record of proofs", BOTH),
    "a kernel": (edit(KERNEL, "256", "512"), [PLAIN], f"h200: {PTX}", [PLAIN]),
    "an import of a kernel": (edit("src/tiny_week/arithmetic.py", "2 * x", "x + x"), [PLAIN], PTX, [PLAIN]),
    "a plan": (edit(CONFIG, "4096", "2048"), BOTH, "launches differ in 1 of 1 groups of calls", BOTH),
    "a threshold": (edit(TABLE, "8192", "1"), BOTH, "launches differ", BOTH),
    "a source with the same plans and PTX": (edit(OPS, "import config", "import config, arithmetic"), [], "", []),
    "another file's comment": (edit("src/tiny_week/bench.py", "measured.", "measured, and why."), [], "", []),
    "a declaration": (declare_otherwise, BOTH, "its declared samples, bounds or planted faults", BOTH),
    "another kernel": (declare_another_kernel, [CUBE], "there is no proof", [CUBE]),
    "a kernel less": (declare_one_kernel_less, [WIDE], "it is declared no more", []),
    "a new GPU test": (another_test, BOTH, f"tests without a result: {TEST}::test_more", []),
    "a GPU test's body": (
        edit(TEST, "def test_plain(size): ...", "def test_plain(size): assert size"),
        BOTH,
        f"tests changed since they ran: {TEST}::test_plain",
        [],
    ),
    "a GPU test renamed": (a_test_less, BOTH, f"tests that ran and are gone: {TEST}::test_plain", []),
    "another compiler": (
        lambda tree: rewrite(tree, seal=True, run=ProofRun("2026", msgspec.structs.replace(HERE, dsl="1.0"))),
        [PLAIN],
        "the CuTe DSL here is",
        [PLAIN],
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_the_check_says_of_a_change_and_what_runs_again(proven, change):
    make, red, reason, proves = CHANGES[change]
    make(proven)
    found = findings(proven)
    assert sorted(found) == red
    assert all(reason in text and "nox -s prove -- tiny" in text for text in found.values())
    outcome = proven.prove()
    assert (outcome.proven, outcome.failures) == (proves, [])
    assert set(proven.ran) == ({"tests", "measure", *TOOLS} if proves else {"tests"} if red else set())
    assert findings(proven) == {}


def test_sources_are_named_where_nothing_is_recomputed_and_a_refreshed_record_has_nothing_to_recompute(proven):
    proven.edit(OPS, "import config", "import config, arithmetic")
    proven.edit(KERNEL, "256", "512")
    proven.evidence.recompute = "never"
    assert sorted(findings(proven)) == [PLAIN, WIDE]
    proven.evidence.recompute = "changed"
    before = load(proven.path)
    refreshed([proven.week], before, proven.evidence).save(proven.path)
    after = load(proven.path)
    assert after.proof(PLAIN) == before.proof(PLAIN)  # its code differs
    assert after.proof(WIDE).fingerprint == proven.evidence.fingerprints(proven.week)[WIDE]
    assert after.proof(WIDE).run == before.proof(WIDE).run
    proven.evidence.recompute = "never"
    assert sorted(findings(proven)) == [PLAIN]


def test_a_call_that_launches_something_else_than_is_planned_does_not_count(tree):
    patched = {PLAIN: {"plain 3": "run otherwise", **calls_of(PLAIN, 4)}}

    def tests(tree, chunk):
        found = tree.tests(chunk)
        return Result({test: {**shown, "launched": patched} for test, shown in found.items() if "plain" in test})

    tree.changes["tests"] = tests
    assert "1 of 3 calls were launched otherwise than they are planned here" in "".join(tree.prove().notes)
    assert load(tree.path).proof(PLAIN).calls == ["plain 4", "plain 7"]


def test_a_proof_that_stays_names_the_tests_that_there_are(proven):
    """A parametrization may go without its function, or come."""
    gone, came = (f"{TEST}::test_plain[{n}]" for n in (2, 3))
    proven.launched[came] = proven.launched.pop(gone)
    proven.edit(TEST, "def test_plain(size): ...", "def test_plain(size): assert size")
    assert (proven.prove().failures, proven.ran) == ([], ["tests"])
    tests = load(proven.path).proof(PLAIN).tests
    assert came in tests
    assert gone not in tests
    assert (findings(proven), proven.prove().failures, proven.ran) == ({}, [], [])


# ------------------------------------------------------------------------------------------- changes of the record


def without_test_plain(tree):
    week = load(tree.path).weeks["tiny"]
    tests = [test for test in week.tests if "test_plain" not in test]
    rewrite(tree, seal=True, weeks={"tiny": msgspec.structs.replace(week, tests=tests)}, tests=[measured(PLAIN)])


def forge_the_fingerprint(tree, *, seal=True, recompute="changed"):
    tree.edit(KERNEL, "256", "512")
    rewrite(tree, seal=seal, fingerprint=tree.evidence.fingerprints(tree.week)[PLAIN])
    tree.evidence.recompute = recompute


def forge_the_code(tree):
    tree.edit(OPS, "import config", "import config, arithmetic")
    rewrite(tree, seal=True, code={"plain 3": "0" * 16})


@pytest.mark.parametrize(
    "change, red, reason",
    [
        (lambda tree: rewrite(tree, tests=[f"{TEST}::test_plain[1]"]), [f"h200: {PLAIN}", PLAIN], "seal is broken"),
        (lambda tree: forge_the_fingerprint(tree, seal=False), [f"h200: {PLAIN}", PLAIN], "seal is broken"),
        # The shortcut trusts the seal; `--recompute` does not.
        (forge_the_fingerprint, [], ""),
        (lambda tree: forge_the_fingerprint(tree, recompute="always"), [PLAIN], PTX),
        (forge_the_code, [PLAIN], PTX),
        (without_test_plain, BOTH, f"tests without a result: {TEST}::test_plain"),
        (lambda tree: rewrite(tree, seal=True, tests=["other"]), [f"h200: {PLAIN}"], "tests that the record of"),
    ],
)
def test_what_the_check_says_of_an_edited_record(proven, change, red, reason):
    change(proven)
    found = findings(proven)
    assert sorted(found) == red
    assert all(reason in text for text in found.values())
    assert all("restore docs/records/h200/proof.json.xz" in text for name, text in found.items() if "h200" in name)


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"tests": []}, "no test of it passed"),
        ({"grouped": {"plain 3": [""]}}, "its plans are not those of the calls"),
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
def test_an_incomplete_proof_is_refused(proven, change, reason):
    # JSON has no infinity, so the file is left out.
    assert reason in "; ".join(incomplete(msgspec.structs.replace(load(proven.path).proof(PLAIN), **change)))


def test_any_changed_line_breaks_a_seal_and_a_file_that_is_no_record_is_an_error(proven):
    text = read_unpacked(proven.path).decode()
    for old, new in (("NVIDIA H200", "B200"), ("1e-7", "1e-9"), ('"repeats":20', '"repeats":99'), ("2026", "2027")):
        assert old in text, text
        write_atomically(proven.path, text.replace(old, new))
        assert findings(proven), old
    for broken in ("", "[]", "{}", text.replace('"schema_version":4', '"schema_version":3'), text[:-200]):
        write_atomically(proven.path, broken)
        with pytest.raises(ProofError, match=r"proof\.json\.xz: expected a "):
            records_in(proven.records)


def test_a_stamp_writes_the_commit_and_refuses_a_changed_proof(forge, tree, monkeypatch):
    tree.prove(commit="not a checkout", dirty=None)
    assert "names no commit (not a checkout): forge-cute prove stamp" in findings(tree)[PLAIN]
    known = msgspec.structs.replace(HERE, commit="c" * 40)
    monkeypatch.setattr("forge_core.proofs.record.stamp", lambda found: known)
    record = stamped(load(tree.path))
    assert {proof.run.environment.commit for proof in record.proofs} == {"c" * 40}
    record.save(tree.path)
    assert findings(tree) == {}
    rewrite(tree, repeats=99)
    refused = forge("prove", "stamp", tree.path)
    assert "its seal is broken" in refused.output


def test_the_record_says_all_and_reads_back(proven):
    record = load(proven.path)
    proof = record.proof(PLAIN)
    assert proof.tests == [measured(PLAIN), *(f"{TEST}::test_plain[{n}]" for n in (1, 2))]
    assert proof.calls == ["plain 3", "plain 7"]
    assert list(proof.code) == ["plain 3"]
    assert proof.errors == {"float32": Error(1e-7, 1e-8, 0.5)}
    assert set(proof.sanitizers) == set(TOOLS)
    assert proof.run.environment == HERE
    assert record.device == SPECS["H200"]
    before = proven.path.read_bytes()
    record.save(proven.path)
    assert proven.path.read_bytes() == before
    assert json.loads(read_unpacked(proven.path))["gpu"] == "NVIDIA H200"


def test_the_table_names_what_is_proven_and_what_is_not(forge, proven, monkeypatch):
    proven.edit("src/tiny_week/kernels/wide.py", "128", "64")
    monkeypatch.setattr("forge_core.commands.prove.discover", lambda: [proven.week])
    monkeypatch.setattr("forge_core.commands.prove.Evidence", lambda root: proven.evidence)
    text = forge("prove", "table", "--root", proven.root).output
    assert "| `tiny::double` | plain | NVIDIA H200 | 2026-11-21 |" in text
    assert "| `tiny::double` | wide | not proven |  |" in text


# --------------------------------------------------------------------------------------------------------- proving


def test_what_is_not_repeated_keeps_its_run_and_all_repeats_everything(proven):
    def commits():
        return {proof.name: proof.run.environment.commit[0] for proof in load(proven.path).proofs}

    before = proven.path.read_bytes()
    assert sorted(proven.prove(commit="b" * 40).kept) == [PLAIN, WIDE]
    assert proven.path.read_bytes() == before
    proven.edit(KERNEL, "256", "512")
    ran = []
    proven.changes["tests"] = lambda tree, chunk: ran.extend(tree.tests(chunk)) or Result(tree.tests(chunk))
    outcome = proven.prove(commit="b" * 40)
    assert (outcome.proven, outcome.kept, commits()) == ([PLAIN], [WIDE], {PLAIN: "b", WIDE: "a"})
    assert ran == [f"{TEST}::test_plain[{n}]" for n in (1, 2)]
    assert sorted(proven.prove(everything=True, commit="c" * 40).proven) == [PLAIN, WIDE]
    assert set(commits().values()) == {"c"}


@pytest.mark.parametrize("kind", ["tests", "memcheck"])
def test_a_kernel_with_a_failed_test_is_not_proven_and_loses_its_proof(proven, kind):
    def failed(tree, chunk):
        found = tree.tests(chunk)
        found[f"{TEST}::test_plain[1]"] |= {"outcome": "failed", "reason": "AssertionError: off by one"}
        return Result(found, verdict="0 errors")

    proven.changes[kind] = failed
    outcome = proven.prove(everything=True)
    assert outcome.proven == [WIDE]
    assert any("test_plain[1] failed: AssertionError: off by one" in failure for failure in outcome.failures)
    assert load(proven.path).proof(PLAIN) is None
    del proven.changes[kind]
    assert proven.prove().proven == [PLAIN]
    assert findings(proven) == {}


@pytest.mark.parametrize(
    "kind, result, reason",
    [
        ("tests", Result(problem="pytest ended with 3"), "pytest ended with 3"),
        ("racecheck", Result(problem="it took more than 9 s"), "more than 9 s"),
        ("racecheck", Result(tests=None, verdict="1 hazards displayed"), "racecheck: 1 hazards displayed"),
        ("initcheck", Result(tests={}, verdict="0 errors"), "initcheck did not run it"),
        ("measure", Result({measured(PLAIN): measured_as(PLAIN, errors={}, outcome="failed", reason="bits")}), "bits"),
    ],
)
def test_a_part_that_fails_proves_nothing(tree, kind, result, reason):
    tree.changes[kind] = lambda tree, chunk: (
        result if result.tests is not None else msgspec.structs.replace(result, tests=tree.tests())
    )
    outcome = tree.prove()
    assert outcome.proven == []
    assert any(reason in failure for failure in outcome.failures)
    assert sorted(findings(tree)) == [PLAIN, WIDE]
    assert load(tree.path).proofs == []


def test_another_call_of_the_same_builder_is_named(tree):
    kernels = (*tree.week.kernels, dataclasses.replace(tree.week.kernels[0], operator="tiny::triple"))
    tree.week = dataclasses.replace(tree.week, kernels=kernels)
    assert tree.prove().failures == []
    assert load(tree.path).proof("tiny::triple/plain").sanitizers["memcheck"] == f"0 errors (seen as {PLAIN})"


def test_the_slowest_tests_are_named(tree):
    def tests(tree, chunk):
        found = tree.tests(chunk).items()
        return Result({test: {**shown, "seconds": 2.5 if "wide" in test else 0.2} for test, shown in found})

    tree.changes["tests"] = tests
    [note] = tree.prove().notes
    assert note.startswith(
        "tiny: its tests took 3 s in all processes; the slowest: test_tiny.py::test_wide[cuda] 2 s, "
    )


def test_a_dirty_tree_and_a_changed_record_are_refused(proven):
    with pytest.raises(ProofError, match="not committed"):
        proven.prove(dirty=True)
    rewrite(proven, repeats=99)
    with pytest.raises(ProofError, match="its seal is broken"):
        proven.prove()
    assert sorted(proven.prove(everything=True).proven) == [PLAIN, WIDE]


def test_a_skipped_test_counts_only_where_the_machine_lacks_something(tree):
    def skipped(reason):
        def tests(tree, chunk):
            found, test = tree.tests(), f"{TEST}::test_wide[cuda]"
            found[f"{TEST}::test_plain[1]"] |= {"launched": {WIDE: calls_of(WIDE, 1)}}
            return Result({**found, test: {"outcome": "skipped", "reason": reason, "launched": {}}})

        return tests

    tree.changes["tests"] = skipped("Skipped: 2 GPUs are needed, 1 found")
    assert tree.prove().failures == []
    assert findings(tree) == {}
    tree.changes["tests"] = skipped("Skipped: not today")
    tree.prove(everything=True)
    assert f"tests without a result: {TEST}::test_wide" in findings(tree)[PLAIN]


# ---------------------------------------------------------------------------------------- side by side, interrupted


def test_sanitizers_run_beside_the_tests(tree):
    begun = threading.Event()

    def execute(chunk, week, journal):
        if chunk.kind == "tests":
            assert begun.wait(30)
        elif chunk.kind in TOOLS:
            begun.set()
        return tree.execute(chunk, week, journal)

    assert tree.prove(execute=execute).failures == []


@pytest.mark.parametrize("between", ["nothing", "everything", "sources", "tests", "file"])
def test_an_interrupted_run_continues_unless_something_else_is_to_be_proven(tree, between):
    tree.changes["measure"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        tree.prove()
    assert not tree.path.exists()
    tree.changes.clear()
    old = tree.state / "0123/4567.jsonl"
    old.parent.mkdir()
    old.write_text("")
    if between == "tests":
        tree.edit(TEST, "[1, 2]", "[1, 2, 3]")
    if between == "file":
        for result in tree.state.glob("*/*.json"):
            result.write_text(result.read_text()[:-9])
    changes = {"sources": {"sources": {"tiny_week": "0"}}, "everything": {"everything": True}}.get(between, {})
    assert tree.prove(**changes).failures == []
    assert "measure" in tree.ran
    assert ("tests" in tree.ran) == (between != "nothing")
    assert findings(tree) == {}
    assert not tree.state.exists()


def test_tests_are_taken_up_where_they_were(tree):
    """The second run has only those that had not passed; what passed before counts all the same."""
    journals, ran = [], []

    def execute(chunk, week, journal):
        if chunk.kind != "tests":
            return tree.execute(chunk, week, journal)
        journals.append(journal)
        for test, shown in tree.tests(Chunk("tiny", "tests", without=keep_passed(journal))).items():
            if len(journals) == 1 and test == f"{TEST}::test_wide[cuda]":
                raise KeyboardInterrupt
            ran.append(test)
            append_outcome(journal, test, shown)
        return Result(outcomes(journal))

    with pytest.raises(KeyboardInterrupt):
        tree.prove(execute=execute)
    assert tree.prove(execute=execute).failures == []
    assert journals[0] == journals[1]
    assert ran == sorted(tree.launched)
    assert findings(tree) == {}


def test_a_week_that_is_whole_is_on_record_where_another_is_interrupted(tree):
    triple = dataclasses.replace(tree.week.kernels[0], operator="tiny::triple")
    other = dataclasses.replace(tree.week, name="other", kernels=(triple,))

    def execute(chunk, week, journal):
        if (chunk.week, chunk.kind) == ("other", "memcheck"):
            until = time.monotonic() + 30
            while not tree.path.exists() and time.monotonic() < until:
                time.sleep(0.01)
            raise KeyboardInterrupt
        return tree.execute(chunk, week, journal)

    with pytest.raises(KeyboardInterrupt):
        tree.prove(weeks=[tree.week, other], execute=execute)
    assert findings(tree) == {}
    assert load(tree.path).proof(triple.name) is None


@pytest.fixture
def parted(tree):
    """A kernel that was changed since its proof, with so many tests under sanitizers that each tool has three parts."""
    tree.edit(TEST, "def test_plain", "@pytest.mark.sanitizer\ndef test_plain")
    tree.launched |= {f"{TEST}::test_plain[{n}]": [PLAIN] for n in range(3 * TESTS_EACH)}
    assert tree.prove().failures == []
    tree.edit(KERNEL, "256", "512")
    return tree


def test_a_sanitizer_with_many_tests_has_parts(parted, capsys):
    outcome = parted.prove()
    assert (outcome.proven, outcome.failures) == ([PLAIN], [])
    assert load(parted.path).proof(PLAIN).sanitizers["memcheck"] == "0 errors"
    names = sorted(chunk.name for chunk in parted.chunks if chunk.kind == "memcheck")
    assert names == [f"tiny memcheck {part}/3" for part in (1, 2, 3)]
    assert [chunk.workers for chunk in parted.chunks if chunk.kind == "tests"] == [4]  # 36 tests, and the measurement's
    assert "tiny memcheck 2/3: 12 passed, 0 errors" in capsys.readouterr().err


def test_sanitizers_run_a_changed_test_whatever_its_parameters(parted):
    parted.edit(TEST, "def test_plain(size): ...", "def test_plain(size): assert size")
    new = f"{TEST}::test_plain[new]"
    parted.launched[new] = [PLAIN]
    assert parted.prove().failures == []
    assert any(new in parted.tests(chunk) for chunk in parted.chunks if chunk.kind == "memcheck")


def test_an_error_in_one_part_is_the_verdict(parted):
    parted.changes["memcheck"] = lambda tree, chunk: Result(
        tree.tests(chunk), verdict="3 errors" if chunk.part == 2 else "0 errors"
    )
    assert any("memcheck: 3 errors" in failure for failure in parted.prove().failures)
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
        return Result(tree.tests(chunk), verdict="0 errors")

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
    text = ""

    def execute(chunk, week, journal):
        nonlocal text
        if chunk.kind == "tests":
            until = time.monotonic() + 30
            journal.parent.mkdir(parents=True, exist_ok=True)
            for count, (test, shown) in enumerate(tree.tests().items(), start=1):
                append_outcome(journal, test, shown)
                while f"running: tiny tests ({count} ended)" not in text and time.monotonic() < until:
                    time.sleep(0.01)
                    text += capsys.readouterr().err
        return tree.execute(chunk, week, journal)

    assert tree.prove(execute=execute).failures == []
    assert all(f"running: tiny tests ({count} ended)" in text for count in (1, 2, 3))
