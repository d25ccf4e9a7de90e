"""A row program and one declaration: a PyTorch operator.

    @row_operator(
        "my_package::rms_norm(Tensor x, Tensor weight, int dim=-1, float eps=1e-5, *, str variant='auto') -> Tensor",
        program=RMSNorm(),
        reference=lambda x, weight, dim, eps: ...,
        gradient={"x": rms_norm_dx},
    )
    def rms_norm(x, weight, dim=-1, eps=1e-5, *, variant="auto"):
        '''The public docstring.'''
        return row_output("rms_norm", RMSNorm(), x=x, weight=weight, dim=dim)

Tensors and floats of the schema are the program's operands by name; ``dim`` is the reduced dims.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

import torch

from forge_core import checks
from forge_core.device import Device
from forge_core.dims import Dims, normalize_dims, result_shape
from forge_core.dtypes import FLOATS
from forge_core.errors import DTypeError, ShapeError, UnsupportedError
from forge_core.op import Operator, Plan, operator
from forge_core.op.plan import Variant
from forge_core.op.schema import Schema
from forge_core.op.values import several
from forge_core.rows.plan import plan_call
from forge_core.rows.program import Operands, RowProgram, operands_of
from forge_core.rows.selection import NO_LADDER, PERSISTENT, VARIANTS, Rung

__all__ = ["PERSISTENT", "VARIANTS", "row_operator", "row_output"]


def row_output(
    op: str,
    program: RowProgram,
    *,
    dim: Dims = -1,
    keepdim: bool = False,
    dtypes: Sequence[torch.dtype] = FLOATS,
    same: bool = False,
    dtype: torch.dtype | None = None,
    **tensors: torch.Tensor,
) -> torch.Tensor:
    """Checks the arguments of a call and returns an empty tensor with the output's metadata: most fake implementations.

    It computes nothing: the launch allocates the real output, or the reference returns it.

    Args:
        op: the operator's name, for messages.
        program: the arithmetic.
        dim: the reduced dims.
        keepdim: whether scalars and results keep them with size 1.
        dtypes: supported dtypes.
        same: whether all tensors must have the same dtype.
        dtype: of the output; None for that of the first row operand.
        **tensors: by the names of the program's operands.

    Returns:
        A contiguous tensor of the shape of the rows, or with one element per row.

    Raises:
        ArgumentTypeError, LayoutError, DTypeError, ShapeError, DimError: a tensor is not what the program takes.
    """
    operands = operands_of(program)
    x = tensors[operands.rows[0]]
    for name, t in tensors.items():
        checks.operand(op, name, t, dtypes)
        if same and t.dtype != x.dtype:
            raise DTypeError(op, name, f"the dtype of '{operands.rows[0]}', {x.dtype}", str(t.dtype))
    other = [name for name, t in tensors.items() if (t.dtype is torch.float64) != (x.dtype is torch.float64)]
    if other:
        expected = f"a dtype beside {x.dtype} of '{operands.rows[0]}' (float64 goes with float64 alone)"
        got, hint = str(tensors[other[0]].dtype), f"Convert it with {other[0]}.to({x.dtype})."
        raise DTypeError(op, other[0], expected, got, hint)
    dims = normalize_dims(op, dim, x.ndim)
    one = result_shape(x.shape, dims, keepdim)
    column = tuple([x.shape[i] for i in dims]) if operands.columns else ()
    for name, t in tensors.items():
        shape = x.shape if name in operands.rows else column if name in operands.columns else one
        if t.shape != shape:
            raise ShapeError(op, name, f"shape {tuple(shape)}", f"{tuple(t.shape)}")
    return torch.empty(x.shape if operands.writes else one, dtype=dtype or x.dtype, device=x.device)


def row_operator(
    schema: str,
    *,
    program: RowProgram | Callable[[dict[str, Any]], RowProgram],
    reference: Callable[..., torch.Tensor],
    gradient: Mapping[str, Callable[..., torch.Tensor]] | Literal["reference"] | None = None,
    converts: bool = False,
    ladder: Mapping[str, Rung] = NO_LADDER,
    kernels: Mapping[str, Variant] = VARIANTS,
    **declared: Any,
) -> Callable[[Callable[..., torch.Tensor]], Operator]:
    """Declares an operator that is a row program; decorates its fake implementation.

    Args:
        schema: see :func:`forge_core.op.operator`.  Its tensors and results are the program's operands by name, its
            floats the program's numbers, and ``dim`` the reduced dims.  A single result need not be named.  Optional
            tensors that a call omits, and empty results, are not operands of the program made for that call.  With
            ``batch_invariant`` true, the bits of a row do not depend on the number of rows, for rows of one alignment.
        program: the program, or a function that makes it from the arguments of a call by name.
        reference: the reference implementation in PyTorch.
        gradient: by tensor, a function that is passed the gradients of the results by position and all arguments of the
            call by name, ``variant`` included; mostly a row operator.  Other tensors get the gradient of the reference;
            with ``"reference"`` all do, which suits operators that are gradients themselves.  None: not differentiable,
            or ``setup_context`` and ``backward`` are given.
        converts: row operands are rounded to the result's dtype on load.
        ladder: kernels besides the engine's, by name.
        kernels: the engine's kernels that are variants.  ``PERSISTENT`` for programs that accumulate sums over rows;
            with ``VARIANTS | PERSISTENT``, programs with column operands also run by ``persistent``.
        **declared: other arguments of :func:`forge_core.op.operator`.

    Raises:
        ValueError: the schema is malformed, or lacks an argument for an operand of the program; ``gradient`` names what
            is no tensor of it; or the program accumulates sums over rows and ``persistent`` is no variant.
    """
    parsed = Schema(schema)
    _require_sound(parsed, program, gradient, kernels)

    def made(named: dict[str, Any]) -> RowProgram:
        return program if isinstance(program, RowProgram) else program(named)

    @functools.lru_cache(maxsize=1024)
    def names(found: RowProgram) -> tuple[Operands, tuple[str, ...], tuple[str, ...]]:
        """The operands, the names of the results, and the operands in the order of a launch's pointers."""
        operands = operands_of(found)
        results = parsed.results or (*operands.writes, *operands.results)
        return operands, results, tuple(name for name in (*parsed.tensors, *results) if name in operands.tensors)

    def plan_rows(device: Device, out: torch.Tensor, *values: Any) -> Plan:
        named = dict(zip(parsed.parameters, values, strict=True))
        found = made(named)
        operands, results, order = names(found)
        given = named | dict(zip(results, several(out), strict=True))
        tensors = {name: given[name] for name in operands.tensors}
        x = tensors[operands.rows[0]]
        dims = normalize_dims(parsed.name, named.get("dim", -1), x.ndim)
        if [t for t in tensors.values() if t.dtype.is_complex]:
            found, tensors, order = _real_views(parsed.name, found, tensors, order)
            x, out = tensors[found.operands.rows[0]], torch.view_as_real(out)
        return plan_call(
            parsed.name,
            found,
            tensors,
            dims,
            device,
            named.get("variant", "auto"),
            via=out.dtype if converts and out.dtype != x.dtype else None,
            order=order,
            numbers=[float(named[name]) for name in operands.numbers] if operands.numbers else (),
            ladder=ladder,
            invariant=named.get("batch_invariant", False),
            kernels=kernels,
        )

    def declare(fake: Callable[..., torch.Tensor]) -> Operator:
        def mapped(info: Any, in_dims: Sequence[int | None], *args: Any, **kwargs: Any) -> tuple[Any, Any]:
            named = parsed.bind(args, kwargs)
            places = dict(zip(parsed.parameters, in_dims, strict=False))
            return _mapped(made_operator, made(named), info.batch_size, places, named)

        if gradient:
            keep, back = _differentiate(parsed, {} if gradient == "reference" else gradient, reference)
            declared.update(setup_context=keep, backward=back)
        variants = {name: rung.variant for name, rung in ladder.items()} | dict(kernels)
        decorate = operator(schema, reference=reference, plan=plan_rows, variants=variants, vmap=mapped, **declared)
        made_operator = decorate(fake)
        return made_operator

    return declare


