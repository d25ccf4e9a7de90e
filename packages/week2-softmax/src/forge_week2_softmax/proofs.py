"""The operators of week 2 under test, for the battery (docs/testing.md) and the proofs (docs/proofs.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from forge_core.testing import Case, Subject
from forge_core.testing.proofs import week_of
from forge_core.testing.softmax_bounds import (
    log_softmax_bound,
    log_softmax_gradient_bound,
    logsumexp_bound,
    logsumexp_gradient_bound,
    softmax_bound,
    softmax_gradient_bound,
)
from forge_week2_softmax import backward, ops

__all__ = ["PROOFS"]

#: Rows for each kernel, short and long, whole and not; and columns.
SHAPES = (((300, 64), -1), ((33, 4097), -1), ((3, 2**15), -1), ((4097, 40), 0), ((70, 1031), 0))
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _samples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    for dtype in FLOATS:
        for shape, dim in SHAPES:
            generator = torch.Generator(device=device).manual_seed(shape[1])
            x = 3 * torch.randn(shape, device=device, dtype=torch.float64, generator=generator)
            yield (x.to(dtype), dim)


def _gradient(x: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator(device=x.device).manual_seed(5)
    return torch.randn(x.shape, device=x.device, dtype=torch.float64, generator=generator).to(x.dtype)


def _of_softmax(device: torch.device) -> Iterator[tuple[Any, ...]]:
    for x, dim in _samples(device):
        y = torch.softmax(x, dim)
        yield (_gradient(y), y, dim)


def _of_log_softmax(device: torch.device) -> Iterator[tuple[Any, ...]]:
    for x, dim in _samples(device):
        y = torch.log_softmax(x, dim)
        # A mean of 1 in rows, so that the sum of the gradients does not cancel and its error is close to its bound.
        # Not in columns: PyTorch, which serves CPU tensors, sums them serially and would exceed the bound.
        yield (_gradient(y) + (dim == -1), y, dim)


def _of_logsumexp(device: torch.device) -> Iterator[tuple[Any, ...]]:
    for x, dim in _samples(device):
        lse = torch.logsumexp(x, dim)
        yield (_gradient(lse), x, lse, dim)


# The battery's.
CASES = tuple(Case((4, 6, 10), (dim,)) for dim in (-1, 0, 1))
LINE = (Case((37,), (0,)),)
SPECIAL = tuple(Case((9, count), (dim,)) for count in (9, 100, 4100) for dim in (0, 1))
SHAPES_LAID_OUT = ((40, 56), (129, 257), (2, 48, 80), (3, 2, 33, 65))
LAID_OUT = tuple(Case(shape, (dim,)) for shape in SHAPES_LAID_OUT for dim in range(len(shape)))
#: From lanes of a warp over blocks and clusters to many blocks a row, rows that lie askew, and neighbouring rows.
LAUNCHES = tuple(
    Case(shape, (dim,))
    for shape, dim in (
        ((4096, 64), -1),
        ((600, 2000), -1),
        ((600, 20000), -1),
        ((300, 5003), -1),
        ((64, 100000), -1),
        ((2, 2**20), -1),
        ((1, 2**22 + 1), -1),
        ((4096, 33), 0),
        ((70000, 128), 0),
        ((16, 2**18), 0),
        ((4096, 1000), -1),
        ((20000, 256), -1),
    )
)
#: float32 is what gradients and graphs are tried on.
ORDERED = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def _normal(case: Case, dtype: torch.dtype, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator(device=device).manual_seed(seed)
    return ((3 * torch.randn(case.shape, device=device, generator=generator)).to(dtype),)


def _with_gradient(*tensors: torch.Tensor, seed: int) -> tuple[torch.Tensor, ...]:
    last = tensors[-1]
    generator = torch.Generator(device=last.device).manual_seed(1000 + seed)
    return (torch.randn(last.shape, device=last.device, generator=generator).to(last.dtype), *tensors)


def _softmax_pair(case: Case, dtype: torch.dtype, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    (x,) = _normal(case, dtype, device, seed)
    return _with_gradient(torch.softmax(x, case.args[0]), seed=seed)


def _log_softmax_pair(case: Case, dtype: torch.dtype, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    (x,) = _normal(case, dtype, device, seed)
    return _with_gradient(torch.log_softmax(x, case.args[0]), seed=seed)


def _logsumexp_three(case: Case, dtype: torch.dtype, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    (x,) = _normal(case, dtype, device, seed)
    return _with_gradient(x, _logsumexp(x, *case.args), seed=seed)


# Apart from ref.py, so that a wrong reference cannot vouch for itself.
def _logsumexp(x: torch.Tensor, dim: Any, keepdim: bool = False) -> torch.Tensor:
    return torch.logsumexp(x, tuple(range(x.ndim)) if dim is None else dim, keepdim)


def _acc(x: torch.Tensor) -> torch.dtype:
    return torch.float64 if x.dtype is torch.float64 else torch.float32


def _lse_floor(x: torch.Tensor, dim: Any, keepdim: bool = False) -> torch.Tensor:
    bound = logsumexp_bound(x.double(), tuple(range(x.ndim)) if dim is None else dim, _acc(x))
    return bound.reshape(_logsumexp(x, dim, keepdim).shape)


def _lse_gradient_floor(grad: torch.Tensor, x: torch.Tensor, lse: torch.Tensor, dim: Any, keepdim: Any = False) -> Any:
    if not keepdim:
        grad, lse = grad.unsqueeze(dim), lse.unsqueeze(dim)
    return logsumexp_gradient_bound(grad.double(), x.double(), lse.double(), _acc(x))


def _lse_gradient(grad: torch.Tensor, x: torch.Tensor, lse: torch.Tensor, dim: Any, keepdim: Any = False) -> Any:
    if not keepdim:
        grad, lse = grad.unsqueeze(dim), lse.unsqueeze(dim)
    # In one go, as PyTorch's fused kernels do.  In three steps of 16 bits exp would be 0 where it is not, and NaN its
    # product with an infinite gradient.
    acc = _acc(x)
    return (grad.to(acc) * (x.to(acc) - lse.to(acc)).exp()).to(x.dtype)


def _by_rows(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """PyTorch's function, in float64 along contiguous rows.

    PyTorch adds up the elements of a row in a tree, but those of a column one after the other, in float64 too, which
    makes a poor reference: over 70000 rows it is a hundred roundings off.
    """

    def along(*args: Any) -> torch.Tensor:
        *tensors, dim = args
        if tensors[0].dtype is not torch.float64:
            return function(*args)
        return function(*(tensor.movedim(dim, -1).contiguous() for tensor in tensors), -1).movedim(-1, dim)

    return along


_NOTHING_TO_EXCHANGE = "the blocks of a row have nothing to exchange"

_CALLS: dict[str, Any] = {"cases": (*CASES, *LINE), "special": (*CASES, *SPECIAL), "dtypes": ORDERED}
_FORWARD: dict[str, Any] = {
    **_CALLS,
    "make": _normal,
    "launches": LAUNCHES,
    "laid_out": LAID_OUT,
    "laid_out_dtypes": (torch.bfloat16,),
}
_BACKWARD: dict[str, Any] = {**_CALLS, "launches": (LAUNCHES[1], LAUNCHES[5], LAUNCHES[8])}

PROOFS = week_of(
    "week2",
    "forge_week2_softmax",
    "packages/week2-softmax/tests",
    [
        Subject(
            ops.softmax,
            _samples,
            lambda x, d: softmax_bound(x.double(), d, _acc(x)),
            **_FORWARD,
            reference=_by_rows(torch.softmax),
        ),
        Subject(
            ops.log_softmax,
            _samples,
            lambda x, d: log_softmax_bound(x.double(), d, _acc(x)),
            **_FORWARD,
            reference=_by_rows(torch.log_softmax),
        ),
        Subject(
            ops.logsumexp,
            _samples,
            _lse_floor,
            **{
                **_FORWARD,
                "cases": (*_CALLS["cases"], *(Case((4, 6, 10), args) for args in (((0, 2),), ((0, 1), True), (None,)))),
                "laid_out": (*LAID_OUT, *(Case(shape, ((0, len(shape) - 1),)) for shape in SHAPES_LAID_OUT)),
            },
            reference=_logsumexp,
        ),
        Subject(
            backward.softmax_backward,
            _of_softmax,
            lambda g, y, d: softmax_gradient_bound(g.double(), y.double(), d, _acc(y)),
            **{**_BACKWARD, "launches": LAUNCHES},
            make=_softmax_pair,
            reference=_by_rows(lambda g, y, d: torch.ops.aten._softmax_backward_data(g, y, d, y.dtype)),
        ),
        Subject(
            backward.log_softmax_backward,
            _of_log_softmax,
            lambda g, y, d: log_softmax_gradient_bound(g.double(), y.double(), d, _acc(y)),
            **_BACKWARD,
            make=_log_softmax_pair,
            reference=_by_rows(lambda g, y, d: torch.ops.aten._log_softmax_backward_data(g, y, d, y.dtype)),
        ),
        Subject(
            backward.logsumexp_backward,
            _of_logsumexp,
            _lse_gradient_floor,
            absent=dict.fromkeys(("cluster", "grid", "split"), _NOTHING_TO_EXCHANGE),
            **{**_BACKWARD, "cases": (*_CALLS["cases"], Case((4, 6, 10), (1, True)))},
            make=_logsumexp_three,
            reference=_lse_gradient,
        ),
    ],
)
