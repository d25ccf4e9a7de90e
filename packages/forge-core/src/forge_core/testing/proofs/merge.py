"""From what the chunks of a week showed to its kernels' proofs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from forge_core.testing.proofs.check import TOOLS, unproven
from forge_core.testing.proofs.declare import Kernel, Week
from forge_core.testing.proofs.execute import Chunk, Result
from forge_core.testing.proofs.record import Error, Proof, ProofRun, Record, WeekTests

__all__ = ["MEASURE", "Task", "merged"]


#: What the measurement's own test of a kernel is called; the kernel's name follows.
MEASURE = "forge_core.testing.proofs.measure"


@dataclass(frozen=True)
class Task:
    """What is to be done for one week.

    Attributes:
        week: the declaration.
        sources: of each kernel, by its name.
        stale: the kernels without a proof of these sources.
        wanted: the test functions.
        chunks: what has to run; none where nothing is stale.
    """

    week: Week
    sources: dict[str, dict[str, str]]
    stale: frozenset[str]
    wanted: tuple[str, ...]
    chunks: tuple[Chunk, ...]


def merged(
    record: Record, task: Task, shown: Mapping[str, Result], run: ProofRun
) -> tuple[Record, list[str], list[str]]:
    """A record with what was shown of one week.

    Args:
        record: what there was; its other weeks stay.
        task: the week and its stale kernels.
        shown: by kind of chunk.
        run: when and where.

    Returns:
        The record, unsealed; the kernels proven now; and what failed, in words.
    """
    week = task.week
    failures = [f"{week.name} {kind}: {result.problem}" for kind, result in shown.items() if result.problem]
    failures += [
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
    own = {kernel.name: kernel for kernel in week.kernels}
    # A declaration may have lost kernels since; their proofs go with them.
    kept = [
        proof
        for proof in record.proofs
        if proof.week != week.name or (proof.name in own and proof.name not in task.stale and proof.name not in guilty)
    ]
    proven = []
    for name in sorted(task.stale):
        if unclear:
            failures.append(f"{name}: not proven, for what failed above may be its fault")
            continue
        proof = _proof(own[name], task, shown, run)
        lacking = "a test that launches it failed" if name in guilty else unproven(proof, task.sources[name])
        lacking = shown["measure"].measured.get(name, {}).get("problem", "") or lacking
        if lacking:
            failures.append(f"{name}: {lacking}")
        else:
            kept.append(proof)
            proven.append(name)
    weeks = dict(record.weeks)
    if not unclear and "tests" in shown:
        weeks[week.name] = _tests(task, shown["tests"], kept)
    return msgspec.structs.replace(record, weeks=weeks, proofs=kept), proven, failures


def _tests(task: Task, result: Result, proofs: list[Proof]) -> WeekTests:
    """The week's tests: those left out, which had passed before, and those that passed or were skipped now."""
    left_out = next(chunk.without for chunk in task.chunks if chunk.kind == "tests")
    functions = set(task.wanted)
    passed = {test for test in left_out if test.partition("[")[0] in functions}
    passed |= {test for test, told in result.tests.items() if told["outcome"] == "passed"}
    passed |= {test for proof in proofs if proof.week == task.week.name for test in proof.tests}
    skipped = {test: told["reason"] for test, told in result.tests.items() if told["outcome"] == "skipped"}
    return WeekTests(sorted(passed), dict(sorted(skipped.items())))


def _launched_by(result: Result, outcome: str) -> set[str]:
    return {name for told in result.tests.values() if told["outcome"] == outcome for name in told["launched"]}


def _proof(kernel: Kernel, task: Task, shown: Mapping[str, Result], run: ProofRun) -> Proof:
    tests = {
        test: told["launched"][kernel.name]
        for test, told in shown["tests"].tests.items()
        if told["outcome"] == "passed" and kernel.name in told["launched"]
    }
    measured: dict[str, Any] = shown["measure"].measured.get(kernel.name, {"errors": {}, "repeats": 0, "shapes": []})
    if measured["shapes"]:
        tests[f"{MEASURE}::{kernel.name}"] = measured["shapes"]
    return Proof(
        operator=kernel.operator,
        variant=kernel.variant,
        week=task.week.name,
        run=run,
        sources=task.sources[kernel.name],
        fingerprint="",
        tests=sorted(tests),
        shapes=sorted({shape for shapes in tests.values() for shape in shapes}),
        errors={dtype: Error(*figures) for dtype, figures in sorted(measured["errors"].items())},
        repeats=measured["repeats"],
        sanitizers=_verdicts(kernel, task.week, shown),
    ).sealed()


def _verdicts(kernel: Kernel, week: Week, shown: Mapping[str, Result]) -> dict[str, str]:
    """Each tool's verdict on the kernel, or on another call of its builder, which is then named; else none."""
    builders = {other.name: other.builder for other in week.kernels}
    verdicts = {}
    for tool in TOOLS:
        seen = _launched_by(shown[tool], "passed")
        same = sorted(name for name in seen if builders.get(name) == kernel.builder)
        if kernel.name in seen:
            verdicts[tool] = shown[tool].verdict
        elif same:
            verdicts[tool] = f"{shown[tool].verdict} (seen as {same[0]})"
    return verdicts
