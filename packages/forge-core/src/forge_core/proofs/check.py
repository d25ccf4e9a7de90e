"""Whether every kernel has a valid proof; needs no GPU.

Every kernel needs a proof on one recorded GPU.  It is valid if it is complete, its seal is unbroken, it was made from
committed sources, and this checkout produces the same plans, PTX, declaration and GPU tests.  An edited record is a
finding of its own, even if another GPU has valid proofs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from forge_core.proofs.chunks import TOOLS, clean
from forge_core.proofs.declare import ProofError, Week, digest_of, function_of, measured
from forge_core.proofs.evidence import Evidence, Launched, refusal
from forge_core.proofs.record import FILE, Proof, Record, WeekTests, load
from forge_core.toolchain import toolchain

#: Reasons for which a test may be skipped in a proof: the machine lacks something.
FEW_GPUS = "GPUs are needed"
LACKING = (FEW_GPUS, "of free GPU memory are needed")

#: Calls in one digest of a proof's plans: a difference is located to a group of calls.
CALLS_TOGETHER = 32


class Finding(NamedTuple):
    """What is wrong with a kernel's proof or with a record, and the command that corrects it."""

    subject: str
    what: str
    command: str

    def __str__(self) -> str:
        return in_words([self])


def in_words(found: Iterable[Finding]) -> str:
    """Findings as text, grouped by reason and command: one edited helper invalidates many proofs."""
    together: dict[tuple[str, str], list[str]] = {}
    for subject, what, command in found:
        together.setdefault((what, command), []).append(subject)
    lines = []
    for (what, command), subjects in together.items():
        variants: dict[str, list[str]] = {}
        for operator, _, variant in (subject.partition("/") for subject in subjects):
            variants.setdefault(operator, []).append(variant)
        kernels = [f"    {operator}: {', '.join(names)}" for operator, names in variants.items()]
        one = len(subjects) == 1
        lines += [f"{subjects[0] if one else f'{len(subjects)} kernels'}: {what}", *(() if one else kernels)]
        lines.append(f"    {command}")
    return "\n".join(lines)


def records_in(folder: Path) -> dict[str, Record]:
    """The records of all GPUs, by the names of their folders; raises ProofError if one cannot be read."""
    return {path.parent.name: load(path) for path in sorted(folder.glob(f"*/{FILE}"))}


def check(weeks: Sequence[Week], folder: Path, evidence: Evidence) -> list[Finding]:
    """Checks the proofs of some weeks in a folder of records; raises ProofError if a record cannot be read."""
    records = records_in(folder)
    found = [finding for gpu, record in records.items() for finding in inconsistencies(gpu, record)]
    wrong = {gpu: wrong_proofs(weeks, record, evidence) for gpu, record in records.items()}
    for week in weeks:
        command = f"on a machine with a GPU: nox -s prove -- {week.name}"
        proven = {p.name for record in records.values() for p in record.proofs if p.week == week.name}
        gone = sorted(proven - {kernel.name for kernel in week.kernels})
        found += [Finding(name, "the record has a proof of it, and it is declared no more", command) for name in gone]
        for kernel in week.kernels:
            reasons = [f"{gpu}: {'; '.join(own[kernel.name])}" for gpu, own in wrong.items() if own[kernel.name]]
            if len(reasons) == len(records):
                found.append(Finding(kernel.name, "; ".join(reasons) or "no GPU has a record of proofs", command))
    return found


def wrong_proofs(weeks: Sequence[Week], record: Record, evidence: Evidence) -> dict[str, list[str]]:
    """For each kernel of some weeks, why its proof in a record is not valid; [] if it is."""
    found = differences(weeks, record, evidence)
    for week in weeks:
        tests = other_tests(record.tests_of(week.name), evidence.tests(week))
        reasons = [f"{what}: {', '.join(sorted(names))}" for what, names in tests.items() if names]
        for kernel in week.kernels:
            proof = record.proof(kernel.name)
            if proof is not None:
                found[kernel.name] += [*_uncommitted(proof), *reasons]
    return found


