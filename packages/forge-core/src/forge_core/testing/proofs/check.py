"""Whether the sources that lie here have a proof; needs neither a GPU nor the CuTe DSL.

Every kernel needs a proof of its present sources on one recorded GPU.  A proof counts that is whole, whose seals are
unbroken, that was made from committed sources, and whose tests are all that its week has.  A record that cannot be
believed is an error by itself, also where another GPU has a proof.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from forge_core.testing.proofs.declare import Week, digest_of, discover, gpu_tests, sources_of
from forge_core.testing.proofs.record import FILE, Proof, Record, WeekTests, load

__all__ = [
    "TOOLS",
    "Finding",
    "assert_proven",
    "check",
    "clean",
    "findings_of",
    "in_words",
    "incredible",
    "missing_tests",
    "records_in",
    "unproven",
    "what_changed",
]

#: The tools of compute-sanitizer whose verdicts a proof holds.
TOOLS = ("memcheck", "racecheck", "initcheck")

#: Why a test may be skipped in a proof: what the machine lacks, not what the kernel does.
LACKING = ("GPUs are needed", "of free GPU memory are needed")


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
        variants: dict[str, list[str]] = {}
        for subject in subjects:
            operator, _, variant = subject.partition("/")
            variants.setdefault(operator, []).append(variant)
        kernels = [f"    {operator}: {', '.join(names)}" for operator, names in variants.items()]
        parts.append("\n".join([f"{len(subjects)} kernels: {what}", *kernels, f"    {command}"]))
    return "\n".join(parts)


def records_in(folder: Path) -> dict[str, Record]:
    """The records of all GPUs, by the name of their folders.

    Raises:
        ProofError: one of them cannot be read.
    """
    return {path.parent.name: load(path) for path in sorted(folder.glob(f"*/{FILE}"))}


def assert_proven(root: Path, weeks: Sequence[Week] | None = None) -> None:
    """Fails unless every kernel has a proof of its present sources; the test of a repository that keeps records.

    Args:
        root: the repository's root; records are looked for in its docs/records.
        weeks: what there is to prove; by default what the installed packages declare.

    Raises:
        AssertionError: with each kernel, what changed since, and the command.
        ProofError: a record cannot be read.
    """
    found = check(root, discover() if weeks is None else weeks, root / "docs" / "records")
    if found:
        raise AssertionError(f"{len(found)} findings:\n{in_words(found)}")


def check(root: Path, weeks: Sequence[Week], folder: Path) -> list[Finding]:
    """All that is wrong with the proofs in a folder of records, for the sources that lie here.

    Args:
        root: the repository's root, where the tests are.
        weeks: what there is to prove.
        folder: the records.

    Raises:
        ProofError: a record cannot be read.
    """
    records = records_in(folder)
    found = [finding for gpu, record in records.items() for finding in incredible(gpu, record)]
    for week in weeks:
        wanted = gpu_tests(root, week.tests)
        reasons: dict[str, list[str]] = {kernel.name: [] for kernel in week.kernels}
        proven = set()
        for gpu, record in records.items():
            lacking = findings_of(week, record, wanted)
            proven |= {name for name, problem in lacking.items() if not problem}
            for name, problem in lacking.items():
                reasons[name].append(f"{gpu}: {problem}")
        command = f"on a machine with a GPU: nox -s prove -- {week.name}"
        for name, told in reasons.items():
            if name not in proven:
                found.append(Finding(name, "; ".join(told) or "no GPU has a record of proofs", command))
    return found


def findings_of(week: Week, record: Record, wanted: Iterable[str]) -> dict[str, str]:
    """For each kernel of a week, what its proof in a record lacks, or "".

    Args:
        week: the declaration.
        record: of one GPU.
        wanted: the week's test functions.
    """
    missing = missing_tests(week, record.weeks.get(week.name), wanted)
    found = {}
    for name, sources in sources_of(week.kernels).items():
        proof = record.proof(name)
        if proof is None:
            found[name] = "there is no proof"
        else:
            committed = _uncommitted(proof)
            found[name] = "; ".join(filter(None, [unproven(proof, sources), committed, missing]))
    return found


def unproven(proof: Proof, sources: Mapping[str, str]) -> str:
    """What a proof lacks for these sources, whatever checkout it was made from; or ""."""
    told = []
    if proof.seal != proof.computed_seal():
        told.append("the proof was changed after it was made: its seal is broken")
    if proof.fingerprint != digest_of(proof.sources):
        told.append("the proof's fingerprint is not that of the sources it lists")
    if proof.fingerprint != digest_of(dict(sources)):
        told.append(f"changed since the proof: {what_changed(proof.sources, sources)}")
    told += _incomplete(proof)
    return "; ".join(told)


def what_changed(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """The sources that differ, in words."""
    changed = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    words = [f"{n} (new)" if n not in before else f"{n} (gone)" if n not in now else n for n in changed]
    return ", ".join(words) or "nothing that the sources tell"


def clean(verdict: str) -> bool:
    """Whether a sanitizer's verdict says that it found nothing."""
    return verdict.startswith(("0 errors", "0 hazards"))


def _incomplete(proof: Proof) -> list[str]:
    told = []
    if not proof.tests or not proof.shapes:
        told.append("no test of it passed")
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


def missing_tests(week: Week, known: WeekTests | None, wanted: Iterable[str]) -> str:
    """In words, the test functions of a week that have no result; or ""."""
    if known is None:
        return f"the tests of {week.name} did not run"
    lacking = {test for test, reason in known.skipped.items() if any(words in reason for words in LACKING)}
    ran = {test.partition("[")[0] for test in {*known.tests, *lacking}}
    missing = sorted(set(wanted) - ran)
    return f"tests without a result: {', '.join(missing)}" if missing else ""


def incredible(gpu: str, record: Record) -> list[Finding]:
    """What is wrong with a record, whatever the sources here."""
    command = f"restore docs/records/{gpu}/{FILE} from git, or prove anew: nox -s prove -- --all"
    found = []
    if record.seal != record.computed_seal():
        found.append(Finding(gpu, "the record was changed after it was made: its seal is broken", command))
    for proof in record.proofs:
        where = f"{gpu}: {proof.name}"
        if proof.seal != proof.computed_seal():
            found.append(Finding(where, "the proof was changed after it was made: its seal is broken", command))
        known = record.weeks.get(proof.week)
        if known is None or not set(proof.tests) <= set(known.tests):
            found.append(Finding(where, f"it names tests that the record of {proof.week} does not", command))
        if proof.run.environment.gpu != record.gpu:
            found.append(Finding(where, f"it is of another GPU, {proof.run.environment.gpu}", command))
    return found
