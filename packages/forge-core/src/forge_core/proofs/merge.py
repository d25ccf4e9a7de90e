"""Makes the proofs of a week's kernels from what its chunks showed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from forge_core.proofs.calls import values
from forge_core.proofs.check import incomplete, plans_digest
from forge_core.proofs.declare import Kernel, Week, function_of, measured
from forge_core.proofs.evidence import Evidence, Launched
from forge_core.proofs.execute import TOOLS, Chunk, Result, worst
from forge_core.proofs.record import Error, Proof, ProofRun, Record, WeekTests

__all__ = ["Outcome", "Task", "covering", "joined", "merge"]

#: How many of the slowest tests are named.
SLOWEST = 8


@dataclass(frozen=True)
class Task:
    """What is to be done for one week.

    Attributes:
        week: the declaration.
        stale: the kernels without a valid proof.
        chunks: what has to run; may be empty.
    """

    week: Week
    stale: frozenset[str]
    chunks: tuple[Chunk, ...]


@dataclass
class Outcome:
    """A record and what a run added to it.

    Attributes:
        record: unsealed.
        kept: kernels that had a valid proof already.
        proven: kernels that were proven now.
        failures: what failed, in words.
        notes: anything else to report.
    """

    record: Record
    kept: list[str] = field(default_factory=list)
    proven: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def joined(results: Mapping[Chunk, Result]) -> dict[str, Result]:
    """The results of a week's chunks by kind: the parts of a sanitizer are one result with the worst verdict."""
    kinds: dict[str, list[Result]] = {}
    for chunk, result in results.items():
        kinds.setdefault(chunk.kind, []).append(result)
    return {
        kind: Result(
            tests={test: told for part in parts for test, told in part.tests.items()},
            verdict=worst([part.verdict for part in parts if part.verdict]),
            problem="\n".join(part.problem for part in parts if part.problem),
        )
        for kind, parts in kinds.items()
    }


def merge(outcome: Outcome, task: Task, shown: Mapping[str, Result], run: ProofRun, evidence: Evidence) -> None:
    """Adds what was shown of one week to a record; its other weeks stay.

    Args:
        outcome: the record, and the findings so far.
        task: the week and its stale kernels.
        shown: results by kind of chunk.
        run: when and where.
        evidence: of this checkout.
    """
    week, record = task.week, outcome.record
    failed = [(kind, test, told) for kind, result in shown.items() for test, told in result.ended("failed").items()]
    outcome.failures += [f"{week.name} {kind}: {result.problem}" for kind, result in shown.items() if result.problem]
    outcome.failures += [f"{week.name} {kind}: {test} failed: {told['reason']}" for kind, test, told in failed]
    guilty = {name for *_, told in failed for name in told["launched"]}
    # A failure that launched nothing here may be the fault of any kernel.
    unclear = any(result.problem for result in shown.values()) or any(not told["launched"] for *_, told in failed)
    own = {kernel.name for kernel in week.kernels}
    kept = [
        proof
        for proof in record.proofs
        if proof.week != week.name or (proof.name in own - task.stale and proof.name not in guilty)
    ]
    if unclear:
        outcome.failures += [
            f"{name}: not proven, for what failed above may be its fault" for name in sorted(task.stale)
        ]
    elif task.stale:
        proofs, notes = _proofs(task, shown, run, evidence, record)
        outcome.notes += notes
        for proof in proofs:
            lacking = "a test that launches it failed" if proof.name in guilty else "; ".join(incomplete(proof))
            if lacking:
                outcome.failures.append(f"{proof.name}: {lacking}")
            else:
                kept.append(proof)
                outcome.proven.append(proof.name)
    weeks = dict(record.weeks)
    if "tests" in shown:
        outcome.notes += _slowest(week, shown["tests"])
    if "tests" in shown and not unclear:
        weeks[week.name] = tests = _tests(task, shown["tests"], record.weeks.get(week.name), evidence.tests(week))
        kept = [_with_tests(proof, tests, shown["tests"]) if proof.week == week.name else proof for proof in kept]
    outcome.record = msgspec.structs.replace(record, weeks=weeks, proofs=kept)


def _slowest(week: Week, result: Result) -> list[str]:
    """How long the tests took in all, and the slowest of them, which decide how long a proof takes."""
    took = {test: told.get("seconds", 0.0) for test, told in result.tests.items()}
    if not any(took.values()):
        return []
    most = sorted(took, key=took.__getitem__, reverse=True)[:SLOWEST]
    named = ", ".join(f"{test.rpartition('/')[2]} {took[test]:.0f} s" for test in most)
    return [f"{week.name}: its tests took {sum(took.values()):.0f} s in all processes; the slowest: {named}"]


