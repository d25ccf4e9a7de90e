"""What week 2 measures: its operators, what they move, and the peers that they are measured against.

``softmax`` is the forward pass and ``softmax_backward`` the gradient alone, of an output that is there.
``softmax_grad`` is the forward pass on an input that needs a gradient, for the host time of recording it.  The cases
and the targets stand in ``suites.yaml``.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from forge_core.bench import (
    CUDA_GPU,
    LIGER,
    QUACK,
    TRITON,
    Bench,
    Case,
    OperatorBench,
    Peer,
    Traffic,
    compiled_peers,
    one_pass,
)
from forge_core.bench.gate import judged_by
from forge_core.bench.inputs import random_tensor
from forge_core.op import Operator
from forge_core.rows.thresholds import row_thresholds
from forge_core.testing.tolerances import half_ulp
from forge_core.thresholds import Probe
from forge_week2_softmax import ref
from forge_week2_softmax.backward import softmax_backward
from forge_week2_softmax.bounds import (
    rounded_product_bound,
    rounded_steps_bound,
    softmax_bound,
    softmax_gradient_bound,
)
from forge_week2_softmax.ops import softmax
from forge_week2_softmax.proofs import PROOFS

__all__ = ["BENCH"]

Inputs = tuple[torch.Tensor, ...]
Bound = Callable[..., torch.Tensor]


def _by_rows(function: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> torch.Tensor:
    """A function of rows in float64, some rows at a time; the result in the dtype of the first tensor."""
    rows = max(1, 2**26 // max(1, tensors[0].shape[-1]))  # bounds the memory that float64 takes
    parts = zip(*(t.detach().split(rows) for t in tensors), strict=True)
    return torch.cat([function(*(t.double() for t in part)).to(tensors[0].dtype) for part in parts])


def _forward_bound(x: torch.Tensor, dim: int) -> torch.Tensor:
    """A peer's softmax: our bound, and half an ulp, for some round the result twice."""
    wide = x.double()
    return softmax_bound(wide, dim, torch.float32) + half_ulp(torch.softmax(wide, dim), x.dtype)


def _backward_bound(grad: torch.Tensor, y: torch.Tensor, dim: int) -> torch.Tensor:
    """A peer's gradient in fp32: ours, the products of ``grad * y - y * sum(grad * y)``, and a second rounding."""
    g, p = grad.double(), y.double()
    dot = (g * p).sum(dim, keepdim=True)
    products = torch.finfo(torch.float32).eps * p.abs() * (g.abs() + dot.abs())
    return softmax_gradient_bound(g, p, dim, torch.float32) + products + half_ulp(p * (g - dot), y.dtype)


def _eager_bound(grad: torch.Tensor, y: torch.Tensor, dim: int) -> torch.Tensor:
    """The same of PyTorch's, whose CUDA kernel starts from a product that was rounded to the dtype."""
    return _backward_bound(grad, y, dim) + rounded_product_bound(grad.double(), y.double(), dim, y.dtype)


