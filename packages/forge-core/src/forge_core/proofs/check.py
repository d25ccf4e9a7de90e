"""Whether every kernel has a valid proof; needs no GPU.

Every kernel needs a proof on one recorded GPU.  It is valid if it is complete, its seals are unbroken, it was made from
committed sources, and this checkout gives the same plans, PTX, declaration and GPU tests.  A record that was edited is
an error by itself, also where another GPU has a proof.
"""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from forge_core.proofs.declare import Week, digest_of, function_of, measured
from forge_core.proofs.evidence import Evidence, Launched
from forge_core.proofs.execute import TOOLS, clean
from forge_core.proofs.record import FILE, Proof, Record, WeekTests, load

__all__ = [
    "Finding",
    "awaiting",
    "by_operator",
    "check",
    "differences",
    "findings_of",
    "in_words",
    "incomplete",
    "incredible",
    "plans_digest",
    "records_in",
    "refreshed",
    "tests_to_run",
]

#: Reasons for which a test may be skipped in a proof: the machine lacks something.
LACKING = ("GPUs are needed", "of free GPU memory are needed")

#: Calls in one digest of a proof's plans, so that a difference can be located.
CALLS_TOGETHER = 32


@dataclass(frozen=True)
class Finding:
    """Something that is wrong.

    Attributes:
        subject: the kernel or the record.
        what: what is wrong.
        command: the command that corrects it.
    """

    subject: str
    what: str
    command: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.what}\n    {self.command}"


def in_words(found: Iterable[Finding]) -> str:
    """Findings as text, grouped by reason and command, since an edited helper invalidates many proofs."""
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
    """The records of all GPUs, by the names of their folders.

    Raises:
        ProofError: one of them cannot be read.
    """
    return {path.parent.name: load(path) for path in sorted(folder.glob(f"*/{FILE}"))}