def _tests(task: Task, result: Result, known: WeekTests | None, digests: dict[str, str]) -> WeekTests:
    """The week's tests: those that did not run again, and those that passed or were skipped now."""
    chunk = next(chunk for chunk in task.chunks if chunk.kind == "tests")
    passed = set(result.ended("passed"))
    skipped = {test: told["reason"] for test, told in result.ended("skipped").items()}
    if known is not None and chunk.tests is not None:
        passed |= {test for test in known.tests if function_of(test) in digests and not chunk.runs(test)}
        skipped |= {test: reason for test, reason in known.skipped.items() if not chunk.runs(test)}
    failed = set(map(function_of, result.ended("failed")))
    told = {name: digest for name, digest in digests.items() if name not in failed}
    return WeekTests(sorted(passed), told, dict(sorted(skipped.items())))


def _with_tests(proof: Proof, tests: WeekTests, ran: Result) -> Proof:
    """A proof that stays, with the tests that still exist and those that launched its kernel now."""
    there = set(proof.tests) & {*tests.tests, measured(proof.name)}
    now = {test for test in tests.tests if proof.name in ran.tests.get(test, {"launched": {}})["launched"]}
    return msgspec.structs.replace(proof, tests=sorted(there | now)).sealed()


def _proofs(
    task: Task, shown: Mapping[str, Result], run: ProofRun, evidence: Evidence, record: Record
) -> tuple[list[Proof], list[str]]:
    """The proofs of a week's stale kernels, complete or not, and notes on calls that do not count."""
    week, tests, measurements = task.week, shown["tests"].tests, shown["measure"].tests
    stale = {kernel.name: kernel for kernel in week.kernels if kernel.name in task.stale}
    ran: dict[str, dict[str, str]] = {name: {} for name in sorted(stale)}
    for told in (*tests.values(), *measurements.values()):
        for name in set(told["launched"]) & set(ran):
            ran[name] |= told["launched"][name]
    planned = evidence.launches(((stale[name].operator, call) for name in ran for call in ran[name]), record.device)
    launched: dict[str, dict[str, Launched]] = {}
    notes = []
    for name, own in ran.items():
        here = {call: planned[stale[name].operator, call] for call in sorted(own)}
        launched[name] = {call: each for call, each in here.items() if each.run == own[call]}
        others = sorted(set(own) - set(launched[name]))
        if others:
            notes.append(
                f"{name}: {len(others)} of {len(own)} calls were launched otherwise than they are planned here, and "
                f"do not count (a test that patches the plan): {others[0]}"
            )
    compiled = {
        name: {call: (own[call].builder, own[call].config) for call in covering(own)} for name, own in launched.items()
    }
    kernels = {kernel for own in compiled.values() for kernel in own.values()}
    code = evidence.code(sorted(kernels, key=repr), record.device.arch)
    fingerprints, declarations = evidence.fingerprints(week), evidence.declarations(week)
    proofs = []
    for name, kernel in sorted(stale.items()):
        found: dict[str, Any] = measurements.get(measured(name), {"errors": {}, "repeats": 0})
        passed = {test for test, told in shown["tests"].ended("passed").items() if name in told["launched"]}
        proof = Proof(
            operator=kernel.operator,
            variant=kernel.variant,
            week=week.name,
            run=run,
            calls=list(launched[name]),
            plans=plans_digest(launched[name]),
            code={call: code[each] for call, each in compiled[name].items()},
            declaration=declarations[name],
            fingerprint=fingerprints[name],
            tests=sorted(passed | ({measured(name)} if found["errors"] else set())),
            errors={dtype: Error(*figures) for dtype, figures in sorted(found["errors"].items())},
            repeats=found["repeats"],
            sanitizers=_verdicts(week, kernel, shown),
        )
        proofs.append(proof.sealed())
    return proofs, notes


def _verdicts(week: Week, kernel: Kernel, shown: Mapping[str, Result]) -> dict[str, str]:
    """Each tool's verdict on the kernel, or on another one of its builder, which is then named; else none."""
    same = {other.name for other in week.kernels if other.builder == kernel.builder}
    verdicts = {}
    for tool in TOOLS:
        seen = sorted(same & {name for told in shown[tool].ended("passed").values() for name in told["launched"]})
        if seen:
            verdict = shown[tool].verdict
            verdicts[tool] = verdict if kernel.name in seen else f"{verdict} (seen as {seen[0]})"
    return verdicts


def covering(launched: Mapping[str, Launched]) -> list[str]:
    """Calls whose configurations together have every value of every field, as few as a greedy choice finds.

    A kernel's code branches on fields of its configuration.  Integers from 32 on count as equal within a power of two:
    33 to 64, 65 to 128, and so on.
    """
    first: dict[tuple[str, Any], str] = {}
    for call, each in launched.items():
        first.setdefault((each.builder, each.config), call)
    features = {call: set(_features((builder,), values(config))) for (builder, config), call in first.items()}
    chosen = []
    left = set().union(*features.values())
    while left:
        best = max(features, key=lambda call: len(features[call] & left))
        chosen.append(best)
        left -= features[best]
    return sorted(chosen)


def _features(path: tuple[Any, ...], value: Any) -> Iterable[tuple[Any, ...]]:
    if isinstance(value, list):
        yield (*path, "length", len(value))
        for i, item in enumerate(value):
            yield from _features((*path, i), item)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield (*path, value if value <= 32 else -(value - 1).bit_length() - 64)
    else:
        yield (*path, str(value))
