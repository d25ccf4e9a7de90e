"""The parts of a validation: the plugin, the measurement, the processes, the declared weeks, the command."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch

from forge_core.device import SPECS
from forge_core.errors import UnsupportedError
from forge_core.op import Plan
from forge_core.op.schema import Schema
from forge_core.op.table import LaunchTable
from forge_core.proofs import Kernel, Subject, Week
from forge_core.proofs import chunks as executing
from forge_core.proofs import measure as measuring
from forge_core.proofs.calls import describe, grouped, plan, run_digest, ungrouped, values
from forge_core.proofs.check import Finding, in_words
from forge_core.proofs.chunks import FOUND, Chunk, Result, outcomes, result_of, words_of
from forge_core.proofs.declare import ProofError, discover, measured
from forge_core.proofs.definitions import code_digest
from forge_core.proofs.evidence import Evidence, Launched, normalised
from forge_core.proofs.measure import REPEATS, measure, measure_week
from forge_core.proofs.merge import covering
from forge_core.proofs.observe import dealt
from forge_core.proofs.record import path_of

ROOT = Path(__file__).parents[3]
CPU = torch.device("cpu")

# ------------------------------------------------------------------------------------------------------ the plugin

TESTS = """
    import pytest, torch
    from types import SimpleNamespace
    from forge_core.op import Plan, table
    from forge_core.op.rules import Rules
    from forge_core.op.schema import Schema

    calls = []

    @pytest.fixture(scope="module")
    def launches():
        def kernel(*arguments):
            calls.append(arguments)

        patch = pytest.MonkeyPatch()
        patch.setattr(table.devices, "query", lambda device: SimpleNamespace(arch="sm_90a"))
        cached = SimpleNamespace(get=lambda config, arch: SimpleNamespace(launch=kernel))
        patch.setattr(table, "builder_at", lambda path: cached)
        plan = lambda target, out, x, variant: Plan("plain", "m:b", None, (7,), "", 0, 0)
        schema = Schema("tiny::double(Tensor x, *, str variant='auto') -> Tensor")
        yield table.LaunchTable(Rules(schema, lambda x, variant: x.to("meta"), None, plan, {}))
        patch.undo()

    def test_two_shapes(launches):
        for shape in ((2, 3), (5,), (2, 3)):
            found = launches.find_or_compile(None, (torch.zeros(shape),), {})
            found.function(1, 2)
        assert calls == [(1, 2)] * 3
        assert len({kernel for _, kernel, _ in launches.launches()}) == 1  # one kernel, by its identity

    def test_a_shape_that_is_bound_already(launches):
        launches.find_or_compile(None, (torch.zeros(2, 3),), {}).function(3)

    def test_nothing_is_launched(launches):
        launches.find_or_compile(None, (torch.zeros(0),), {}).function(3)

    def test_wrong(launches):
        launches.find_or_compile(None, (torch.zeros(2, 3),), {}).function(3)
        assert False, "off by one"

    @pytest.mark.skip(reason="2 GPUs are needed, 1 found")
    def test_skipped(): ...

    @pytest.fixture
    def leaves_a_mess():
        yield
        raise RuntimeError("mess")

    def test_fails_afterwards(leaves_a_mess): ...
