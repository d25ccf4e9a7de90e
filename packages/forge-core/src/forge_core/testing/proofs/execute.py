"""One chunk of a proof, in a process of its own."""

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

from forge_core.testing.proofs import journal
from forge_core.testing.proofs.declare import ProofError, Week, function_of

__all__ = [
    "AT_ONCE",
    "TESTS_EACH",
    "Chunk",
    "Result",
    "UnfinishedError",
    "execute",
    "find_sanitizer",
    "threads_of_each",
    "words_of",
]

#: What the sanitizer ends with when it found something; pytest never ends so.
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
_PLACES = ("usr/local/cuda/bin", "usr/local/cuda*/compute-sanitizer", "usr/local/cuda-*/bin")


class UnfinishedError(ProofError):
    """The time was up before a chunk was done."""


class Chunk(msgspec.Struct, frozen=True):
    """A part of a proof that is run as one, and kept when it is done.

    Attributes:
        week: whose.
        kind: ``"tests"``, ``"measure"``, or a tool of compute-sanitizer.
        tests: ids, and names of test functions, that are run; None for all.
        without: ids that are left out, because they passed before an interruption.
        kernels: what is measured; of the kind ``"measure"`` alone.
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
        """Whether a test, by its id, is among them, in whichever part."""
        chosen = self.tests is None or test in self.tests or function_of(test) in self.tests
        return chosen and test not in self.without

    @property
    def name(self) -> str:
        """For people: ``"week1 racecheck"``, ``"week1 racecheck 2/3"``."""
        return f"{self.week} {self.kind}" + (f" {self.part}/{self.parts}" if self.parts > 1 else "")


class Result(msgspec.Struct, frozen=True):
    """What a chunk showed.

    Attributes:
        tests: id -> outcome, reason, launched (kernel -> calls), seconds; of tests and sanitizers.
        measured: kernel -> errors, repeats, launched, problem.
        verdict: the sanitizer's.
        problem: "" or why nothing in it counts.
    """

    tests: dict[str, dict[str, Any]] = {}
    measured: dict[str, dict[str, Any]] = {}
    verdict: str = ""
    problem: str = ""


def find_sanitizer() -> str:
    """Where compute-sanitizer lies.

    Raises:
        ProofError: it is missing.
    """
    folders = [found for place in _PLACES for found in sorted(map(str, Path("/").glob(place)))]
    found = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=os.pathsep.join(folders))
    if found is None:
        raise ProofError("compute-sanitizer is not here; it is part of the CUDA toolkit, and no proof is whole without")
    return found


def words_of(chunk: Chunk, week: Week, out: Path, told: Path, root: Path, *, workers: int) -> list[str]:
    """The command line of a chunk.

    Args:
        chunk: what to run.
        week: its week.
        out: the file that its process writes.
        told: the file that holds the chunk.
        root: the repository's root.
        workers: processes of the tests; the other kinds have one.
    """
    python = [sys.executable, "-m"]
    if chunk.kind == "measure":
        return [*python, "forge_core.testing.proofs.measure", week.name, *chunk.kernels, "--out", str(out)]
    words = [*python, "pytest", "-p", "forge_core.testing.proofs.observe", "--prove-out", str(out)]
    # Other packages' plugins that time or keep things have no place in a proof.
    words += ["--prove-chunk", str(told), "-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:benchmark"]
    # Each process imports and collects what is named here: all of a week's files take longer than some kernels' tests.
    files = sorted({test.partition("::")[0] for test in chunk.tests or ()})
    words += [file for file in files if (root / file).is_file()] or [week.tests]
    if chunk.kind == "tests":
        # A process that is done takes tests from one that is held up by a long one.
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
        week: its week.
        showed: the journal of the chunk's tests.  Those that passed before an interruption are not run again; a
            sanitizer's are, for its verdict is on a whole process.
        root: the repository's root.
        workers: processes of the tests, at most.
        deadline: the ``time.monotonic()`` at which it is ended.

    Raises:
        ProofError: compute-sanitizer is missing.
        UnfinishedError: the deadline came first; what its tests had shown is in the journal.
    """
    workers = min(workers, chunk.workers or workers)
    with tempfile.TemporaryDirectory(prefix="forge-prove-") as folder:
        out, told = Path(folder, "out.json"), Path(folder, "chunk.json")
        variables = {"FORGE_REQUIRE_GPU": "1", **threads_of_each(workers)}
        if chunk.kind == "tests":
            out = showed
            chunk = msgspec.structs.replace(chunk, without=tuple(journal.keep_passed(showed)))
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
        if chunk.kind != "measure":
            shown = journal.outcomes(out)
        else:
            shown = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else None
    return result_of(chunk, status, text, shown)


def threads_of_each(workers: int) -> dict[str, str]:
    """The variables that share the cores among the processes of a proof; what the user has set stays.

    Args:
        workers: processes of the tests, beside which ``AT_ONCE`` others run.
    """
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
    if chunk.kind == "measure":
        known = status in (0, 1)
        return Result(measured=told, problem="" if known else f"it ended with {status}:\n{tail}")
    if chunk.kind == "tests":
        # 0: all passed; 1: some failed, and the results say which; 5: all that there are were left out.
        known = status in (0, 1) or (status == 5 and (chunk.tests is not None or bool(chunk.without)))
        return Result(tests=told, problem="" if known else f"pytest ended with {status}:\n{tail}")
    summaries = _SUMMARY.findall(text)
    verdict = summaries[-1].strip() if summaries else ""
    none_left = (5,) if chunk.tests is not None or chunk.parts > 1 else ()
    if not verdict or status not in (0, 1, FOUND, *none_left):
        return Result(tests=told, problem=f"{chunk.kind} ended with {status} and said {verdict or 'nothing'}:\n{tail}")
    worst = next((said.strip() for said in summaries if not re.match(r"0 (errors|hazards)", said)), verdict)
    if status == FOUND and worst == verdict and re.match(r"0 (errors|hazards)", worst):
        worst = f"ended with {FOUND}, {worst}"
    return Result(tests=told, verdict=worst)
