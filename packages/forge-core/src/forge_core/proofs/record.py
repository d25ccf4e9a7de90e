"""The record of a GPU: docs/records/<gpu>/proof.json.xz, a :class:`Record` as JSON.

A proof's seal is the SHA-256 of its content; the record's is that of the proofs' seals, the weeks' tests and the GPU's
specification.  Seals detect edits, but are not signatures: whoever edits a record can compute them anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from forge_core.bench.environment import Environment, stamp
from forge_core.device import Device
from forge_core.files import read_unpacked, write_atomically
from forge_core.proofs.calls import ungrouped
from forge_core.proofs.declare import ProofError, digest_of

FILE = "proof.json.xz"


class Error(msgspec.Struct, frozen=True):
    """The largest error against float64: absolute, relative to the largest result, as a share of the tolerance."""

    absolute: float
    relative: float
    share: float = 0.0

    @classmethod
    def rounded(cls, *figures: float) -> Error:
        """Of three significant digits each, which keep a record small."""
        return cls(*(float(f"{figure:.3g}") for figure in figures))


class ProofRun(msgspec.Struct, frozen=True):
    """When (UTC, ISO 8601) and where a kernel was validated: GPU, driver, versions, commit."""

    date: str
    environment: Environment


class Proof(msgspec.Struct, frozen=True):
    """The validation of one kernel."""

    operator: str
    variant: str
    week: str
    run: ProofRun
    grouped: dict[str, list[str]]  # the calls that launched it, as `calls.grouped` stores them
    plans: str  # the digest of their launches (`check.plans_digest`)
    code: dict[str, str]  # the digest of the PTX by call, for the calls that `merge.covering` chooses
    declaration: str  # the digest of the operator's declaration and of the tolerance policy
    fingerprint: str  # the digest of the sources that plan and compile it; if unchanged, nothing is recomputed
    tests: list[str]  # ids of the tests that launched it and passed, and of its measurement
    errors: dict[str, Error]  # by dtype
    repeats: int  # the number of calls that gave the same bits
    sanitizers: dict[str, str]  # tool -> verdict; if on another operator of the same builder, it names that kernel
    seal: str = ""

    @property
    def name(self) -> str:
        """As ``Kernel.name``."""
        return f"{self.operator}/{self.variant}"

    @property
    def calls(self) -> list[str]:
        """The calls that launched it, as text (``calls.describe``), sorted."""
        return ungrouped(self.grouped)

    def computed_seal(self) -> str:
        """The seal of the present content."""
        content = msgspec.to_builtins(self)
        del content["seal"]
        return digest_of(content)

    def sealed(self) -> Proof:
        """The proof with the seal of its content."""
        return msgspec.structs.replace(self, seal=self.computed_seal())


class WeekTests(msgspec.Struct, frozen=True):
    """The tests of a week: ids that passed, digests of test functions by name, reasons of skipped ids."""

    tests: list[str] = []
    digests: dict[str, str] = {}
    skipped: dict[str, str] = {}


class Record(msgspec.Struct, frozen=True, tag_field="schema_version", tag=4):
    """All proofs on one GPU: its name, the specification that plans depend on, and the tests of each week."""

    gpu: str
    device: Device
    weeks: dict[str, WeekTests] = {}
    proofs: list[Proof] = []
    seal: str = ""

    def proof(self, name: str) -> Proof | None:
        """The proof of a kernel, or None."""
        return next((proof for proof in self.proofs if proof.name == name), None)

    def tests_of(self, week: str) -> WeekTests:
        """The tests of a week, by its name; none if the record has none."""
        return self.weeks.get(week, WeekTests())

    def computed_seal(self) -> str:
        """The seal of the present content."""
        content = msgspec.to_builtins([self.device, self.weeks])
        return digest_of([self.gpu, content, [[proof.name, proof.seal] for proof in self.proofs]])

    def with_proofs(self, proofs: Iterable[Proof]) -> Record:
        """The record with other proofs, sorted, and its own seal; those of the proofs stay as they are."""
        ordered = sorted(proofs, key=lambda proof: (proof.week, proof.name))
        record = msgspec.structs.replace(self, proofs=ordered)
        return msgspec.structs.replace(record, seal=record.computed_seal())

    def save(self, path: Path) -> None:
        """Writes the record to a file."""
        write_atomically(path, msgspec.json.encode(self).decode())


def load(path: Path) -> Record:
    """Reads a record without verifying its seals; raises ProofError if it cannot be read or is none."""
    try:
        return msgspec.json.decode(read_unpacked(path), type=Record)
    except (OSError, msgspec.MsgspecError) as error:
        raise ProofError(
            f"{path}: expected a record of proofs, got: {error}. Restore it from git, or make a new one by "
            "nox -s prove -- --all"
        ) from error


def path_of(records: Path, gpu: str, name: str = FILE) -> Path:
    """The path of a GPU's file in a folder of records: ``records/h200/proof.json.xz`` of ``"NVIDIA H200"``."""
    return records / re.sub(r"[^a-z0-9]+", "-", gpu.lower().removeprefix("nvidia")).strip("-") / name


def stamped(record: Record) -> Record:
    """The record with this checkout's commit in the proofs that were made from the same sources without git.

    Raises:
        BenchmarkError: the sources differ or have uncommitted changes, or this is not a checkout.
    """
    # Each run is stamped once: that reads all sources and calls git.
    runs = {msgspec.json.encode(p.run): p.run for p in record.proofs if not p.run.environment.has_commit}
    made = {key: msgspec.structs.replace(run, environment=stamp(run.environment)) for key, run in runs.items()}
    proofs = []
    for proof in record.proofs:
        run = made.get(msgspec.json.encode(proof.run))
        proofs.append(proof if run is None else msgspec.structs.replace(proof, run=run).sealed())
    return record.with_proofs(proofs)
