"""The record of a GPU: docs/records/<gpu>/proof.json.gz.

Many kernels pass the same tests on the same calls, so the file holds two lists, ``names`` of tests and ``calls``, and
each kernel has ranges of lines of them: ``"0-57,80"``.

A proof's seal is the SHA-256 of its content, the record's that of the proofs' seals, the weeks' tests and the GPU's
specification.  Seals detect edits; they are no signatures, since whoever edits a record can compute them anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from forge_core.bench.environment import Environment, stamp
from forge_core.device import Device
from forge_core.files import read_unpacked
from forge_core.proofs.declare import ProofError, digest_of

__all__ = [
    "FILE",
    "SCHEMA_VERSION",
    "Error",
    "Proof",
    "ProofRun",
    "Record",
    "WeekTests",
    "load",
    "path_of",
    "stamped",
]

SCHEMA_VERSION = 2
FILE = "proof.json.gz"


class Error(msgspec.Struct, frozen=True):
    """The largest error against float64.

    Attributes:
        absolute: the largest.
        relative: over the largest magnitude of the result.
        share: over what the tolerance policy allows the element; 0 where results have to be exact.
    """

    absolute: float
    relative: float
    share: float = 0.0


class ProofRun(msgspec.Struct, frozen=True):
    """When and where a proof was made.

    Attributes:
        date: UTC, ISO 8601.
        environment: GPU, driver, versions, commit.
    """

    date: str
    environment: Environment


class Proof(msgspec.Struct, frozen=True):
    """What was shown of one kernel.

    Attributes:
        operator, variant, week: the kernel.
        run: when and where.
        calls: the calls that launched it, as text (``calls.describe``).
        plans: the digest of what they launched: configuration, grid, blocks, clusters, shared memory, integers.
        code: the digests of the PTX for calls whose configurations together have every value of every field.
        declaration: the digest of the operator's declared samples, bounds and planted faults, and of the policy.
        fingerprint: the digest of the sources that plan and compile it; where it is the same, nothing is recomputed.
        tests: ids of the tests that launched it and passed.
        errors: by dtype.
        repeats: how many calls gave the same bits.
        sanitizers: tool -> verdict, with the kernel that it saw, where that is another one of the same builder.
        seal: the digest of all of the above.
    """

    operator: str
    variant: str
    week: str
    run: ProofRun
    calls: list[str]
    plans: str
    code: dict[str, str]
    declaration: str
    fingerprint: str
    tests: list[str]
    errors: dict[str, Error]
    repeats: int
    sanitizers: dict[str, str]
    seal: str = ""

    @property
    def name(self) -> str:
        """As ``Kernel.name``."""
        return f"{self.operator}/{self.variant}"

    def computed_seal(self) -> str:
        """What the seal has to be."""
        told = msgspec.to_builtins(self)
        told.pop("seal")
        return digest_of(msgspec.json.decode(msgspec.json.encode(told)))

    def sealed(self) -> Proof:
        """The same with its seal."""
        return msgspec.structs.replace(self, seal=self.computed_seal())


class WeekTests(msgspec.Struct, frozen=True):
    """The tests of a week.

    Attributes:
        tests: ids of those that passed.
        digests: the digest of each test function, by its name.
        skipped: those that were skipped, each with the reason.
    """

    tests: list[str]
    digests: dict[str, str] = {}
    skipped: dict[str, str] = {}


class Record(msgspec.Struct, frozen=True):
    """All proofs on one GPU.

    Attributes:
        gpu: its name.
        device: its specification, which plans depend on.
        weeks: the tests of each week.
        proofs: one for each kernel.
        seal: see above.
    """

    gpu: str
    device: Device
    weeks: dict[str, WeekTests]
    proofs: list[Proof]
    seal: str = ""

    def proof(self, name: str) -> Proof | None:
        """The proof of a kernel, or None."""
        return next((proof for proof in self.proofs if proof.name == name), None)

    def computed_seal(self) -> str:
        """What the seal has to be."""
        told = msgspec.to_builtins([self.device, self.weeks])
        return digest_of([self.gpu, told, [[proof.name, proof.seal] for proof in self.proofs]])

    def sealed(self) -> Record:
        """The same, in order, with its seal; those of the proofs stay as they are."""
        told = msgspec.structs.replace(self, proofs=sorted(self.proofs, key=lambda proof: (proof.week, proof.name)))
        return msgspec.structs.replace(told, seal=told.computed_seal())

    def dumps(self) -> str:
        """The record as JSON, one kernel a line."""
        runs = _unique(proof.run for proof in self.proofs)
        names = sorted({t for p in self.proofs for t in p.tests} | {t for w in self.weeks.values() for t in w.tests})
        # By their last word first, as a rule the variant, so that a kernel's calls are neighbours.
        calls = sorted({c for proof in self.proofs for c in proof.calls}, key=lambda c: (c.rpartition(" ")[2], c))
        test_at, call_at = ({line: i for i, line in enumerate(lines)} for lines in (names, calls))
        kernels = []
        for proof in self.proofs:
            told = msgspec.to_builtins(proof)
            told["run"] = runs.index(proof.run)
            told["tests"] = _ranges(test_at[test] for test in proof.tests)
            told["calls"] = _ranges(call_at[call] for call in proof.calls)
            told["code"] = {str(call_at[call]): digest for call, digest in proof.code.items()}
            kernels.append(told)
        weeks = {
            name: {**msgspec.to_builtins(week), "tests": _ranges(test_at[test] for test in week.tests)}
            for name, week in self.weeks.items()
        }
        head = {
            "schema_version": SCHEMA_VERSION,
            "gpu": self.gpu,
            "device": self.device,
            "seal": self.seal,
            "weeks": weeks,
        }
        lists = {"runs": runs, "kernels": kernels, "calls": calls, "names": names}
        lines = [f' "{key}": {_json(value)}' for key, value in head.items()]
        for key, items in lists.items():
            lines.append(f' "{key}": [\n' + ",\n".join(f"  {_json(item)}" for item in items) + "\n ]")
        return "{\n" + ",\n".join(lines) + "\n}\n"


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _unique(runs: Iterable[ProofRun]) -> list[ProofRun]:
    found: list[ProofRun] = []
    for run in runs:
        if run not in found:
            found.append(run)
    return found


def _ranges(numbers: Iterable[int]) -> str:
    """``[0, 1, 2, 9]`` as ``"0-2,9"``."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def _lines(ranges: str, lines: Sequence[str]) -> list[str]:
    found: list[str] = []
    for part in filter(None, ranges.split(",")):
        first, _, last = part.partition("-")
        begin, end = int(first), int(last or first)
        if not begin <= end < len(lines):
            raise ValueError(f"no lines {part} among {len(lines)}")
        found += lines[begin : end + 1]
    return found


