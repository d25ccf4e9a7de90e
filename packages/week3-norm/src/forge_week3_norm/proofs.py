"""The operators of week 3 under test, for the battery (docs/testing.md) and the proofs (docs/proofs.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from forge_core.proofs import week_of
from forge_core.testing import Case, Joined, Planted, Subject
from forge_core.testing.rows import LAUNCHES
from forge_week3_norm import backward, ops
from forge_week3_norm.bounds import gradient_bound, norm_bound, weight_bound

__all__ = ["EPS", "PROOFS", "spread"]

EPS = 1e-5
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
#: A mean beside which deviations are small: the mean of squares less the square of the mean has none of their digits.
LARGE = 1000.0
# By the names of the registered operators.
rms_norm, layer_norm = ops.rms_norm_y, ops.layer_norm_y
rms_norm_total = Joined(ops.rms_norm_total, lambda found: torch.stack(found[:2]))
layer_norm_total = Joined(ops.layer_norm_total, lambda found: torch.stack(found[:2]))
norm_weight_backward = Joined(backward.norm_weight_backward, lambda found: found[0])
norm_gradients = Joined(backward.norm_gradients, lambda found: found[0])


def _acc(x: torch.Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _dims(x: torch.Tensor, dim: Any) -> tuple[int, ...]:
    return tuple(sorted(d % x.ndim for d in (dim if isinstance(dim, tuple) else (dim,))))


def _along(t: torch.Tensor, x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    return t.to(_acc(t)).reshape([n if i in dims else 1 for i, n in enumerate(x.shape)])


def _others(x: torch.Tensor, dims: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(i for i in range(x.ndim) if i not in dims)


def _cases(*calls: tuple[tuple[int, ...], Any]) -> tuple[Case, ...]:
    return tuple(Case(shape, (dim,)) for shape, dim in calls)


CASES = _cases(((4, 6), -1), ((4, 6), 0), ((3, 5, 7), (1, 2)), ((2, 301), -1))
#: Calls whose error is measured: short and long rows, whole and not, for each kernel; rows side by side, also permuted.
MEASURED = _cases(((300, 64), -1), ((33, 4097), -1), ((3, 2**15), -1), ((4097, 40), 0), ((70, 1031), 0))
PERMUTED = _cases(((9000, 30), -1), ((4300, 65), -1), ((1000, 1000), -1), ((300, 3000), -1))


def _make(
    names: str, case: Case, dtype: torch.dtype, device: torch.device, seed: int, mean: float = 0.0, *, center: bool
) -> tuple[torch.Tensor, ...]:
    """Tensors by their names, normally distributed; statistics are those of x."""
    generator = torch.Generator(device=device).manual_seed(seed)
    probe = torch.empty(case.shape, device="meta")
    dims = _dims(probe, case.args[0])
    found: dict[str, torch.Tensor] = {}
    for name in names.split():
        column = name in ("weight", "bias")
        shape = [n for i, n in enumerate(case.shape) if i in dims] if column else case.shape
        if name in ("mean", "rstd"):
            x = found["x"].to(_acc(found["x"]))
            m = x.mean(dims) if center else x.new_zeros([case.shape[i] for i in _others(probe, dims)])
            d = x - _along(m, x, _others(x, dims))
            found[name] = m if name == "mean" else torch.rsqrt(d.square().mean(dims) + EPS)
        else:
            wide = torch.randn(shape, device=device, generator=generator, dtype=torch.float64)
            found[name] = (wide + mean if name == "x" else wide).to(dtype)
    return tuple(found.values())


def _samples(make: Callable[..., Any]) -> Callable[[torch.device], Iterator[tuple[Any, ...]]]:
    """Calls that each kernel supports one of; every other one with a large mean."""

    def samples(device: torch.device) -> Iterator[tuple[Any, ...]]:
        for dtype in DTYPES:
            for seed, case in enumerate(MEASURED):
                yield (*make(case, dtype, device, seed, LARGE if seed % 2 else 0.0), *case.args)
            for case in PERMUTED:
                yield (*(t.mT.contiguous().mT if t.ndim > 1 else t for t in make(case, dtype, device, 0)), *case.args)

    return samples


# Written apart from ref.py, so that a wrong reference cannot vouch for itself.
def _norm(x: Any, weight: Any, bias: Any, dim: Any, *, center: bool, variant: str = "auto") -> Any:
    dims = _dims(x, dim)
    ends = tuple(range(-len(dims), 0))
    h = x.to(_acc(x)).movedim(dims, ends).contiguous()
    if center:  # the mean twice: what it lost is the mean of what is left
        h = h - h.mean(ends, keepdim=True)
        h = h - h.mean(ends, keepdim=True)
    h = h / (h * h).mean(ends, keepdim=True).add(EPS).sqrt()
    y = h * weight.to(h.dtype) + bias.to(h.dtype)
    return y.movedim(ends, dims).to(x.dtype).contiguous()


def _total(x: Any, residual: Any, *rest: Any, center: bool, variant: str = "auto") -> torch.Tensor:
    total = x + residual
    return torch.stack([_norm(total, *rest, center=center), total])


def _dx(dy: Any, x: Any, *rest: Any, center: bool, variant: str = "auto") -> Any:
    *statistics, dtotal, weight, dim = rest
    dims = _dims(x, dim)
    over = _others(x, dims)
    g, rstd = dy.to(_acc(dy)) * _along(weight, x, dims), _along(statistics[-1], x, over)
    hat = (x.to(_acc(x)) - (_along(statistics[0], x, over) if center else 0.0)) * rstd
    dx = g - hat * (g * hat).mean(dims, keepdim=True) - (g.mean(dims, keepdim=True) if center else 0.0)
    return (dx * rstd + dtotal.to(g.dtype)).to(x.dtype).contiguous()


def _dweight(dy: Any, x: Any, mean: Any, rstd: Any, dim: Any, *, variant: str = "auto") -> Any:
    over = _dims(x, dim)
    hat = (x.to(_acc(x)) - _along(mean, x, over)) * _along(rstd, x, over)
    return (dy.to(hat.dtype) * hat).sum(over).to(x.dtype).contiguous()


def _norm_floor(x: Any, weight: Any, bias: Any, dim: Any, *, center: bool, variant: str = "auto") -> torch.Tensor:
    dims = _dims(x, dim)
    w, b = (_along(t.double(), x, dims) for t in (weight, bias))
    return norm_bound(x.double(), w, b, dims, EPS, _acc(x), center=center)


def _total_floor(x: Any, residual: Any, *rest: Any, center: bool, variant: str = "auto") -> torch.Tensor:
    """Of the norm; of one addition nothing is lost but the rounding of the result, which an fp64 reference has too."""
    floor = _norm_floor(x + residual, *rest, center=center)
    total = (x + residual).double().abs() * torch.finfo(torch.float64).eps
    if x.dtype is not torch.float64:
        # The float64 reference normalizes the sum as it is, the operator as it is rounded.
        dims, eps = _dims(x, rest[-1]), torch.finfo(x.dtype).eps
        weight = _along(rest[0].double(), x, dims)
        floor = floor + eps * spread((x + residual).double(), weight, dims, center=center)
    return torch.stack([floor, total])


def spread(total: torch.Tensor, weight: torch.Tensor, dims: tuple[int, ...], *, center: bool) -> torch.Tensor:
    """What rounding each element of a sum by eps / 2 changes in its norm, over eps: directly, and by its statistics."""
    d = total - total.mean(dims, keepdim=True) if center else total
    rstd = (d.square().mean(dims, keepdim=True) + EPS).rsqrt()
    hat, moved = d * rstd, 0.5 * total.abs() * rstd
    mean = moved.mean(dims, keepdim=True) if center else 0.0
    return weight.abs() * (moved + mean + hat.abs() * (hat.abs() * (moved + mean)).mean(dims, keepdim=True))


def _dx_floor(dy: Any, x: Any, *rest: Any, center: bool, variant: str = "auto") -> torch.Tensor:
    *statistics, dtotal, weight, dim = rest
    dims = _dims(x, dim)
    mean, rstd = (_along(t.double(), x, _others(x, dims)) for t in (statistics[0], statistics[-1]))
    mean = mean if center else torch.zeros_like(rstd)
    given = (dy.double(), x.double(), mean, rstd, dtotal.double(), _along(weight.double(), x, dims))
    return gradient_bound(*given, dims, _acc(x), center=center)


def _dweight_floor(dy: Any, x: Any, mean: Any, rstd: Any, dim: Any, *, variant: str = "auto") -> torch.Tensor:
    over = _dims(x, dim)
    hat = (x.double() - _along(mean.double(), x, over)) * _along(rstd.double(), x, over)
    return weight_bound(dy.double(), hat, over, _acc(x))


def _dweight_make(case: Case, *rest: Any) -> tuple[torch.Tensor, ...]:
    """Rows of the norm are numbered by the case's dims."""
    probe = torch.empty(case.shape, device="meta")
    of_rows = Case(case.shape, (_others(probe, _dims(probe, case.args[0])),))
    return _make("dy x mean rstd", of_rows, *rest, center=True)


