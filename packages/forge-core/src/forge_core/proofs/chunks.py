"""One process of a validation: what it runs, its command line and its result."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from forge_core.files import write_atomically
from forge_core.processes import find_tool
from forge_core.proofs.declare import ProofError, Week, function_of

#: Tools of compute-sanitizer that have to run every kernel.
TOOLS = ("memcheck", "racecheck", "initcheck")

#: The exit status of a sanitizer that found something; no program that runs under it has such a status.
FOUND = 86

#: The caching allocator returns parts of large blocks: an access out of bounds would stay inside a block.
UNCACHED = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}

#: The time limit of a process, and the characters of its output that are kept.
SECONDS, TAIL = 1800, 4000

#: Processes that run at once beside the tests: three parts of each sanitizer, and the measurement.
AT_ONCE = 10

#: Tests that are worth a process: its imports, collection and CUDA context take some ten seconds.
TESTS_EACH = 12

#: Variables of libraries that start a thread or a process for each core by default.
_THREADS_OF = ("OMP_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS")


class Chunk(msgspec.Struct, frozen=True):
    """What one process, or one call of pytest with its workers, runs."""

    week: str
    kind: str  # "tests", "measure", or a tool of compute-sanitizer
    tests: tuple[str, ...] | None = None  # ids of tests or measurements, and names of test functions; None for all
    without: tuple[str, ...] = ()  # ids to leave out: they passed before an interruption
    part: int = 1  # the share of a sanitizer's tests, counted from 1
    parts: int = 1  # the number of shares
    workers: int = 0  # pytest-xdist workers at most; 0 for as many as the command has

    def runs(self, test: str) -> bool:
        """Whether a test id belongs to the chunk, in whichever part."""
        chosen = self.tests is None or test in self.tests or function_of(test) in self.tests
        return chosen and test not in self.without

    @property
    def name(self) -> str:
        """``"week1 racecheck"``, ``"week1 racecheck 2/3"``."""
        return f"{self.week} {self.kind}" + (f" {self.part}/{self.parts}" if self.parts > 1 else "")


class Result(msgspec.Struct, frozen=True):
    """The result of a chunk."""

    # By id: outcome, reason, launched (kernel -> calls), seconds; of a measurement also errors and repeats.
    tests: dict[str, dict[str, Any]] = {}
    verdict: str = ""  # the sanitizer's summary
    problem: str = ""  # why the result is not complete

    def ended(self, outcome: str) -> dict[str, dict[str, Any]]:
        """The tests with an outcome: ``"passed"``, ``"failed"`` or ``"skipped"``."""
        return {test: shown for test, shown in self.tests.items() if shown["outcome"] == outcome}

    @property
    def good(self) -> bool:
        """Whether nothing failed: the chunk need not run again."""
        return not (self.problem or self.ended("failed") or (self.verdict and not clean(self.verdict)))

    def __add__(self, part: Result) -> Result:
        """This and another part of a sanitizer's tests, with the worst verdict."""
        problem = "\n".join(filter(None, (self.problem, part.problem)))
        return Result(self.tests | part.tests, _worst((self.verdict, part.verdict)), problem)

    def __str__(self) -> str:
        if self.problem:
            return f"broke, {self.problem.splitlines()[0]}"
        counts = {outcome: len(self.ended(outcome)) for outcome in ("passed", "failed", "skipped")}
        words = [f"{count} {outcome}" for outcome, count in counts.items() if count]
        return ", ".join(filter(None, [*words, self.verdict])) or "nothing to run"


def clean(verdict: str) -> bool:
    """Whether a sanitizer's verdict says that it found nothing."""
    return verdict.startswith(("0 errors", "0 hazards"))


def _worst(verdicts: Iterable[str]) -> str:
    """All verdicts that found something; if there are none, the others."""
    each = dict.fromkeys(verdict for joined in verdicts if joined for verdict in joined.split("; "))
    return "; ".join([verdict for verdict in each if not clean(verdict)] or each)