"""


def test_a_field_that_was_added_counts_unless_it_has_its_default():
    before = dataclasses.make_dataclass("Config", [("threads", int), ("blocks", int)])
    late = ("late", int, dataclasses.field(default=0, metadata={"added": True}))
    after = dataclasses.make_dataclass("Config", [("threads", int), late, ("blocks", int, 1)])
    assert values(after(32)) == values(before(32, 1)) == [32, 1]
    assert values(after(32, 2)) == [32, 2, 1] != values(after(32))


def test_the_plugin_records_what_each_test_launched_and_how_it_ended(tmp_path):
    (tmp_path / "test_tiny.py").write_text(textwrap.dedent(TESTS))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    out = tmp_path / "out.json"
    out.with_suffix(".chunk").write_bytes(msgspec.json.encode(Chunk("tiny", "tests")))
    plugin = ("-p", "forge_core.proofs.observe", "-p", "no:cacheprovider", "--prove", str(out))
    # By the worker's reports; the process of a chunk, below, has no workers.
    words = [sys.executable, "-m", "pytest", "-q", *plugin, "-n", "1", "test_tiny.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    shown = {name.partition("::")[2]: each for name, each in outcomes(out).items()}
    kernel = "tiny::double/plain"
    run = run_digest(Plan("plain", "m:b", None, (7,), "", 0, 0))
    assert 0 <= shown["test_two_shapes"].pop("seconds") < 60
    assert shown["test_two_shapes"] == {
        "outcome": "passed",
        "reason": "",
        "launched": {kernel: {"float32[2,3] 'auto'": run, "float32[5] 'auto'": run}},
    }
    launched = {"test_a_shape_that_is_bound_already": {kernel: {}}, "test_nothing_is_launched": {}}
    assert {name: shown[name]["launched"] for name in launched} == launched
    assert shown["test_wrong"]["launched"] == {kernel: {}}
    for name, outcome, reason in (
        ("test_wrong", "failed", "off by one"),
        ("test_skipped", "skipped", "2 GPUs are needed"),
        ("test_fails_afterwards", "failed", "mess"),
    ):
        assert shown[name]["outcome"] == outcome
        assert reason in shown[name]["reason"]


# -------------------------------------------------------------------------------------------------- the measurement


class Doubling:
    """An operator that doubles, and does to its result what it is told to."""

    def __init__(self, spoil=lambda y: y, able=lambda x: True):
        self.schema = Schema("tiny::double(Tensor x, *, str variant='auto') -> Tensor")
        self.reference = lambda x: 2 * x
        self.spoil, self.able = spoil, able

    def __call__(self, x, *, variant):
        if not self.able(x):
            raise UnsupportedError("not this one", requirement="another one")
        return self.spoil(2 * x)


def samples(device):
    for dtype in (torch.float32, torch.bfloat16):
        yield (torch.linspace(1, 2, 7, device=device).to(dtype),)


def off_by_a_rounding(y):
    return y + 2.0**-20 if y.dtype is torch.float32 else y


def changing(count):
    return lambda y: y + next(count) // 5


@pytest.mark.parametrize(
    "operator, floor, problem, errors",
    [
        (Doubling(), None, "", {"float32": (0.0, 0.0), "bfloat16": (0.0, 0.0)}),
        (Doubling(off_by_a_rounding), 2.0**-19, "", {"float32": (2.0**-20, 2.0**-22), "bfloat16": (0.0, 0.0)}),
        (Doubling(off_by_a_rounding), 0.0, "results are off", {}),
        (Doubling(off_by_a_rounding), None, "elements differ", {}),
        (Doubling(changing(itertools.count())), 1e9, "two calls gave different bits", {}),
        (Doubling(lambda y: y * float("nan")), 1.0, "results are off", {}),
        (Doubling(able=lambda x: False), None, "the variant refused every sample", {}),
        (Doubling(able=lambda x: x.dtype is torch.float32), None, "", {"float32": (0.0, 0.0)}),
    ],
)
def test_what_is_measured_of_a_kernel(operator, floor, problem, errors):
    found = measure(Subject(operator, samples, None if floor is None else lambda x: floor), "plain", CPU)
    assert problem in found["problem"] and bool(found["problem"]) == bool(problem)
    assert {dtype: figures[:2] for dtype, figures in found["errors"].items()} == errors
    assert all((0 < share <= 0.5) == (absolute > 0) for absolute, _, share in found["errors"].values())
    assert found["repeats"] == (REPEATS if errors else 0)


def test_the_kernels_of_a_week_are_measured(tmp_path, monkeypatch):
    week = Week("tiny", "tiny", "tests", (Kernel("tiny::double", "plain", "", ""),), (Subject(Doubling(), samples),))
    make_entry = LaunchTable._make_entry
    [(test, shown)] = measure_week(week, Chunk("tiny", "measure"), CPU)
    assert LaunchTable._make_entry is make_entry, "launches are observed while it measures only"
    assert test == measured("tiny::double/plain")
    assert (shown["outcome"], shown["launched"]) == ("passed", {"tiny::double/plain": {}})
    assert list(measure_week(week, Chunk("tiny", "measure", (measured("tiny::double/other"),)), CPU)) == []
    monkeypatch.setattr(measuring, "discover", lambda names: [week])
    monkeypatch.setattr(measuring, "measure_week", lambda week, chunk, device: measure_week(week, chunk, CPU))
    journal = tmp_path / "journal"
    journal.with_suffix(".chunk").write_bytes(msgspec.json.encode(Chunk("tiny", "measure", (test,))))
    measuring.main(journal)
    assert outcomes(journal)[test]["repeats"] == REPEATS


# ----------------------------------------------------------------------------------------------------- the processes

WEEK = Week("tiny", "tiny_week", "packages/tiny/tests", ())


def test_the_command_lines_of_the_chunks(monkeypatch, tmp_path):
    monkeypatch.setattr(executing, "find_sanitizer", lambda: "compute-sanitizer")
    journal = tmp_path / "journal"
    tests = words_of(Chunk("tiny", "tests"), WEEK, journal, tmp_path, workers=10)
    assert tests[-6:] == ["-m", "gpu", "-n", "10", "--dist", "worksteal"]
    assert tests[tests.index("--prove") + 1] == str(journal)
    assert "-n" not in words_of(Chunk("tiny", "tests"), WEEK, journal, tmp_path, workers=1)
    sanitizer = words_of(Chunk("tiny", "racecheck"), WEEK, journal, tmp_path, workers=10)
    assert sanitizer[:3] == ["compute-sanitizer", "--tool", "racecheck"]
    assert sanitizer[-2:] == ["-m", "sanitizer"]
    assert "-n" not in sanitizer
    measure = words_of(Chunk("tiny", "measure", ("a", "b")), WEEK, journal, tmp_path, workers=10)
    assert measure[2:] == ["forge_core.proofs.measure", str(journal)]


def test_only_the_files_of_chosen_tests_are_collected(tmp_path):
    def collected(*tests):
        words = words_of(Chunk("tiny", "tests", tests), WEEK, tmp_path / "journal", tmp_path, workers=1)
        return words[words.index("no:benchmark") + 1 : -2]

    (tmp_path / "test_x.py").touch()
    gone = "test_gone.py::test_a"
    assert collected("test_x.py::test_a[1]", "test_x.py::test_b", gone, "forge_core.measure::x") == ["test_x.py"]
    assert collected(gone) == collected() == ["packages/tiny/tests"]


def test_the_tests_of_a_chunk():
    chunk = Chunk("tiny", "tests", ("x::test_a[1]", "x::test_b"), without=("x::test_b[2]",))
    names = ("x::test_a[1]", "x::test_a[2]", "x::test_b[1]", "x::test_b[2]", "x::test_b")
    assert [name for name in names if chunk.runs(name)] == ["x::test_a[1]", "x::test_b[1]", "x::test_b"]
    assert Chunk("tiny", "tests").runs("anything")


PASSED = {"test_x": {"outcome": "passed", "reason": "", "launched": {}}}


@pytest.mark.parametrize(
    "kind, status, text, tests, verdict, problem",
    [
        ("tests", 0, "", PASSED, "", ""),
        ("tests", 1, "", PASSED, "", ""),
        ("tests", 3, "internal error", PASSED, "", "ended with 3"),
        ("tests", 5, "no tests ran", {}, "", "ended with 5"),
        ("tests", -11, "", {}, "", "ended with -11"),
        ("measure", 0, "", {}, "", ""),
        ("measure", 1, "", {}, "", "ended with 1"),
        ("memcheck", 0, "== ERROR SUMMARY: 0 errors\n", PASSED, "0 errors", ""),
        ("memcheck", FOUND, "== ERROR SUMMARY: 2 errors\n", PASSED, "2 errors", ""),
        ("memcheck", FOUND, "ERROR SUMMARY: 1 error\nERROR SUMMARY: 0 errors\n", PASSED, "1 error", ""),
        ("memcheck", FOUND, "== ERROR SUMMARY: 0 errors\n", PASSED, f"ended with {FOUND}, 0 errors", ""),
        ("memcheck", 0, "nothing", PASSED, "", "said nothing"),
        ("racecheck", 0, "RACECHECK SUMMARY: 0 hazards displayed (0 errors)\n", PASSED, "0 hazards displayed (0", ""),
        ("racecheck", 255, "RACECHECK SUMMARY: 0 hazards displayed\n", PASSED, "", "ended with 255"),
    ],
)
def test_how_a_process_ended_decides_what_counts(kind, status, text, tests, verdict, problem):
    result = result_of(Chunk("tiny", kind), status, text, tests)
    assert result.verdict.startswith(verdict) and bool(result.verdict) == bool(verdict)
    assert problem in result.problem and bool(result.problem) == bool(problem)


@pytest.mark.parametrize(("cores", "workers", "share"), [(2, 1, "1"), (16, 12, "1"), (64, 16, "2"), (None, 4, "1")])
def test_processes_share_the_cores(monkeypatch, cores, workers, share):
    monkeypatch.setattr(executing.os, "cpu_count", lambda: cores)
    monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert executing.threads_of_each(workers) == {"TORCHINDUCTOR_COMPILE_THREADS": share}
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert executing.threads_of_each(workers) == {"TORCHINDUCTOR_COMPILE_THREADS": share, "OMP_NUM_THREADS": share}


FOUR = """
import os, pathlib, pytest

