"""Running one chunk of a proof in a process of its own, and what it showed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from forge_core.files import write_atomically
from forge_core.proofs.declare import ProofError, Week, function_of

__all__ = [
    "AT_ONCE",
    "TESTS_EACH",
    "TOOLS",
    "Chunk",
    "Result",
    "UnfinishedError",
    "append_outcome",
    "clean",
    "execute",
    "find_sanitizer",
    "keep_passed",
    "outcomes",
    "worst",
]

#: The tools of compute-sanitizer whose verdicts a proof holds.
TOOLS = ("memcheck", "racecheck", "initcheck")

#: The exit status of a sanitizer that found something; pytest has no such status.
FOUND = 86
SECONDS = 1800
TAIL = 4000

#: Processes that run at once beside the tests: three parts of each sanitizer, and the measurement.
AT_ONCE = 10

#: Tests for which a process is worth starting: imports, collection and a CUDA context take some ten seconds.
TESTS_EACH = 12

#: Libraries that would otherwise start a thread, or a process, for each core in each of the processes.
_THREADS_OF = ("OMP_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS")
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (.*)")
_COUNT = re.compile(r"\d+ (error|hazard|warning)s?")
_PLACES = ("usr/local/cuda/bin", "usr/local/cuda*/compute-sanitizer", "usr/local/cuda-*/bin")


class UnfinishedError(ProofError):
    """The time limit was reached before a chunk was done."""


class Chunk(msgspec.Struct, frozen=True):
    """A part of a proof that is run in one process, or one call of pytest, and kept when it is done.

    Attributes:
        week: the name of its week.
        kind: ``"tests"``, ``"measure"``, or a tool of compute-sanitizer.
        tests: ids and names of test functions to run; None for all.
        without: ids to leave out, because they passed before an interruption.
        kernels: what to measure; of the kind ``"measure"`` alone.
        part, parts: which share of the tests is run, of how many, counted from 1; of a sanitizer alone.
        workers: processes that the tests are worth; 0 for as many as the command has.
    """

    week: str
    kind: str
    tests: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    part: int = 1
    parts: int = 1
    workers: int = 0

    def runs(self, test: str) -> bool:
        """Whether a test id is among the tests, in whichever part."""
        chosen = self.tests is None or test in self.tests or function_of(test) in self.tests
        return chosen and test not in self.without

    @property
    def name(self) -> str:
        """``"week1 racecheck"``, ``"week1 racecheck 2/3"``."""
        return f"{self.week} {self.kind}" + (f" {self.part}/{self.parts}" if self.parts > 1 else "")


class Result(msgspec.Struct, frozen=True):
    """What a chunk showed.

    Attributes:
        tests: id -> outcome, reason, launched (kernel -> calls), seconds; of measurements also errors and repeats.
        verdict: the sanitizer's.
        problem: "" or why the result is not complete.
    """

    tests: dict[str, dict[str, Any]] = {}
    verdict: str = ""
    problem: str = ""

    def ended(self, outcome: str) -> dict[str, dict[str, Any]]:
        """The tests with an outcome: ``"passed"``, ``"failed"`` or ``"skipped"``."""
        return {test: told for test, told in self.tests.items() if told["outcome"] == outcome}

    @property
    def good(self) -> bool:
        """Whether nothing in it failed, so that it needs no second run."""
        return not (self.problem or self.ended("failed") or (self.verdict and not clean(self.verdict)))

    def __str__(self) -> str:
        if self.problem:
            return f"broke, {self.problem.splitlines()[0]}"
        counts = {outcome: len(self.ended(outcome)) for outcome in ("passed", "failed", "skipped")}
        words = [f"{count} {outcome}" for outcome, count in counts.items() if count]
        return ", ".join(filter(None, [*words, self.verdict])) or "nothing to run"


def clean(verdict: str) -> bool:
    """Whether a sanitizer's verdict says that it found nothing."""
    return verdict.startswith(("0 errors", "0 hazards"))


def worst(verdicts: Sequence[str]) -> str:
    """One verdict for several: those that found something, if any did, with their counts added up."""
    told = [verdict for verdict in verdicts if not clean(verdict)] or list(verdicts)
    if len(told) == 1 or len({_COUNT.sub(r"\1", verdict) for verdict in told}) != 1:
        return "; ".join(dict.fromkeys(told))
    sums = map(sum, zip(*([int(found[0].split()[0]) for found in _COUNT.finditer(v)] for v in told), strict=True))
    return _COUNT.sub(lambda found: f"{next(sums)} {found[1]}s", told[0])


# --------------------------------------------------------------------- the journal: a line for each test that has ended


