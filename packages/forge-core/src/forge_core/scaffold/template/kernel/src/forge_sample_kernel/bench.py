"""What is measured: the operator, the bytes that it must move, and its peers; the cases stand in ``suites.yaml``."""

from __future__ import annotations

from pathlib import Path

import torch

from forge_core.bench import CUDA_GPU, TRITON, Bench, OperatorBench, Peer, compiled, one_pass
from forge_core.bench.gate import near
from forge_sample_kernel import ref
from forge_sample_kernel.ops import sample_scale
from forge_sample_kernel.proofs import PROOFS

__all__ = ["BENCH"]


def _agree(inputs: tuple[torch.Tensor, ...], got: torch.Tensor, want: torch.Tensor) -> str:
    return near(PROOFS.subjects[0], inputs, (2.0,), got, want)


BENCH = Bench(
    name="sample_suite",
    package="forge_sample_kernel",
    suites=Path(__file__).with_name("suites.yaml"),
    operators=(
        OperatorBench.of(
            sample_scale,
            reference=lambda x: ref.sample_scale(x.double()).to(x.dtype),
            traffic=one_pass,
            peers=(
                Peer("eager", lambda case: ref.sample_scale),
                Peer("compile", compiled(ref.sample_scale), requires=(CUDA_GPU, TRITON)),
            ),
            agree=_agree,
            tolerance="the derived bound plus half an ulp of the output, element by element, against float64",
        ),
    ),
)
