"""What week 1 measures: its operators, what they move, and whom they are measured against.

A case's dimension is part of the operator's name: ``sum_rows`` reduces the last dimension, ``sum_columns`` the first;
``sum_one_row`` reduces a first dimension of size 1, which is a copy, and is held against one of the same bytes.
The cases and the targets stand in ``suites.yaml``.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.dlpack import from_dlpack

from forge_core.bench import CUDA_GPU, CUPY, Bench, Case, OperatorBench, Peer, Traffic, compiled_peers
from forge_core.bench.gate import judged_by
from forge_core.testing.tolerances import half_ulp, tree_bound
from forge_week1_reduce import ops, ref
from forge_week1_reduce.proofs import PROOFS

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["BENCH"]


def _traffic(case: Case) -> Traffic:
    # The result is a few percent of the input at most, except for rows of a few elements; reductions are quoted so.
    return Traffic(case.nbytes, 0, "each element is read once; bandwidth is quoted over the input's bytes")


def _traffic_with_result(case: Case) -> Traffic:
    written = math.prod(case.shape[1:]) * ops.result_dtype("sum", case.dtype, None).itemsize
    return Traffic(case.nbytes, written, "each element is read once and each sum written once; of one row, a copy")


def _call(dim: int) -> Callable[[str], Callable[..., torch.Tensor]]:
    def call(variant: str) -> Callable[..., torch.Tensor]:
        if variant == "auto":
            return ops.reduce_sum if dim == -1 else partial(ops.reduce_sum, dim=dim)
        return partial(ops.reduce_sum, dim=dim, variant=variant)

    return call


def _explain(dim: int) -> Callable[[tuple[torch.Tensor, ...], str], Any]:
    return lambda inputs, variant: ops.reduce_sum.explain(*inputs, dim, variant=variant)


#: A sum of standard normal numbers may not be off by more, whatever its bound: of up to 2^28 of them the random errors
#: of fp32 additions stay below it, and a single lost element exceeds it with near certainty over the rows of a case.
SLACK = 0.03

[SUM] = [subject for subject in PROOFS.subjects if subject.operator is ops.reduce_sum]


def _balanced(x: torch.Tensor, dim: int) -> torch.Tensor:
    return tree_bound(x.double().abs().sum(dim), x.shape[dim], torch.promote_types(x.dtype, torch.float32))


def _floor(x: torch.Tensor, dim: int) -> torch.Tensor:
    return _balanced(x, dim).clamp_max(SLACK)


def _peer_floor(x: torch.Tensor, dim: int) -> torch.Tensor:
    # The trees of peers are not known: they get four times the bound, and may round the result twice.
    return (4 * _balanced(x, dim)).clamp_max(SLACK) + half_ulp(x.double().sum(dim), x.dtype)


OURS, PEERS = replace(SUM, floor=_floor), replace(SUM, floor=_peer_floor)


def _reference(dim: int) -> Callable[..., torch.Tensor]:
    def reference(x: torch.Tensor) -> torch.Tensor:
        if not x.is_floating_point():
            return ref.reduce_sum(x, dim)
        return torch.sum(x, dim, dtype=torch.float64).to(x.dtype)

    return reference


def _eager(dim: int) -> Callable[[Case], Callable[..., torch.Tensor]]:
    return lambda case: partial(torch.sum, dim=dim)


def _cub(dim: int) -> Callable[[Case], Callable[..., torch.Tensor]]:
    def make(case: Case) -> Callable[..., torch.Tensor]:
        import cupy  # type: ignore[import-not-found]  # an optional peer

        cupy._core.set_reduction_accelerators(["cub"])
        # One row is the whole array, which CUB reduces by many blocks; as a row among rows it would get a single one.
        whole = dim == -1 and case.shape[0] == 1

        def call(x: torch.Tensor) -> torch.Tensor:
            # CuPy runs on a stream of its own unless it is told which.
            with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
                found = cupy.sum(cupy.from_dlpack(x), axis=None if whole else dim)
                return from_dlpack(found.reshape(1) if whole else found)

        return call

    return make


def _operator(name: str, dim: int, traffic: Callable[[Case], Traffic] = _traffic) -> OperatorBench:
    across = 0 if dim == -1 else 1
    judged: dict[str, Any] = {
        "agree": judged_by(PEERS, dim, dim=across),
        "tolerance": "four times the bound of a balanced fp32 tree, at most 0.03, plus one ulp of the output",
    }
    return OperatorBench(
        name=name,
        call=_call(dim),
        variants=ops.reduce_sum.variants,
        explain=_explain(dim),
        reference=_reference(dim),
        traffic=traffic,
        peers=(
            Peer("eager", _eager(dim), **judged),
            *compiled_peers(partial(torch.sum, dim=dim), **judged),
            Peer("cub", _cub(dim), (CUDA_GPU, CUPY), **judged),
        ),
        agree=judged_by(OURS, dim, dim=across),
        tolerance="the bound of a balanced fp32 tree, at most 0.03, plus half an ulp of the output",
    )


BENCH = Bench(
    name="week1",
    package="forge_week1_reduce",
    suites=Path(__file__).with_name("suites.yaml"),
    operators=(
        _operator("sum_rows", -1),
        _operator("sum_columns", 0),
        _operator("sum_one_row", 0, _traffic_with_result),
    ),
)