def _require_sound(schema: Schema, program: Any, gradient: Any, kernels: Collection[str]) -> None:
    """Raises ValueError for a declaration that contradicts itself."""

    def refuse(expected: str, got: str) -> None:
        raise ValueError(f"{schema.name}: expected {expected}, got {got}")

    if isinstance(gradient, str) and gradient != "reference":
        refuse("gradient='reference', a mapping or None", repr(gradient))
    unknown = [name for name in gradient or () if name not in schema.tensors] if gradient != "reference" else []
    if unknown:
        refuse(f"gradient= of tensors of the schema, {', '.join(schema.tensors)}", ", ".join(unknown))
    if not isinstance(program, RowProgram):
        return
    own = program.operands
    lacking = [name for name in (*own.rows, *own.columns, *own.scalars) if name not in schema.tensors]
    lacking += [name for name in own.numbers if name not in schema.parameters]
    if lacking:
        refuse(f"an argument of the schema for each operand of {type(program).__name__}", f"none for {lacking}")
    if own.accumulates and PERSISTENT.keys() - kernels:
        given = ", ".join(kernels) or "none"
        refuse("kernels=PERSISTENT for a program that accumulates sums over rows", given)


def _real_views(
    op: str, program: RowProgram, tensors: Mapping[str, torch.Tensor], order: tuple[str, ...]
) -> tuple[RowProgram, dict[str, torch.Tensor], tuple[str, ...]]:
    """The program, operands and order of pointers for complex tensors: real views of them.

    If the program is linear, those with an additional kept dim of real and imaginary part; otherwise a view of each.
    """
    real = program if program.linear else program.of_parts()
    if real is None or not all(t.dtype.is_complex for t in tensors.values()):
        raise UnsupportedError(
            f"{op}: no kernel calculates with complex numbers other than sums and products of them, and none converts "
            "real numbers to complex ones; pass the real and imaginary parts, torch.view_as_real(x), or set "
            "FORGE_BACKEND=ref.",
            requirement="real tensors, or a program of complex ones",
        )
    # Conjugated views occur in `explain` only: the dispatcher resolves those of a call.
    views = {name: torch.view_as_real(t.resolve_conj()) for name, t in tensors.items()}
    if program.linear:
        return program, views, order
    pairs = {name: real.operands.tensors[2 * i : 2 * i + 2] for i, name in enumerate(tensors)}
    parts = {part: view[..., k] for name, view in views.items() for k, part in enumerate(pairs[name])}
    return real, parts, tuple(part for name in order for part in pairs[name])


