"""Whether what lies here is what was proven; needs no GPU.

Every kernel needs a proof on one recorded GPU.  A proof counts that is whole, whose seals are unbroken, that was made
from committed sources, and of which nothing differs here: the plans of its calls, the PTX of its code, the operator's
declaration, the GPU tests.  A record that cannot be believed is an error by itself, also where another GPU has a proof.
"""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from forge_core.device import Device
from forge_core.testing.proofs.declare import Week, digest_of, function_of
from forge_core.testing.proofs.evidence import Evidence, Launched
from forge_core.testing.proofs.record import FILE, Proof, Record, WeekTests, load

__all__ = [
    "TOOLS",
    "Finding",
    "awaiting",
    "by_operator",
    "check",
    "clean",
    "differences",
    "findings_of",
    "in_words",
    "incredible",
    "plans_digest",
    "records_in",
    "refreshed",
    "tests_to_run",
]

#: The tools of compute-sanitizer whose verdicts a proof holds.
TOOLS = ("memcheck", "racecheck", "initcheck")

#: Why a test may be skipped in a proof: what the machine lacks, not what the kernel does.
LACKING = ("GPUs are needed", "of free GPU memory are needed")

#: Calls that one digest of a proof's plans is of, so that a difference can be placed.
CALLS_TOGETHER = 32


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        subject: the kernel, or the record, that it is wrong with.
        what: what is wrong.
        command: what puts it right.
    """

    subject: str
    what: str
    command: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.what}\n    {self.command}"


def in_words(found: Iterable[Finding]) -> str:
    """Findings in words: those of one reason and one command together, since an edited helper takes many proofs."""
    together: dict[tuple[str, str], list[str]] = {}
    for finding in found:
        together.setdefault((finding.what, finding.command), []).append(finding.subject)
    parts = []
    for (what, command), subjects in together.items():
        if len(subjects) == 1:
            parts.append(str(Finding(subjects[0], what, command)))
            continue
        kernels = [f"    {operator}: {', '.join(names)}" for operator, names in by_operator(subjects).items()]
        parts.append("\n".join([f"{len(subjects)} kernels: {what}", *kernels, f"    {command}"]))
    return "\n".join(parts)


def by_operator(names: Iterable[str]) -> dict[str, list[str]]:
    """The variants of each operator among the names of kernels."""
    variants: dict[str, list[str]] = {}
    for name in names:
        operator, _, variant = name.partition("/")
        variants.setdefault(operator, []).append(variant)
    return variants


def records_in(folder: Path) -> dict[str, Record]:
    """The records of all GPUs, by the name of their folders.

    Raises:
        ProofError: one of them cannot be read.
    """
    return {path.parent.name: load(path) for path in sorted(folder.glob(f"*/{FILE}"))}


def check(weeks: Sequence[Week], folder: Path, evidence: Evidence) -> list[Finding]:
    """All that is wrong with the proofs in a folder of records, for what lies here.

    Args:
        weeks: what there is to prove.
        folder: the records.
        evidence: what lies here.

    Raises:
        ProofError: a record cannot be read.
    """
    records = records_in(folder)
    found = [finding for gpu, record in records.items() for finding in incredible(gpu, record)]
    lacking = {gpu: findings_of(weeks, record, evidence) for gpu, record in records.items()}
    for week in weeks:
        command = f"on a machine with a GPU: nox -s prove -- {week.name}"
        names = {kernel.name for kernel in week.kernels}
        gone = {p.name for record in records.values() for p in record.proofs if p.week == week.name} - names
        found += [
            Finding(name, "the record has a proof of it, and it is declared no more", command) for name in sorted(gone)
        ]
        for kernel in week.kernels:
            told = [f"{gpu}: {problems[kernel.name]}" for gpu, problems in lacking.items() if problems[kernel.name]]
            if len(told) == len(records):
                found.append(Finding(kernel.name, "; ".join(told) or "no GPU has a record of proofs", command))
    return found


def findings_of(weeks: Sequence[Week], record: Record, evidence: Evidence) -> dict[str, str]:
    """For each kernel of some weeks, what its proof in a record lacks, or "".

    Args:
        weeks: the declarations.
        record: of one GPU.
        evidence: what lies here.
    """
    differing = differences(weeks, record, evidence)
    found = {}
    for week in weeks:
        tests = _wrong_tests(record.weeks.get(week.name), evidence.tests(week))
        for kernel in week.kernels:
            proof = record.proof(kernel.name)
            if proof is None:
                found[kernel.name] = "there is no proof"
            else:
                told = [differing[kernel.name], *incomplete(proof), _uncommitted(proof), tests]
                found[kernel.name] = "; ".join(filter(None, told))
    return found


def awaiting(weeks: Sequence[Week], folder: Path, evidence: Evidence) -> list[str]:
    """Kernels whose sources, tests or declarations are others than those of their proofs; recomputes nothing.

    Whether they need another proof, :func:`check` tells.
    """
    records = records_in(folder)
    waiting = []
    for week in weeks:
        fingerprints, declarations = evidence.fingerprints(week), evidence.declarations(week)
        digests = evidence.tests(week)
        known = [r for r in records.values() if not _wrong_tests(r.weeks.get(week.name), digests)]
        for kernel in week.kernels:
            proofs = [record.proof(kernel.name) for record in known]
            now = (fingerprints[kernel.name], declarations[kernel.name])
            if not any(proof is not None and (proof.fingerprint, proof.declaration) == now for proof in proofs):
                waiting.append(kernel.name)
    return waiting


# ------------------------------------------------------------------------------------------------- what differs here


def plans_digest(calls: Sequence[str], launched: Sequence[Launched]) -> str:
    """The digest of the plans of some calls: their number, and a word for each ``CALLS_TOGETHER`` calls in order."""
    told = [[call, each.launch] for call, each in zip(calls, launched, strict=True)]
    words = (digest_of(told[i : i + CALLS_TOGETHER])[:8] for i in range(0, len(told), CALLS_TOGETHER))
    return " ".join([str(len(told)), *words])


def differences(weeks: Sequence[Week], record: Record, evidence: Evidence) -> dict[str, str]:
    """For each kernel of some weeks, what is not as it was proven, or "".

    Where sources are those of the proof nothing is recomputed, unless the evidence asks for it; the others' calls are
    planned and their code is compiled.
    """
    found: dict[str, str] = {}
    other: list[Proof] = []
    for week in weeks:
        fingerprints, declarations = evidence.fingerprints(week), evidence.declarations(week)
        for kernel in week.kernels:
            proof = record.proof(kernel.name)
            told = []
            if proof is not None and proof.seal != proof.computed_seal():
                told.append("the proof was changed after it was made: its seal is broken")
            if proof is not None and proof.declaration != declarations[kernel.name]:
                told.append("its declared samples, bounds or planted faults, or the tolerance policy, are others")
            if proof is not None:
                told.append(_other_compiler(proof))
            if proof is not None and (evidence.recompute or proof.fingerprint != fingerprints[kernel.name]):
                other.append(proof)
            found[kernel.name] = "; ".join(filter(None, told))
    for name, problem in _recomputed(other, record.device, evidence).items():
        found[name] = "; ".join(filter(None, [found[name], problem]))
    return found


def refreshed(weeks: Sequence[Week], record: Record, evidence: Evidence) -> Record:
    """The record with the present fingerprints of kernels whose plans, code and declarations do not differ.

    The next check has nothing to compile then.  What was shown, and where, stays as it is.
    """
    differing = differences(weeks, record, evidence)
    now = {name: own for week in weeks for name, own in evidence.fingerprints(week).items() if not differing[name]}
    proofs = [
        msgspec.structs.replace(proof, fingerprint=now.get(proof.name, proof.fingerprint)).sealed()
        if proof.name in now
        else proof
        for proof in record.proofs
    ]
    return msgspec.structs.replace(record, proofs=proofs).sealed()


def _recomputed(proofs: Sequence[Proof], device: Device, evidence: Evidence) -> dict[str, str]:
    if not proofs:
        return {}
    calls: dict[str, list[str]] = {}
    for proof in proofs:
        calls.setdefault(proof.operator, []).extend(proof.calls)
    launched: dict[tuple[str, str], Launched] = {}
    for operator, answers in evidence.launches(calls, device).items():
        launched |= {(operator, call): answer for call, answer in zip(calls[operator], answers, strict=True)}
    compared = {(p.operator, call) for p in proofs for call in p.code}
    kernels = {key: (launched[key].builder, launched[key].config) for key in compared if not launched[key].problem}
    code = evidence.code(kernels.values(), device.arch)
    found = {}
    for proof in proofs:
        own = [launched[proof.operator, call] for call in proof.calls]
        present = {call: kernels.get((proof.operator, call)) for call in proof.code}
        digests = {call: code[kernel] if kernel is not None else "" for call, kernel in present.items()}
        found[proof.name] = "; ".join(filter(None, [_other_plans(proof, own), _other_code(proof, digests)]))
    return found


def _other_compiler(proof: Proof) -> str:
    """Another version of the compiler than made the proof's PTX, in words; where there is none, nothing is compiled."""
    try:
        here = importlib.metadata.version("nvidia-cutlass-dsl")
    except importlib.metadata.PackageNotFoundError:
        return ""
    there = proof.run.environment.dsl
    return "" if here == there else f"the CuTe DSL here is {here}, and what it compiles was proven of {there}"


