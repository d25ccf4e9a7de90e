"""What week 2 measures: its operators, what they move, and whom they are measured against.

``softmax`` is the forward pass and ``softmax_backward`` the gradient alone, on an output that is there.
``softmax_grad`` is the forward pass on an input that needs a gradient, for the host time of recording it.  The cases
and the targets stand in ``suites.yaml``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from forge_core.bench import CUDA_GPU, LIGER, QUACK, TRITON, Bench, Case, OperatorBench, Peer, Traffic, compiled
from forge_core.bench.gate import near
from forge_core.bench.inputs import random_tensor
from forge_core.testing import Subject
from forge_core.testing.softmax_bounds import (
    rounded_product_bound,
    rounded_steps_bound,
    softmax_bound,
    softmax_gradient_bound,
)
from forge_core.testing.tolerances import half_ulp
from forge_week2_softmax import backward, ops, ref
from forge_week2_softmax.proofs import PROOFS
from forge_week2_softmax.thresholds import THRESHOLDS

__all__ = ["BENCH"]

Inputs = tuple[torch.Tensor, ...]

# ------------------------------------------------------------------------------------------------ what it is to be

#: Elements that the reference computes in float64 at once: bounds its memory.
PIECE = 2**26


def _by_pieces(function: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> torch.Tensor:
    """A function of rows, some of them at a time; the result in the dtype of the first tensor."""
    rows = max(1, PIECE // max(1, tensors[0].shape[-1]))
    out = torch.empty_like(tensors[0])
    for start in range(0, out.shape[0], rows):
        part = slice(start, start + rows)
        out[part] = function(*(t[part].detach().double() for t in tensors))
    return out


def _reference(x: torch.Tensor) -> torch.Tensor:
    return _by_pieces(partial(ref.softmax, dim=-1), x)


def _reference_backward(grad: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return _by_pieces(lambda g, p: p * (g - (p * g).sum(-1, keepdim=True)), grad, y)


FORWARD, BACKWARD_DATA = (
    next(subject for subject in PROOFS.subjects if subject.operator is operator)
    for operator in (ops.softmax, backward.softmax_backward)
)


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
    """The same of Liger's, which computes in the dtype of its inputs."""
    steps = rounded_steps_bound(grad.double(), y.double(), dim, y.dtype, _liger_depth(y.shape[dim]))
    return _backward_bound(grad, y, dim) + steps


def _agree(subject: Subject, floor: Callable[..., torch.Tensor] | None = None) -> Callable[..., str]:
    """How results are compared: by the rule of tests with the derived bound, or with that of a peer."""
    held = subject if floor is None else replace(subject, floor=floor)
    return lambda inputs, got, want: near(held, inputs, (-1,), got, want)


TOLERANCE = "the derived bound plus half an ulp of the output, element by element, against float64"
PEER_TOLERANCE = "the derived bound plus one ulp of the output, element by element, against float64"


# ------------------------------------------------------------------------------------------------------- our calls


def _call(variant: str) -> Callable[..., torch.Tensor]:
    return ops.softmax if variant == "auto" else partial(ops.softmax, variant=variant)


def _call_backward(variant: str) -> Callable[..., torch.Tensor]:
    return backward.softmax_backward if variant == "auto" else partial(backward.softmax_backward, variant=variant)


def _explain(inputs: Inputs, variant: str) -> Any:
    return ops.softmax.explain(*inputs, variant=variant)


def _explain_backward(inputs: Inputs, variant: str) -> Any:
    return backward.softmax_backward.explain(*inputs, variant=variant)


def _with_gradient(case: Case, device: torch.device, generator: torch.Generator) -> Inputs:
    x = random_tensor(case.shape, case.dtype, device=device, generator=generator, layout=case.layout)
    return (x.requires_grad_(),)


def _gradient_and_output(case: Case, device: torch.device, generator: torch.Generator) -> Inputs:
    grad, x = (
        random_tensor(case.shape, case.dtype, device=device, generator=generator, layout=case.layout) for _ in "gx"
    )
    return grad, torch.softmax(x, -1)


# ----------------------------------------------------------------------------------------------------------- peers