@pytest.mark.gpu
def test_w(): assert os.environ["FORGE_REQUIRE_GPU"] == "1"

@pytest.mark.gpu
def test_x(): assert not pathlib.Path("fails").exists()

@pytest.mark.gpu
def test_y(): ...

@pytest.mark.gpu
def test_z():
    if pathlib.Path("dies").exists():
        os._exit(9)

def test_on_the_cpu(): ...
"""


def suite(folder, text):
    """A week with one file of tests."""
    (folder / "tests").mkdir()
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu\n    sanitizer\n")
    (folder / "tests/test_x.py").write_text(text)
    return dataclasses.replace(WEEK, tests="tests")


@pytest.fixture
def four(tmp_path):
    """Runs the chunk of a folder with four tests; test_y is left out."""
    week = suite(tmp_path, FOUR)
    chunk = Chunk("tiny", "tests", tuple(f"tests/test_x.py::test_{name}" for name in "wxz"))

    def run():
        result = executing.execute(chunk, week, tmp_path / "kept/journal.jsonl", tmp_path, workers=1)
        return result.problem, {test[-1]: shown["outcome"] for test, shown in result.tests.items()}

    return run


def test_workers_of_a_chunk_agree_on_the_order_of_its_tests(four, tmp_path, monkeypatch):
    command = executing.words_of
    monkeypatch.setattr(executing, "words_of", lambda *args, workers: command(*args, workers=2))
    assert four() == ("", {"w": "passed", "x": "passed", "z": "passed"})


def test_after_a_death_only_what_had_not_passed_runs_again(four, tmp_path):
    for name in ("fails", "dies"):
        (tmp_path / name).touch()
    problem, ended = four()
    assert "ended with 9" in problem
    assert ended == {"w": "passed", "x": "failed"}
    test = tmp_path / "tests/test_x.py"
    test.write_text(FOUR.replace('assert os.environ["FORGE_REQUIRE_GPU"] == "1"', "assert False"))  # must not run
    with (tmp_path / "kept/journal.jsonl").open("a") as journal:
        journal.write('{"test": "tests/test_x.py::test_z", "outc')  # cut off
    (tmp_path / "fails").unlink()
    (tmp_path / "dies").unlink()
    assert four() == ("", {"w": "passed", "x": "passed", "z": "passed"})
    assert four() == ("", {"w": "passed", "x": "passed", "z": "passed"})  # there is nothing left to run


SANITIZED = """
import os, pytest

