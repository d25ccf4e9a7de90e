"""Gradient operators: dx is a reduction along rows, dweight and dbias are reductions over rows.

    all of them                    one launch that reads dy and x once, and a small one that adds up partial sums
    dx, also that of a residual    one launch
    dweight and dbias              one launch, which leaves partial sums, and a small one that adds them up

The first, ``norm_gradients``, is for rows that a cluster of blocks holds, and for first derivatives.
The statistics are those that the forward pass kept; where the gradient is differentiated in turn, they are PyTorch's.
No sum depends on the order in which blocks run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from forge_core import device as devices
from forge_core import settings
from forge_core.choice import max_cluster
from forge_core.dims import Dims, normalize_dims
from forge_core.op import Operator
from forge_core.rows.operator import PERSISTENT, row_operator, row_output
from forge_week3_norm import ref
from forge_week3_norm.program import NormBackward, NormGradients, WeightBackward

__all__ = ["layer_norm_backward", "norm_gradients", "norm_weight_backward", "rms_norm_backward"]

#: Elements of a row up to which one read is faster than two; by itself where the length is no multiple of 8, since rows
#: then begin at any address.  Time of one over that of two on an H200: 0.48 to 0.71; 0.46 to 0.92.
LONGEST, LONGEST_SINGLE = 2**17, 2**15


def _given(named: dict[str, Any]) -> dict[str, Any]:
    there = {"weight": named["weight"] is not None, "added": named["dtotal"] is not None}
    return {**there, "offset": named["weight_offset"] != 0}


def _dx(named: dict[str, Any], *, center: bool) -> NormBackward:
    return NormBackward(center, **_given(named))


def _dx_like(op: str, named: dict[str, Any], *, center: bool) -> torch.Tensor:
    names = ("dy", "x", "dtotal", "mean", "rstd", "weight")
    tensors = {name: named[name] for name in names if named.get(name) is not None}
    return row_output(op, _dx(named, center=center), dim=named["dim"], dtype=named["x"].dtype, **tensors)


def _of_x(name: str, statistics: str, *, center: bool) -> Callable[[Callable[..., torch.Tensor]], Operator]:
    """Declares the gradient of what is normalized."""
    return row_operator(
        f"forge_week3::{name}(Tensor dy, Tensor x, {statistics}, Tensor? dtotal=None, Tensor? weight=None, "
        "int[1] dim=-1, *, float weight_offset=0.0, bool batch_invariant=False, str variant='auto') -> Tensor",
        program=partial(_dx, center=center),
        reference=ref.norm_backward,
        gradient="reference",
    )


@_of_x("rms_norm_backward", "Tensor rstd", center=False)
def rms_norm_backward(dy: torch.Tensor, x: torch.Tensor, rstd: torch.Tensor, **named: Any) -> torch.Tensor:
    """The gradient of what rms_norm normalizes: ``rstd * (g - hat * mean(g * hat)) + dtotal``, with g = dy * weight.

    Args:
        dy: the gradient of y, of the shape of x, any strides, 0 among them.
        x: what was normalized.
        rstd: ``1 / sqrt(mean(x^2) + eps)`` of each row.
        **named: ``dtotal``, the gradient of x from elsewhere; ``weight``, ``dim`` and ``weight_offset`` of the forward
            pass; ``batch_invariant``; ``variant``.

    Returns:
        A contiguous tensor of the shape and dtype of x; differentiable.

    Raises:
        ShapeError, DTypeError, LayoutError, DeviceError: the tensors are not that.
        UnsupportedError: a variant that cannot do this layout.
    """
    return _dx_like("rms_norm_backward", {"dy": dy, "x": x, "rstd": rstd, **named}, center=False)


@_of_x("layer_norm_backward", "Tensor mean, Tensor rstd", center=True)
def layer_norm_backward(
    dy: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor, **named: Any
) -> torch.Tensor:
    """The gradient of what layer_norm normalizes, ``rstd * (g - mean(g) - hat * mean(g * hat)) + dtotal``.

    Takes, returns and raises what :func:`rms_norm_backward` does, and takes the mean of each row.
    """
    return _dx_like("layer_norm_backward", {"dy": dy, "x": x, "mean": mean, "rstd": rstd, **named}, center=True)


def _cast(named: dict[str, Any]) -> torch.dtype | None:
    return named["cast"] if named["cast"] and named["cast"].itemsize < 4 else None


def _sums(named: dict[str, Any]) -> WeightBackward:
    return WeightBackward(named["mean"] is not None, named["bias"], _cast(named))


@row_operator(
    "forge_week3::norm_weight_backward(Tensor dy, Tensor x, Tensor? mean, Tensor rstd, int[1] dim=0, *, "
    "bool bias=False, ScalarType? cast=None, ScalarType? dtype=None, ScalarType? bias_dtype=None, "
    "str variant='auto') -> (Tensor dweight, Tensor dbias)",
    program=_sums,
    reference=ref.weight_backward,
    gradient="reference",
)
def norm_weight_backward(
    dy: torch.Tensor, x: torch.Tensor, mean: torch.Tensor | None, rstd: torch.Tensor, dim: Dims, **named: Any
) -> Any:
    """The gradients of a norm's weight and bias: the sums of ``dy * hat`` and of ``dy`` over its rows.

    Args:
        dy: the gradient of y, of the shape of x.
        x: what was normalized.
        mean: of each row; None for rms_norm.
        rstd: of each row.
        dim: the dims that number the rows: all that do not make one.
        **named: ``bias``, whether the second sum is wanted; ``cast``, the dtype that the
            normalized element was rounded to; ``dtype`` and ``bias_dtype`` of the results, None for that of x;
            ``variant``.

    Returns:
        Both, contiguous; the second is empty where it is not wanted.  The same bits at each call.

    Raises:
        ShapeError, DTypeError, DimError, LayoutError, DeviceError, UnsupportedError: as the other gradients.
    """
    tensors: dict[str, Any] = {"dy": dy, "x": x, "rstd": rstd} | ({} if mean is None else {"mean": mean})
    program = _sums({**named, "mean": mean})
    dweight = row_output("norm_weight_backward", program, dim=dim, dtype=named["dtype"] or x.dtype, **tensors)
    return dweight, _dbias_like(dweight, x, named)


def _dbias_like(dweight: torch.Tensor, x: torch.Tensor, named: dict[str, Any]) -> torch.Tensor:
    size = dweight.shape if named["bias"] else (0,)
    return torch.empty(size, dtype=named["bias_dtype"] or x.dtype, device=x.device)


def _all(named: dict[str, Any]) -> NormGradients:
    return NormGradients(named["mean"] is not None, bias=named["bias"], cast=_cast(named), **_given(named))


@row_operator(
    "forge_week3::norm_gradients(Tensor dy, Tensor x, Tensor? mean, Tensor rstd, Tensor? dtotal=None, "
    "Tensor? weight=None, int[1] dim=-1, *, float weight_offset=0.0, bool bias=False, ScalarType? cast=None, "
    "ScalarType? dtype=None, ScalarType? bias_dtype=None, str variant='auto') "
    "-> (Tensor dx, Tensor dweight, Tensor dbias)",
    program=_all,
    reference=ref.norm_gradients,
    gradient="reference",
    kernels=PERSISTENT,
)
def norm_gradients(
    dy: torch.Tensor, x: torch.Tensor, mean: torch.Tensor | None, rstd: torch.Tensor, **named: Any
) -> Any:
    """The gradients of what a norm normalizes, of its weight and of its bias, by one read of dy and x.

    Takes what :func:`layer_norm_backward` and :func:`norm_weight_backward` do, whose results it returns; ``dim`` names
    the dims that make a row.

    Raises:
        ShapeError, DTypeError, DimError, LayoutError, DeviceError: as the other gradients.
        UnsupportedError: rows that no cluster of blocks holds.
    """
    given = {"dy": dy, "x": x, "mean": mean, "rstd": rstd, **named}
    dx = _dx_like("norm_gradients", given, center=mean is not None)
    dims = normalize_dims("norm_gradients", named["dim"], x.ndim)
    dweight = torch.empty([x.shape[i] for i in dims], dtype=named["dtype"] or x.dtype, device=x.device)
    return dx, dweight, _dbias_like(dweight, x, named)


def together(dims: tuple[int, ...], h: torch.Tensor, *others: torch.Tensor | None) -> bool:
    """Whether :func:`norm_gradients` takes these tensors, however they are aligned, and is the faster way."""
    if torch.is_grad_enabled() or h.dtype is torch.float64 or not h.is_contiguous():
        return False
    if not all(t is None or t.is_contiguous() or not any(t.stride()) for t in others):
        return False
    arch = settings.current().arch
    if h.device.type != "cuda" and arch is None:
        return True
    device = devices.query(h.device) if arch is None else devices.spec_for(arch)
    length = math.prod(h.shape[i] for i in dims)
    # Half as many elements fit of rows that begin anywhere, and where shared memory or registers are short.
    single, three = length % 8 != 0, sum(t is not None for t in others) > 1
    small = device.smem_per_block < 2**17 or (three and (h.dtype is torch.float16 or device.capability != (9, 0)))
    fit = (4096 if single or small else 8192) * max_cluster(device) - 8 * single
    return length <= min(LONGEST_SINGLE if single else LONGEST, fit)


def keep(ctx: Any, inputs: tuple[Any, ...], output: Any, keyword_only_inputs: dict[str, Any], *, center: bool) -> None:
    """For the operators of all results: what was normalized, and the statistics."""
    x, residual, weight, bias, dim, eps = inputs
    _, total, *statistics = output
    ctx.save_for_backward(x if residual is None else total, weight, *statistics)
    ctx.mark_non_differentiable(*statistics, *(() if residual is not None else (total,)))
    ctx.set_materialize_grads(False)
    ctx.call, ctx.center = (dim, eps, keyword_only_inputs), center
    ctx.dtypes = tuple(None if t is None else t.dtype for t in (x, residual, weight, bias))


def of_norm(ctx: Any, dy: torch.Tensor | None, dtotal: torch.Tensor | None = None, *_: Any) -> tuple[Any, ...]:
    """The gradients of x, the residual, weight and bias."""
    (h, weight, *statistics), (dim, eps, options) = ctx.saved_tensors, ctx.call
    dim, dx, dweight, dbias, dtypes = normalize_dims("norm", dim, h.ndim), dtotal, None, None, ctx.dtypes
    needs = (*ctx.needs_input_grad, False, False, False)  # the dispatcher leaves out trailing defaults
    if dy is not None:
        if torch.is_grad_enabled() or not statistics[0].numel():
            # To be differentiated again, they are functions of what was normalized; or the call did not keep them.
            statistics = ref.statistics(h, dim, eps, center=ctx.center)
        mean, rstd = statistics if ctx.center else (None, *statistics)
        offset, of_x, of_weight = options["weight_offset"], needs[0] or needs[1], needs[2] or needs[3]
        cast = dtypes[0] if options["cast"] == "input" else None
        wanted = {"bias": needs[3], "cast": cast, "dtype": dtypes[2], "bias_dtype": dtypes[3]}
        at_once = of_x and of_weight and together(dim, h, dy, dtotal)
        if at_once:
            dx, dweight, dbias = norm_gradients(dy, h, mean, rstd, dtotal, weight, dim, weight_offset=offset, **wanted)
        elif of_x:
            alone = layer_norm_backward if ctx.center else rms_norm_backward
            own = {"weight_offset": offset, "batch_invariant": options["batch_invariant"]}
            dx = alone(dy, h, *statistics, dtotal, weight, dim, **own)
        if of_weight and not at_once:
            rows = tuple(i for i in range(h.ndim) if i not in dim)
            if not rows:  # one row: columns of one element
                dy, h, rows = dy.unsqueeze(0), h.unsqueeze(0), (0,)
                mean, rstd = (t if t is None else t.unsqueeze(0) for t in (mean, rstd))
            dweight, dbias = norm_weight_backward(dy, h, mean, rstd, rows, **wanted)
    each = ((dx, 0), (dx, 1), (dweight, 2), (dbias, 3))
    found = (None if t is None or not needs[i] else t.to(dtypes[i]) for t, i in each)
    return (*found, None, None)
