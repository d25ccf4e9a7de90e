"""Validates kernels on a GPU: which chunks are needed, running them, and writing the record.

    the checkout --- valid proof? --- yes: kept as it is
                          `---------- no: the kernel is stale
    a week with stale kernels:  the tests that launch one of them, and new and changed ones; measure; memcheck, ...

    one after the other   | week0 tests | week1 tests | week2 tests             by several processes each
    beside them           | week0 memcheck 1/3 | week0 measure    ...           a process each, some at once
                          | week0 memcheck 2/3     | week1 memcheck ...

A kernel of which anything failed loses its proof.  Results are kept after each chunk, and of tests after each test, so
that an interrupted run continues where it was; failures are not kept.  The record is written when a week is complete.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

import msgspec

from forge_core.bench.environment import Environment
from forge_core.device import Device
from forge_core.files import write_atomically
from forge_core.progress import progress
from forge_core.proofs.check import differences, incomplete, incredible, tests_to_run
from forge_core.proofs.declare import ProofError, Week, digest_of, function_of
from forge_core.proofs.definitions import sanitizer_tests
from forge_core.proofs.evidence import Evidence
from forge_core.proofs.execute import AT_ONCE, TESTS_EACH, TOOLS, Chunk, Result
from forge_core.proofs.merge import Outcome, Task, joined, merge
from forge_core.proofs.record import ProofRun, Record, load, path_of

__all__ = ["prove", "tasks_of"]

#: Runs a chunk and appends its tests to the journal as they end.
Execute = Callable[[Chunk, Week, Path], Result]

#: Seconds between two looks at how many tests have ended.
LOOK = 2.0


class State:
    """Results of an unfinished run, by chunk: ``FOLDER/KEY/CHUNK.json``, and the journal of its tests beside it.

    Args:
        folder: where; it holds nothing else.
        key: the digest of all that a result depends on: sources, tests, GPU, versions.  Others' results are deleted.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self._all, self._own = folder, folder / key[:16]
        for other in set(folder.glob("*")) - {self._own}:
            if other.is_dir():
                shutil.rmtree(other)
            else:
                other.unlink()

    def _path(self, chunk: Chunk, suffix: str) -> Path:
        return self._own / f"{digest_of(msgspec.to_builtins(chunk))[:16]}{suffix}"

    def get(self, chunk: Chunk) -> Result | None:
        """The result of a chunk before the interruption; None where there is none that can be read."""
        try:
            return msgspec.json.decode(self._path(chunk, ".json").read_bytes(), type=Result)
        except (OSError, msgspec.MsgspecError):
            return None

    def put(self, chunk: Chunk, result: Result) -> None:
        """Keeps the result of a chunk."""
        write_atomically(self._path(chunk, ".json"), msgspec.json.encode(result).decode())

    def journal(self, chunk: Chunk) -> Path:
        """The journal of a chunk's tests."""
        return self._path(chunk, ".jsonl")

    def finished(self) -> None:
        """Deletes all results: the record has them."""
        shutil.rmtree(self._all, ignore_errors=True)


