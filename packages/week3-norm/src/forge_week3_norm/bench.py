"""What week 3 measures: norms, with a residual, and their gradients, and the peers that they are measured against.

``rms_norm`` and ``layer_norm`` have a weight, and layer_norm a bias, of the dtype of x.  ``rms_norm_residual`` returns
the sum too; the norm is compared.  A gradient is that of x and of the weight, from given statistics; that of x is
compared.  The cases and targets stand in ``suites.yaml``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from forge_core.bench import CUDA_GPU, LIGER, QUACK, TRITON, Bench, Case, OperatorBench, Peer, Traffic, compiled_peers
from forge_core.bench.gate import near
from forge_core.bench.inputs import random_tensor
from forge_core.testing.tolerances import half_ulp
from forge_week3_norm import backward, ops, ref
from forge_week3_norm.proofs import EPS, PROOFS, spread

__all__ = ["BENCH"]

Inputs = tuple[torch.Tensor, ...]
TOLERANCE = "the derived bound plus half an ulp of the output, element by element, against float64"


def _agree(name: str, *, peer: bool = False) -> Callable[[Inputs, torch.Tensor, torch.Tensor], str]:
    """Compares with float64 by the derived bound of an operator; a peer may round its result twice."""
    subject = next(subject for subject in PROOFS.subjects if subject.name == name)

    def agree(inputs: Inputs, got: torch.Tensor, want: torch.Tensor) -> str:
        added = len(inputs) == 3 and not name.endswith("_backward")

        def peer_floor(*args: Any) -> torch.Tensor:
            x, weight, *_ = wide = [a.double() if isinstance(a, torch.Tensor) else a for a in args]
            floor = subject.floor(*args) + half_ulp(subject.expected(*wide), got.dtype)  # type: ignore[misc]
            if added:  # a sum with a residual need not be rounded before it is normalized
                floor = floor + torch.finfo(got.dtype).eps * spread(x, weight, (1,), center=False)
            return floor

        held = replace(subject, floor=peer_floor) if peer else subject
        return near(held, _arguments(name, *inputs), (-1,), got, want)

    return agree


def _arguments(name: str, *inputs: torch.Tensor) -> Inputs:
    """The tensors of a case as the subject of that name takes them."""
    *given, weight = inputs
    if name.endswith("_backward"):
        dy, x, *statistics = given
        return (dy, x, *(t.unsqueeze(-1) for t in statistics), torch.zeros_like(dy), weight)
    return (sum(given[1:], given[0]), weight, weight if name == "layer_norm" else torch.zeros_like(weight))


def _eager(name: str, *inputs: torch.Tensor) -> torch.Tensor:
    *given, weight = inputs
    if name == "layer_norm":
        return torch.nn.functional.layer_norm(sum(given[1:], given[0]), weight.shape, weight, weight, EPS)
    return torch.nn.functional.rms_norm(sum(given[1:], given[0]), weight.shape, weight, EPS)


def _eager_backward(dy: torch.Tensor, x: torch.Tensor, *rest: torch.Tensor) -> Any:
    *statistics, weight = rest
    if not x.is_cuda:  # PyTorch's have no CPU kernel
        return _written_out(dy, x, *rest)[0]
    shaped = [t.unsqueeze(-1) for t in statistics]
    if len(statistics) > 1:
        return torch.ops.aten.native_layer_norm_backward(dy, x, weight.shape, *shaped, weight, weight, [True] * 3)[0]
    return torch.ops.aten._fused_rms_norm_backward(dy, x, weight.shape, *shaped, weight, [True] * 2)[0]


def _written_out(dy: torch.Tensor, x: torch.Tensor, *rest: torch.Tensor) -> Any:
    """All gradients in PyTorch, for torch.compile to fuse."""
    *statistics, weight = rest
    mean, rstd = (None, *statistics)[-2:]
    return ref.norm_gradients(dy, x, mean, rstd, weight=weight, bias=mean is not None)


def _with_sum(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Inputs:
    """The norm and the sum: both are written."""
    total = x + residual
    return torch.nn.functional.rms_norm(total, weight.shape, weight, EPS), total


def _quack(name: str, case: Case) -> Callable[..., torch.Tensor]:
    module: Any = importlib.import_module("quack.rmsnorm")
    calls: dict[str, Callable[..., Any]] = {
        "rms_norm": lambda x, w: module.rmsnorm_fwd(x, w, eps=EPS),
        "rms_norm_residual": lambda x, r, w: module.rmsnorm_fwd(x, w, residual=r, eps=EPS),
        "rms_norm_backward": lambda dy, x, rstd, w: module.rmsnorm_bwd(x, w, dy, rstd),
        "layer_norm": lambda x, w: (module.layernorm_fwd(x, w, w, EPS),),
        "layer_norm_backward": lambda dy, x, mean, rstd, w: module.layernorm_bwd(x, w, dy, rstd, mean),
    }
    return lambda *inputs: calls[name](*inputs)[0]


def _quack_unable(name: str, case: Case) -> str:
    """Aligned rows of 16-byte vectors that 16 blocks hold; of gradients 128k elements of fp32; layer_norm by fp32."""
    count, size = case.shape[-1], case.dtype.itemsize
    if count * size % 16 or len(case.shape) != 2 or case.layout != "contiguous":
        return f"takes contiguous matrices whose rows begin at multiples of 16 bytes, got {case.name}"
    if count * size > (2**19 if name.endswith("_backward") else 7 * 2**19 // (1 + name.endswith("_residual"))):
        return f"N = {count} of {size} bytes is more than it takes"  # its compilation fails, after minutes
    return "its weight is fp32" if name == "layer_norm" and case.dtype != torch.float32 else ""


def _liger(name: str, case: Case) -> Callable[..., torch.Tensor]:
    source = name.removesuffix("_backward").replace("rms_norm_residual", "fused_add_rms_norm")
    module: Any = importlib.import_module(f"liger_kernel.ops.{source}")
    block: Any = importlib.import_module("liger_kernel.ops.utils").calculate_settings(case.shape[-1])
    more = {"in_place": False, "row_mode": None}
    calls: dict[str, Callable[..., Any]] = {
        "rms_norm": lambda x, w: module.rms_norm_forward(x, w, EPS, 0.0, "gemma", None),
        "rms_norm_residual": lambda x, r, w: module.fused_add_rms_norm_forward(x, r, w, EPS, 0.0, "gemma"),
        "rms_norm_backward": lambda dy, x, s, w: module.rms_norm_backward(dy, x, w, s, 0.0, 1, *block, **more),
        "layer_norm": lambda x, w: module.layer_norm_forward(x, w, w, EPS),
        "layer_norm_backward": lambda dy, x, mean, rstd, w: module.layer_norm_backward(dy, x, w, w, mean, rstd),
    }
    return lambda *inputs: calls[name](*inputs)[0]


def _liger_unable(case: Case) -> str:
    if case.layout == "permuted":
        return "takes rows whose elements are neighbors in memory"
    return f"n = {case.shape[-1]} exceeds the recommended Triton blocksize = 65536" if case.shape[-1] > 65536 else ""


def _declared(
    name: str, subject: str, operator: Any, eager: Callable[..., Any], several: Any = None, **more: Any
) -> OperatorBench:
    """An operator with its peers; ``several``: what torch.compile is given where there are other results too."""
    held: dict[str, Any] = {"agree": _agree(subject, peer=True), "tolerance": f"{TOLERANCE}, twice rounded"}
    peers = [Peer("eager", lambda case: eager, **held), *compiled_peers(several or eager, first=bool(several), **held)]
    if not name.endswith("_grad"):  # whose peers record what a backward pass needs
        peers.append(Peer("quack", partial(_quack, name), (CUDA_GPU, QUACK), partial(_quack_unable, name), **held))
        peers.append(Peer("liger", partial(_liger, name), (CUDA_GPU, TRITON, LIGER), _liger_unable, **held))
    judged: dict[str, Any] = {"agree": _agree(subject), "tolerance": TOLERANCE}
    return OperatorBench(name=name, variants=operator.variants, peers=tuple(peers), **judged, **more)


def _tensors(count: int, case: Case, device: torch.device, generator: torch.Generator, *, grad: bool = False) -> Inputs:
    """Tensors of the case's shape, and a weight."""
    made = partial(random_tensor, dtype=case.dtype, device=device, generator=generator)
    return tuple(made(shape).requires_grad_(grad) for shape in [*[case.shape] * count, case.shape[-1:]])


