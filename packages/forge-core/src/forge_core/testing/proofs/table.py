"""The state of the proofs as a table: operator, variant, the GPUs that it is proven on, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forge_core.testing.proofs.check import findings_of
from forge_core.testing.proofs.declare import Week
from forge_core.testing.proofs.evidence import Evidence
from forge_core.testing.proofs.record import Record

__all__ = ["table"]


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