# ------------------------------------------------------------------------------------------------- what differs here


def plans_digest(launched: Mapping[str, Launched]) -> str:
    """The number of calls, and a digest of the plans of each ``CALLS_TOGETHER`` calls, separated by spaces."""
    plans = [[call, each.launch] for call, each in launched.items()]
    words = (digest_of(plans[i : i + CALLS_TOGETHER])[:8] for i in range(0, len(plans), CALLS_TOGETHER))
    return " ".join([str(len(plans)), *words])


def differences(weeks: Sequence[Week], record: Record, evidence: Evidence) -> dict[str, list[str]]:
    """For each kernel of some weeks, what its proof lacks and what differs from it in this checkout.

    ``evidence.recompute`` decides for which kernels plans and PTX are recomputed.
    """
    here = dict(toolchain()).get("nvidia-cutlass-dsl")
    found: dict[str, list[str]] = {}
    other: list[Proof] = []
    for week in weeks:
        fingerprints, declarations = evidence.fingerprints(week), evidence.declarations(week)
        for kernel in week.kernels:
            proof = record.proof(kernel.name)
            if proof is None:
                found[kernel.name] = ["there is no proof"]
                continue
            reasons = found[kernel.name] = incomplete(proof)
            if proof.seal != proof.computed_seal():
                reasons.append("it was changed after it was made: its seal is broken")
            if proof.declaration != declarations[kernel.name]:
                reasons.append("its declared samples, bounds or planted faults, or the tolerance policy, are others")
            there = proof.run.environment.dsl
            if here not in (None, there):
                reasons.append(f"the CuTe DSL here is {here}, and what it compiles was proven of {there}")
            same = proof.fingerprint == fingerprints[kernel.name]
            if evidence.recompute == "never" and not same:
                reasons.append("its sources changed; whether its plans or its PTX did, nox -s proofs tells")
            elif evidence.recompute == "always" or not same:
                other.append(proof)
    calls = ((proof.operator, call) for proof in other for call in (*proof.calls, *proof.code))
    launched = evidence.launches(calls, record.device)
    compiled = [launched[proof.operator, call] for proof in other for call in proof.code]
    code = evidence.code((each.kernel for each in compiled if not each.problem), record.device.arch)
    for proof in other:
        own = {call: launched[proof.operator, call] for call in (*proof.calls, *proof.code)}
        found[proof.name] += [*_other_plans(proof, own), *_other_code(proof, own, code)]
    return found


def refreshed(weeks: Sequence[Week], record: Record, evidence: Evidence) -> Record:
    """The record, with the present fingerprints in the proofs that nothing differs from."""
    differing = differences(weeks, record, evidence)
    now = {name: own for week in weeks for name, own in evidence.fingerprints(week).items() if not differing[name]}
    return record.with_proofs(
        msgspec.structs.replace(proof, fingerprint=now[proof.name]).sealed() if proof.name in now else proof
        for proof in record.proofs
    )


def _other_plans(proof: Proof, launched: Mapping[str, Launched]) -> Iterator[str]:
    refused = [launched[call].problem for call in proof.calls if launched[call].problem]
    if refused:
        yield f"{len(refused)} of its {len(proof.calls)} calls launch nothing, the first: {refused[0]}"
        return
    before, now = proof.plans.split()[1:], plans_digest({call: launched[call] for call in proof.calls}).split()[1:]
    # `incomplete` reports another number of calls.
    differing = [i for i in range(len(now)) if before[i] != now[i]] if len(before) == len(now) else []
    if differing:
        group = proof.calls[differing[0] * CALLS_TOGETHER :][:CALLS_TOGETHER]
        count = f"{len(differing)} of {len(now)}"
        yield f"launches differ in {count} groups of calls, the first between {group[0]} and {group[-1]}"


