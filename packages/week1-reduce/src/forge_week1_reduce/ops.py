"""The public operators of week 1: sums and their family.

Each body is the operator's fake implementation (``torch.library.register_fake``), which a call with new metadata runs
once, on meta tensors.  The arithmetic is in ``program``; ``gradients`` says how the operators are differentiated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from forge_core import checks
from forge_core.dims import Dims, normalize_dims, result_shape
from forge_core.dtypes import COMPLEX, FLOATS, INTEGERS, name_of
from forge_core.errors import DimError, DTypeError
from forge_core.op import Operator
from forge_core.rows.operator import row_operator
from forge_week1_reduce import gradients, ref
from forge_week1_reduce.config import LADDER
from forge_week1_reduce.program import Reduce

__all__ = ["DTYPES", "amax", "amin", "mean", "prod", "reduce", "reduce_sum", "result_dtype"]

#: What the operators take; sums, means and products complex numbers, too.
DTYPES: tuple[torch.dtype, ...] = (*INTEGERS, *FLOATS)


def _takes(op: str) -> tuple[torch.dtype, ...]:
    return (*DTYPES, *COMPLEX) if op in ("sum", "mean", "prod") else DTYPES


def result_dtype(op: str, src: torch.dtype, dtype: torch.dtype | None) -> torch.dtype:
    """The dtype of a result, by PyTorch's rules.

    Args:
        op: ``"sum"``, ``"mean"``, ``"prod"``, ``"amax"`` or ``"amin"``.
        src: the input's.
        dtype: what the caller asked for, or None.

    Raises:
        DTypeError: a dtype that the family does not take, or a mean of integers.
    """
    numbers = src.is_floating_point or src.is_complex
    if dtype is not None and dtype not in _takes(op):
        raise DTypeError(op, "dtype", f"None or one of {', '.join(map(name_of, _takes(op)))}", name_of(dtype))
    if dtype is not None and dtype.is_complex != src.is_complex:
        expected = f"a {'complex' if src.is_complex else 'real'} dtype, as that of x"
        raise DTypeError(op, "dtype", expected, name_of(dtype), "Convert x first.")
    if op == "mean" and not (numbers if dtype is None else dtype.is_floating_point or dtype.is_complex):
        expected = "a floating-point or complex dtype, since a mean is none of the others"
        argument = "x" if dtype is None else "dtype"
        raise DTypeError(op, argument, expected, name_of(dtype or src), "Pass dtype=torch.float32.")
    if dtype is not None:
        return dtype
    return torch.int64 if op in ("sum", "prod") and not numbers else src


def _output(op: str, x: torch.Tensor, dim: Dims, keepdim: bool, dtype: torch.dtype | None) -> torch.Tensor:
    name = "reduce_sum" if op == "sum" else op
    checks.operand(name, "x", x, _takes(op))
    dims = normalize_dims(name, dim, x.ndim)
    for i in dims if op in ("amax", "amin") else ():
        if x.shape[i] == 0:
            expected = "dimensions of non-zero size, since nothing has no largest or smallest element"
            raise DimError(op, "dim", expected, f"dimension {i} of shape {tuple(x.shape)}")
    return torch.empty(result_shape(x.shape, dims, keepdim), dtype=result_dtype(op, x.dtype, dtype), device=x.device)


def _program(op: str, named: Mapping[str, Any]) -> Reduce:
    return Reduce.of(op, named["x"].dtype, named.get("dtype"))


def _declare(op: str, schema: str, **declared: Any) -> Callable[[Callable[..., torch.Tensor]], Operator]:
    """A row operator of the family."""
    declared |= {"program": partial(_program, op), "ladder": LADDER, "converts": True, "cpu_autograd": True}
    return row_operator(f"forge_week1::{schema}", **declared)


@_declare(
    "sum",
    "reduce_sum(Tensor x, int[1]? dim=-1, bool keepdim=False, *, ScalarType? dtype=None, str variant='auto') -> Tensor",
    reference=ref.reduce_sum,
    setup_context=gradients.keep_shape,
    backward=gradients.sum_backward,
    linear=True,
    autocast={"cuda": torch.float32},
)
def reduce_sum(
    x: torch.Tensor, dim: Dims = -1, keepdim: bool = False, *, dtype: torch.dtype | None = None, variant: str = "auto"
) -> torch.Tensor:
    """The sum over some dimensions; ``torch.sum``, except that ``dim`` is the last one by default.

    Args:
        x: any rank, strides and storage offset; bool, integers, fp16, bf16, fp32, fp64, complex64 or complex128.
        dim: the dimensions to reduce: an int, a tuple of ints, or None (or an empty tuple) for all.  As in PyTorch, an
            int may be one of NumPy's or a tensor, and ``dtype`` may be Python's ``float``, ``int`` or ``bool``.
        keepdim: whether they stay, with size 1.
        dtype: what each element is converted to before it is added, complex if x is; integers and bool give int64
            without it.
        variant: ``"auto"``, or one of ``reduce_sum.variants()``.

    Returns:
        A contiguous tensor on the device of ``x``; differentiable.  The same input on the same device gives the same
        bits every time.

    Raises:
        DimError: a dimension out of range; an IndexError too.
        RepeatedDimError: a dimension given twice; a RuntimeError too.
        DTypeError: a dtype that is none of those.
        LayoutError: sparse, quantised or nested.
        ArgumentTypeError: an argument of another type; a TypeError too.
        ArgumentError: an unknown variant, or one named for CPU tensors.
        UnsupportedError: a variant that cannot do this layout.
    """
    return _output("sum", x, dim, keepdim, dtype)


@_declare(
    "mean",
    "mean(Tensor x, int[1]? dim=-1, bool keepdim=False, *, ScalarType? dtype=None, str variant='auto') -> Tensor",
    reference=ref.mean,
    setup_context=gradients.keep_shape,
    backward=gradients.mean_backward,
    linear=True,
)
def mean(
    x: torch.Tensor, dim: Dims = -1, keepdim: bool = False, *, dtype: torch.dtype | None = None, variant: str = "auto"
) -> torch.Tensor:
    """The arithmetic mean over some dimensions; ``torch.mean``, except for the default of ``dim``.

    Args:
        x: as for :func:`reduce_sum`; integers and bool only with a floating-point ``dtype``.
        dim: as for :func:`reduce_sum`.
        keepdim: as for :func:`reduce_sum`.
        dtype: as for :func:`reduce_sum`.
        variant: as for :func:`reduce_sum`.

    Returns:
        A contiguous tensor; differentiable.  The mean of nothing is NaN.

    Raises:
        DTypeError: a mean of integers, a RuntimeError too; otherwise as :func:`reduce_sum`.
    """
    return _output("mean", x, dim, keepdim, dtype)


@_declare(
    "prod",
    "prod(Tensor x, int[1]? dim=-1, bool keepdim=False, *, ScalarType? dtype=None, str variant='auto') -> Tensor",
    reference=ref.prod,
    setup_context=gradients.keep_input,
    backward=gradients.prod_backward,
    autocast={"cuda": torch.float32, "cpu": torch.float32},
)
def prod(
    x: torch.Tensor, dim: Dims = -1, keepdim: bool = False, *, dtype: torch.dtype | None = None, variant: str = "auto"
) -> torch.Tensor:
    """The product over some dimensions; ``torch.prod``, over several dimensions too.

    Args:
        x: as for :func:`reduce_sum`.
        dim: as for :func:`reduce_sum`.
        keepdim: as for :func:`reduce_sum`.
        dtype: as for :func:`reduce_sum`.
        variant: as for :func:`reduce_sum`.

    Returns:
        A contiguous tensor; differentiable, zeros included.

    Raises:
        DimError, RepeatedDimError, DTypeError, LayoutError, ArgumentError, UnsupportedError: as :func:`reduce_sum`.
    """
    return _output("prod", x, dim, keepdim, dtype)


@_declare(
    "amax",
    "amax(Tensor x, int[1]? dim=-1, bool keepdim=False, *, str variant='auto') -> Tensor",
    reference=ref.amax,
    setup_context=gradients.keep_extreme,
    backward=gradients.extreme_backward,
)
def amax(x: torch.Tensor, dim: Dims = -1, keepdim: bool = False, *, variant: str = "auto") -> torch.Tensor:
    """The largest element along some dimensions; ``torch.amax``, except for the default of ``dim``.

    Args:
        x: as for :func:`reduce_sum`, but not complex.
        dim: as for :func:`reduce_sum`; each of non-zero size.
        keepdim: as for :func:`reduce_sum`.
        variant: as for :func:`reduce_sum`.

    Returns:
        A contiguous tensor of the dtype of ``x``, NaN where there is one; differentiable: elements that tie share the
        gradient evenly.

    Raises:
        DimError: a dimension out of range or of size 0; an IndexError too; otherwise as :func:`reduce_sum`.
    """
    return _output("amax", x, dim, keepdim, None)


@_declare(
    "amin",
    "amin(Tensor x, int[1]? dim=-1, bool keepdim=False, *, str variant='auto') -> Tensor",
    reference=ref.amin,
    setup_context=gradients.keep_extreme,
    backward=gradients.extreme_backward,
)
def amin(x: torch.Tensor, dim: Dims = -1, keepdim: bool = False, *, variant: str = "auto") -> torch.Tensor:
    """The smallest element along some dimensions; ``torch.amin``, and as :func:`amax` in everything else.

    Args:
        x: as for :func:`amax`.
        dim: as for :func:`amax`.
        keepdim: as for :func:`amax`.
        variant: as for :func:`amax`.

    Returns:
        As :func:`amax`.

    Raises:
        DimError, RepeatedDimError, DTypeError, LayoutError, ArgumentError, UnsupportedError: as :func:`amax`.
    """
    return _output("amin", x, dim, keepdim, None)


#: Every name that ``reduce`` takes.
OPERATORS: dict[str, Operator] = {
    "sum": reduce_sum,
    "mean": mean,
    "amax": amax,
    "amin": amin,
    "prod": prod,
    "max": amax,
    "min": amin,
}


def reduce(
    x: torch.Tensor,
    dim: Dims = -1,
    op: str = "sum",
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    variant: str = "auto",
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """One of the family, by name.

    Args:
        x: as for :func:`reduce_sum`.
        dim: as for :func:`reduce_sum`.
        op: ``"sum"``, ``"mean"``, ``"amax"`` (or ``"max"``), ``"amin"`` (or ``"min"``), ``"prod"``.
        keepdim: as for :func:`reduce_sum`.
        dtype: as for :func:`reduce_sum`; None for amax and amin.
        variant: as for :func:`reduce_sum`.
        out: where to write the result, or None for a new tensor; not differentiable.

    Returns:
        The result, or ``out``.

    Raises:
        ArgumentError: another ``op``, or a ``dtype`` for amax or amin; otherwise as the operator that is named.
    """
    checks.one_of("reduce", "op", op, tuple(OPERATORS))
    chosen = OPERATORS[op]
    options: dict[str, Any] = {"variant": variant}
    if dtype is not None:
        if "dtype" not in chosen.schema.parameters:
            checks.one_of("reduce", "dtype", dtype, (None,))
        options["dtype"] = dtype
    if out is not None:
        return chosen.out(x, dim, keepdim, out=out, **options)
    return chosen(x, dim, keepdim, **options)