def tasks_of(
    weeks: Sequence[Week], record: Record, evidence: Evidence, *, everything: bool, gpus: int = 1
) -> list[Task]:
    """What is to be done for each week, to validate stale kernels or everything.

    Where this machine has several ``gpus``, tests that were skipped for lack of one run, too.
    """
    before = Record(record.gpu, record.device, {}, []) if everything else record
    differing = differences(weeks, before, evidence)
    tasks = []
    for week in weeks:
        known = before.weeks.get(week.name)
        proofs = {proof.name: proof for proof in before.proofs if proof.week == week.name}
        stale = frozenset(
            kernel.name
            for kernel in week.kernels
            if kernel.name not in proofs or differing[kernel.name] or incomplete(proofs[kernel.name])
        )
        # A kernel without a proof may be launched by any test.
        fresh = known is None or any(name not in proofs for name in stale)
        digests = evidence.tests(week)
        changed = set(tests_to_run(known, digests))
        again = changed | {test for name in stale & set(proofs) for test in proofs[name].tests}
        gone = set(proofs) - {kernel.name for kernel in week.kernels}
        if known is not None:
            gone |= set(known.digests) - set(digests)
            again |= {test for test, reason in known.skipped.items() if gpus > 1 and "GPUs are needed" in reason}
        builders = {k.builder for k in week.kernels if k.name in stale}
        related = [proofs[k.name] for k in week.kernels if k.builder in builders and k.name in proofs]
        chunks = []
        if stale or again or gone:
            # The number of tests of a changed function is not known, so these have all processes.
            workers = 0 if fresh or changed else max(1, -(-len(again) // TESTS_EACH))
            chunks.append(Chunk(week.name, "tests", None if fresh else tuple(sorted(again)), workers=workers))
        if stale:
            # A changed test may launch whatever is stale.
            sanitized = changed & sanitizer_tests(evidence.root, week.tests)
            chosen = None if fresh else tuple(sorted(sanitized.union(*(proof.tests for proof in related))))
            parts = _parts(week, record, evidence, chosen)
            chunks += [
                Chunk(week.name, tool, chosen, part=part, parts=parts) for tool in TOOLS for part in range(1, parts + 1)
            ]
            chunks.append(Chunk(week.name, "measure", kernels=tuple(sorted(stale))))
        tasks.append(Task(week, stale, tuple(chunks)))
    return tasks


def _parts(week: Week, record: Record, evidence: Evidence, chosen: Sequence[str] | None) -> int:
    """How many processes each sanitizer has: those of all tools run at once, and each has enough tests.

    Their number is estimated from the tests on record; pytest selects each part's tests from those that exist.
    """
    known = record.weeks.get(week.name)
    functions = sanitizer_tests(evidence.root, week.tests)
    tests = (known.tests if known is not None else ()) if chosen is None else chosen
    count = sum(function_of(test) in functions for test in tests)
    return max(1, min(count // TESTS_EACH, AT_ONCE // len(TOOLS)))


def prove(
    weeks: Sequence[Week],
    execute: Execute,
    environment: Environment,
    device: Device,
    evidence: Evidence,
    *,
    records: Path,
    state: Path,
    date: str,
    everything: bool = False,
    gpus: int = 1,
) -> Outcome:
    """Validates the kernels without a valid proof, or all, and writes the record.

    Args:
        weeks: the declarations.
        execute: runs a chunk.
        environment: of this machine and checkout.
        device: the specification of its GPU.
        evidence: of this checkout.
        records: the folder of records.
        state: the folder for results of an unfinished run.
        date: UTC, ISO 8601.
        everything: also repeat what has a valid proof.
        gpus: how many GPUs this machine has.

    Raises:
        ProofError: there is no GPU, the checkout is dirty, or the existing record was edited.
        UnfinishedError: the time limit was reached; the same call continues where this one was.
    """
    if environment.device != "cuda":
        raise ProofError("a proof is made on a GPU, and there is none here")
    if environment.dirty:
        raise ProofError("the checkout has changes that are not committed: commit them, then prove")
    path = path_of(records, environment.gpu)
    record = _before(path, environment.gpu, device, everything=everything)
    tasks = tasks_of(weeks, record, evidence, everything=everything, gpus=gpus)
    outcome = Outcome(record, kept=[k.name for task in tasks for k in task.week.kernels if k.name not in task.stale])
    if not any(task.chunks for task in tasks):
        return outcome
    here = [[evidence.fingerprints(w), evidence.declarations(w), evidence.tests(w)] for w in weeks]
    kept = State(state, digest_of([msgspec.to_builtins(environment), here, everything, gpus]))

    def complete(task: Task, shown: dict[str, Result]) -> None:
        merge(outcome, task, shown, ProofRun(date, environment), evidence)
        write_atomically(path, outcome.record.sealed().dumps())

    _run([task for task in tasks if task.chunks], execute, kept, complete)
    if not outcome.failures:
        kept.finished()
    return outcome


def _before(path: Path, gpu: str, device: Device, *, everything: bool) -> Record:
    """The existing record; an empty one where it is not valid and everything is repeated."""
    empty = Record(gpu, device, {}, [])
    if not path.is_file():
        return empty
    try:
        record = load(path)
    except ProofError:
        if everything:
            return empty
        raise
    wrong = incredible(path.parent.name, record)
    if wrong and not everything:
        raise ProofError("\n".join(["the record that is there cannot be added to:", *map(str, wrong)]))
    return empty if wrong else msgspec.structs.replace(record, device=device)


def _run(
    tasks: Sequence[Task], execute: Execute, state: State, complete: Callable[[Task, dict[str, Result]], None]
) -> None:
    """Runs the chunks of which the state has no result: tests one after the other, everything else beside them.

    Tests wait for their processors and a sanitizer mostly for itself, so side by side they take less time.  A week is
    completed as soon as it has all results, so that an interruption leaves a record of it.
    """
    own = {task.week.name: task for task in tasks}
    shown: dict[str, dict[Chunk, Result]] = {name: {} for name in own}
    with progress(sum(len(task.chunks) for task in tasks)) as done:

        def take(chunk: Chunk, result: Result, note: str = "") -> None:
            results = shown[chunk.week]
            results[chunk] = result
            done(f"{chunk.name}: {result}{note}")
            if len(results) == len(own[chunk.week].chunks):
                complete(own[chunk.week], joined(results))

        waiting = []
        for chunk in (chunk for task in tasks for chunk in task.chunks):
            found = state.get(chunk)
            if found is None:
                waiting.append(chunk)
            else:
                take(chunk, found, ", before the interruption")
        beside = ThreadPoolExecutor(max(1, min(AT_ONCE, 2 * (os.cpu_count() or 1) // 3)))
        in_turn = ThreadPoolExecutor(1)
        try:
            futures: dict[Future[Result], Chunk] = {}
            for chunk in waiting:
                pool = in_turn if chunk.kind == "tests" else beside
                futures[pool.submit(execute, chunk, own[chunk.week].week, state.journal(chunk))] = chunk
            while futures:
                ended, _ = wait(futures, timeout=LOOK, return_when=FIRST_COMPLETED)
                # Results are kept before the exception of an interruption is raised.
                for future in sorted(ended, key=lambda each: each.exception() is not None):
                    result, chunk = future.result(), futures.pop(future)
                    if result.good:
                        state.put(chunk, result)
                    take(chunk, result)
                running = [_under_way(chunk, state) for future, chunk in futures.items() if future.running()]
                if running:
                    done.note(f"running: {', '.join(running)}")
        finally:
            # An interruption must not wait for chunks that have not begun, in either pool.
            for wait_for_running in (False, True):
                in_turn.shutdown(wait=wait_for_running, cancel_futures=True)
                beside.shutdown(wait=wait_for_running, cancel_futures=True)


def _under_way(chunk: Chunk, state: State) -> str:
    """A running chunk and how many of its tests have ended."""
    journal = state.journal(chunk)
    ended = len(journal.read_text(encoding="utf-8").splitlines()) if journal.is_file() else 0
    return f"{chunk.name} ({ended} ended)" if ended else chunk.name