def _liger_bound(grad: torch.Tensor, y: torch.Tensor, dim: int) -> torch.Tensor:
    """The same of Liger's, which computes in the dtype of its inputs, and adds within a thread and between threads."""
    block = 1 << (y.shape[dim] - 1).bit_length()
    warps = 32 if block >= 32768 else 16 if block >= 8192 else 8 if block >= 2048 else 4
    depth = -(-block // (32 * warps)) + int(math.log2(32 * warps))
    return _backward_bound(grad, y, dim) + rounded_steps_bound(grad.double(), y.double(), dim, y.dtype, depth)


def _agree(operator: Operator, bound: Bound | None = None) -> Callable[..., str]:
    """By the rule of tests with the derived bound, or with that of a peer."""
    subject = next(subject for subject in PROOFS.subjects if subject.operator is operator)
    return judged_by(subject if bound is None else replace(subject, floor=bound), -1)


TOLERANCE = "the derived bound plus half an ulp of the output, element by element, against float64"
PEER_TOLERANCE = "the derived bound plus one ulp of the output, element by element, against float64"
#: What a peer's bound allows beside it, for the record.
BESIDE: dict[Bound, str] = {
    _eager_bound: "; plus what rounding grad * output to the dtype adds",
    _liger_bound: "; plus what rounding each step to the dtype adds",
}


def _quack(case: Case, name: str = "softmax_fwd") -> Callable[..., torch.Tensor]:
    # An optional peer, whose package has a function of the module's name.
    return cast("Callable[..., torch.Tensor]", getattr(importlib.import_module("quack.softmax"), name))


def _quack_unable(case: Case, tensors: int = 1) -> str:
    """What quack 0.6.5 can do: aligned rows of whole vectors, at most 16 blocks of a cluster, 227 KB each on sm_90.

    Each block takes as many whole rounds of its threads as cover the row together.  Where the last warp begins behind
    the row's end, its maximum is -inf, which is then subtracted from -inf, and the NaN enters the row's sum.
    """
    count, size = case.shape[-1], case.dtype.itemsize
    vector = 16 // size
    if count % vector:
        return f"Input N {count} is not divisible by vector size {vector}"
    if len(case.shape) != 2 or case.layout != "contiguous":
        return f"takes aligned, contiguous matrices, got {case.name}"
    if tensors * count * size > 16 * 227 * 1024:
        return f"N = {count} of {tensors * size} bytes is more than the shared memory of a cluster of 16 blocks"
    lengths = ((64, 8), (128, 16), (3072, 32), (6144, 64), (16384, 128))
    threads = next((found for most, found in lengths if count <= most), 256)
    clusters = ((2**14, 1), (2**15, 2), (2**16, 4), (2**17, 8))
    blocks = next((found for most, found in clusters if count <= most * (size // 2)), 16)
    each = vector * threads * -(-(count // vector) // (threads * blocks))
    last = (blocks - 1) * each + max(0, threads - 32) * vector
    if tensors > 1 or last < count:  # a sum of nothing, as in the gradient, is 0
        return ""
    return f"gives NaN for N = {count} of {size} bytes: in {blocks} blocks of {each} the last warp begins at {last}"


def _liger(case: Case) -> Callable[..., torch.Tensor]:
    from liger_kernel.transformers.functional import liger_softmax  # type: ignore[import-not-found]  # optional

    return cast("Callable[..., torch.Tensor]", liger_softmax)


def _liger_backward(case: Case) -> Callable[..., torch.Tensor]:
    # What LigerSoftmaxFunction.backward calls, with what its forward pass keeps for it.
    from liger_kernel.ops.softmax import _softmax_backward  # type: ignore[import-not-found]
    from liger_kernel.ops.utils import calculate_settings  # type: ignore[import-not-found]

    block, warps = calculate_settings(case.shape[-1])
    return lambda grad, y: _softmax_backward(grad, y, block, warps, multi_block_launch=False)


def _liger_unable(case: Case) -> str:
    count = case.shape[-1]
    return f"n = {count} exceeds the recommended Triton blocksize = 65536" if count > 65536 else ""


def _eager_backward(grad: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return cast("torch.Tensor", torch.ops.aten._softmax_backward_data(grad, y, -1, y.dtype))


def _peers(
    operator: Operator,
    eager: Callable[..., torch.Tensor],
    quack: Callable[[Case], Any],
    liger: Callable[[Case], Any],
    bounds: tuple[Bound, Bound, Bound],
    tensors: int,
) -> tuple[Peer, ...]:
    """The peers of an operator; ``bounds``: of eager, of Liger, and of the others."""

    def held_to(bound: Bound) -> dict[str, Any]:
        return {"agree": _agree(operator, bound), "tolerance": PEER_TOLERANCE + BESIDE.get(bound, "")}

    of_eager, of_liger, of_others = map(held_to, bounds)
    unable = partial(_quack_unable, tensors=tensors)
    return (
        Peer("eager", lambda case: eager, **of_eager),
        *compiled_peers(eager, **of_others),
        Peer("quack", quack, (CUDA_GPU, QUACK), unable, **of_others),
        Peer("liger", liger, (CUDA_GPU, TRITON, LIGER), _liger_unable, **of_liger),
    )


def _declared(name: str, operator: Operator, **more: Any) -> OperatorBench:
    return OperatorBench.of(operator, name, agree=_agree(operator), tolerance=TOLERANCE, **more)


def _random(case: Case, device: torch.device, generator: torch.Generator) -> torch.Tensor:
    return random_tensor(case.shape, case.dtype, device=device, generator=generator, layout=case.layout)


EAGER = partial(torch.softmax, dim=-1)
FORWARD: dict[str, Any] = {
    "reference": partial(_by_rows, partial(ref.softmax, dim=-1)),
    "traffic": one_pass,
    "peers": _peers(softmax, EAGER, _quack, _liger, (_forward_bound,) * 3, 1),
}
BACKWARD = _declared(
    "softmax_backward",
    softmax_backward,
    reference=partial(_by_rows, lambda g, p: p * (g - (p * g).sum(-1, keepdim=True))),
    traffic=lambda case: Traffic(
        2 * case.nbytes, case.nbytes, "two tensors are read once, the gradient is written once"
    ),
    inputs=lambda case, *more: (_random(case, *more), torch.softmax(_random(case, *more), -1)),
    peers=_peers(
        softmax_backward,
        _eager_backward,
        partial(_quack, name="softmax_bwd"),
        _liger_backward,
        (_eager_bound, _liger_bound, _backward_bound),
        2,
    ),
)


def _probes(*shapes: str) -> tuple[Probe, ...]:
    return tuple(Probe(name, shapes, ("float32", "bfloat16")) for name in ("softmax", "softmax_backward"))


BENCH = Bench(
    name="week2",
    package="forge_week2_softmax",
    suites=Path(__file__).with_name("suites.yaml"),
    operators=(
        _declared("softmax", softmax, **FORWARD),
        _declared(
            "softmax_grad", softmax, inputs=lambda case, *more: (_random(case, *more).requires_grad_(),), **FORWARD
        ),
        BACKWARD,
    ),
    thresholds=row_thresholds(
        {
            "almost_bytes": _probes("32768x4096", "32768x8192", "8192x50257"),
            "enough_bytes": _probes("32768x2048", "32768x4096", "16384x32768"),
            "spread_vectors": _probes("32x8192", "64x16384", "100x32768"),
            "grid_vectors": _probes("1x131072", "1x262144", "4x131072"),
            "split_elements": _probes("1x40001", "1x100001", "4x100001"),
        }
    ),
)
