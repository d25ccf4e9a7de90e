"""What week 1 measures: its operators, what they move, and whom they are measured against.

A case's dimension is part of the operator's name: ``sum_rows`` reduces the last dimension, ``sum_columns`` the first;
``sum_one_row`` reduces a first dimension of size 1, which is a copy, and is held against one of the same bytes.
The cases and the targets stand in ``suites.yaml``.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.dlpack import from_dlpack

from forge_core.bench import CUDA_GPU, CUPY, TRITON, Bench, Case, OperatorBench, Peer, Traffic, compiled
from forge_core.testing.tolerances import half_ulp
from forge_week1_reduce import ops, ref
from forge_week1_reduce.arithmetic import result_dtype
from forge_week1_reduce.thresholds import THRESHOLDS

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["BENCH"]


def _traffic(case: Case) -> Traffic:
    # The result is a few percent of the input at most, except for rows of a few elements; reductions are quoted so.
    return Traffic(case.nbytes, 0, "each element is read once; bandwidth is quoted over the input's bytes")


def _traffic_with_result(case: Case) -> Traffic:
    written = math.prod(case.shape[1:]) * result_dtype("sum", case.dtype, None).itemsize
    return Traffic(case.nbytes, written, "each element is read once and each sum written once; of one row, a copy")


def _call(dim: int) -> Callable[[str], Callable[..., torch.Tensor]]:
    def call(variant: str) -> Callable[..., torch.Tensor]:
        if variant == "auto":
            return ops.reduce_sum if dim == -1 else partial(ops.reduce_sum, dim=dim)
        return partial(ops.reduce_sum, dim=dim, variant=variant)

    return call


def _explain(dim: int) -> Callable[[tuple[torch.Tensor, ...], str], Any]:
    return lambda inputs, variant: ops.reduce_sum.explain(*inputs, dim, variant=variant)


#: An absolute error that no order of adding up to 2^28 standard normal numbers in fp32 reaches in practice (sums of
#: 16384 and a few ulps of that), and that a single lost element exceeds with near certainty over the rows of a case.
SLACK = 0.03


def _agree(got: torch.Tensor, want: torch.Tensor) -> str:
    """Compares a sum of standard normal numbers with float64's, rounded to the output's dtype."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"expected {tuple(want.shape)} {want.dtype}, got {tuple(got.shape)} {got.dtype}"
    if not got.is_floating_point():
        return "" if torch.equal(got, want) else "integers differ"
    exact = want.double()
    wrong = ~((got.double() - exact).abs() <= SLACK + 2 * half_ulp(exact, got.dtype))
    return f"{int(wrong.sum())} of {wrong.numel()} sums are further away than rounding explains" if wrong.any() else ""


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
    return OperatorBench(
        name=name,
        call=_call(dim),
        variants=ops.reduce_sum.variants,
        explain=_explain(dim),
        reference=_reference(dim),
        traffic=traffic,
        peers=(
            Peer("eager", _eager(dim)),
            Peer("compile", compiled(partial(torch.sum, dim=dim)), requires=(CUDA_GPU, TRITON)),
            Peer("cub", _cub(dim), requires=(CUDA_GPU, CUPY)),
        ),
        agree=_agree,
        tolerance="one ulp of the output plus 0.03, against float64",
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
    thresholds=THRESHOLDS,
)