def _with_statistics(center: bool, case: Case, device: torch.device, generator: torch.Generator) -> Inputs:
    dy, x, weight = _tensors(2, case, device, generator)
    total = ops.layer_norm_total if center else ops.rms_norm_total
    return (dy, x, *total(x, dim=-1, eps=EPS, statistics=True)[2:], weight)


def _gradient_call(operator: Any, variant: str, dy: torch.Tensor, x: torch.Tensor, *rest: torch.Tensor) -> Any:
    """What a backward pass calls for the gradient of x: the operator, its arguments and options."""
    *statistics, weight = rest
    with torch.no_grad():  # as in a backward pass
        at_once = variant == "auto" and backward.together((1,), x, dy, None, weight)
    if at_once:
        mean, rstd = (None, *statistics)[-2:]
        return backward.norm_gradients, (dy, x, mean, rstd, None, weight, -1), {"bias": mean is not None}
    return operator, (dy, x, *statistics, None, weight, -1), {"variant": variant}


def _gradients(operator: Any, variant: str, dy: torch.Tensor, x: torch.Tensor, *rest: torch.Tensor) -> Any:
    """Those of x and the weight, of layer_norm the bias too."""
    chosen, args, options = _gradient_call(operator, variant, dy, x, *rest)
    if chosen is operator:
        mean, rstd = (None, *rest[:-1])[-2:]
        backward.norm_weight_backward(dy, x, mean, rstd, 0, bias=mean is not None)
    found = chosen(*args, **options)
    return found if chosen is operator else found[0]


