"""What week 3 measures: norms, with a residual, and their gradients, and the peers that they are measured against.

``rms_norm`` and ``layer_norm`` have a weight, and layer_norm a bias, of the dtype of x.  ``rms_norm_residual`` returns
the sum too; what is compared is the norm.  A gradient is that of x and of the weight, from statistics that are there;
what is compared is that of x.  The cases and targets stand in ``suites.yaml``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from forge_core.bench import CUDA_GPU, LIGER, QUACK, TRITON, Bench, Case, OperatorBench, Peer, Traffic, compiled
from forge_core.bench.inputs import random_tensor
from forge_core.testing import Subject
from forge_core.testing.tolerances import assert_near_float64, half_ulp
from forge_week3_norm import ref
from forge_week3_norm.backward import (
    layer_norm_backward,
    norm_gradients,
    norm_weight_backward,
    rms_norm_backward,
    together,
)
from forge_week3_norm.ops import layer_norm, layer_norm_total, layer_norm_y, rms_norm, rms_norm_total, rms_norm_y
from forge_week3_norm.proofs import EPS, PROOFS, spread

__all__ = ["BENCH"]

Inputs = tuple[torch.Tensor, ...]
SUBJECTS = {subject.name: subject for subject in PROOFS.subjects}
PIECE = 2**27
"""Elements that are compared in float64 at once."""


def _agree(name: str, inputs: Inputs, got: torch.Tensor, want: torch.Tensor, *, twice: bool) -> str:
    """By the rule of tests with the derived bound, some rows at a time; ``twice``: and half an ulp, as peers round."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"expected {tuple(want.shape)} {want.dtype}, got {tuple(got.shape)} {got.dtype}"
    subject, rows = SUBJECTS[name], max(1, PIECE // want.shape[-1])
    added = len(inputs) == 3 and not name.endswith("_backward")
    for start in range(0, len(want), rows):
        whole = [
            t[start : start + rows] if len(t) == len(want) and i != len(inputs) - 1 else t for i, t in enumerate(inputs)
        ]
        args, part = _arguments(name, *whole), got[start : start + rows]
        try:
            _judge(subject, args, part, twice=twice, added=added)
        except AssertionError as wrong:
            return str(wrong)
    return ""


def _judge(subject: Subject, args: tuple[Any, ...], got: torch.Tensor, *, twice: bool, added: bool) -> None:
    if subject.floor is None:
        raise ValueError(f"{subject.name} has no bound")
    exact = subject.expected(*(a.double() if isinstance(a, torch.Tensor) else a for a in args))
    peer, floor = subject.expected(*args), subject.floor(*args)
    if twice:
        floor = floor + half_ulp(exact, got.dtype)
        if added:  # a sum with a residual need not be rounded before it is normalized
            floor = floor + torch.finfo(got.dtype).eps * spread(args[0].double(), args[1].double(), (1,), center=False)
    assert_near_float64(got, exact, peer, floor=floor)


def _arguments(name: str, *inputs: torch.Tensor) -> tuple[Any, ...]:
    """A case's tensors as the subject of that name takes them."""
    if name.endswith("_backward"):
        *given, weight = inputs
        return (*given, torch.zeros_like(given[0]), weight, -1)
    *given, weight = inputs
    x = given[0] + given[1] if len(given) > 1 else given[0]
    return (x, weight, weight if name == "layer_norm" else torch.zeros_like(weight), -1)


def _tensors(count: int, case: Case, device: torch.device, generator: torch.Generator) -> Inputs:
    """Tensors of the case's shape, and a weight."""
    shapes = [*[case.shape] * count, case.shape[-1:]]
    return tuple(random_tensor(shape, case.dtype, device=device, generator=generator) for shape in shapes)


def _with_statistics(center: bool, case: Case, device: torch.device, generator: torch.Generator) -> Inputs:
    dy, x, weight = _tensors(2, case, device, generator)
    total = layer_norm_total if center else rms_norm_total
    return (dy, x, *total(x, dim=-1, eps=EPS, statistics=True)[2:], weight)


def _gradients(dy: torch.Tensor, x: torch.Tensor, *rest: torch.Tensor, variant: str = "auto") -> torch.Tensor:
    """Those of x and the weight, of layer_norm the bias too."""
    *statistics, weight = rest
    center = len(statistics) > 1
    if variant == "auto" and together((1,), x, dy):
        mean, rstd = statistics if center else (None, *statistics)
        return norm_gradients(dy, x, mean, rstd, None, weight, -1, bias=center)[0]
    norm_weight_backward(dy, x, statistics[0] if center else None, statistics[-1], 0, bias=center)
    return (layer_norm_backward if center else rms_norm_backward)(dy, x, *statistics, None, weight, -1, variant=variant)


def _eager(name: str, *inputs: torch.Tensor) -> torch.Tensor:
    *given, weight = inputs
    x = given[0] + given[1] if len(given) > 1 else given[0]
    if name == "layer_norm":
        return torch.nn.functional.layer_norm(x, weight.shape, weight, weight, EPS)
    return torch.nn.functional.rms_norm(x, weight.shape, weight, EPS)


def _eager_backward(dy: torch.Tensor, x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
    *statistics, weight = rest
    if not x.is_cuda:  # PyTorch's have no CPU kernel
        return _written_out(dy, x, *rest)[0]
    if len(statistics) > 1:
        mean, rstd = (t.unsqueeze(-1) for t in statistics)
        call = (dy, x, weight.shape, mean, rstd, weight, weight, [True, True, True])
        dx: torch.Tensor = torch.ops.aten.native_layer_norm_backward(*call)[0]
    else:
        dx = torch.ops.aten._fused_rms_norm_backward(
            dy, x, weight.shape, statistics[0].unsqueeze(-1), weight, [True, True]
        )[0]
    return dx


def _written_out(dy: torch.Tensor, x: torch.Tensor, *rest: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Both gradients in PyTorch, for torch.compile to fuse."""
    *statistics, weight = rest
    mean, rstd = (statistics[0], statistics[1]) if len(statistics) > 1 else (None, statistics[0])
    sums = ref.weight_backward(dy, x, mean, rstd, 0, bias=mean is not None)
    return ref.norm_backward(dy, x, rstd, None, weight, -1, mean=mean), *sums


def _compiled_backward(case: Case) -> Callable[..., torch.Tensor]:
    call: Any = compiled(_written_out)(case)  # type: ignore[arg-type]  # of several results
    return lambda *inputs: call(*inputs)[0]


def _quack(name: str, case: Case) -> Callable[..., torch.Tensor]:
    module: Any = importlib.import_module("quack.rmsnorm")
    if name == "rms_norm_backward":
        return lambda dy, x, rstd, weight: module.rmsnorm_bwd(x, weight, dy, rstd)[0]
    if name == "rms_norm_residual":
        return lambda x, r, weight: module.rmsnorm_fwd(x, weight, residual=r, eps=EPS)[0]
    return lambda x, weight: module.rmsnorm_fwd(x, weight, eps=EPS)[0]


def _quack_unable(name: str, case: Case) -> str:
    """Rows of whole vectors of 16 bytes; at most 128k elements of fp32 in its gradient."""
    count, size = case.shape[-1], case.dtype.itemsize
    if count * size % 16:
        return f"N = {count} is not a multiple of {16 // size}"
    if name == "rms_norm_backward" and count * size > 2**19:
        return f"N = {count} of {size} bytes is more than its gradient takes"
    return ""


def _liger(name: str, case: Case) -> Callable[..., torch.Tensor]:
    ops: Any = importlib.import_module("liger_kernel.ops.rms_norm")
    settings: Any = importlib.import_module("liger_kernel.ops.utils").calculate_settings(case.shape[-1])
    if name == "rms_norm_backward":
        more = {"in_place": False, "row_mode": None}
        return lambda dy, x, rstd, w: ops.rms_norm_backward(dy, x, w, rstd, 0.0, 1, *settings, **more)[0]
    return lambda x, weight: ops.rms_norm_forward(x, weight, EPS, 0.0, "gemma", None)[0]


def _liger_unable(case: Case) -> str:
    return f"n = {case.shape[-1]} exceeds the recommended Triton blocksize = 65536" if case.shape[-1] > 65536 else ""


def _peers(name: str, subject: str, eager: Callable[..., torch.Tensor]) -> tuple[Peer, ...]:
    held: dict[str, Any] = {"agree": partial(_agree, subject, twice=True), "tolerance": f"{TOLERANCE}, twice rounded"}
    made = _compiled_backward if name.endswith("_backward") else compiled(eager)
    peers = [
        Peer("eager", lambda case: eager, **held),
        Peer("compile", made, (CUDA_GPU, TRITON), **held),
    ]
    if name.startswith("rms_norm"):
        peers.append(Peer("quack", partial(_quack, name), (CUDA_GPU, QUACK), partial(_quack_unable, name), **held))
        if name != "rms_norm_residual":
            peers.append(Peer("liger", partial(_liger, name), (CUDA_GPU, TRITON, LIGER), _liger_unable, **held))
    return tuple(peers)


TOLERANCE = "the derived bound plus half an ulp of the output, element by element, against float64"


def _forward(name: str, subject: str, call: Callable[..., Any], operator: Any, count: int) -> OperatorBench:
    def explain(inputs: Inputs, variant: str) -> Any:
        *given, weight = inputs
        bias = (weight,) if subject == "layer_norm" else ()
        return operator.explain(*given, weight, *bias, variant=variant)

    return OperatorBench(
        name,
        lambda variant: partial(call, variant=variant),
        operator.variants,
        explain,
        partial(_eager, subject),
        lambda case: Traffic(count * case.nbytes, count * case.nbytes, "each element is read once and written once"),
        _peers(name, subject, partial(_eager, subject)),
        partial(_tensors, count),
        agree=partial(_agree, subject, twice=False),
        tolerance=TOLERANCE,
    )


def _backward(name: str, operator: Any, *, center: bool) -> OperatorBench:
    return OperatorBench(
        name,
        lambda variant: partial(_gradients, variant=variant),
        operator.variants,
        partial(_explained, operator),
        lambda *inputs: _written_out(*inputs)[0],
        lambda case: Traffic(2 * case.nbytes, case.nbytes, "two tensors are read once, the gradient is written once"),
        _peers(name, name, _eager_backward),
        partial(_with_statistics, center),
        agree=partial(_agree, name, twice=False),
        tolerance=TOLERANCE,
    )


def _explained(operator: Any, inputs: Inputs, variant: str) -> Any:
    dy, x, *statistics, weight = inputs
    if variant == "auto" and together((1,), x, dy):
        mean, rstd = statistics if len(statistics) > 1 else (None, *statistics)
        return norm_gradients.explain(dy, x, mean, rstd, None, weight, -1, bias=mean is not None)
    return operator.explain(*inputs[:-1], None, weight, variant=variant)


def _rms(x: torch.Tensor, weight: torch.Tensor, variant: str) -> Any:
    return rms_norm(x, weight.shape, weight, EPS, variant=variant)


def _layer(x: torch.Tensor, weight: torch.Tensor, variant: str) -> Any:
    return layer_norm(x, weight.shape, weight, weight, EPS, variant=variant)


def _added(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, variant: str) -> Any:
    return rms_norm(x, weight.shape, weight, EPS, residual=residual, variant=variant)[0]


BENCH = Bench(
    name="week3",
    package="forge_week3_norm",
    suites=Path(__file__).with_name("suites.yaml"),
    operators=(
        _forward("rms_norm", "rms_norm", _rms, rms_norm_y, 1),
        _forward("layer_norm", "layer_norm", _layer, layer_norm_y, 1),
        _forward("rms_norm_residual", "rms_norm", _added, rms_norm_total, 2),
        _backward("rms_norm_backward", rms_norm_backward, center=False),
        _backward("layer_norm_backward", layer_norm_backward, center=True),
    ),
)
