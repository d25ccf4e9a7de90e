"""What is measured: the operator, the bytes that it must move, and its peers; the cases stand in ``suites.yaml``."""

from __future__ import annotations

from pathlib import Path

from forge_core.bench import Bench, OperatorBench, Peer, compiled_peers, one_pass
from forge_core.bench.gate import judged_by
from forge_sample_rows import ref
from forge_sample_rows.ops import sample_norm
from forge_sample_rows.proofs import PROOFS

BENCH = Bench(
    name="sample_suite",
    package="forge_sample_rows",
    suites=Path(__file__).with_name("suites.yaml"),
    operators=(
        OperatorBench.of(
            sample_norm,
            reference=lambda x: ref.sample_norm(x.double()).to(x.dtype),
            traffic=one_pass,
            peers=(Peer("eager", lambda case: ref.sample_norm), *compiled_peers(ref.sample_norm)),
            agree=judged_by(PROOFS.subjects[0], -1),
            tolerance="the derived bound plus half an ulp of the output, element by element, against float64",
        ),
    ),
)
