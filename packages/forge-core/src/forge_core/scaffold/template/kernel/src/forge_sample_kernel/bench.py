"""What is measured: the operator, the bytes that it must move, and its peers; the cases stand in ``suites.yaml``."""

from __future__ import annotations

from pathlib import Path

from forge_core.bench import Bench, OperatorBench, Peer, compiled_peers, one_pass
from forge_core.bench.gate import judged_by
from forge_sample_kernel import ref
from forge_sample_kernel.ops import sample_scale
from forge_sample_kernel.proofs import PROOFS

BENCH = Bench(
    name="sample_suite",
    package="forge_sample_kernel",
    suites=Path(__file__).with_name("suites.yaml"),
    operators=(
        OperatorBench.of(
            sample_scale,
            reference=lambda x: ref.sample_scale(x.double()).to(x.dtype),
            traffic=one_pass,
            peers=(Peer("eager", lambda case: ref.sample_scale), *compiled_peers(ref.sample_scale)),
            agree=judged_by(PROOFS.subjects[0], 2.0),
            tolerance="the derived bound plus half an ulp of the output, element by element, against float64",
        ),
    ),
)