@pytest.mark.sanitizer
@pytest.mark.parametrize("n", range(5))
def test_x(n): assert os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] == "1"

@pytest.mark.parametrize("n", range(3))
def test_not_sanitized(n): ...
"""


@pytest.mark.parametrize("chosen", [None, ("tests/test_x.py::test_x", "tests/test_x.py::test_not_sanitized[1]")])
def test_each_test_is_in_one_part_of_a_sanitizer(script, tmp_path, monkeypatch, chosen):
    sanitizer = script("sanitizer", 'shift 8\n"$@"\nstatus=$?\necho "ERROR SUMMARY: 0 errors"\nexit $status')
    monkeypatch.setattr(executing, "find_sanitizer", lambda: str(sanitizer))
    week, parts = suite(tmp_path, SANITIZED), []
    for part in (1, 2):
        chunk = Chunk("tiny", "memcheck", chosen, part=part, parts=2)
        result = executing.execute(chunk, week, tmp_path / "journal.jsonl", tmp_path, workers=4)
        assert (result.problem, result.verdict, chunk.name) == ("", "0 errors", f"tiny memcheck {part}/2")
        parts.append([test.partition("::")[2] for test in result.tests])
    assert parts == [["test_x[0]", "test_x[2]", "test_x[4]"], ["test_x[1]", "test_x[3]"]]


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 14])
@pytest.mark.parametrize("large", [0, 1, 2])
def test_neighbours_are_dealt_to_different_workers_and_large_tests_to_one(workers, large):
    def item(number):
        return SimpleNamespace(number=number, get_closest_marker=lambda name: number >= 10 - large)

    numbers = [each.number for each in dealt([item(number) for number in range(10)], workers)]
    assert sorted(numbers) == list(range(10))
    # As pytest-xdist's WorkStealingScheduling.check_schedule hands them out.
    blocks = []
    for left in range(workers, 0, -1):
        count = len(numbers) // left
        blocks.append(numbers[:count])
        del numbers[:count]
    assert blocks[0][:large] == list(range(10 - large, 10))[: len(blocks[0])]
    first = [block[0] for block in blocks[large > 0 :] if block and block[0] < 10 - large]
    assert first == list(range(len(first)))


@pytest.mark.parametrize(
    "verdicts, worst",
    [
        (["0 errors", "0 errors"], "0 errors"),
        (["0 errors", "1 error", "0 errors"], "1 error"),
        (["ended with 86, 0 errors", "2 errors", "2 errors"], "ended with 86, 0 errors; 2 errors"),
    ],
)
def test_parts_have_the_worst_verdict_of_theirs(verdicts, worst):
    parts = (Result({str(part): {}}, verdict) for part, verdict in enumerate(verdicts))
    shown = sum(parts, Result())
    assert (shown.verdict, len(shown.tests)) == (worst, len(verdicts))
    assert Result() + Result({"a": {}}) == Result({"a": {}})
    assert (shown + Result(problem="it took more than 9 s")).problem == "it took more than 9 s"


def test_a_missing_sanitizer_is_said(monkeypatch):
    monkeypatch.setattr(executing, "find_tool", lambda name: None)
    with pytest.raises(ProofError, match="part of the CUDA toolkit"):
        executing.find_sanitizer()


@pytest.mark.parametrize(
    "gpu, folder", [("NVIDIA H200", "h200"), ("NVIDIA H100 80GB HBM3", "h100-80gb-hbm3"), ("Tesla V100", "tesla-v100")]
)
def test_the_folder_of_a_gpu(gpu, folder):
    assert path_of(ROOT, gpu) == ROOT / folder / "proof.json.xz"


# --------------------------------------------------------------------------------------------------- the real weeks


@pytest.fixture(scope="module")
def weeks():
    return discover()


#: Functions of GPU tests, of which a week has more: the battery and a dozen or two with many parameters.
LEAST_TESTS = {"week0": 12, "week1": 25, "week2": 25, "week3": 9}


def test_every_week_has_declarations_fingerprints_and_gpu_tests(weeks):
    evidence = Evidence(ROOT)
    assert [week.name for week in weeks][:4] == ["week0", "week1", "week2", "week3"]
    for week in weeks:
        names = {kernel.name for kernel in week.kernels}
        assert set(evidence.declarations(week)) == set(evidence.fingerprints(week)) == names
        assert len(set(evidence.declarations(week).values())) == len(week.subjects)
        sanitized = evidence.tests(week, "sanitizer")
        assert sanitized
        assert sanitized.items() <= evidence.tests(week).items()
        assert len(evidence.tests(week)) > LEAST_TESTS.get(week.name, 0), week.name


def test_plans_and_code_are_computed_once(monkeypatch):
    computed = []

    def compute(target, key):
        computed.append(key)
        return f"{target} {key}"

    monkeypatch.setattr("forge_core.proofs.evidence._code", compute)
    evidence = Evidence(ROOT, 1)
    for arch, *keys in (("sm_90a", 1, 2, 1), ("sm_90a", 3, 2), ("sm_100a", 1)):
        assert evidence.code(keys, arch) == {key: f"{arch} {key}" for key in keys}
    assert computed == [1, 2, 3, 1]


def test_every_kernel_of_the_weeks_can_be_measured(weeks):
    """Each variant takes a sample, on paper; and what is declared absent refuses them all."""
    for week in weeks:
        for subject in week.subjects:
            operator, calls = subject.operator, list(subject.samples(CPU))
            for variant in operator.variants():
                options = {"variant": variant} if "variant" in operator.schema.parameters else {}
                able = 0
                for args in calls:
                    try:
                        able += operator.explain(*args, arch="sm_90a", **options).variant == variant
                    except UnsupportedError:
                        continue
                assert bool(able) == (variant not in subject.absent), f"{operator} {variant}"


def test_every_sample_and_every_bound_is_right_for_the_reference(weeks, monkeypatch):
    monkeypatch.setattr("forge_core.proofs.measure.REPEATS", 1)
    for subject in (subject for week in weeks for subject in week.subjects):
        small = [args for args in subject.samples(CPU) if args[0].numel() < 20_000]
        found = measure(Subject(OnCpu(subject.operator), lambda _, s=small: s, subject.floor), "auto", CPU)
        assert found["problem"] == "", subject.name
        assert set(found["errors"]) == {"float16", "bfloat16", "float32", "float64"}


class OnCpu:
    """An operator on the CPU, which takes no variant by name."""

    def __init__(self, operator):
        self.schema, self.reference, self.operator = operator.schema, operator.reference, operator

    def __call__(self, *args, **options):
        return self.operator(*args)


def test_a_call_as_text_is_planned_as_the_call_itself(weeks):
    """On meta tensors, with strides, alignment, an out and a default dtype."""
    device = SPECS["H200"]
    softmax = next(s.operator for week in weeks for s in week.subjects if s.operator.schema.name == "softmax")
    base = torch.empty(65, 130, dtype=torch.bfloat16, device="meta")
    for x in (base[:64, :100], base[:64, 1:101], base.t(), base[:, :1].expand(65, 9)):
        for out in (None, torch.empty(x.shape, dtype=x.dtype, device="meta")):
            named = {"x": x, "dim": -1, "dtype": None, "variant": "auto"}
            expected = softmax._rules.run_fake(named, on_meta=True) if out is None else out
            expected = softmax._rules.plan(device, expected, *named.values())
            assert run_digest(plan(softmax, describe(named, out), device)) == run_digest(expected)
    assert describe({"x": base[:64, 1:101], "dim": (0, 1)}, None) == "bfloat16[64,100|130,1]+2 (0,1)"
    with pytest.raises(ProofError, match="expected 4 arguments"):
        plan(softmax, "float32[3] -1", device)
    with pytest.raises(ProofError, match="softmax"):
        plan(softmax, "float32[3] 7 None 'auto'", device)


def test_calls_are_stored_by_what_they_have_in_common():
    calls = ["bfloat16[4] float32[] -1", "bfloat16[64,100|128,1]+2 float32[2] -1", "bfloat16[] float32[] -1", "plain 3"]
    groups = {
        "bfloat16[*] float32[*] -1": ["4 ", " "],
        "bfloat16[*]+2 float32[*] -1": ["64,100|128,1 2"],
        "plain 3": [""],
    }
    assert grouped(calls) == groups
    assert ungrouped(groups) == calls


def test_ptx_is_compared_without_names_versions_and_lines():
    text = """