def check(weeks: Sequence[Week], folder: Path, evidence: Evidence) -> list[Finding]:
    """What is wrong with the proofs of some weeks in a folder of records.

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
    """For each kernel of some weeks, why its proof in a record is not valid, or ""."""
    found = differences(weeks, record, evidence)
    for week in weeks:
        tests = _wrong_tests(record.weeks.get(week.name), evidence.tests(week))
        for kernel in week.kernels:
            proof = record.proof(kernel.name)
            if proof is None:
                found[kernel.name] = "there is no proof"
            else:
                told = [found[kernel.name], *incomplete(proof), _uncommitted(proof), tests]
                found[kernel.name] = "; ".join(filter(None, told))
    return found


def awaiting(weeks: Sequence[Week], folder: Path, evidence: Evidence) -> list[str]:
    """Kernels whose sources, tests or declarations differ from those of their proofs; recomputes nothing.

    Whether they need another proof, :func:`check` tells.
    """
    records = records_in(folder).values()
    waiting = []
    for week in weeks:
        fingerprints, declarations = evidence.fingerprints(week), evidence.declarations(week)
        tests = evidence.tests(week)
        proofs = [p for r in records if not _wrong_tests(r.weeks.get(week.name), tests) for p in r.proofs]
        now = {(name, fingerprints[name], declarations[name]) for name in fingerprints}
        same = {p.name for p in proofs if (p.name, p.fingerprint, p.declaration) in now}
        waiting += [kernel.name for kernel in week.kernels if kernel.name not in same]
    return waiting


# ------------------------------------------------------------------------------------------------- what differs here


def plans_digest(launched: Mapping[str, Launched]) -> str:
    """The digest of the plans of some calls: their number, and a word for each ``CALLS_TOGETHER`` calls in order."""
    told = [[call, each.launch] for call, each in launched.items()]
    words = (digest_of(told[i : i + CALLS_TOGETHER])[:8] for i in range(0, len(told), CALLS_TOGETHER))
    return " ".join([str(len(told)), *words])


def differences(weeks: Sequence[Week], record: Record, evidence: Evidence) -> dict[str, str]:
    """For each kernel of some weeks, what differs from its proof, or "".

    Plans and code are recomputed where the fingerprint differs, or the evidence asks for it.
    """
    found: dict[str, list[str]] = {}
    other: list[Proof] = []
    for week in weeks:
        fingerprints, declarations = evidence.fingerprints(week), evidence.declarations(week)
        for kernel in week.kernels:
            told = found[kernel.name] = []
            proof = record.proof(kernel.name)
            if proof is None:
                continue
            if proof.seal != proof.computed_seal():
                told.append("the proof was changed after it was made: its seal is broken")
            if proof.declaration != declarations[kernel.name]:
                told.append("its declared samples, bounds or planted faults, or the tolerance policy, are others")
            told += _other_compiler(proof)
            if evidence.recompute or proof.fingerprint != fingerprints[kernel.name]:
                other.append(proof)
    asked = ((proof.operator, call) for proof in other for call in (*proof.calls, *proof.code))
    launched = evidence.launches(asked, record.device)
    compiled = [launched[proof.operator, call] for proof in other for call in proof.code]
    code = evidence.code(((each.builder, each.config) for each in compiled if not each.problem), record.device.arch)
    for proof in other:
        own = {call: launched[proof.operator, call] for call in (*proof.calls, *proof.code)}
        found[proof.name] += [*_other_plans(proof, own), *_other_code(proof, own, code)]
    return {name: "; ".join(told) for name, told in found.items()}


def refreshed(weeks: Sequence[Week], record: Record, evidence: Evidence) -> Record:
    """The record with the present fingerprints of the kernels of which nothing differs."""
    differing = differences(weeks, record, evidence)
    now = {name: own for week in weeks for name, own in evidence.fingerprints(week).items() if not differing[name]}
    proofs = [
        msgspec.structs.replace(proof, fingerprint=now[proof.name]).sealed() if proof.name in now else proof
        for proof in record.proofs
    ]
    return msgspec.structs.replace(record, proofs=proofs).sealed()


def _other_compiler(proof: Proof) -> Iterator[str]:
    try:
        here = importlib.metadata.version("nvidia-cutlass-dsl")
    except importlib.metadata.PackageNotFoundError:
        return  # nothing can be compiled here
    there = proof.run.environment.dsl
    if here != there:
        yield f"the CuTe DSL here is {here}, and what it compiles was proven of {there}"


def _other_plans(proof: Proof, launched: Mapping[str, Launched]) -> Iterator[str]:
    refused = [launched[call].problem for call in proof.calls if launched[call].problem]
    if refused:
        yield f"{len(refused)} of its {len(proof.calls)} calls launch nothing, the first: {refused[0]}"
        return
    before, now = proof.plans.split()[1:], plans_digest({call: launched[call] for call in proof.calls}).split()[1:]
    # Of another number `incomplete` tells.
    differing = [i for i in range(len(now)) if before[i] != now[i]] if len(before) == len(now) else []
    if differing:
        group = proof.calls[differing[0] * CALLS_TOGETHER :][:CALLS_TOGETHER]
        yield (
            f"launches differ in {len(differing)} of {len(now)} groups of calls, the first between "
            f"{group[0]} and {group[-1]}"
        )


def _other_code(proof: Proof, launched: Mapping[str, Launched], code: Mapping[tuple[str, Any], str]) -> Iterator[str]:
    now = {
        call: code[launched[call].builder, launched[call].config] for call in proof.code if not launched[call].problem
    }
    differing = [call for call in now if now[call] != proof.code[call]]
    if differing:
        why = next((f" ({now[call].removeprefix('! ')})" for call in differing if now[call].startswith("!")), "")
        yield (
            f"the PTX of {len(differing)} of {len(proof.code)} compiled kernels differs, the first of "
            f"{differing[0]}{why}"
        )


# --------------------------------------------------------------------------------------------- what a proof has to be


def incomplete(proof: Proof) -> list[str]:
    """What a proof does not show, in words."""
    figures = [figure for error in proof.errors.values() for figure in (error.absolute, error.relative)]
    broken = next((digest.removeprefix("! ") for digest in proof.code.values() if digest.startswith("!")), "")
    found = {
        "no test of it passed": not proof.tests or not proof.calls,
        "its plans are not those of the calls it lists": proof.plans.partition(" ")[0] != str(len(proof.calls)),
        "its code is not that of its calls": not proof.code or not set(proof.code) <= set(proof.calls),
        f"a kernel of it does not compile: {broken}": bool(broken),
        "its determinism was not shown": proof.repeats < 2,
        "its error was not measured": not proof.errors,
        "its error is not a number": not all(map(math.isfinite, figures)),
    }
    verdicts = {tool: proof.sanitizers.get(tool) for tool in TOOLS}
    return [
        *(what for what, wrong in found.items() if wrong),
        *(f"{tool} did not run it" for tool, verdict in verdicts.items() if verdict is None),
        *(f"{tool}: {verdict}" for tool, verdict in verdicts.items() if verdict is not None and not clean(verdict)),
    ]


def _uncommitted(proof: Proof) -> str:
    environment = proof.run.environment
    if not environment.has_commit:
        return f"the proof names no commit ({environment.commit}): forge-cute prove stamp writes it"
    return "the proof was made from sources that were not committed" if environment.dirty is not False else ""


def tests_to_run(known: WeekTests | None, now: Mapping[str, str]) -> list[str]:
    """The test functions without a result, and those that were changed since."""
    if known is None:
        return sorted(now)
    lacking = {test for test, reason in known.skipped.items() if any(words in reason for words in LACKING)}
    ran = {function_of(test) for test in {*known.tests, *lacking}}
    return sorted(name for name, digest in now.items() if name not in ran or known.digests.get(name) != digest)


def _wrong_tests(known: WeekTests | None, now: Mapping[str, str]) -> str:
    """The test functions of a week that have no result, have changed since, or are gone, in words; or ""."""
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
    """What is wrong with a record, whatever the checkout."""
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