def load(path: Path) -> Record:
    """Reads a record; the seals are not looked at.

    Raises:
        ProofError: it cannot be read, or is none.
    """
    try:
        raw = msgspec.json.decode(read_unpacked(path))
        version = raw.get("schema_version") if isinstance(raw, dict) else None
        if version != SCHEMA_VERSION:
            raise ProofError(
                f"{path}: expected a proof with schema_version {SCHEMA_VERSION}, got {version}: prove anew with "
                "nox -s prove -- --all"
            )
        weeks = {name: {**week, "tests": _lines(week["tests"], raw["names"])} for name, week in raw["weeks"].items()}
        proofs = [
            {
                **kernel,
                "run": raw["runs"][kernel["run"]],
                "tests": _lines(kernel["tests"], raw["names"]),
                "calls": sorted(_lines(kernel["calls"], raw["calls"])),
                "code": {raw["calls"][int(at)]: digest for at, digest in kernel["code"].items()},
            }
            for kernel in raw["kernels"]
        ]
        told = {"gpu": raw["gpu"], "device": raw["device"], "seal": raw["seal"], "weeks": weeks, "proofs": proofs}
        return msgspec.convert(told, Record)
    except (OSError, msgspec.MsgspecError, KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ProofError(f"{path}: expected a record of proofs: {type(error).__name__}: {error}") from error


def path_of(records: Path, gpu: str, name: str = FILE) -> Path:
    """The path of a file on a GPU in a folder of records: for ``"NVIDIA H200"`` ``records/h200/proof.json.gz``."""
    return records / re.sub(r"[^a-z0-9]+", "-", gpu.lower().removeprefix("nvidia")).strip("-") / name


def stamped(record: Record) -> Record:
    """Writes this checkout's commit into the proofs that were made from the same sources without a checkout.

    Raises:
        ProofError: a seal is broken.
        BenchmarkError: the sources are others, have changes here, or this is no checkout.
    """
    runs = _unique(proof.run for proof in record.proofs if not proof.run.environment.has_commit)
    for proof in record.proofs:
        if proof.seal != proof.computed_seal():
            raise ProofError(f"{proof.name}: the proof was changed after it was made; it cannot be stamped")
    if record.seal != record.computed_seal():
        raise ProofError("the record was changed after it was made; it cannot be stamped")
    # Once for each run: stamping reads all sources and asks git.
    made = [msgspec.structs.replace(run, environment=stamp(run.environment)) for run in runs]
    proofs = [
        msgspec.structs.replace(proof, run=made[runs.index(proof.run)]).sealed() if proof.run in runs else proof
        for proof in record.proofs
    ]
    return msgspec.structs.replace(record, proofs=proofs).sealed()
