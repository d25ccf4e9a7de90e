"""The public operators of week 1: sums and their family.

Each body checks a call's metadata and allocates its output; that is the operator's fake, and the first step of a real
call.  What runs is decided by ``config.plan``, and ``gradients`` says how they are differentiated.
"""

from __future__ import annotations

from typing import Any

import torch

from forge_core import checks
from forge_core.device import Device
from forge_core.dims import Dims
from forge_core.op import Launch, Operator, operator
from forge_week1_reduce import gradients, ref
from forge_week1_reduce.arithmetic import DTYPES, Arithmetic, result_dtype
from forge_week1_reduce.config import VARIANTS, plan
from forge_week1_reduce.problem import Problem, check_not_empty, normalize_dims, result_shape

__all__ = ["amax", "amin", "mean", "prod", "reduce", "reduce_sum"]


def _output(op: str, x: torch.Tensor, dim: Dims, keepdim: bool, dtype: torch.dtype | None) -> torch.Tensor:
    name = "reduce_sum" if op == "sum" else op
    checks.is_tensor(name, "x", x)
    checks.strided(name, "x", x)
    checks.supported_dtype(name, "x", x, DTYPES)
    dims = normalize_dims(name, dim, x.ndim)
    if op in ("amax", "amin"):
        check_not_empty(name, x.shape, dims)
    return x.new_empty(result_shape(x.shape, dims, keepdim), dtype=result_dtype(op, x.dtype, dtype))


def _plan(
    op: str,
    device: Device,
    out: torch.Tensor,
    x: torch.Tensor,
    dim: Dims,
    keepdim: bool,
    dtype: torch.dtype | None,
    variant: str,
) -> Launch:
    name = "reduce_sum" if op == "sum" else op
    problem = Problem.of(x, normalize_dims(name, dim, x.ndim), out, keepdim)
    return plan(name, problem, Arithmetic.of(op, x.dtype, out.dtype, dtype), device, variant)


def _plan_sum(
    device: Device, out: torch.Tensor, x: torch.Tensor, dim: Dims, keepdim: bool, dtype: Any, variant: str
) -> Launch:
    return _plan("sum", device, out, x, dim, keepdim, dtype, variant)


def _plan_mean(
    device: Device, out: torch.Tensor, x: torch.Tensor, dim: Dims, keepdim: bool, dtype: Any, variant: str
) -> Launch:
    return _plan("mean", device, out, x, dim, keepdim, dtype, variant)


def _plan_prod(
    device: Device, out: torch.Tensor, x: torch.Tensor, dim: Dims, keepdim: bool, dtype: Any, variant: str
) -> Launch:
    return _plan("prod", device, out, x, dim, keepdim, dtype, variant)


def _plan_amax(device: Device, out: torch.Tensor, x: torch.Tensor, dim: Dims, keepdim: bool, variant: str) -> Launch:
    return _plan("amax", device, out, x, dim, keepdim, None, variant)


def _plan_amin(device: Device, out: torch.Tensor, x: torch.Tensor, dim: Dims, keepdim: bool, variant: str) -> Launch:
    return _plan("amin", device, out, x, dim, keepdim, None, variant)


# vmap's rules name the operators below, so they are functions of their own.


def _vmap_of(name: str) -> Any:
    def rule(
        info: Any, in_dims: Any, x: torch.Tensor, dim: Dims = -1, keepdim: bool = False, **kwargs: Any
    ) -> tuple[torch.Tensor, int]:
        x, dims, keepdim = gradients.batched(name, x, in_dims[0], dim, keepdim)
        return OPERATORS[name](x, dims, keepdim, **kwargs), 0

    return rule


def _linear_jvp(name: str) -> Any:
    """The tangent of a sum or mean: the same of the tangent."""

    def rule(output: torch.Tensor, tangents: dict[str, torch.Tensor], **call: Any) -> torch.Tensor:
        return OPERATORS[name](**call | tangents)

    return rule


@operator(
    "forge_week1::reduce_sum(Tensor x, int[1]? dim=-1, bool keepdim=False, *, ScalarType? dtype=None, "
    "str variant='auto') -> Tensor",
    reference=ref.reduce_sum,
    plan=_plan_sum,
    variants=VARIANTS,
    setup_context=gradients.keep_shape,
    backward=gradients.sum_backward,
    vmap=_vmap_of("sum"),
    jvp=_linear_jvp("sum"),
    autocast={"cuda": torch.float32},
)
def reduce_sum(
    x: torch.Tensor, dim: Dims = -1, keepdim: bool = False, *, dtype: torch.dtype | None = None, variant: str = "auto"
) -> torch.Tensor:
    """The sum over some dimensions; ``torch.sum``, except that ``dim`` is the last one by default.

    Args:
        x: any rank, strides and storage offset; bool, integers, fp16, bf16, fp32 or fp64.
        dim: the dimensions to reduce: an int, a tuple of ints, or None (or an empty tuple) for all.  As in PyTorch, an
            int may be one of NumPy's or a tensor, and ``dtype`` may be Python's ``float``, ``int`` or ``bool``.
        keepdim: whether they stay, with size 1.
        dtype: what each element is converted to before it is added; integers and bool give int64 without it.
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


@operator(
    "forge_week1::mean(Tensor x, int[1]? dim=-1, bool keepdim=False, *, ScalarType? dtype=None, "
    "str variant='auto') -> Tensor",
    reference=ref.mean,
    plan=_plan_mean,
    variants=VARIANTS,
    setup_context=gradients.keep_shape,
    backward=gradients.mean_backward,
    vmap=_vmap_of("mean"),
    jvp=_linear_jvp("mean"),
)
def mean(
    x: torch.Tensor, dim: Dims = -1, keepdim: bool = False, *, dtype: torch.dtype | None = None, variant: str = "auto"
) -> torch.Tensor:
    """The arithmetic mean over some dimensions; ``torch.mean``, except for the default of ``dim``.

    Args:
        x: as for :func:`reduce_sum`; other than floating point only with a floating-point ``dtype``.
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


@operator(
    "forge_week1::prod(Tensor x, int[1]? dim=-1, bool keepdim=False, *, ScalarType? dtype=None, "
    "str variant='auto') -> Tensor",
    reference=ref.prod,
    plan=_plan_prod,
    variants=VARIANTS,
    setup_context=gradients.keep_input,
    backward=gradients.prod_backward,
    vmap=_vmap_of("prod"),
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


@operator(
    "forge_week1::amax(Tensor x, int[1]? dim=-1, bool keepdim=False, *, str variant='auto') -> Tensor",
    reference=ref.amax,
    plan=_plan_amax,
    variants=VARIANTS,
    setup_context=gradients.keep_extreme,
    backward=gradients.extreme_backward,
    vmap=_vmap_of("amax"),
)
def amax(x: torch.Tensor, dim: Dims = -1, keepdim: bool = False, *, variant: str = "auto") -> torch.Tensor:
    """The largest element along some dimensions; ``torch.amax``, except for the default of ``dim``.

    Args:
        x: as for :func:`reduce_sum`.
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


@operator(
    "forge_week1::amin(Tensor x, int[1]? dim=-1, bool keepdim=False, *, str variant='auto') -> Tensor",
    reference=ref.amin,
    plan=_plan_amin,
    variants=VARIANTS,
    setup_context=gradients.keep_extreme,
    backward=gradients.extreme_backward,
    vmap=_vmap_of("amin"),
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
