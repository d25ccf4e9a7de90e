"""Makes the proofs and tests of a week in a record from the results of its chunks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from forge_core.proofs.calls import grouped, values
from forge_core.proofs.check import incomplete, plans_digest
from forge_core.proofs.chunks import TOOLS, Chunk, Result
from forge_core.proofs.declare import Kernel, Week, function_of, measured
from forge_core.proofs.evidence import Evidence, Launched
from forge_core.proofs.record import Error, Proof, ProofRun, Record, WeekTests
from forge_core.testing.inputs import cover

#: The number of slowest tests that are named.
SLOWEST = 8


@dataclass(frozen=True)
class Task:
    """A week, its kernels without a valid proof, and what has to run, if anything."""

    week: Week
    stale: frozenset[str]
    chunks: tuple[Chunk, ...]


@dataclass
class Outcome:
    """A record and what a run added to it."""

    record: Record  # with the weeks that are complete so far
    kept: list[str] = field(default_factory=list)  # names of kernels that had a valid proof already
    proven: list[str] = field(default_factory=list)  # names of kernels that were validated now
    failures: list[str] = field(default_factory=list)  # messages on what failed
    notes: list[str] = field(default_factory=list)  # other messages


def merge(outcome: Outcome, task: Task, shown: Mapping[str, Result], run: ProofRun, evidence: Evidence) -> None:
    """Adds the results of a week, by kind of chunk, to ``outcome``."""
    week, record = task.week, outcome.record
    failed = [(kind, test, how) for kind, result in shown.items() for test, how in result.ended("failed").items()]
    outcome.failures += [f"{week.name} {kind}: {result.problem}" for kind, result in shown.items() if result.problem]
    outcome.failures += [f"{week.name} {kind}: {test} failed: {how['reason']}" for kind, test, how in failed]
    failing = {name for *_, how in failed for name in how["launched"]}
    # Any kernel may have caused a failure that launched none.
    unclear = any(result.problem for result in shown.values()) or any(not how["launched"] for *_, how in failed)
    valid = {kernel.name for kernel in week.kernels} - task.stale - failing
    proofs = [proof for proof in record.proofs if proof.week != week.name or proof.name in valid]
    if unclear:
        outcome.failures += [f"{name}: not proven, what failed above may be its fault" for name in sorted(task.stale)]
    else:
        for proof in _proofs(task, shown, run, evidence, outcome) if task.stale else ():
            lacking = "a test that launches it failed" if proof.name in failing else "; ".join(incomplete(proof))
            if lacking:
                outcome.failures.append(f"{proof.name}: {lacking}")
            else:
                proofs.append(proof)
                outcome.proven.append(proof.name)
        tests = _tests(task, shown["tests"], record.tests_of(week.name), evidence.tests(week))
        record = msgspec.structs.replace(record, weeks={**record.weeks, week.name: tests})
        proofs = [_with_tests(each, tests, shown["tests"]) if each.week == week.name else each for each in proofs]
    outcome.notes += _slowest(week, shown["tests"])
    outcome.record = record.with_proofs(proofs)


def _slowest(week: Week, result: Result) -> list[str]:
    """A note on the total time of the tests and the slowest of them."""
    took = {test: shown.get("seconds", 0.0) for test, shown in result.tests.items()}
    if not any(took.values()):
        return []
    most = sorted(took, key=took.__getitem__, reverse=True)[:SLOWEST]
    named = ", ".join(f"{test.rpartition('/')[2]} {took[test]:.0f} s" for test in most)
    return [f"{week.name}: its tests took {sum(took.values()):.0f} s in all processes; the slowest: {named}"]


def _tests(task: Task, result: Result, known: WeekTests, digests: dict[str, str]) -> WeekTests:
    """The week's tests: those that passed or were skipped now, and those that did not run again."""
    chunk = next(chunk for chunk in task.chunks if chunk.kind == "tests")
    passed = set(result.ended("passed"))
    skipped = {test: shown["reason"] for test, shown in result.ended("skipped").items()}
    if chunk.tests is not None:
        passed |= {test for test in known.tests if function_of(test) in digests and not chunk.runs(test)}
        skipped |= {test: reason for test, reason in known.skipped.items() if not chunk.runs(test)}
    failed = set(map(function_of, result.ended("failed")))
    ran = {name: digest for name, digest in digests.items() if name not in failed}
    return WeekTests(sorted(passed), ran, dict(sorted(skipped.items())))