def _eager_backward(grad: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = torch.ops.aten._softmax_backward_data(grad, y, -1, y.dtype)
    return found


def _quack(case: Case) -> Callable[..., torch.Tensor]:
    from quack.softmax import softmax_fwd  # type: ignore[import-not-found]  # an optional peer

    found: Callable[..., torch.Tensor] = softmax_fwd
    return found


def _quack_backward(case: Case) -> Callable[..., torch.Tensor]:
    from quack.softmax import softmax_bwd

    found: Callable[..., torch.Tensor] = softmax_bwd
    return found


#: What quack 0.6.5 divides a row over: at most 16 blocks of a cluster, 227 KB of shared memory each on sm_90.
QUACK_ROW_BYTES = 16 * 227 * 1024


#: Up to how many elements of a row its threads and its blocks are how many; beyond, 256 and 16.
QUACK_THREADS = ((64, 8), (128, 16), (3072, 32), (6144, 64), (16384, 128))
QUACK_BLOCKS = ((2**14, 1), (2**15, 2), (2**16, 4), (2**17, 8))


def _quack_idle(count: int, size: int) -> str:
    """Why its forward pass gives NaN, or "": a warp without any element of the row.

    Each block of a cluster takes as many whole rounds of its threads as cover the row together, so that the last may
    begin behind the row's end.  The maximum of a warp that has nothing is -inf, which is then subtracted from -inf
    (``online_softmax_reduce``), and the NaN enters the row's sum.
    """
    vector = 16 // size
    threads = next((found for most, found in QUACK_THREADS if count <= most), 256)
    blocks = next((found for most, found in QUACK_BLOCKS if count <= most * (size // 2)), 16)
    each = vector * threads * -(-(count // vector) // (threads * blocks))
    last = (blocks - 1) * each + max(0, threads - 32) * vector
    if last < count:
        return ""
    return f"gives NaN for N = {count} of {size} bytes: in {blocks} blocks of {each} the last warp begins at {last}"


def _quack_unable(case: Case, tensors: int = 1) -> str:
    count, size = case.shape[-1], case.dtype.itemsize
    if count % (16 // size):
        return f"Input N {count} is not divisible by vector size {16 // size}"
    if tensors * count * size > QUACK_ROW_BYTES:
        return f"N = {count} of {tensors * size} bytes is more than the shared memory of a cluster of 16 blocks"
    return _quack_idle(count, size) if tensors == 1 else ""  # a sum of nothing, as in the gradient, is 0


def _liger(case: Case) -> Callable[..., torch.Tensor]:
    from liger_kernel.transformers.functional import liger_softmax  # type: ignore[import-not-found]  # optional

    found: Callable[..., torch.Tensor] = liger_softmax
    return found


def _liger_backward(case: Case) -> Callable[..., torch.Tensor]:
    # What LigerSoftmaxFunction.backward calls, with what its forward pass keeps for it.
    from liger_kernel.ops.softmax import _softmax_backward  # type: ignore[import-not-found]
    from liger_kernel.ops.utils import calculate_settings  # type: ignore[import-not-found]

    block, warps = calculate_settings(case.shape[-1])

    def call(grad: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = _softmax_backward(grad, y, block, warps, multi_block_launch=False)
        return found

    return call


LIGER_LONGEST = 65536


def _liger_depth(count: int) -> int:
    """Its additions one behind the other: those of a thread, and those between the threads of a block."""
    block = 1 << (count - 1).bit_length()
    warps = 32 if block >= 32768 else 16 if block >= 8192 else 8 if block >= 2048 else 4
    return -(-block // (32 * warps)) + int(math.log2(32 * warps))


def _liger_unable(case: Case) -> str:
    count = case.shape[-1]
    return f"n = {count} exceeds the recommended Triton blocksize = {LIGER_LONGEST}" if count > LIGER_LONGEST else ""


EAGER = partial(torch.softmax, dim=-1)


# ---------------------------------------------------------------------------------------------------- declarations


def _forward(name: str, **changes: Any) -> OperatorBench:
    peer = partial(Peer, agree=_agree(FORWARD, _forward_bound), tolerance=PEER_TOLERANCE)
    return OperatorBench(
        name=name,
        call=_call,
        variants=ops.softmax.variants,
        explain=_explain,
        reference=_reference,
        traffic=lambda case: Traffic(case.nbytes, case.nbytes, "each element is read once and written once"),
        peers=(
            peer("eager", lambda case: EAGER),
            peer("compile", compiled(EAGER), requires=(CUDA_GPU, TRITON)),
            peer("quack", _quack, requires=(CUDA_GPU, QUACK), unable=_quack_unable),
            peer("liger", _liger, requires=(CUDA_GPU, TRITON, LIGER), unable=_liger_unable),
        ),
        agree=_agree(FORWARD),
        tolerance=TOLERANCE,
        **changes,
    )


BACKWARD = OperatorBench(
    name="softmax_backward",
    call=_call_backward,
    variants=backward.softmax_backward.variants,
    explain=_explain_backward,
    reference=_reference_backward,
    traffic=lambda case: Traffic(
        2 * case.nbytes, case.nbytes, "gradient and output are read once, the input's gradient is written once"
    ),
    inputs=_gradient_and_output,
    peers=(
        Peer(
            "eager",
            lambda case: _eager_backward,
            agree=_agree(BACKWARD_DATA, _eager_bound),
            tolerance=PEER_TOLERANCE + "; plus what rounding grad * output to the dtype adds",
        ),
        Peer(
            "compile",
            compiled(_eager_backward),
            requires=(CUDA_GPU, TRITON),
            agree=_agree(BACKWARD_DATA, _backward_bound),
            tolerance=PEER_TOLERANCE,
        ),
        Peer(
            "quack",
            _quack_backward,
            requires=(CUDA_GPU, QUACK),
            unable=partial(_quack_unable, tensors=2),
            agree=_agree(BACKWARD_DATA, _backward_bound),
            tolerance=PEER_TOLERANCE,
        ),
        Peer(
            "liger",
            _liger_backward,
            requires=(CUDA_GPU, TRITON, LIGER),
            unable=_liger_unable,
            agree=_agree(BACKWARD_DATA, _liger_bound),
            tolerance=PEER_TOLERANCE + "; plus what rounding each step to the dtype adds",
        ),
    ),
    agree=_agree(BACKWARD_DATA),
    tolerance=TOLERANCE,
)

BENCH = Bench(
    name="week2",
    package="forge_week2_softmax",
    suites=Path(__file__).with_name("suites.yaml"),
    operators=(_forward("softmax"), _forward("softmax_grad", inputs=_with_gradient), BACKWARD),
    thresholds=THRESHOLDS,
)