def mean_of_squares(right: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A planted fault: the variance is the mean of squares less the square of the mean."""

    def wrong(x: torch.Tensor, weight: Any, bias: Any, dim: Any, **options: Any) -> torch.Tensor:
        dims = _dims(x, dim)
        wide = x.to(_acc(x))
        mean = wide.mean(dims, keepdim=True)
        var = wide.square().mean(dims, keepdim=True) - mean.square()
        hat = (wide - mean) * torch.rsqrt(var.clamp_min(0) + EPS)
        return (hat * _along(weight, x, dims) + _along(bias, x, dims)).to(x.dtype).contiguous()

    return wrong


def _judged(make: Any, reference: Callable[..., Any], floor: Callable[..., Any]) -> dict[str, Any]:
    return {"samples": _samples(make), "floor": floor, "make": make, "reference": reference}


def _subject(names: str, of: Callable[..., Any], floor: Callable[..., Any], *, center: bool) -> dict[str, Any]:
    """The inputs, reference and bound of a subject, whose tensors are given by name."""
    return _judged(*(partial(f, center=center) for f in (partial(_make, names), of, floor)))


_CALLS: dict[str, Any] = {"cases": CASES, "dtypes": DTYPES, "shapes": [(4, n) for n in (6, 9, 40, 300)]}
_ALL: dict[str, Any] = {**_CALLS, "launches": LAUNCHES}
_NODES = {"export": "an operator of several results is not one node, for each result is taken out of it"}
_STATISTICS = {"nan_and_inf": "statistics that are not those of x"}
#: Of gradients and of several results: fewer launches, for all move rows by the same kernels.
_SOME: dict[str, Any] = {**_CALLS, "launches": LAUNCHES[::2]}
_TOTAL: dict[str, Any] = {**_SOME, "inapplicable": _NODES}
_OF_X: dict[str, Any] = {**_SOME, "inapplicable": _STATISTICS}
_OF_WEIGHT: dict[str, Any] = {**_SOME, "inapplicable": {**_NODES, **_STATISTICS}}
#: Of rows that a cluster holds, of any layout.
_HELD = _cases(((300, 64), -1), ((70, 4097), -1), ((1100, 2**15), -1), ((4096, 20), 0), ((3, 700, 64), 1))
_PLANTED = Planted(mean_of_squares, "float64_error")
_LAYER_NORM: dict[str, Any] = {**_ALL, "launches": (*LAUNCHES, Case((530, 2**15), (-1,))), "planted": [_PLANTED]}
_FORWARD, _ADDED = "x weight bias", "x residual weight bias"
_RMS, _LAYER = "dy x rstd dtotal weight", "dy x mean rstd dtotal weight"

#: Each operator, with what it means, its bound, and calls of each kernel.
SUBJECTS = (
    Subject(rms_norm, **_subject(_FORWARD, _norm, _norm_floor, center=False), **_ALL),
    Subject(layer_norm, **_subject(_FORWARD, _norm, _norm_floor, center=True), **_LAYER_NORM),
    Subject(rms_norm_total, **_subject(_ADDED, _total, _total_floor, center=False), **_TOTAL),
    Subject(layer_norm_total, **_subject(_ADDED, _total, _total_floor, center=True), **_TOTAL),
    Subject(backward.rms_norm_backward, **_subject(_RMS, _dx, _dx_floor, center=False), **_OF_X),
    Subject(backward.layer_norm_backward, **_subject(_LAYER, _dx, _dx_floor, center=True), **_OF_X),
    Subject(norm_gradients, **_subject(_LAYER, _dx, _dx_floor, center=True), **{**_OF_WEIGHT, "launches": _HELD}),
    Subject(norm_weight_backward, **_judged(_dweight_make, _dweight, _dweight_floor), **_OF_WEIGHT),
)
PROOFS = week_of("week3", "forge_week3_norm", "packages/week3-norm/tests", SUBJECTS)
