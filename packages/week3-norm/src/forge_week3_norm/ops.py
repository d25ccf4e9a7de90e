"""The public operators of week 3: rms_norm and layer_norm, each with a residual that is added first.

    a call                       one launch of
    without gradient, residual   ``rms_norm`` or ``layer_norm`` of torch.ops.forge_week3: y
    any other                    ``rms_norm_total`` or ``layer_norm_total``: y, the sum, and the statistics

Their gradients are in ``backward``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from forge_core import checks
from forge_core.dims import normalize_dims, result_shape
from forge_core.dtypes import FLOATS
from forge_core.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from forge_core.op import Call, Operator, composite
from forge_core.op.schema import is_int, normal_int
from forge_core.rows.operator import PERSISTENT, VARIANTS, row_operator, row_output
from forge_week3_norm import backward, ref
from forge_week3_norm.program import Norm

__all__ = ["layer_norm", "rms_norm"]

_TENSORS = (
    "Tensor? weight=None, Tensor? bias=None, int[1] dim=-1, float eps=1e-5, *, float weight_offset=0.0, "
    "str cast='fp32', ScalarType? dtype=None, bool batch_invariant=False, "
)


#: The program of these fields; the same object for equal ones.
_norm = functools.lru_cache(maxsize=1024)(Norm)


def _program(named: dict[str, Any], *, center: bool) -> Norm:
    x, residual = named["x"], named.get("residual")
    return _norm(
        center,
        named["weight"] is not None,
        named["bias"] is not None,
        named["weight_offset"] != 0,
        x.dtype if named["cast"] == "input" and x.dtype.itemsize < 4 else None,
        None if residual is None else named["residual_dtype"] or torch.promote_types(x.dtype, residual.dtype),
        named.get("statistics", False),
    )


def _outputs(op: str, *, center: bool, **named: Any) -> tuple[torch.Tensor, ...]:
    """Checks a call and allocates what it returns; an empty tensor for what it does without."""
    checks.is_tensor(op, "x", named["x"])
    checks.one_of(op, "cast", named["cast"], ("fp32", "input"))
    x, dim, residual = named["x"], named["dim"], named.get("residual")
    tensors = {name: named[name] for name in ("x", "residual", "weight", "bias") if named.get(name) is not None}
    for name in ("dtype", "residual_dtype"):
        _result_dtype(op, name, named.get(name), x)
    program = Norm(center) if x.dtype not in FLOATS else _program(named, center=center)
    y = row_output(op, program, dim=dim, dtype=named["dtype"], **tensors)
    if "residual" not in named:
        return (y,)
    total, wide = x.shape if residual is not None else (0,), torch.promote_types(x.dtype, torch.float32)
    rows = result_shape(x.shape, normalize_dims(op, dim, x.ndim), keepdim=False) if named["statistics"] else (0,)
    found = [torch.empty(rows, dtype=wide, device=x.device) for _ in range(1 + center)]
    return y, torch.empty(total, dtype=program.total or x.dtype, device=x.device), *found


def _result_dtype(op: str, argument: str, dtype: Any, x: torch.Tensor) -> None:
    """Refuses what is no dtype of a result; Python's types are those that PyTorch takes for dtypes."""
    if not isinstance(dtype, torch.dtype):
        if dtype not in (None, float, int, bool):
            raise ArgumentTypeError(op=op, argument=argument, expected="a torch.dtype, or None", got=repr(dtype))
    elif dtype not in FLOATS or (dtype is torch.float64) != (x.dtype is torch.float64):
        expected = "None, or a floating-point dtype, float64 for float64 only"
        raise DTypeError(op=op, argument=argument, expected=expected, got=str(dtype))


def _declare(name: str, statistics: str = "", *, center: bool) -> Callable[[Callable[..., Any]], Operator]:
    """A norm as an operator: of y alone, or with a residual, of y, their sum and the statistics.

    That of y alone is differentiated through its reference; ``torch.func`` transforms use it.  The public functions
    call the other where autograd records.  Outputs of the other that are not requested are empty tensors.
    """
    declared: dict[str, Any] = {"program": partial(_program, center=center), "autocast": {"cuda": torch.float32}}
    declared |= {"cpu": partial(ref.fused, center=center), "cpu_autograd": True}
    declared |= {"reference": lambda **named: ref.norm(named, center=center), "kernels": {**VARIANTS, **PERSISTENT}}
    if not statistics:
        schema = f"forge_week3::{name}(Tensor x, {_TENSORS}str variant='auto') -> Tensor"
        return row_operator(schema, gradient="reference", **declared)
    return row_operator(
        f"forge_week3::{name}(Tensor x, Tensor? residual=None, {_TENSORS}ScalarType? residual_dtype=None, "
        f"bool statistics=False, str variant='auto') -> (Tensor y, Tensor total, {statistics})",
        setup_context=partial(backward.keep, center=center),
        backward=backward.of_norm,
        **declared,
    )


