"""From what the chunks of a week showed to its kernels' proofs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from forge_core.testing.proofs.check import TOOLS, clean, incomplete, measured, plans_digest
from forge_core.testing.proofs.code import covering
from forge_core.testing.proofs.declare import Kernel, Week, function_of
from forge_core.testing.proofs.evidence import Evidence, Launched
from forge_core.testing.proofs.execute import Chunk, Result
from forge_core.testing.proofs.record import Error, Proof, ProofRun, Record, WeekTests

__all__ = ["Merged", "Task", "joined", "merged"]


#: How many of the slowest tests are named.
SLOWEST = 8

_COUNT = re.compile(r"\d+ (error|hazard|warning)s?")


@dataclass(frozen=True)
class Task:
    """What is to be done for one week.

    Attributes:
        week: the declaration.
        stale: the kernels without a proof of what lies here.
        chunks: what has to run; none where nothing has.
    """

    week: Week
    stale: frozenset[str]
    chunks: tuple[Chunk, ...]


@dataclass
class Merged:
    """A record with what was shown of one week.

    Attributes:
        record: unsealed.
        proven: the kernels proven now.
        failures: what failed, in words.
        notes: what else there is to say.
    """

    record: Record
    proven: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def joined(results: Mapping[Chunk, Result]) -> dict[str, Result]:
    """What the chunks of a week showed, by kind: parts of one sanitizer are one result, the worst of theirs."""
    kinds: dict[str, list[Result]] = {}
    for chunk, result in results.items():
        kinds.setdefault(chunk.kind, []).append(result)
    return {kind: own[0] if len(own) == 1 else _join(own) for kind, own in kinds.items()}


def _join(parts: Sequence[Result]) -> Result:
    return Result(
        tests={test: told for part in parts for test, told in part.tests.items()},
        verdict=_worst([part.verdict for part in parts if part.verdict]),
        problem="\n".join(part.problem for part in parts if part.problem),
    )


def _worst(verdicts: Sequence[str]) -> str:
    """One verdict for all: of those that found something, if any did; with their counts added up."""
    worst = [verdict for verdict in verdicts if not clean(verdict)] or verdicts
    if len(worst) == 1 or len({_COUNT.sub(r"\1", verdict) for verdict in worst}) != 1:
        return "; ".join(dict.fromkeys(worst))
    sums = map(sum, zip(*([int(found[0].split()[0]) for found in _COUNT.finditer(v)] for v in worst), strict=True))
    return _COUNT.sub(lambda found: f"{next(sums)} {found[1]}s", worst[0])


def merged(record: Record, task: Task, shown: Mapping[str, Result], run: ProofRun, evidence: Evidence) -> Merged:
    """A record with what was shown of one week.

    Args:
        record: what there was; its other weeks stay.
        task: the week and its stale kernels.
        shown: by kind of chunk.
        run: when and where.
        evidence: what lies here.
    """
    week, answer = task.week, Merged(record)
    answer.failures += [f"{week.name} {kind}: {result.problem}" for kind, result in shown.items() if result.problem]
    answer.failures += [
        f"{week.name} {kind}: {test} failed: {told['reason']}"
        for kind, result in shown.items()
        for test, told in result.tests.items()
        if told["outcome"] == "failed"
    ]
    guilty = {name for result in shown.values() for name in _launched_by(result, "failed")}
    # Nobody knows whose a failure is that launched nothing here.
    unclear = any(result.problem for result in shown.values()) or any(
        told["outcome"] == "failed" and not told["launched"]
        for result in shown.values()
        for told in result.tests.values()
    )
    proofs = _Proofs(task, shown, run, evidence, record)
    answer.notes += [*proofs.notes, *_slowest(week, shown)]
    own = {kernel.name: kernel for kernel in week.kernels}
    # A declaration may have lost kernels since; their proofs go with them.
    kept = [
        proof
        for proof in record.proofs
        if proof.week != week.name or (proof.name in own and proof.name not in task.stale and proof.name not in guilty)
    ]
    for name in sorted(task.stale):
        if unclear:
            answer.failures.append(f"{name}: not proven, for what failed above may be its fault")
            continue
        proof = proofs.of(own[name])
        problem = shown["measure"].measured.get(name, {}).get("problem", "")
        lacking = "a test that launches it failed" if name in guilty else "; ".join(incomplete(proof))
        if problem or lacking:
            answer.failures.append(f"{name}: {problem or lacking}")
        else:
            kept.append(proof)
            answer.proven.append(name)
    weeks = dict(record.weeks)
    if not unclear and "tests" in shown:
        tests = _tests(task, shown["tests"], record.weeks.get(week.name), evidence.tests(week))
        weeks[week.name] = tests
        kept = [_with_tests(proof, tests, shown["tests"]) if proof.week == week.name else proof for proof in kept]
    answer.record = msgspec.structs.replace(record, weeks=weeks, proofs=kept)
    return answer


def _slowest(week: Week, shown: Mapping[str, Result]) -> list[str]:
    """What the tests took, and which of them most of it: they decide how long a proof takes."""
    took = {test: told.get("seconds", 0.0) for test, told in shown["tests"].tests.items()} if "tests" in shown else {}
    if not any(took.values()):
        return []
    most = sorted(took, key=took.__getitem__, reverse=True)[:SLOWEST]
    named = ", ".join(f"{test.rpartition('/')[2]} {took[test]:.0f} s" for test in most)
    return [f"{week.name}: its tests took {sum(took.values()):.0f} s in all processes; the slowest: {named}"]


def _tests(task: Task, result: Result, known: WeekTests | None, digests: dict[str, str]) -> WeekTests:
    """The week's tests: those that did not run again, and those that passed or were skipped now."""
    chunk = next(chunk for chunk in task.chunks if chunk.kind == "tests")
    passed = {test for test, told in result.tests.items() if told["outcome"] == "passed"}
    skipped = {test: told["reason"] for test, told in result.tests.items() if told["outcome"] == "skipped"}
    if known is not None and chunk.tests is not None:
        kept = [test for test in known.tests if function_of(test) in digests and not chunk.runs(test)]
        passed |= set(kept)
        skipped |= {test: reason for test, reason in known.skipped.items() if not chunk.runs(test)}
    failed = {function_of(test) for test, told in result.tests.items() if told["outcome"] == "failed"}
    told = {name: digest for name, digest in digests.items() if name not in failed}
    return WeekTests(sorted(passed), told, dict(sorted(skipped.items())))