def verdict_of(text: str) -> str:
    """The verdict in a sanitizer's output; "" if it has none."""
    return _worst(re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (.*\S)", text))


# ------------------------------ the journal: a line of JSON for each test that has ended; its chunk lies beside it


def given(journal: Path) -> Chunk:
    """The chunk whose tests a process enters into a journal."""
    return msgspec.json.decode(journal.with_suffix(".chunk").read_bytes(), type=Chunk)


def _line(test: str, shown: Mapping[str, Any]) -> str:
    return json.dumps({"test": test, **shown}) + "\n"


def append_outcome(path: Path, test: str, shown: Mapping[str, Any]) -> None:
    """Appends the outcome of a test to a journal."""
    with path.open("a", encoding="utf-8") as file:
        file.write(_line(test, shown))


def outcomes(path: Path) -> dict[str, dict[str, Any]]:
    """The outcomes in a journal, without a line that was cut off; none if there is no file."""
    whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n") if path.is_file() else ("", "", "")
    lines = map(json.loads, whole.splitlines())
    return {line.pop("test"): line for line in lines}


def keep_passed(path: Path) -> tuple[str, ...]:
    """Rewrites a journal so that it has only tests that passed; returns their ids."""
    passed = Result(outcomes(path)).ended("passed")
    write_atomically(path, "".join(_line(test, shown) for test, shown in passed.items()))
    return tuple(sorted(passed))


# ----------------------------------------------------------------------------------------------------- the process


def find_sanitizer() -> str:
    """The path of compute-sanitizer; raises ProofError if it is missing."""
    found = find_tool("compute-sanitizer")
    if found is None:
        raise ProofError("compute-sanitizer is not here; it is part of the CUDA toolkit, and no proof is whole without")
    return found


def words_of(chunk: Chunk, week: Week, journal: Path, root: Path, *, workers: int) -> list[str]:
    """The command line of a process that runs the chunk beside a journal."""
    python = [sys.executable, "-m"]
    if chunk.kind == "measure":
        return [*python, "forge_core.proofs.measure", str(journal)]
    words = [*python, "pytest", "-p", "forge_core.proofs.observe", "--prove", str(journal)]
    words += ["-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:benchmark"]
    # Collecting all files of a week takes longer than the tests of some kernels.
    files = sorted({test.partition("::")[0] for test in chunk.tests or ()})
    words += [file for file in files if (root / file).is_file()] or [week.tests]
    if chunk.kind == "tests":
        return [*words, "-m", "gpu", *(["-n", str(workers), "--dist", "worksteal"] if workers > 1 else [])]
    return [*sanitizer_words(find_sanitizer(), chunk.kind), *words, "-m", "sanitizer"]


def sanitizer_words(executable: str, tool: str) -> list[str]:
    """The command line of compute-sanitizer before that of the program, which runs with :data:`UNCACHED`."""
    words = [executable, "--tool", tool, "--error-exitcode", str(FOUND), "--target-processes", "all"]
    # torch probes the driver by API calls that may fail; errors of kernels are reported all the same.
    return [*words, "--report-api-errors", "no"]


def execute(chunk: Chunk, week: Week, journal: Path, root: Path, *, workers: int, deadline: float = math.inf) -> Result:
    """Runs a chunk in a process, with at most so many ``workers``, which is killed at the ``deadline``.

    Tests that passed before an interruption, by the journal, do not run again, except under a sanitizer, whose verdict
    is on a whole process.

    Raises:
        ProofError: compute-sanitizer is missing, or the deadline was reached; the journal has the tests that ended.
    """
    workers = min(workers, chunk.workers or workers)
    variables = {"FORGE_REQUIRE_GPU": "1", **threads_of_each(workers)}
    if chunk.kind == "tests":
        chunk = msgspec.structs.replace(chunk, without=keep_passed(journal))
    else:
        journal.unlink(missing_ok=True)
    variables |= UNCACHED if chunk.kind in TOOLS else {}
    write_atomically(journal.with_suffix(".chunk"), msgspec.json.encode(chunk).decode())
    left = max(0.0, deadline - time.monotonic())
    # In a session of its own, so that its workers can be killed with it.
    process = subprocess.Popen(
        words_of(chunk, week, journal, root, workers=workers),
        cwd=root,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        text, _ = process.communicate(timeout=min(left, SECONDS))
    except subprocess.TimeoutExpired as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if left < SECONDS:
            raise ProofError(f"time was up in {chunk.name}: the same command continues from there") from error
        return Result(problem=f"it took more than {SECONDS} s")
    return result_of(chunk, process.returncode, text, outcomes(journal))


def threads_of_each(workers: int) -> dict[str, str]:
    """Environment variables that share the cores among all processes; those that the user has set stay."""
    share = str(max(1, (os.cpu_count() or 1) // (workers + AT_ONCE)))
    return {name: share for name in _THREADS_OF if name not in os.environ}


def result_of(chunk: Chunk, status: int, text: str, tests: dict[str, Any]) -> Result:
    """The result of a chunk, from its exit status, its output and the outcomes in its journal."""
    tail = text[-TAIL:]
    # Of pytest 1: some failed, and the outcomes say which; 5: none was left to run.
    known = {0} if chunk.kind == "measure" else {0, 1}
    if chunk.tests is not None or chunk.without or chunk.parts > 1:
        known.add(5)
    if chunk.kind not in TOOLS:
        return Result(tests, problem="" if status in known else f"it ended with {status}:\n{tail}")
    verdict = verdict_of(text)
    if not verdict or status not in {*known, FOUND}:
        return Result(tests, problem=f"{chunk.kind} ended with {status} and said {verdict or 'nothing'}:\n{tail}")
    if status == FOUND and clean(verdict):
        verdict = f"ended with {FOUND}, {verdict}"
    return Result(tests, verdict)