def _forward(name: str, operator: Any, call: Callable[..., Any], count: int = 1) -> OperatorBench:
    subject = name.removesuffix("_residual").removesuffix("_grad")
    eager, why = partial(_eager, subject), "each element is read once and written once"

    def explain(inputs: Inputs, variant: str) -> Any:
        return operator.explain(*inputs, *[inputs[-1]] * (subject == "layer_norm"), variant=variant)

    return _declared(
        name,
        subject,
        operator,
        eager,
        _with_sum if count > 1 else None,
        call=lambda variant: partial(call, variant=variant),
        explain=explain,
        reference=eager,
        traffic=lambda case: Traffic(count * case.nbytes, count * case.nbytes, why),
        inputs=partial(_tensors, count, grad=name.endswith("_grad")),
    )


def _backward(operator: Any, *, center: bool) -> OperatorBench:
    name, why = operator.schema.name, "two tensors are read once, the gradient is written once"

    def explain(inputs: Inputs, variant: str) -> Any:
        chosen, args, options = _gradient_call(operator, variant, *inputs)
        return chosen.explain(*args, **options)

    return _declared(
        name,
        name,
        operator,
        _eager_backward,
        _written_out,
        call=lambda variant: partial(_gradients, operator, variant),
        explain=explain,
        reference=lambda *inputs: _written_out(*inputs)[0],
        traffic=lambda case: Traffic(2 * case.nbytes, case.nbytes, why),
        inputs=partial(_with_statistics, center),
    )


BENCH = Bench(
    name="week3",
    package="forge_week3_norm",
    suites=Path(__file__).with_name("suites.yaml"),
    operators=(
        _forward("rms_norm", ops.rms_norm_y, lambda x, w, **more: ops.rms_norm(x, w.shape, w, EPS, **more)),
        _forward("rms_norm_grad", ops.rms_norm_y, lambda x, w, **more: ops.rms_norm(x, w.shape, w, EPS, **more)),
        _forward("layer_norm", ops.layer_norm_y, lambda x, w, **more: ops.layer_norm(x, w.shape, w, w, EPS, **more)),
        _forward(
            "rms_norm_residual",
            ops.rms_norm_total,
            lambda x, r, w, **more: ops.rms_norm(x, w.shape, w, EPS, residual=r, **more)[0],
            count=2,
        ),
        _backward(backward.rms_norm_backward, center=False),
        _backward(backward.layer_norm_backward, center=True),
    ),
)
