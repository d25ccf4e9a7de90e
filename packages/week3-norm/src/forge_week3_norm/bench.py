"""What is measured: the operator, the bytes that it must move, and its peers; the cases stand in ``suites.yaml``."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from forge_core.bench import CUDA_GPU, TRITON, Bench, OperatorBench, Peer, Traffic, compiled
from forge_core.bench.gate import near
from forge_week3_norm import ref
from forge_week3_norm.ops import rms_norm
from forge_week3_norm.proofs import PROOFS

__all__ = ["BENCH"]


def _agree(inputs: tuple[torch.Tensor, ...], got: torch.Tensor, want: torch.Tensor) -> str:
    return near(PROOFS.subjects[0], inputs, (-1,), got, want)


BENCH = Bench(
    name="week3",
    package="forge_week3_norm",
    suites=Path(__file__).with_name("suites.yaml"),
    operators=(
        OperatorBench(
            name="rms_norm",
            call=lambda variant: rms_norm if variant == "auto" else partial(rms_norm, variant=variant),
            variants=rms_norm.variants,
            explain=lambda inputs, variant: rms_norm.explain(*inputs, variant=variant),
            reference=lambda x: ref.rms_norm(x.double()).to(x.dtype),
            traffic=lambda case: Traffic(case.nbytes, case.nbytes, "each element is read once and written once"),
            peers=(
                Peer("eager", lambda case: ref.rms_norm),
                Peer("compile", compiled(ref.rms_norm), requires=(CUDA_GPU, TRITON)),
            ),
            agree=_agree,
            tolerance="the derived bound plus half an ulp of the output, element by element, against float64",
        ),
    ),
)