// Generated by somebody
.version {version}
.target sm_90a
.visible .entry {name}_0(
    .param .u64 {name}_0_param_0
)
{{
    .loc 1 {line} 0
    ld.param.b64 %rd1, [{name}_0_param_0]; // a comment
    ret;
}}
.section .debug_str {{
.b8 {line}
}}
"""
    one = normalised(text.format(version="8.8", name="softmax_fp32", line=1))
    assert one == normalised(text.format(version="9.0", name="other", line=22))
    assert one != normalised(text.format(version="8.8", name="softmax_fp32", line=1).replace("b64", "b32"))
    assert "kernel0_param_0" in one


def test_configurations_are_chosen_that_have_every_value_of_every_field():
    @dataclasses.dataclass(frozen=True)
    class Config:
        edges: bool
        chunks: int
        dtype: torch.dtype = torch.float32

    configs = [("m:b", Config(edges, chunks)) for edges in (False, True) for chunks in (1, 2, 3, 4, 1000, 1001)]
    configs += [("m:b", Config(edges=False, chunks=1, dtype=torch.bfloat16))]
    launched = {str(i): Launched(kernel=kernel) for i, kernel in enumerate(configs)}
    chosen = [launched[call].kernel[1] for call in covering(launched)]
    assert {c.edges for c in chosen} == {True, False} and {c.dtype for c in chosen} == {torch.float32, torch.bfloat16}
    assert {c.chunks for c in chosen} >= {1, 2, 3, 4}
    assert sum(c.chunks > 32 for c in chosen) == 1  # 1000 and 1001 count as equal
    assert len(chosen) <= 7
    assert covering({}) == []


def test_a_fingerprint_is_the_same_on_every_machine(weeks, monkeypatch, tmp_path):
    """Wherever other packages lie, and whichever Python reads the sources: 3.12 and 3.13 dump other fields."""
    before = [Evidence(ROOT).fingerprints(week) for week in weeks]
    monkeypatch.setattr("forge_core.cache.sources._is_installed", lambda module: False)
    assert [Evidence(ROOT).fingerprints(week) for week in weeks] == before
    path = tmp_path / "a.py"
    path.write_text('"""Said."""\ndef f():  # a comment\n    "Told."\n    return 1\n')
    function = (
        "FunctionDef(name='f', args=arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[]), "
        "body=[Return(value=Constant(value=1))], decorator_list=[])"
    )
    assert (
        code_digest(path.read_bytes())
        == hashlib.sha256(f"Module(body=[{function}], type_ignores=[])".encode()).hexdigest()
    )


def test_the_command_checks_and_says_what_to_run(forge, tmp_path):
    result = forge("prove", "check", "week1", "--root", ROOT, "--records", tmp_path)
    assert result.exit_code == 1
    assert "45 kernels: no GPU has a record of proofs" in result.output
    variants = "naive, shared, shuffle, vectorized, stream, column, split, grid, held"
    assert f"    forge_week1::prod: {variants}\n" in result.output
    assert result.output.count("nox -s prove -- week1") == 1
    assert "week2" not in result.output
    unknown = forge("prove", "check", "week9")
    assert unknown.exit_code == 3
    assert "no package 'week9'; packages: week0, week1, week2, week3" in unknown.output
    for name in ("forge_week1_reduce", "forge-week1-reduce", "week1-reduce"):
        assert discover([name]) == discover(["week1"])


def test_findings_of_one_reason_stand_together():
    rows = (
        ("tiny::double/plain", "a"),
        ("tiny::triple/plain", "b"),
        ("tiny::double/wide", "a"),
        ("tiny::half/plain", "a"),
    )
    assert in_words(Finding(name, f"changed: {what}", "nox -s prove") for name, what in rows).splitlines() == [
        "3 kernels: changed: a",
        "    tiny::double: plain, wide",
        "    tiny::half: plain",
        "    nox -s prove",
        "tiny::triple/plain: changed: b",
        "    nox -s prove",
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="shows what is said without a GPU")
def test_the_command_proves_nothing_without_a_gpu(forge):
    result = forge("prove", "run")
    assert result.exit_code == 1
    assert "a proof is made on a GPU, and there is none here" in result.output