def _other_plans(proof: Proof, launched: Sequence[Launched]) -> str:
    refused = [(call, each.problem) for call, each in zip(proof.calls, launched, strict=True) if each.problem]
    if refused:
        return f"{len(refused)} of its {len(proof.calls)} calls launch nothing, the first: {refused[0][1]}"
    before, now = proof.plans.split()[1:], plans_digest(proof.calls, launched).split()[1:]
    if before == now or len(before) != len(now):  # of the second, `incomplete` tells
        return ""
    differing = [i for i, pair in enumerate(zip(before, now, strict=True)) if pair[0] != pair[1]]
    start = differing[0] * CALLS_TOGETHER
    last = min(start + CALLS_TOGETHER, len(proof.calls)) - 1
    return (
        f"launches differ in {len(differing)} of {len(now)} groups of calls, the first between "
        f"{proof.calls[start]} and {proof.calls[last]}"
    )


def _other_code(proof: Proof, now: Mapping[str, str]) -> str:
    differing = [call for call, digest in proof.code.items() if now[call] not in (digest, "")]
    if not differing:
        return ""
    broken = next((now[call] for call in differing if now[call].startswith("!")), "")
    why = f" ({broken.removeprefix('! ')})" if broken else ""
    return (
        f"the PTX of {len(differing)} of {len(proof.code)} compiled kernels differs, the first of {differing[0]}{why}"
    )