def append_outcome(path: Path, test: str, told: dict[str, Any]) -> None:
    """Appends what a test showed to a journal; an interrupted run leaves what it had."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"test": test, **told}) + "\n")


def outcomes(path: Path) -> dict[str, dict[str, Any]] | None:
    """What each test of a journal showed, by its last whole line; None where there is no file."""
    if not path.is_file():
        return None
    whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
    told = [json.loads(line) for line in whole.splitlines()]
    return {one.pop("test"): one for one in told}


def keep_passed(path: Path) -> list[str]:
    """Leaves only the tests that passed in a journal, which is made where there is none; returns their ids."""
    passed = Result(outcomes(path) or {}).ended("passed")
    write_atomically(path, "".join(json.dumps({"test": test, **told}) + "\n" for test, told in passed.items()))
    return sorted(passed)


# ----------------------------------------------------------------------------------------------------- the processes


def find_sanitizer() -> str:
    """The path of compute-sanitizer.

    Raises:
        ProofError: it is missing.
    """
    folders = [found for place in _PLACES for found in sorted(map(str, Path("/").glob(place)))]
    found = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=os.pathsep.join(folders))
    if found is None:
        raise ProofError("compute-sanitizer is not here; it is part of the CUDA toolkit, and no proof is whole without")
    return found


def words_of(chunk: Chunk, week: Week, out: Path, told: Path, root: Path, *, workers: int) -> list[str]:
    """The command line of a chunk: a process that reads the chunk from ``told`` and writes the journal ``out``."""
    python = [sys.executable, "-m"]
    if chunk.kind == "measure":
        return [*python, "forge_core.proofs.measure", week.name, *chunk.kernels, "--out", str(out)]
    words = [*python, "pytest", "-p", "forge_core.proofs.observe", "--prove-out", str(out)]
    # Plugins that time or cache have no place in a proof.
    words += ["--prove-chunk", str(told), "-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:benchmark"]
    # Each process imports and collects what is named here: all of a week's files take longer than some kernels' tests.
    files = sorted({test.partition("::")[0] for test in chunk.tests or ()})
    words += [file for file in files if (root / file).is_file()] or [week.tests]
    if chunk.kind == "tests":
        # worksteal: an idle process takes tests from one with a long test.
        return [*words, "-m", "gpu", *(["-n", str(workers), "--dist", "worksteal"] if workers > 1 else [])]
    tool = [find_sanitizer(), "--tool", chunk.kind, "--error-exitcode", str(FOUND), "--target-processes", "all"]
    # torch probes what a driver can do by calls that may fail; an error of a kernel is reported all the same.
    return [*tool, "--report-api-errors", "no", *words, "-m", "sanitizer"]


def execute(
    chunk: Chunk, week: Week, showed: Path, root: Path, *, workers: int, deadline: float | None = None
) -> Result:
    """Runs a chunk.

    Args:
        chunk: what to run.
        week: its declaration.
        showed: the journal of its tests.  Those that passed before an interruption are not run again; a sanitizer's
            are, because its verdict is on a whole process.
        root: the repository's root.
        workers: processes of the tests, at most.
        deadline: the ``time.monotonic()`` at which it is ended.

    Raises:
        ProofError: compute-sanitizer is missing.
        UnfinishedError: the deadline came first; the journal has the tests that ended.
    """
    workers = min(workers, chunk.workers or workers)
    with tempfile.TemporaryDirectory(prefix="forge-prove-") as folder:
        out, told = Path(folder, "out.jsonl"), Path(folder, "chunk.json")
        variables = {"FORGE_REQUIRE_GPU": "1", **threads_of_each(workers)}
        if chunk.kind == "tests":
            out = showed
            chunk = msgspec.structs.replace(chunk, without=tuple(keep_passed(showed)))
        elif chunk.kind != "measure":
            # PyTorch hands out parts of large blocks, in which an access out of bounds is inside a block.
            variables["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        told.write_bytes(msgspec.json.encode(chunk))
        words = words_of(chunk, week, out, told, root, workers=workers)
        left = SECONDS if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            status, text = _run(words, root, variables, min(left, SECONDS))
        except subprocess.TimeoutExpired as error:
            if left < SECONDS:
                raise UnfinishedError(chunk.name) from error
            return Result(problem=f"it took more than {SECONDS} s")
        return result_of(chunk, status, text, outcomes(out))


def threads_of_each(workers: int) -> dict[str, str]:
    """Variables that share the cores among ``workers`` and ``AT_ONCE`` processes; those that the user has set stay."""
    share = str(max(1, (os.cpu_count() or 1) // (workers + AT_ONCE)))
    return {name: share for name in _THREADS_OF if name not in os.environ}


def _run(words: Sequence[str], root: Path, variables: Mapping[str, str], seconds: float) -> tuple[int, str]:
    # A session of its own, so that its workers end with it.
    process = subprocess.Popen(
        words,
        cwd=root,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        text, _ = process.communicate(timeout=seconds)
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return process.returncode, text


def result_of(chunk: Chunk, status: int, text: str, told: dict[str, Any] | None) -> Result:
    """What a chunk showed, from how its process ended, what it printed and what it wrote."""
    tail = text[-TAIL:]
    if told is None:
        return Result(problem=f"it ended with {status} and wrote no results:\n{tail}")
    # 0: all passed; 1: some failed, and the results say which; 5: none was left to run.
    known = {0, 1, 5} if chunk.tests is not None or chunk.without or chunk.parts > 1 else {0, 1}
    if chunk.kind not in TOOLS:
        return Result(tests=told, problem="" if status in known else f"it ended with {status}:\n{tail}")
    verdict = worst([summary.strip() for summary in _SUMMARY.findall(text)])
    if not verdict or status not in {*known, FOUND}:
        return Result(tests=told, problem=f"{chunk.kind} ended with {status} and said {verdict or 'nothing'}:\n{tail}")
    if status == FOUND and clean(verdict):
        verdict = f"ended with {FOUND}, {verdict}"
    return Result(tests=told, verdict=verdict)
