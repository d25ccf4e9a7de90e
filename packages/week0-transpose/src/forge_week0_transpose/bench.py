"""What week 0 measures: its operators, what they move, and whom they are measured against.

The cases and the targets stand in ``suites.yaml``.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from forge_core.bench import CUDA_GPU, TRITON, Bench, Case, OperatorBench, Peer, Traffic, compiled
from forge_week0_transpose import ops, ref
from forge_week0_transpose.thresholds import THRESHOLDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge_core.op import Operator


def _transposed(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(-1, -2).contiguous()


def _eager_transpose(case: Case) -> Callable[..., torch.Tensor]:
    # What a user writes: `.t()` where there are two dimensions, which is also cheaper on the host.
    if len(case.shape) == 2:
        return lambda x: x.t().contiguous()
    return _transposed


def _measured(operator: Operator, *peers: Peer) -> OperatorBench:
    return OperatorBench(
        name=operator.schema.name,
        # The plain call for auto, as a user writes it: a wrapper would be part of the host time.
        call=lambda variant: operator if variant == "auto" else partial(operator, variant=variant),
        variants=operator.variants,
        explain=lambda inputs, variant: operator.explain(*inputs, variant=variant),
        reference=getattr(ref, operator.schema.name),
        traffic=lambda case: Traffic(case.nbytes, case.nbytes, "each element is read once and written once"),
        peers=peers,
    )


BENCH = Bench(
    name="week0",
    package="forge_week0_transpose",
    suites=Path(__file__).with_name("suites.yaml"),
    operators=(
        _measured(
            ops.copy,
            Peer("eager", lambda case: torch.clone),
            Peer("copy_", lambda case: lambda x: torch.empty_like(x).copy_(x)),
        ),
        _measured(
            ops.transpose,
            Peer("eager", _eager_transpose),
            Peer("compile", compiled(_transposed), requires=(CUDA_GPU, TRITON)),
            Peer("autotune", compiled(_transposed, "max-autotune-no-cudagraphs"), requires=(CUDA_GPU, TRITON)),
        ),
    ),
    thresholds=THRESHOLDS,
)