def _with_tests(proof: Proof, tests: WeekTests, ran: Result) -> Proof:
    """A proof with its tests that still exist and those that launched its kernel now."""
    there = set(proof.tests) & {*tests.tests, measured(proof.name)}
    now = {test for test in tests.tests if proof.name in ran.tests.get(test, {"launched": {}})["launched"]}
    return msgspec.structs.replace(proof, tests=sorted(there | now)).sealed()


def _proofs(
    task: Task, shown: Mapping[str, Result], run: ProofRun, evidence: Evidence, outcome: Outcome
) -> list[Proof]:
    """The proofs of a week's stale kernels, complete or not, of the calls that launched what is planned here."""
    week, device, measurements = task.week, outcome.record.device, shown["measure"].tests
    stale = [kernel for kernel in week.kernels if kernel.name in task.stale]
    ran: dict[str, dict[str, str]] = {kernel.name: {} for kernel in stale}
    for how in (*shown["tests"].tests.values(), *measurements.values()):
        for name in set(how["launched"]) & set(ran):
            ran[name] |= how["launched"][name]
    planned = evidence.launches(((k.operator, call) for k in stale for call in ran[k.name]), device)
    launched: dict[str, dict[str, Launched]] = {}
    for kernel in stale:
        own = ran[kernel.name]
        here = {call: planned[kernel.operator, call] for call in sorted(own)}
        launched[kernel.name] = {call: each for call, each in here.items() if each.run == own[call]}
        others = [call for call in here if call not in launched[kernel.name]]
        if others:
            outcome.notes.append(
                f"{kernel.name}: {len(others)} of {len(own)} calls were launched otherwise than they are planned here, "
                f"and do not count (a test that patches the plan): {others[0]}"
            )
    compiled = {name: {call: own[call].kernel for call in covering(own)} for name, own in launched.items()}
    code = evidence.code((each for own in compiled.values() for each in own.values()), device.arch)
    fingerprints, declarations = evidence.fingerprints(week), evidence.declarations(week)
    proofs = []
    for kernel in stale:
        name = kernel.name
        found: dict[str, Any] = measurements.get(measured(name), {"errors": {}, "repeats": 0})
        passed = {test for test, how in shown["tests"].ended("passed").items() if name in how["launched"]}
        proof = Proof(
            operator=kernel.operator,
            variant=kernel.variant,
            week=week.name,
            run=run,
            grouped=grouped(launched[name]),
            plans=plans_digest(launched[name]),
            code={call: code[each] for call, each in compiled[name].items()},
            declaration=declarations[name],
            fingerprint=fingerprints[name],
            tests=sorted(passed | ({measured(name)} if found["errors"] else set())),
            errors={dtype: Error.rounded(*figures) for dtype, figures in sorted(found["errors"].items())},
            repeats=found["repeats"],
            sanitizers=_verdicts(week, kernel, shown),
        )
        proofs.append(proof.sealed())
    return proofs


def _verdicts(week: Week, kernel: Kernel, shown: Mapping[str, Result]) -> dict[str, str]:
    """Each tool's verdict on the kernel, or on another one of its builder, which is then named."""
    same = {other.name for other in week.kernels if other.builder == kernel.builder}
    verdicts = {}
    for tool in TOOLS:
        seen = sorted(same & {name for how in shown[tool].ended("passed").values() for name in how["launched"]})
        if seen:
            verdict = shown[tool].verdict
            verdicts[tool] = verdict if kernel.name in seen else f"{verdict} (seen as {seen[0]})"
    return verdicts


def covering(launched: Mapping[str, Launched]) -> list[str]:
    """Few calls whose configurations together have every value of every field.

    A kernel's code branches on fields of its configuration.  Integers above 32 count as equal within a power of two:
    33 to 64, 65 to 128, and so on.
    """
    first: dict[tuple[str, Any], str] = {}
    for call, each in launched.items():
        first.setdefault(each.kernel, call)
    features: dict[str, set[Any]] = {
        call: set(_features((builder,), values(config))) for (builder, config), call in first.items()
    }
    return sorted(cover(features, dict.fromkeys(features, 0)))


def _features(path: tuple[Any, ...], value: Any) -> Iterable[tuple[Any, ...]]:
    if isinstance(value, list):
        yield (*path, "length", len(value))
        for i, item in enumerate(value):
            yield from _features((*path, i), item)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield (*path, value if value <= 32 else -(value - 1).bit_length() - 64)
    else:
        yield (*path, str(value))
