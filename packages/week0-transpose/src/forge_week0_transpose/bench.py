"""What week 0 measures: its operators, what they move, and whom they are measured against.

The cases and the targets stand in ``suites.yaml``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch.utils.dlpack import from_dlpack

from forge_core.bench import CUDA_GPU, CUPY, Bench, Case, OperatorBench, Peer, compiled_peers, one_pass
from forge_week0_transpose import ops, ref
from forge_week0_transpose.thresholds import THRESHOLDS


def _transposed(x: torch.Tensor) -> torch.Tensor:
    # As contiguous(), which copies nothing where the transposition is contiguous already: a single row, a permuted x.
    return x.transpose(-1, -2).clone(memory_format=torch.contiguous_format)


def _eager_transpose(case: Case) -> Callable[..., torch.Tensor]:
    # `.t()` where there are two dimensions is cheaper on the host.
    return (lambda x: x.t().clone(memory_format=torch.contiguous_format)) if len(case.shape) == 2 else _transposed


def _permute_copy(case: Case) -> Callable[..., torch.Tensor]:
    rank = len(case.shape)
    return partial(torch.permute_copy, dims=[*range(rank - 2), rank - 1, rank - 2])


def _geam(case: Case) -> Callable[..., torch.Tensor]:
    """The sum of two transposed matrices by cuBLAS, which does not read the second, multiplied by zero."""
    import cupy.cublas  # type: ignore[import-not-found]  # an optional peer

    def call(x: torch.Tensor) -> torch.Tensor:
        # CuPy runs on a stream of its own unless it is told which.
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            a = cupy.from_dlpack(x)
            y = cupy.empty(a.shape[::-1], a.dtype)
            return from_dlpack(cupy.cublas.geam("T", "T", 1.0, a, 0.0, a, out=y))

    return call


def _geam_unable(case: Case) -> str:
    wide = case.dtype in (torch.float32, torch.float64)
    if not wide or len(case.shape) != 2 or case.layout not in ("contiguous", "offset"):
        return f"takes contiguous matrices of fp32 and fp64, got {case.name}"  # CuPy copies others first
    # Of 3 x 16777216 it takes the host longer than the GPU, so that no time could be measured.
    return "takes the host longer than the GPU" if max(case.shape) > 2**22 else ""


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
                *compiled_peers(_transposed),
                Peer("permute_copy", _permute_copy),
                Peer("geam", _geam, requires=(CUDA_GPU, CUPY), unable=_geam_unable),
            ),
        ),
    ),
    thresholds=THRESHOLDS,
)
