"""The operators of week 1 under test, for the battery (docs/testing.md) and the proofs (docs/proofs.md)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from forge_core.dtypes import COMPLEX
from forge_core.proofs import week_of
from forge_core.testing import Case, Subject, assert_same_values, random_bits
from forge_core.testing.subject import normal
from forge_core.testing.tolerances import product_bound, tree_bound
from forge_week1_reduce import ops

__all__ = ["PROOFS"]

#: Rows for each kernel, short and long, whole and not; and columns.
SHAPES = (
    ((300, 64), -1),
    ((33, 4097), -1),
    ((3, 2**17), -1),
    ((4097, 40), 0),
    ((70, 1031), 0),
    ((1500, 1031), 0),
    ((12, 3001), 0),
)


def _random(device: torch.device) -> Iterator[tuple[torch.Tensor, torch.dtype, int]]:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for shape, dim in SHAPES:
            generator = torch.Generator(device=device).manual_seed(shape[1])
            yield torch.randn(shape, device=device, dtype=torch.float64, generator=generator), dtype, dim


def _samples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    # A mean of 5/16, so that sums do not cancel and the largest error is comparable to the bound; fp16 holds all sums.
    # Every three rows have another power of two as a factor: a small result has to be as accurate as a large one.
    for x, dtype, dim in _random(device):
        rows = torch.arange(x.shape[dim - 1], device=device, dtype=torch.float64)
        scale = torch.exp2(-(rows // 3 % 7)).unsqueeze(dim)
        yield ((1.25 + x) / 4 * scale).to(dtype), dim


def _near_one(device: torch.device) -> Iterator[tuple[Any, ...]]:
    # About 64 numbers near 1, since products of many others leave every dtype.  The rest are 1 and -1, whose products
    # are exact, so that the bound does not grow with the length of the row.
    for x, dtype, dim in _random(device):
        place = torch.arange(x.shape[dim], device=device) % max(x.shape[dim] // 64, 1) == 0
        near = torch.where(place.unsqueeze(-1 - dim), 1 + x / 256, 1.0)
        yield (near * x.sign()).to(dtype), dim


def _accumulator(x: torch.Tensor) -> torch.dtype:
    return torch.float64 if x.dtype is torch.float64 else torch.float32


def _dims(x: torch.Tensor, dim: Any) -> tuple[int, ...]:
    return tuple(range(x.ndim)) if dim is None else (dim,) if isinstance(dim, int) else dim


def _count(x: torch.Tensor, dim: Any) -> int:
    return math.prod(x.shape[i] for i in _dims(x, dim))


def _of_sum(x: torch.Tensor, dim: Any = -1, keepdim: bool = False) -> torch.Tensor:
    return tree_bound(x.double().abs().sum(dim, keepdim), _count(x, dim), _accumulator(x))


def _of_mean(x: torch.Tensor, dim: Any = -1, keepdim: bool = False) -> torch.Tensor:
    # The count and the division by it round once each, before the result is rounded to its dtype.
    division = torch.finfo(_accumulator(x)).eps * x.double().mean(dim, keepdim).abs()
    return _of_sum(x, dim, keepdim) / _count(x, dim) + division


def _of_prod(x: torch.Tensor, dim: int) -> torch.Tensor:
    return product_bound(x.double(), dim, _accumulator(x))


# The battery's.  Whole numbers, whose sums are exact in every dtype that holds them, in any order: the results of the
# kernels and of PyTorch have to be equal.  What is not so exact is measured on the samples.
CASES = tuple(Case((4, 6, 10), args) for args in ((-1,), (0, True), (None,), ((0, 2),), ((1, 2), True)))
LINE = (Case((37,), (0, True)),)
SPECIAL = tuple(Case((9, 4100), (dim,)) for dim in (0, -1, (0, 1)))
LAID_OUT = tuple(
    Case(shape, (dim,))
    for shape in ((40, 56), (129, 257), (2, 48, 80), (3, 2, 33, 65), (8, 3, 701), (3, 20011), (2, 140003))
    for dim in (None, *range(len(shape)), (0, len(shape) - 1))
)
#: One for each kernel that auto picks: rows in lanes, a block, a cluster, parts; columns' ways; rows of one element.
LAUNCHES = tuple(
    Case(shape, (dim,))
    for shape, dim in (
        ((4096, 64), -1),
        ((600, 20000), -1),
        ((64, 70000), -1),
        ((2, 2**22), -1),
        ((4096, 33), 0),
        ((70000, 128), 0),
        ((16, 2**20), 0),
        ((24, 50001), 0),
        ((1000, 1000), 0),
        ((5000, 5001), 0),
        ((1, 2**20), 0),
    )
)
#: The dtypes of sums first; float32 is what gradients and graphs are tried on.
ORDERED = (torch.float32, *(dtype for dtype in ops.DTYPES if dtype is not torch.float32))


def _whole(case: Case, dtype: torch.dtype, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator(device=device).manual_seed(seed)
    x = torch.randint(-8 if dtype.is_signed else 0, 9, case.shape, device=device, generator=generator)
    return (x.to(dtype),)


def _signs(case: Case, dtype: torch.dtype, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    # 1 and -1, and i and -i, whose products are exact however many they are; of unsigned integers 1 and 3, which wrap
    # alike.
    generator = torch.Generator(device=device).manual_seed(seed)
    if dtype.is_complex:
        units = torch.tensor([1, 1j, -1, -1j], dtype=dtype, device=device)
        return (units[torch.randint(0, 4, case.shape, device=device, generator=generator)],)
    x = torch.randint(0, 2, case.shape, device=device, generator=generator)
    return ((1 - 2 * x if dtype.is_signed else 1 + 2 * x).to(dtype),)


def _spread(case: Case, dtype: torch.dtype, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    # The extremes of long rows of small whole numbers are all the same, and would tell nothing.
    if dtype.is_floating_point:
        return normal(case, dtype, device, seed)
    return (random_bits(case.shape, dtype, device, seed=seed),)


# Apart from ref.py where PyTorch's own function will do, so that a wrong reference cannot vouch for itself.
def _sum(x: torch.Tensor, dim: Any = -1, keepdim: bool = False) -> torch.Tensor:
    if x.dtype.is_floating_point and x.dtype.itemsize == 2:
        return torch.sum(x.float(), dim, keepdim).to(x.dtype)  # exact in fp32, rounded once
    return torch.sum(x, dim, keepdim)


def _mean(x: torch.Tensor, dim: Any = -1, keepdim: bool = False) -> torch.Tensor:
    return torch.mean(x, dim, keepdim)


def _amax(x: torch.Tensor, dim: Any = -1, keepdim: bool = False) -> torch.Tensor:
    return torch.amax(x, () if dim is None else dim, keepdim)


def _amin(x: torch.Tensor, dim: Any = -1, keepdim: bool = False) -> torch.Tensor:
    return torch.amin(x, () if dim is None else dim, keepdim)


def _prod(x: torch.Tensor, dim: Any = -1, keepdim: bool = False) -> torch.Tensor:
    dims = range(x.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
    for one in sorted((d % x.ndim for d in dims), reverse=True):
        x = torch.prod(x, one, keepdim)
    return x


def _near_one_of(case: Case, dtype: torch.dtype, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    (x,) = normal(case, dtype, device, seed)
    return (1 + x / 256,)


def _nearly(got: torch.Tensor, expected: torch.Tensor) -> None:
    # A whole sum is divided, or multiplied by the count's inverse: an ulp apart.
    torch.testing.assert_close(got, expected, rtol=2 * torch.finfo(got.dtype).eps, atol=0, equal_nan=True)


_CALLS: dict[str, Any] = {"cases": (*CASES, *LINE), "special": (*CASES, *SPECIAL), "make": _whole, "inexact": normal}
_LAID_OUT: dict[str, Any] = {"laid_out": LAID_OUT, "laid_out_dtypes": (torch.int16,)}
_FEW = {**_CALLS, "compare": assert_same_values, "launches": LAUNCHES[1:6:2]}
_EXTREME: dict[str, Any] = {**_FEW, "make": _spread, "dtypes": ORDERED}

PROOFS = week_of(
    "week1",
    "forge_week1_reduce",
    "packages/week1-reduce/tests",
    [
        Subject(
            ops.reduce_sum,
            _samples,
            _of_sum,
            **_CALLS,
            **_LAID_OUT,
            dtypes=ORDERED,
            launches=LAUNCHES,
            reference=_sum,
            compare=assert_same_values,
        ),
        Subject(
            ops.mean,
            _samples,
            _of_mean,
            **_CALLS,
            dtypes=(torch.float32, torch.float16, torch.bfloat16, torch.float64),
            launches=LAUNCHES[1:6:2],
            reference=_mean,
            compare=_nearly,
        ),
        Subject(ops.amax, _samples, **_EXTREME, **_LAID_OUT, reference=_amax),
        Subject(ops.amin, _samples, **_EXTREME, reference=_amin),
        Subject(
            ops.prod,
            _near_one,
            _of_prod,
            **{**_FEW, "make": _signs, "inexact": _near_one_of},
            dtypes=(*ORDERED, *COMPLEX),
            reference=_prod,
        ),
    ],
)
