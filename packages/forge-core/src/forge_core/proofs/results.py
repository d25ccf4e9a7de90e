"""The kernels that benchmark records were measured on, so that a page says when they have changed.

    docs/records/<gpu>/kernels.json     file of the record -> :class:`Kernels`

The kernels are compiled and compared, which takes some ten seconds, only if sources have changed.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from forge_core.bench.environment import sources_here
from forge_core.bench.kernels import requests
from forge_core.bench.records import Record
from forge_core.cache.key import tag
from forge_core.device import SPECS
from forge_core.files import write_atomically
from forge_core.proofs.declare import ProofError, digest_of, discover
from forge_core.proofs.evidence import Evidence, refusal
from forge_core.proofs.record import path_of

FILE = "kernels.json"


class Kernels(msgspec.Struct, frozen=True):
    """The kernels of a suite on ``arch``: their number, and digests of their PTX and of their sources."""

    suite: str
    arch: str
    count: int
    code: str
    sources: str


def _sources(suite: str, arch: str, evidence: Evidence) -> str:
    wanted = requests([suite], [arch])
    packages = {request.builder.partition(".")[0] for request in wanted}
    weeks = [evidence.fingerprints(week) for week in discover() if week.package in packages]
    return digest_of([weeks, [[request.builder, tag(request.config)] for request in wanted]])[:16]


def _code(suite: str, arch: str, evidence: Evidence) -> tuple[int, str]:
    code = evidence.code([(request.builder, request.config) for request in requests([suite], [arch])], arch)
    if broken := refusal(code.values()):
        raise ProofError(f"{suite}: its kernels cannot be compared with those of a record: {broken}")
    return len(code), digest_of(sorted(code.values()))[:16]


def _read(path: Path) -> dict[str, Kernels]:
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Kernels]) if path.is_file() else {}


def entered(records: Path, file: str, record: Record, evidence: Evidence) -> None:
    """Enters the kernels of the record in a file into ``kernels.json``, once, if its sources are the checkout's."""
    path = path_of(records, record.environment.gpu, FILE)
    known = _read(path)
    arch = next((spec.arch for spec in SPECS.values() if spec.name == record.environment.gpu), None)
    if file not in known and arch is not None and not sources_here(record.environment.sources):
        count, code = _code(record.suite, arch, evidence)
        known[file] = Kernels(record.suite, arch, count, code, _sources(record.suite, arch, evidence))
        write_atomically(path, msgspec.json.format(msgspec.json.encode(known), indent=1).decode() + "\n")


def note(records: Path, file: str, record: Record, evidence: Evidence) -> str:
    """The line below a record's tables: the kernels that were measured, and whether they have changed since."""
    known = _read(path_of(records, record.environment.gpu, FILE)).get(file)
    if known is None:
        return "Which kernels this was measured on is not recorded."
    text = f"Measured on {known.count} kernels, whose PTX has the digest {known.code} ({FILE})."
    own = known.suite, known.arch, evidence
    if _sources(*own) == known.sources or _code(*own)[1] == known.code:
        return text
    return f"{text} These kernels have changed since: they compile to other PTX."
