"""What week 0 measures: its operators, what they move, and whom they are measured against.

The cases and the targets stand in ``suites.yaml``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from forge_core.bench import CUDA_GPU, TRITON, Bench, Case, OperatorBench, Peer, compiled, one_pass
from forge_week0_transpose import ops, ref
from forge_week0_transpose.thresholds import THRESHOLDS


def _transposed(x: torch.Tensor) -> torch.Tensor:
    # As contiguous(), which copies nothing where the transposition is contiguous already: a single row, a permuted x.
    return x.transpose(-1, -2).clone(memory_format=torch.contiguous_format)


def _eager_transpose(case: Case) -> Callable[..., torch.Tensor]:
    # `.t()` where there are two dimensions is cheaper on the host.
    return (lambda x: x.t().clone(memory_format=torch.contiguous_format)) if len(case.shape) == 2 else _transposed


BENCH = Bench(
    name="week0",
    package="forge_week0_transpose",
    suites=Path(__file__).with_name("suites.yaml"),
    operators=(
        OperatorBench.of(
            ops.copy,
            reference=ref.copy,
            traffic=one_pass,
            peers=(
                Peer("eager", lambda case: torch.clone),
                Peer("copy_", lambda case: lambda x: torch.empty_like(x).copy_(x)),
            ),
        ),
        OperatorBench.of(
            ops.transpose,
            reference=ref.transpose,
            traffic=one_pass,
            peers=(
                Peer("eager", _eager_transpose),
                Peer("compile", compiled(_transposed), requires=(CUDA_GPU, TRITON)),
                Peer("autotune", compiled(_transposed, "max-autotune-no-cudagraphs"), requires=(CUDA_GPU, TRITON)),
            ),
        ),
    ),
    thresholds=THRESHOLDS,
)
