"""Proving: which chunks are needed, and the record of what they showed.

    what lies here --- proof of the same? --- yes: kept as it is
                          `--- no: the kernel is stale
    a week with stale kernels:  the tests that launch one of them, and new and changed ones; measure; memcheck, ...

    one after the other   | week0 tests | week1 tests | week2 tests             by several processes each
    beside them           | week0 memcheck 1/3 | week0 measure    ...           a process each, some at once
                          | week0 memcheck 2/3     | week1 memcheck ...

A kernel of which anything failed loses its proof.  What was shown is kept (``state``) after each chunk, and of tests
after each test, so that an interrupted run goes on where it was; what failed is not kept, and runs again.  The record
is written when a week is whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue

import msgspec

from forge_core.bench.environment import Environment
from forge_core.device import Device
from forge_core.files import write_atomically
from forge_core.progress import progress
from forge_core.testing.proofs.check import TOOLS, clean, differences, incomplete, incredible, tests_to_run
from forge_core.testing.proofs.declare import ProofError, Week, digest_of, function_of
from forge_core.testing.proofs.evidence import Evidence
from forge_core.testing.proofs.execute import AT_ONCE, TESTS_EACH, Chunk, Result
from forge_core.testing.proofs.merge import Task, joined, merged
from forge_core.testing.proofs.record import FILE, ProofRun, Record, folder_of, load
from forge_core.testing.proofs.state import State

__all__ = ["Outcome", "prove", "tasks_of", "whole"]

#: Runs a chunk, whose tests it notes in the file as they end.
Execute = Callable[[Chunk, Week, Path], Result]

#: Seconds after which it is looked how far the tests are.
LOOK = 2.0


@dataclass
class Outcome:
    """What a run came to.

    Attributes:
        path: the record.
        proven: kernels that were proven now.
        kept: kernels that had a proof already.
        failures: what failed, in words.
        notes: what else there is to say.
    """

    path: Path
    proven: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def tasks_of(
    weeks: Sequence[Week], record: Record, evidence: Evidence, *, everything: bool, gpus: int = 1
) -> list[Task]:
    """What is to be done for each week; no chunks where nothing is.

    Args:
        weeks: what there is to prove.
        record: what is proven.
        evidence: what lies here.
        everything: whether what has a proof is proven anew.
        gpus: how many this machine has; tests that were skipped for want of one run where there are several.
    """
    differing = {} if everything else differences(weeks, record, evidence)
    tasks = []
    for week in weeks:
        known = None if everything else record.weeks.get(week.name)
        proofs = {} if everything else {p.name: p for p in record.proofs if p.week == week.name}
        lacking = {n: [differing[n], *incomplete(p)] for n, p in proofs.items() if n in differing}
        stale = frozenset(k.name for k in week.kernels if any(lacking.get(k.name, ["there is no proof"])))
        # A kernel that has no proof yet may be launched by any test.
        fresh = known is None or any(name not in proofs for name in stale)
        again = {test for name in stale & set(proofs) for test in proofs[name].tests}
        changed = set(tests_to_run(known, evidence.tests(week)))
        again |= changed
        if known is not None and gpus > 1:
            again |= {test for test, reason in known.skipped.items() if "GPUs are needed" in reason}
        gone = known is not None and set(known.digests) - set(evidence.tests(week))
        gone = gone or set(proofs) - {kernel.name for kernel in week.kernels}
        builders = {k.builder for k in week.kernels if k.name in stale}
        sanitized = {
            t for k in week.kernels if k.builder in builders and k.name in proofs for t in proofs[k.name].tests
        }
        chunks = []
        if stale or again or gone:
            # How many tests a changed function has is not known, so these have all processes.
            workers = 0 if fresh or changed else max(1, -(-len(again) // TESTS_EACH))
            chunks.append(Chunk(week.name, "tests", None if fresh else tuple(sorted(again)), workers=workers))
        if stale:
            chosen = None if fresh else tuple(sorted(sanitized))
            parts = _parts(week, record, evidence, chosen)
            chunks += [
                Chunk(week.name, tool, chosen, part=part, parts=parts) for tool in TOOLS for part in range(1, parts + 1)
            ]
            chunks.append(Chunk(week.name, "measure", kernels=tuple(sorted(stale))))
        tasks.append(Task(week, stale, tuple(chunks)))
    return tasks


def _parts(week: Week, record: Record, evidence: Evidence, chosen: Sequence[str] | None) -> int:
    """How many processes each sanitizer has: those of all tools run at once, and each has tests enough.

    Their number is that of the tests on record; which tests a part has, pytest decides by those that there are.
    """
    known = record.weeks.get(week.name)
    functions = evidence.sanitizer_tests(week)
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
    """Proves what has no proof, or everything, and writes the record.

    Args:
        weeks: what there is to prove.
        execute: runs a chunk.
        environment: of this machine and checkout.
        device: its GPU's specification.
        evidence: what lies here.
        records: the folder of records.
        state: the file that an interrupted run is taken up from.
        date: UTC, ISO 8601.
        everything: whether what has a proof is proven anew.
        gpus: how many GPUs there are.

    Raises:
        ProofError: there is no GPU, the checkout is dirty, or the record that is there was changed by hand.
        UnfinishedError: the time was up; the same call goes on where this one was.
    """
    if environment.device != "cuda":
        raise ProofError("a proof is made on a GPU, and there is none here")
    if environment.dirty:
        raise ProofError("the checkout has changes that are not committed: commit them, then prove")
    path = records / folder_of(environment.gpu) / FILE
    record = _before(path, environment.gpu, device, everything=everything)
    tasks = tasks_of(weeks, record, evidence, everything=everything, gpus=gpus)
    outcome = Outcome(path, kept=[k.name for task in tasks for k in task.week.kernels if k.name not in task.stale])
    if not any(task.chunks for task in tasks):
        return outcome
    here = [[evidence.fingerprints(w), evidence.declarations(w), evidence.tests(w)] for w in weeks]
    kept = State(state, digest_of([msgspec.to_builtins(environment), here, everything, gpus]))
    made = ProofRun(date, environment)

    def complete(task: Task, shown: dict[str, Result]) -> None:
        nonlocal record
        found = merged(record, task, shown, made, evidence)
        record = found.record
        outcome.proven += found.proven
        outcome.failures += found.failures
        outcome.notes += found.notes
        write_atomically(path, record.sealed().dumps())

    _run([task for task in tasks if task.chunks], execute, kept, complete)
    if not outcome.failures:
        kept.finished()
    return outcome


def _before(path: Path, gpu: str, device: Device, *, everything: bool) -> Record:
    """What is there already; nothing where it cannot be believed and everything is proven anew."""
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
    """Runs the chunks that the state does not have: sanitizers side by side, beside the tests.

    Tests wait for their processors, and a sanitizer is one process that mostly waits for itself: side by side they
    take less time than one after the other.  A week is completed as soon as it has all of its results, so that what
    ends the process leaves a record of it.
    """
    own = {task.week.name: task for task in tasks}
    shown: dict[str, dict[Chunk, Result]] = {name: {} for name in own}
    with progress(sum(len(task.chunks) for task in tasks)) as done:

        def take(chunk: Chunk, result: Result, note: str = "") -> None:
            results = shown[chunk.week]
            results[chunk] = result
            done(f"{chunk.name}: {told_of(result)}{note}")
            if len(results) == len(own[chunk.week].chunks):
                complete(own[chunk.week], joined(results))

        def keep(chunk: Chunk, result: Result) -> None:
            if whole(result):
                state.put(chunk, result)
            take(chunk, result)

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
            futures, ended = {}, SimpleQueue[Future[Result]]()
            for chunk in waiting:
                pool = in_turn if chunk.kind == "tests" else beside
                future = pool.submit(execute, chunk, own[chunk.week].week, state.journal(chunk))
                futures[future] = chunk
                # In the order in which they end: what was shown before an interruption is kept before it is raised.
                future.add_done_callback(ended.put)
            for _ in waiting:
                future = _next(ended, lambda: done.note(_under_way(futures, state)))
                keep(futures[future], future.result())
        finally:
            # An interruption must not wait for what has not begun, in either of them.
            for wait in (False, True):
                in_turn.shutdown(wait=wait, cancel_futures=True)
                beside.shutdown(wait=wait, cancel_futures=True)


def _next(ended: SimpleQueue[Future[Result]], meanwhile: Callable[[], None]) -> Future[Result]:
    """The next chunk that ends; something is called in the meantime, over and over."""
    while True:
        try:
            return ended.get(timeout=LOOK)
        except Empty:
            meanwhile()


def _under_way(futures: Mapping[Future[Result], Chunk], state: State) -> str:
    """The chunks that run, and how many tests of theirs have ended."""
    words = []
    for future, chunk in futures.items():
        if future.running():
            noted = state.journal(chunk)
            ended = len(noted.read_text(encoding="utf-8").splitlines()) if noted.is_file() else 0
            words.append(f"{chunk.name} ({ended} ended)" if ended else chunk.name)
    return f"running: {', '.join(words)}"


def told_of(result: Result) -> str:
    """What a chunk showed, in a few words."""
    if result.problem:
        return f"broke, {result.problem.splitlines()[0]}"
    outcomes = [told["outcome"] for told in result.tests.values()]
    wrong = [name for name, told in result.measured.items() if told["problem"]]
    words = [f"{outcomes.count(kind)} {kind}" for kind in ("passed", "failed", "skipped") if kind in outcomes]
    words += [f"{len(result.measured) - len(wrong)} kernels right, {len(wrong)} wrong"] if result.measured else []
    return ", ".join([*words, *([result.verdict] if result.verdict else [])]) or "nothing to run"


def whole(result: Result) -> bool:
    """Whether a result needs no second run: nothing in it failed."""
    failed = any(told["outcome"] == "failed" for told in result.tests.values())
    wrong = any(told["problem"] for told in result.measured.values())
    return not (result.problem or failed or wrong or (result.verdict and not clean(result.verdict)))
