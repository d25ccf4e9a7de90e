"""Validates kernels on a GPU: which chunks are needed, running them, resuming after an interruption.

A kernel without a valid proof is stale.  A week with stale kernels needs the tests that launch one of them, and new and
changed ones; the measurement; each sanitizer.

    one after the other   | week0 tests | week1 tests | week2 tests             several processes each
    beside them           | week0 memcheck 1/3 | week0 measure    ...           one process each, several at once
                          | week0 memcheck 2/3     | week1 memcheck ...

A kernel of which anything failed loses its proof.  Results are kept after each chunk, and of tests after each test;
failures are not kept.  The record is written when a week is complete.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

import msgspec

from forge_core.device import Device
from forge_core.files import write_atomically
from forge_core.progress import progress
from forge_core.proofs.check import FEW_GPUS, differences, load_intact, other_tests
from forge_core.proofs.chunks import AT_ONCE, TESTS_EACH, TOOLS, Chunk, Result
from forge_core.proofs.declare import ProofError, Week, digest_of, function_of, measured
from forge_core.proofs.evidence import Evidence
from forge_core.proofs.merge import Outcome, Task, merge
from forge_core.proofs.record import ProofRun, Record, path_of

#: Runs a chunk and appends its tests to the journal as they end.
Execute = Callable[[Chunk, Week, Path], Result]

#: Seconds between two looks at how many tests have ended.
LOOK = 2.0


def _tasks(weeks: Sequence[Week], record: Record, evidence: Evidence, *, everything: bool, gpus: int) -> list[Task]:
    """What has to run for each week; with several ``gpus`` also tests that were skipped for lack of them."""
    before = Record(record.gpu, record.device) if everything else record
    differing = differences(weeks, before, evidence)
    tasks = []
    for week in weeks:
        known, digests = before.tests_of(week.name), evidence.tests(week)
        proofs = {proof.name: proof for proof in before.proofs if proof.week == week.name}
        stale = frozenset(kernel.name for kernel in week.kernels if differing[kernel.name])
        new, changed, gone = other_tests(known, digests).values()
        again = new | changed | {test for name in stale & set(proofs) for test in proofs[name].tests}
        if gpus > 1:
            again |= {test for test, reason in known.skipped.items() if FEW_GPUS in reason}
        sanitized = set(evidence.tests(week, "sanitizer"))
        # A changed test may launch whatever is stale; a sanitizer's verdict holds for all kernels of a builder.
        builders = {kernel.builder for kernel in week.kernels if kernel.name in stale}
        same = [proofs[k.name] for k in week.kernels if k.builder in builders and k.name in proofs]
        under_tools = (sanitized & (new | changed)).union(*(proof.tests for proof in same))
        # Any test may launch a kernel without a proof.
        whole = not stale <= set(proofs)
        chunks = []
        if stale or again or gone or set(proofs) - {kernel.name for kernel in week.kernels}:
            # How many tests a new or changed function has is not known: these get all workers.
            workers = 0 if whole or new or changed else max(1, -(-len(again) // TESTS_EACH))
            chunks.append(Chunk(week.name, "tests", None if whole else tuple(sorted(again)), workers=workers))
        if stale:
            # As many parts as run at once and have enough tests, by the tests on record.
            on_record = record.tests_of(week.name).tests if whole else under_tools
            count = sum(function_of(test) in sanitized for test in on_record)
            parts = max(1, min(count // TESTS_EACH, AT_ONCE // len(TOOLS)))
            chosen = None if whole else tuple(sorted(under_tools))
            chunks += [
                Chunk(week.name, tool, chosen, part=part, parts=parts) for tool in TOOLS for part in range(1, parts + 1)
            ]
            chunks.append(Chunk(week.name, "measure", tuple(map(measured, sorted(stale)))))
        tasks.append(Task(week, stale, tuple(chunks)))
    return tasks


def prove(
    weeks: Sequence[Week],
    execute: Execute,
    run: ProofRun,
    device: Device,
    evidence: Evidence,
    *,
    records: Path,
    state: Path,
    everything: bool = False,
    gpus: int = 1,
) -> Outcome:
    """Validates the kernels without a valid proof, or ``everything``, and writes the record.

    The folder ``state`` keeps results of an unfinished run; those of another are deleted.

    Raises:
        ProofError: the checkout has uncommitted changes, the existing record was edited, or the time limit was
            reached: then the same call continues from there.
    """
    environment = run.environment
    if environment.dirty:
        raise ProofError("the checkout has changes that are not committed: commit them, then prove")
    path = path_of(records, environment.gpu)
    record = _before(path, environment.gpu, device, everything=everything)
    tasks = _tasks(weeks, record, evidence, everything=everything, gpus=gpus)
    outcome = Outcome(record, kept=[k.name for task in tasks for k in task.week.kernels if k.name not in task.stale])
    if not any(task.chunks for task in tasks):
        return outcome
    # All that a result depends on: sources, tests, GPU, versions.
    here = [[evidence.fingerprints(w), evidence.declarations(w), evidence.tests(w)] for w in weeks]
    kept = state / digest_of([msgspec.to_builtins(environment), here, everything, gpus])[:16]
    for other in set(state.glob("*")) - {kept}:
        shutil.rmtree(other, ignore_errors=True)

    def complete(task: Task, shown: dict[str, Result]) -> None:
        merge(outcome, task, shown, run, evidence)
        outcome.record.save(path)

    _run([task for task in tasks if task.chunks], execute, kept, complete)
    if not outcome.failures:
        shutil.rmtree(state, ignore_errors=True)
    return outcome


def _before(path: Path, gpu: str, device: Device, *, everything: bool) -> Record:
    """The existing record; an empty one if there is none, or if it is broken and everything is repeated."""
    if path.is_file():
        try:
            return msgspec.structs.replace(load_intact(path), device=device)
        except ProofError:
            if not everything:
                raise
    return Record(gpu, device)


def _run(
    tasks: Sequence[Task], execute: Execute, kept: Path, complete: Callable[[Task, dict[str, Result]], None]
) -> None:
    """Runs the chunks without a result: tests one after the other, everything else beside them.

    Tests saturate the processors, a sanitizer its own process: beside each other they take less time.  A week is
    completed as soon as it has all results, so that an interruption leaves it on record.  The folder ``kept`` has of
    each chunk a file with its result, and its journal beside it.
    """
    own = {task.week.name: task for task in tasks}
    chunks = [chunk for task in tasks for chunk in task.chunks]
    shown: dict[str, dict[str, Result]] = {name: {} for name in own}
    at_once = max(1, min(AT_ONCE, 2 * (os.cpu_count() or 1) // 3))

    def file_of(chunk: Chunk, suffix: str) -> Path:
        return kept / f"{digest_of(msgspec.to_builtins(chunk))[:16]}{suffix}"

    def result_of(chunk: Chunk) -> Result:
        try:
            return msgspec.json.decode(file_of(chunk, ".json").read_bytes(), type=Result)
        except (OSError, msgspec.MsgspecError):  # It has not run, or its file was cut off.
            return execute(chunk, own[chunk.week].week, file_of(chunk, ".jsonl"))

    def under_way(chunk: Chunk) -> str:
        journal = file_of(chunk, ".jsonl")
        ended = journal.read_bytes().count(b"\n") if journal.is_file() else 0
        return f"{chunk.name} ({ended} ended)" if ended else chunk.name

    with (
        progress(len(chunks)) as done,
        ThreadPoolExecutor(1) as in_turn,
        ThreadPoolExecutor(at_once) as beside,
    ):
        futures: dict[Future[Result], Chunk] = {}
        try:
            for chunk in chunks:
                pool = in_turn if chunk.kind == "tests" else beside
                futures[pool.submit(result_of, chunk)] = chunk
            while futures:
                ended, _ = wait(futures, timeout=LOOK, return_when=FIRST_COMPLETED)
                # Results are kept before the exception of an interruption is raised.
                for future in sorted(ended, key=lambda each: each.exception() is not None):
                    result, chunk = future.result(), futures.pop(future)
                    if result.good:
                        write_atomically(file_of(chunk, ".json"), msgspec.json.encode(result).decode())
                    kinds = shown[chunk.week]
                    kinds[chunk.kind] = kinds.get(chunk.kind, Result()) + result
                    done(f"{chunk.name}: {result}")
                    if all(other.week != chunk.week for other in futures.values()):
                        complete(own[chunk.week], kinds)
                running = [under_way(chunk) for future, chunk in futures.items() if future.running()]
                if running:
                    done.note(f"running: {', '.join(running)}")
        finally:
            for future in futures:  # An interruption waits for no chunk that has not begun.
                future.cancel()