def _mapped(
    call: Callable[..., Any],
    program: RowProgram,
    batch: int,
    in_dims: Mapping[str, Any],
    named: dict[str, Any],
) -> tuple[Any, Any]:
    """A call over a mapped dim, by a call with an additional dim.

    If column operands are mapped or the program has sums over rows, by a call for each example.
    """
    operands, call_once = program.operands, dict(named)
    names = [name for name in operands.tensors if name in named]
    if operands.accumulates or any(in_dims.get(name) is not None for name in operands.columns):
        mapped = {name: named[name].movedim(in_dims[name], 0) for name in names if in_dims.get(name) is not None}
        # The results of no examples have the shapes of one of zeros.
        apart = {name: (t if batch else t.new_zeros((1, *t.shape[1:]))).unbind() for name, t in mapped.items()}
        each = [call(**(named | {name: parts[i] for name, parts in apart.items()})) for i in range(max(batch, 1))]
        if isinstance(each[0], tuple):
            return tuple(torch.stack(parts)[:batch] for parts in zip(*each, strict=True)), (0,) * len(each[0])
        return torch.stack(each)[:batch], 0
    for name in names:
        if name not in operands.columns:
            t, d = named[name], in_dims.get(name)
            call_once[name] = t.expand(batch, *t.shape) if d is None else t.movedim(d, 0)
    rank = call_once[operands.rows[0]].ndim - 1
    if rank == 0:  # examples without dims are rows of one element
        if "dim" not in named or operands.columns:
            raise UnsupportedError("vmap: expected examples with dims, got numbers", requirement="examples with dims")
        call_once |= {name: call_once[name].unsqueeze(1) for name in operands.rows}
        call_once |= {"dim": _like(named["dim"], (1,))} | ({"keepdim": False} if "keepdim" in named else {})
        result = call(**call_once)
        return (result.squeeze(1) if operands.writes else result), 0
    if "dim" in named:  # without a parameter `dim` the last dim is reduced, mapped or not
        call_once["dim"] = _like(named["dim"], [dim + 1 for dim in normalize_dims("vmap", named["dim"], rank)])
    result = call(**call_once)
    if isinstance(result, tuple):  # an empty result is given a mapped dim
        whole = [t if t.numel() else t.new_empty((batch, 0)) for t in result]
        return tuple(whole), (0,) * len(whole)
    return result, 0


def _like(dim: Dims, dims: Sequence[int]) -> Dims:
    """Dims in the form of ``dim``: an int or a tuple."""
    return dims[0] if isinstance(dim, int) else tuple(dims)


def _differentiate(
    schema: Schema, gradient: Mapping[str, Callable[..., torch.Tensor]], reference: Callable[..., torch.Tensor]
) -> tuple[Callable[..., None], Callable[..., Any]]:
    """``setup_context`` and ``backward`` for ``torch.library.register_autograd``: see :func:`row_operator`."""

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any, keyword_only_inputs: Any = None) -> None:
        # Without strict=, which dynamo of PyTorch 2.9 takes for True.
        named = dict(zip(schema.parameters, inputs)) | (keyword_only_inputs or {})  # noqa: B905
        ctx.save_for_backward(*(named[name] for name in schema.tensors))
        ctx.others = {name: value for name, value in named.items() if name not in schema.tensors}

    def back(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        named = dict(zip(schema.tensors, ctx.saved_tensors, strict=True))
        needed = dict(zip(schema.parameters, ctx.needs_input_grad))  # noqa: B905 - as above
        asked = [name for name in schema.tensors if named[name] is not None and needed.get(name, True)]
        found = {name: gradient[name](*grads, **named, **ctx.others) for name in asked if name in gradient}
        left = {name: named[name] for name in asked if name not in gradient}
        if left:
            options = {name: value for name, value in ctx.others.items() if name != "variant"}
            pull = torch.func.vjp(
                lambda *t: reference(**named | dict(zip(left, t, strict=True)), **options), *left.values()
            )
            found |= dict(zip(left, pull[1](grads if schema.results else grads[0]), strict=True))
        return tuple(found.get(name) for name in schema.parameters[: schema.positional])

    return keep, back