def _with_tests(proof: Proof, tests: WeekTests, ran: Result) -> Proof:
    """A proof that stays: it names the tests that there still are, and those of now that launched its kernel."""
    there = set(proof.tests) & {*tests.tests, measured(proof.name)}
    now = {test for test in tests.tests if proof.name in ran.tests.get(test, {"launched": {}})["launched"]}
    return msgspec.structs.replace(proof, tests=sorted(there | now)).sealed()


def _launched_by(result: Result, outcome: str) -> set[str]:
    return {name for told in result.tests.values() if told["outcome"] == outcome for name in told["launched"]}


class _Proofs:
    """The proofs of a week's stale kernels: their calls planned here, as they were there, and their code compiled."""

    def __init__(
        self, task: Task, shown: Mapping[str, Result], run: ProofRun, evidence: Evidence, record: Record
    ) -> None:
        self._task, self._shown, self._run = task, shown, run
        self._fingerprints, self._declarations = evidence.fingerprints(task.week), evidence.declarations(task.week)
        self.notes: list[str] = []
        operators = {kernel.name: kernel.operator for kernel in task.week.kernels}
        ran: dict[str, dict[str, str]] = {name: {} for name in task.stale}
        for kind in {"tests", "measure"} & set(shown):
            for told in shown[kind].tests.values() if kind == "tests" else shown[kind].measured.values():
                for name in set(told["launched"]) & set(ran):
                    ran[name] |= told["launched"][name]
        calls: dict[str, list[str]] = {}
        for name, own in ran.items():
            calls.setdefault(operators[name], []).extend(own)
        planned: dict[tuple[str, str], Launched] = {}
        for operator, launched in evidence.launches(calls, record.device).items():
            planned |= {(operator, call): each for call, each in zip(calls[operator], launched, strict=True)}
        self._launched: dict[str, dict[str, Launched]] = {}
        for name, own in ran.items():
            same = {c: planned[operators[name], c] for c, d in own.items() if planned[operators[name], c].run == d}
            self._launched[name] = dict(sorted(same.items()))
            if len(same) < len(own):
                other = next(call for call in own if call not in same)
                self.notes.append(
                    f"{name}: {len(own) - len(same)} of {len(own)} calls were launched otherwise than they are planned "
                    f"here, and do not count (a test that patches the plan): {other}"
                )
        self._chosen = {name: _chosen(own) for name, own in self._launched.items()}
        kernels = {
            (self._launched[name][call].builder, self._launched[name][call].config)
            for name, own in self._chosen.items()
            for call in own
        }
        self._code = evidence.code(sorted(kernels, key=repr), record.device.arch)

    def of(self, kernel: Kernel) -> Proof:
        """The proof of a kernel, whole or not."""
        name, launched = kernel.name, self._launched[kernel.name]
        tests = {
            test
            for test, told in self._shown["tests"].tests.items()
            if told["outcome"] == "passed" and name in told["launched"]
        }
        nothing: dict[str, Any] = {"errors": {}, "repeats": 0}
        found = self._shown["measure"].measured.get(name, nothing)
        if found["errors"]:
            tests.add(measured(name))
        return Proof(
            operator=kernel.operator,
            variant=kernel.variant,
            week=self._task.week.name,
            run=self._run,
            calls=list(launched),
            plans=plans_digest(list(launched), list(launched.values())),
            code={call: self._code[launched[call].builder, launched[call].config] for call in self._chosen[name]},
            declaration=self._declarations[name],
            fingerprint=self._fingerprints[name],
            tests=sorted(tests),
            errors={dtype: Error(*figures) for dtype, figures in sorted(found["errors"].items())},
            repeats=found["repeats"],
            sanitizers=self._verdicts(kernel),
        ).sealed()

    def _verdicts(self, kernel: Kernel) -> dict[str, str]:
        """Each tool's verdict on the kernel, or on another call of its builder, which is then named; else none."""
        builders = {other.name: other.builder for other in self._task.week.kernels}
        verdicts = {}
        for tool in TOOLS:
            seen = _launched_by(self._shown[tool], "passed")
            same = sorted(name for name in seen if builders.get(name) == kernel.builder)
            if kernel.name in seen:
                verdicts[tool] = self._shown[tool].verdict
            elif same:
                verdicts[tool] = f"{self._shown[tool].verdict} (seen as {same[0]})"
        return verdicts


def _chosen(launched: Mapping[str, Launched]) -> list[str]:
    """Calls whose configurations have every branch of the kernel's code between them."""
    first: dict[tuple[str, Any], str] = {}
    for call, each in launched.items():
        first.setdefault((each.builder, each.config), call)
    calls = list(first.values())
    return [calls[i] for i in covering(list(first))]