@_declare("rms_norm", center=False)
def rms_norm_y(x: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
    """rms_norm over any dims."""
    return _outputs("rms_norm", center=False, x=x, **options)[0]


@_declare("layer_norm", center=True)
def layer_norm_y(x: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
    """layer_norm over any dims."""
    return _outputs("layer_norm", center=True, x=x, **options)[0]


@_declare("rms_norm_total", "Tensor rstd", center=False)
def rms_norm_total(x: torch.Tensor, *args: Any, **options: Any) -> Any:
    """rms_norm of x and a residual, with all its results: y, their sum, rstd."""
    return _outputs("rms_norm", center=False, x=x, **options)


@_declare("layer_norm_total", "Tensor mean, Tensor rstd", center=True)
def layer_norm_total(x: torch.Tensor, *args: Any, **options: Any) -> Any:
    """layer_norm of x and a residual, with all its results: y, their sum, mean, rstd."""
    return _outputs("layer_norm", center=True, x=x, **options)


def _checked(op: str, x: Any, normalized_shape: Any, weight: Any, bias: Any) -> tuple[int, ...]:
    """The dims that ``normalized_shape`` names; refuses shapes that do not go with it, as PyTorch does."""
    sizes, argument = normalized_shape, "normalized_shape"
    if isinstance(sizes, (tuple, list)) and not all(map(is_int, sizes)):
        sizes = tuple(map(normal_int, sizes))
    if not isinstance(sizes, (tuple, list)) or not all(map(is_int, sizes)):
        raise ArgumentTypeError(op, argument, "a tuple of ints", repr(sizes), "Pass x.shape[-1:], or as many dims.")
    if not sizes:
        raise ShapeError(op=op, argument=argument, expected="at least one size", got="none")
    for name, t in (("x", x), ("weight", weight), ("bias", bias)):
        if isinstance(t, torch.Tensor) and t.is_nested:  # whose shape cannot be read
            checks.strided(op, name, t)
    shapes = {"x": x.shape[-len(sizes) :] if isinstance(x, torch.Tensor) else tuple(sizes)}
    shapes |= {n: t.shape for n, t in (("weight", weight), ("bias", bias)) if isinstance(t, torch.Tensor)}
    for name, shape in shapes.items():
        if tuple(shape) != tuple(sizes):
            ends = "a shape that ends with" if name == "x" else "the shape"
            raise ShapeError(op=op, argument=name, expected=f"{ends} {tuple(sizes)}", got=str(tuple(shape)))
    return tuple(range(-len(sizes), 0))


def _require(op: str, argument: str, given: bool, tensor: torch.Tensor | None, name: str) -> None:
    if given and tensor is None:
        raise ArgumentError(op=op, argument=argument, expected=f"a {name} with it", got="none")


def _call(
    op: str, x: Any, normalized_shape: Any, weight: Any, bias: Any, eps: float, residual: Any, **options: Any
) -> Call:
    """A call of the operator of y alone, or of that of all results, whichever is needed."""
    dim = _checked(op, x, normalized_shape, weight, bias)
    _require(op, "residual_dtype", options["residual_dtype"] is not None, residual, "residual")
    if isinstance(x, torch.Tensor):
        _result_dtype(op, "out_dtype", options["dtype"], x)
        _result_dtype(op, "residual_dtype", options["residual_dtype"], x)
    if residual is not None:
        checks.is_tensor(op, "residual", residual)
    tensors = [t for t in (x, residual, weight, bias) if isinstance(t, torch.Tensor)]
    # On a CPU the reference is recorded, whose gradient needs no statistics.
    recorded = torch.is_grad_enabled() and any(t.requires_grad and not t.is_cpu for t in tensors)
    if options["batch_invariant"] and isinstance(x, torch.Tensor):  # rows that are not contiguous have other kernels
        for name, t in (("x", x), ("residual", x if residual is None else residual)):
            checks.strided(op, name, t)
        x, residual = x.contiguous(), residual if residual is None else residual.contiguous()
    alone, with_all = (rms_norm_y, rms_norm_total) if op == "rms_norm" else (layer_norm_y, layer_norm_total)
    if residual is None and not recorded:
        del options["residual_dtype"]
        return Call(alone, (x, weight, bias, dim, eps), options)
    options["statistics"] = recorded
    return Call(with_all, (x, residual, weight, bias, dim, eps), options, 0 if residual is None else slice(2))


@composite(rms_norm_y, rms_norm_total)
def rms_norm(
    x: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    weight_offset: float = 0.0,
    cast: str = "fp32",
    out_dtype: torch.dtype | None = None,
    residual_dtype: torch.dtype | None = None,
    batch_invariant: bool = False,
    variant: str = "auto",
) -> Any:
    """``h / sqrt(mean(h^2) + eps) * (weight + weight_offset) + bias``, where h is x, or x + residual.

    Args:
        x: any strides and storage offset; fp16, bf16, fp32 or fp64.
        normalized_shape: the sizes of the last dims, which make a row.
        weight: of that shape; any of the dtypes, but float64 with float64 only, as all tensors.
        eps: added to the mean square; None for the smallest step of fp32 at 1, or of fp64 for fp64, as in PyTorch.
        bias: of that shape.
        residual: of the shape of x; added to x, and the sum rounded to ``residual_dtype``, before anything else.
        weight_offset: added to the weight, as 1 is in some models.
        cast: ``"fp32"``: the normalized element is multiplied by the weight as it is; ``"input"``: it is rounded to the
            dtype of x first.
        out_dtype: of the norm; None for that of x.
        residual_dtype: of the sum; None for what PyTorch gives x + residual.
        batch_invariant: kernels are chosen whatever the number of rows, so that a row's bits do not depend on it, for
            rows of one alignment; rows that are not contiguous are copied first.
        variant: ``"auto"``, or a kernel of the row engine by name.

    Returns:
        The norm, contiguous, of the shape of x; with a residual the pair of it and the sum.  Differentiable in all
        tensors.  16-bit and fp32 tensors are computed in fp32, fp64 in fp64.  Under CUDA's autocast the norm is fp32.

    Raises:
        ShapeError: a shape that does not go with ``normalized_shape``, or a residual of another shape.
        ArgumentTypeError: ``normalized_shape`` is no tuple of ints, or another argument not of its type.
        DTypeError: integers, complex numbers, or float64 among others; a RuntimeError too.
        ArgumentError: an unknown ``cast`` or variant; an option of a residual or a weight that is not there.
        LayoutError, DeviceError, UnsupportedError: as for any operator.
    """
    _require("rms_norm", "weight_offset", weight_offset != 0, weight, "weight")
    if eps is None:
        eps = torch.finfo(torch.float64 if getattr(x, "dtype", None) is torch.float64 else torch.float32).eps
    options: dict[str, Any] = {"cast": cast, "dtype": out_dtype, "residual_dtype": residual_dtype, "variant": variant}
    options |= {"weight_offset": weight_offset, "batch_invariant": batch_invariant}
    return _call("rms_norm", x, normalized_shape, weight, bias, eps, residual, **options)


@composite(layer_norm_y, layer_norm_total)
def layer_norm(
    x: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
    *,
    residual: torch.Tensor | None = None,
    cast: str = "fp32",
    out_dtype: torch.dtype | None = None,
    residual_dtype: torch.dtype | None = None,
    batch_invariant: bool = False,
    variant: str = "auto",
) -> Any:
    """``(h - mean(h)) / sqrt(var(h) + eps) * weight + bias``, where h is x, or x + residual.

    The variance is the mean of squared deviations from the mean.  Takes, returns and raises what :func:`rms_norm` does.
    """
    options: dict[str, Any] = {"cast": cast, "dtype": out_dtype, "residual_dtype": residual_dtype, "variant": variant}
    options["batch_invariant"] = batch_invariant
    return _call("layer_norm", x, normalized_shape, weight, bias, eps, residual, **options)