# --------------------------------------------------------------------------------------------- what a proof has to be


def clean(verdict: str) -> bool:
    """Whether a sanitizer's verdict says that it found nothing."""
    return verdict.startswith(("0 errors", "0 hazards"))


def incomplete(proof: Proof) -> list[str]:
    """What a proof does not show, in words."""
    told = []
    if not proof.tests or not proof.calls:
        told.append("no test of it passed")
    if proof.plans.partition(" ")[0] != str(len(proof.calls)):
        told.append("its plans are not those of the calls it lists")
    if not proof.code or not set(proof.code) <= set(proof.calls):
        told.append("its code is not that of its calls")
    told += [f"a kernel of it does not compile: {d.removeprefix('! ')}" for d in proof.code.values() if d[:1] == "!"][
        :1
    ]
    if proof.repeats < 2:
        told.append("its determinism was not shown")
    if not proof.errors:
        told.append("its error was not measured")
    if not all(math.isfinite(error.absolute) and math.isfinite(error.relative) for error in proof.errors.values()):
        told.append("its error is not a number")
    for tool in TOOLS:
        verdict = proof.sanitizers.get(tool)
        if verdict is None:
            told.append(f"{tool} did not run it")
        elif not clean(verdict):
            told.append(f"{tool}: {verdict}")
    return told


def _uncommitted(proof: Proof) -> str:
    environment = proof.run.environment
    if not environment.has_commit:
        return f"the proof names no commit ({environment.commit}): forge-cute prove stamp writes it"
    return "the proof was made from sources that were not committed" if environment.dirty is not False else ""


def tests_to_run(known: WeekTests | None, now: Mapping[str, str]) -> list[str]:
    """The test functions that have no result, or one from before they were changed."""
    if known is None:
        return sorted(now)
    lacking = {test for test, reason in known.skipped.items() if any(words in reason for words in LACKING)}
    ran = {function_of(test) for test in {*known.tests, *lacking}}
    return sorted(name for name, digest in now.items() if name not in ran or known.digests.get(name) != digest)


def _wrong_tests(known: WeekTests | None, now: Mapping[str, str]) -> str:
    """In words, the test functions of a week that have no result, have changed since, or are gone; or ""."""
    if known is None:
        return "its week's tests did not run"
    to_run = tests_to_run(known, now)
    changed = [name for name in to_run if known.digests.get(name, now[name]) != now[name]]
    told = {
        "tests without a result": [name for name in to_run if name not in changed],
        "tests changed since they ran": changed,
        "tests that ran and are gone": sorted({*known.digests, *map(function_of, known.tests)} - set(now)),
    }
    return "; ".join(f"{what}: {', '.join(names)}" for what, names in told.items() if names)


def incredible(gpu: str, record: Record) -> list[Finding]:
    """What is wrong with a record, whatever lies here."""
    command = f"restore docs/records/{gpu}/{FILE} from git, or prove anew: nox -s prove -- --all"
    found = []
    if record.seal != record.computed_seal():
        found.append(Finding(gpu, "the record was changed after it was made: its seal is broken", command))
    if record.device.name != record.gpu:
        found.append(Finding(gpu, f"its specification is of another GPU, {record.device.name}", command))
    for proof in record.proofs:
        where = f"{gpu}: {proof.name}"
        if proof.seal != proof.computed_seal():
            found.append(Finding(where, "the proof was changed after it was made: its seal is broken", command))
        known = record.weeks.get(proof.week)
        if known is None or not set(proof.tests) <= {*known.tests, measured(proof.name)}:
            found.append(Finding(where, f"it names tests that the record of {proof.week} does not", command))
        if proof.run.environment.gpu != record.gpu:
            found.append(Finding(where, f"it is of another GPU, {proof.run.environment.gpu}", command))
    return found


def measured(name: str) -> str:
    """What the measurement's own test of a kernel is called."""
    return f"forge_core.testing.proofs.measure::{name}"
