"""The state of the proofs as a table: operator, variant, the GPUs that it is proven on, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from forge_core.files import write_atomically
from forge_core.testing.proofs.check import findings_of
from forge_core.testing.proofs.declare import ProofError, Week
from forge_core.testing.proofs.evidence import Evidence
from forge_core.testing.proofs.record import Record

__all__ = ["BEGIN", "END", "into", "table"]

BEGIN = "<!-- proofs: begin, written by `forge-cute prove table` -->"
END = "<!-- proofs: end -->"


def table(weeks: Sequence[Week], records: Mapping[str, Record], evidence: Evidence) -> str:
    """A Markdown table with one line for each operator and variant; kernels without a proof are named as such.

    Args:
        weeks: what there is to prove.
        records: by GPU.
        evidence: what lies here.
    """
    lines = ["| operator | variant | proven on | date |", "| --- | --- | --- | --- |"]
    lacking = {gpu: findings_of(weeks, record, evidence) for gpu, record in records.items()}
    for week in weeks:
        for kernel in week.kernels:
            found = [(gpu, records[gpu].proof(kernel.name)) for gpu in records if not lacking[gpu][kernel.name]]
            proofs = [(gpu, proof) for gpu, proof in found if proof is not None]
            gpus = ", ".join(records[gpu].gpu for gpu, _ in proofs) or "not proven"
            date = max((proof.run.date[:10] for _, proof in proofs), default="")
            lines.append(f"| `{kernel.operator}` | {kernel.variant} | {gpus} | {date} |")
    return "\n".join(lines) + "\n"


def into(path: Path, text: str) -> None:
    """Writes a table between the two marks of a file.

    Raises:
        ProofError: the file has not both marks, once each and in order.
    """
    page = path.read_text(encoding="utf-8")
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in after:
        raise ProofError(f"{path}: expected the marks\n{BEGIN}\n{END}\nonce each and in this order")
    write_atomically(path, f"{before}{BEGIN}\n{text}{END}{after}")