def _other_code(proof: Proof, launched: Mapping[str, Launched], code: Mapping[tuple[str, Any], str]) -> Iterator[str]:
    now = {call: code[each.kernel] for call in proof.code if not (each := launched[call]).problem}
    differing = [call for call in now if now[call] != proof.code[call]]
    if differing:
        why, count = refusal(now[call] for call in differing), f"{len(differing)} of {len(proof.code)}"
        yield f"the PTX of {count} compiled kernels differs, the first of {differing[0]}{f' ({why})' if why else ''}"


# ----------------------------------------------------------------------------------------- what is wrong by itself


def incomplete(proof: Proof) -> list[str]:
    """What a proof lacks."""
    figures = [figure for error in proof.errors.values() for figure in (error.absolute, error.relative)]
    broken = refusal(proof.code.values())
    found = {
        "no test of it passed": not proof.tests or not proof.calls,
        "its plans are not those of the calls it lists": proof.plans.partition(" ")[0] != str(len(proof.calls)),
        "its code is not that of its calls": not proof.code or not set(proof.code) <= set(proof.calls),
        f"a kernel of it does not compile: {broken}": bool(broken),
        "its determinism was not shown": proof.repeats < 2,
        "its error was not measured": not proof.errors,
        "its error is not a number": not all(map(math.isfinite, figures)),
    }
    for tool in TOOLS:
        verdict = proof.sanitizers.get(tool)
        found[f"{tool} did not run it" if verdict is None else f"{tool}: {verdict}"] = not clean(verdict or "")
    return [what for what, wrong in found.items() if wrong]


def _uncommitted(proof: Proof) -> Iterator[str]:
    environment = proof.run.environment
    if not environment.has_commit:
        yield f"the proof names no commit ({environment.commit}): forge-cute prove stamp writes it"
    elif environment.dirty is not False:
        yield "the proof was made from sources that were not committed"


def other_tests(known: WeekTests, now: Mapping[str, str]) -> dict[str, set[str]]:
    """How the checkout's test functions, of which ``now`` has the digests, differ from those on record."""
    lacking = {test for test, reason in known.skipped.items() if any(words in reason for words in LACKING)}
    ran = set(map(function_of, {*known.tests, *lacking})) & set(known.digests)
    changed = {name for name, digest in now.items() if known.digests.get(name, digest) != digest}
    gone = {*known.digests, *map(function_of, known.tests)} - set(now)
    return {
        "tests without a result": set(now) - ran - changed,
        "tests changed since they ran": changed,
        "tests that ran and are gone": gone,
    }


def inconsistencies(gpu: str, record: Record) -> list[Finding]:
    """What is wrong with a record whatever the checkout: broken seals, another GPU, unknown tests."""
    command = f"restore docs/records/{gpu}/{FILE} from git, or prove anew: nox -s prove -- --all"
    broken = "it was changed after it was made: its seal is broken"
    wrong = [
        (gpu, broken, record.seal != record.computed_seal()),
        (gpu, f"its specification is of another GPU, {record.device.name}", record.device.name != record.gpu),
    ]
    for proof in record.proofs:
        name, of = f"{gpu}: {proof.name}", proof.run.environment.gpu
        tests = {*record.tests_of(proof.week).tests, measured(proof.name)}
        wrong += [
            (name, broken, proof.seal != proof.computed_seal()),
            (name, f"it names tests that the record of {proof.week} does not", not set(proof.tests) <= tests),
            (name, f"it is of another GPU, {of}", of != record.gpu),
        ]
    return [Finding(name, what, command) for name, what, is_wrong in wrong if is_wrong]


def load_intact(path: Path) -> Record:
    """Reads a record; raises ProofError if it cannot be read or was edited."""
    record = load(path)
    wrong = inconsistencies(path.parent.name, record)
    if wrong:
        raise ProofError(in_words(wrong))
    return record
