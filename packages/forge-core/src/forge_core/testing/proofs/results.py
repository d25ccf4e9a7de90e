"""The kernels that recorded results were measured on, so that a table says when they are others: ``kernels.json``.

    docs/records/<gpu>/kernels.json     file of the record -> suite, number of kernels, digests of PTX and sources

A record is entered where its sources lie; from then on its kernels are compiled again and compared, which takes some
ten seconds, only where sources have changed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import msgspec

from forge_core.bench.environment import Environment, sources_here
from forge_core.bench.kernels import requests
from forge_core.cache.key import tag
from forge_core.cache.parallel import Request
from forge_core.device import SPECS
from forge_core.files import write_atomically
from forge_core.testing.proofs.declare import ProofError, digest_of, discover
from forge_core.testing.proofs.evidence import Evidence
from forge_core.testing.proofs.record import folder_of

__all__ = ["FILE", "Kernels", "entered", "note"]

FILE = "kernels.json"


class _Record(Protocol):
    """What is asked of a benchmark's record."""

    @property
    def suite(self) -> str: ...
    @property
    def environment(self) -> Environment: ...


class Kernels(msgspec.Struct, frozen=True):
    """The kernels of a suite.

    Attributes:
        suite: its name.
        arch: what they are compiled for.
        count: how many.
        code: the digest of their PTX and compile options.
        sources: that of the sources that plan and compile them, and of their configurations.
    """

    suite: str
    arch: str
    count: int
    code: str
    sources: str


def _sources(wanted: list[Request], evidence: Evidence) -> str:
    modules = {request.builder.partition(":")[0] for request in wanted}
    tops = {module.partition(".")[0] for module in modules}
    weeks = [evidence.fingerprints(week) for week in discover() if week.package in tops]
    return digest_of([weeks, [[request.builder, tag(request.config)] for request in wanted]])[:16]


def _here(suite: str, arch: str, evidence: Evidence) -> Kernels:
    wanted = requests([suite], [arch])
    code = evidence.code([(request.builder, request.config) for request in wanted], arch)
    broken = next((digest.removeprefix("! ") for digest in code.values() if digest.startswith("!")), "")
    if broken:
        raise ProofError(f"{suite}: its kernels cannot be compared with those of a record: {broken}")
    return Kernels(suite, arch, len(code), digest_of(sorted(code.values()))[:16], _sources(wanted, evidence))


def _read(path: Path) -> dict[str, Kernels]:
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Kernels]) if path.is_file() else {}


def _path(records: Path, record: _Record) -> Path:
    return records / folder_of(record.environment.gpu) / FILE


def entered(records: Path, file: str, record: _Record, evidence: Evidence) -> None:
    """Enters what a record was measured on, where its sources lie here and it has no entry.

    Args:
        records: the folder of records.
        file: the name of the record's file.
        record: what is in it.
        evidence: what lies here.
    """
    path = _path(records, record)
    known = _read(path)
    arch = next((spec.arch for spec in SPECS.values() if spec.name == record.environment.gpu), None)
    if file not in known and arch is not None and not sources_here(record.environment.sources):
        known[file] = _here(record.suite, arch, evidence)
        write_atomically(path, msgspec.json.format(msgspec.json.encode(known), indent=1).decode() + "\n")


def note(records: Path, file: str, record: _Record, evidence: Evidence) -> str:
    """What a page says below the tables of a record: which kernels they are of, and whether these have changed since.

    Args:
        records: the folder of records.
        file: the name of the record's file.
        record: what is in it.
        evidence: what lies here.
    """
    known = _read(_path(records, record)).get(file)
    if known is None:
        return "Which kernels this was measured on is not recorded."
    told = f"Measured on {known.count} kernels, whose PTX has the digest `{known.code}` ({FILE})."
    wanted = requests([known.suite], [known.arch])
    if _sources(wanted, evidence) == known.sources or _here(known.suite, known.arch, evidence).code == known.code:
        return told
    return f"{told} **These kernels have changed since: they compile to other PTX.**"
