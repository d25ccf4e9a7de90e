"""The operators of week 2 under test, for the battery (docs/testing.md) and the proofs (docs/proofs.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from forge_core.proofs import week_of
from forge_core.testing import Case, Subject
from forge_core.testing.subject import Make
from forge_week2_softmax import backward, ops
from forge_week2_softmax.bounds import (
    log_softmax_bound,
    log_softmax_gradient_bound,
    logsumexp_bound,
    logsumexp_gradient_bound,
    softmax_bound,
    softmax_gradient_bound,
)

__all__ = ["PROOFS"]


def _along(dim: int, *shapes: tuple[int, ...], **options: str) -> tuple[Case, ...]:
    return tuple(Case(shape, (dim,), options) for shape in shapes)


#: Calls whose error is measured: short and long rows, whole and not, for each kernel; and rows side by side.
MEASURED = (
    *_along(-1, (300, 64), (33, 4097), (3, 2**15)),
    *_along(0, (4097, 40), (70, 1031), (1500, 1031), (12, 3001)),
)
# The battery's; float32 is what gradients and graphs are tried on.
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
CASES = (*(Case((4, 6, 10), (dim,)) for dim in (-1, 0, 1)), Case((300, 1), (-1,)))
LINE = _along(0, (37,))
SPECIAL = tuple(Case((9, count), (dim,)) for count in (9, 100, 4100) for dim in (0, 1))
SHAPES_LAID_OUT = ((40, 56), (129, 257), (2, 48, 80), (3, 2, 33, 65), (8, 3, 701), (3, 20011), (2, 140003))
LAID_OUT = tuple(Case(shape, (dim,)) for shape in SHAPES_LAID_OUT for dim in range(len(shape)))
#: From lanes of a warp over blocks and clusters to the whole GPU, unaligned rows, and rows side by side.
LAUNCHES = (
    *_along(-1, (600, 2000), (600, 20000), (4096, 64), (300, 5003), (2, 2**20), (64, 100000), (1, 2**22 + 1)),
    *_along(-1, (4096, 1000), (20000, 256), (200, 2**18), (40000, 23)),
    *_along(0, (70000, 128), (4096, 33), (16, 2**18), (24, 50001), (1000, 1000)),
    *_along(-1, (300, 5003), variant="stream"),
    *_along(-1, (3, 70001), variant="split"),
    *_along(-1, (2, 50000), variant="grid"),
)


def _normal(case: Case, dtype: torch.dtype, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator(device=device).manual_seed(seed)
    return ((3 * torch.randn(case.shape, device=device, generator=generator, dtype=torch.float64)).to(dtype),)


def _with_gradient(*tensors: torch.Tensor, seed: int) -> tuple[torch.Tensor, ...]:
    last = tensors[-1]
    generator = torch.Generator(device=last.device).manual_seed(1000 + seed)
    grad = torch.randn(last.shape, device=last.device, generator=generator, dtype=torch.float64)
    return (grad.to(last.dtype), *tensors)


def _softmax_pair(case: Case, dtype: torch.dtype, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    (x,) = _normal(case, dtype, device, seed)
    return _with_gradient(torch.softmax(x, case.args[0]), seed=seed)


def _log_softmax_pair(case: Case, dtype: torch.dtype, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    (x,) = _normal(case, dtype, device, seed)
    grad, y = _with_gradient(torch.log_softmax(x, case.args[0]), seed=seed)
    # A mean of 1 in rows, so that the sum of the gradients does not cancel and its error is close to its bound.  Not in
    # columns: PyTorch, which serves CPU tensors, sums them serially and would exceed the bound.
    return grad + (case.args[0] == -1), y


def _logsumexp_three(case: Case, dtype: torch.dtype, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    (x,) = _normal(case, dtype, device, seed)
    return _with_gradient(x, _logsumexp(x, *case.args), seed=seed)


def _samples(make: Make) -> Callable[[torch.device], Iterator[tuple[Any, ...]]]:
    """The arguments of the measured calls."""

    def samples(device: torch.device) -> Iterator[tuple[Any, ...]]:
        for dtype in DTYPES:
            for case in MEASURED:
                yield (*make(case, dtype, device, case.shape[1]), *case.args)

    return samples


# Apart from ref.py, so that a wrong reference cannot vouch for itself.
def _logsumexp(x: torch.Tensor, dim: Any, keepdim: bool = False, *, variant: str = "auto") -> torch.Tensor:
    return torch.logsumexp(x, tuple(range(x.ndim)) if dim is None else dim, keepdim)


def _acc(x: torch.Tensor) -> torch.dtype:
    return torch.float64 if x.dtype is torch.float64 else torch.float32


def _lse_floor(x: torch.Tensor, dim: Any, keepdim: bool = False, *, variant: str = "auto") -> torch.Tensor:
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

    def along(*args: Any, variant: str = "auto") -> torch.Tensor:
        *tensors, dim = args
        if tensors[0].dtype is not torch.float64:
            return function(*args)
        return function(*(tensor.movedim(dim, -1).contiguous() for tensor in tensors), -1).movedim(-1, dim)

    return along


_CALLS: dict[str, Any] = {"cases": (*CASES, *LINE), "special": (*CASES, *SPECIAL), "dtypes": DTYPES}
_FORWARD: dict[str, Any] = {
    **_CALLS,
    "make": _normal,
    "launches": LAUNCHES,
    "laid_out": LAID_OUT,
    "laid_out_dtypes": (torch.bfloat16,),
}
_BACKWARD: dict[str, Any] = {**_CALLS, "launches": LAUNCHES[:-3:4]}

PROOFS = week_of(
    "week2",
    "forge_week2_softmax",
    "packages/week2-softmax/tests",
    [
        Subject(
            ops.softmax,
            _samples(_normal),
            lambda x, d, **_: softmax_bound(x.double(), d, _acc(x)),
            **_FORWARD,
            reference=_by_rows(torch.softmax),
        ),
        Subject(
            ops.log_softmax,
            _samples(_normal),
            lambda x, d, **_: log_softmax_bound(x.double(), d, _acc(x)),
            **_FORWARD,
            reference=_by_rows(torch.log_softmax),
        ),
        Subject(
            ops.logsumexp,
            _samples(_normal),
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
            _samples(_softmax_pair),
            lambda g, y, d, **_: softmax_gradient_bound(g.double(), y.double(), d, _acc(y)),
            **{**_BACKWARD, "launches": LAUNCHES},
            make=_softmax_pair,
            reference=_by_rows(lambda g, y, d: torch.ops.aten._softmax_backward_data(g, y, d, y.dtype)),
        ),
        Subject(
            backward.log_softmax_backward,
            _samples(_log_softmax_pair),
            lambda g, y, d, **_: log_softmax_gradient_bound(g.double(), y.double(), d, _acc(y)),
            **_BACKWARD,
            make=_log_softmax_pair,
            reference=_by_rows(lambda g, y, d: torch.ops.aten._log_softmax_backward_data(g, y, d, y.dtype)),
        ),
        Subject(
            backward.logsumexp_backward,
            _samples(_logsumexp_three),
            _lse_gradient_floor,
            absent=dict.fromkeys(("grid", "split"), "it has no reduction: the parts of a row have nothing to exchange"),
            **{**_BACKWARD, "cases": (*_CALLS["cases"], Case((4, 6, 10), (1, True)))},
            make=_logsumexp_three,
            reference=_lse_gradient,
        ),
    ],
)
