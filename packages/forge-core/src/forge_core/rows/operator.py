"""A row program and one declaration: a PyTorch operator.

    @row_operator(
        "my_package::rms_norm(Tensor x, Tensor weight, int dim=-1, float eps=1e-5, *, str variant='auto') -> Tensor",
        program=RMSNorm(),
        reference=lambda x, weight, dim, eps: ...,
        gradient={"x": rms_norm_dx},
    )
    def rms_norm(x, weight, dim=-1, eps=1e-5, *, variant="auto"):
        '''The public docstring.'''
        return like("rms_norm", RMSNorm(), x=x, weight=weight, dim=dim)

Tensors and numbers of the schema are the program's operands by name; ``dim`` names the dims that make a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch

from forge_core import checks
from forge_core.device import Device
from forge_core.dims import Dims, normalize_dims, result_shape
from forge_core.dtypes import FLOATS
from forge_core.errors import DTypeError, ShapeError, UnsupportedError
from forge_core.op import Launch, Operator, operator
from forge_core.op.schema import Schema
from forge_core.op.values import several
from forge_core.rows.plan import NO_LADDER, VARIANTS, Rung, plan_call
from forge_core.rows.program import RowProgram

__all__ = ["like", "row_operator"]


def like(
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
    """Checks the tensors of a call and allocates its output: the body of most operators, and their fake.

    Args:
        op: the operator's name, for messages.
        program: the arithmetic.
        dim: the dims that make a row.
        keepdim: whether scalars and results have size 1 there.
        dtypes: those that the operator takes.
        same: whether all tensors must have one dtype.
        dtype: of the output; None for that of the first row operand.
        **tensors: by the names of the program's operands.

    Returns:
        A contiguous tensor of the shape of the rows, or of one element a row.

    Raises:
        ArgumentTypeError, LayoutError, DTypeError, ShapeError, DimError: a tensor is not what the program takes.
    """
    operands = program.operands
    x = tensors[operands.rows[0]]
    for name, t in tensors.items():
        checks.is_tensor(op, name, t)
        checks.strided(op, name, t)
        checks.supported_dtype(op, name, t, dtypes)
        if same and t.dtype != x.dtype:
            expected = f"the dtype of '{operands.rows[0]}', {x.dtype}"
            raise DTypeError(op=op, argument=name, expected=expected, got=str(t.dtype))
    if torch.float64 in {t.dtype for t in tensors.values()} != {torch.float64}:
        raise DTypeError(op=op, argument=operands.rows[0], expected="float64 alone, or none of it", got=str(x.dtype))
    dims = normalize_dims(op, dim, x.ndim)
    one = result_shape(x.shape, dims, keepdim)
    shapes = {name: tuple(x.shape) for name in operands.rows} | {name: tuple(one) for name in operands.scalars}
    shapes |= {name: tuple(x.shape[i] for i in dims) for name in operands.columns}
    for name, t in tensors.items():
        if tuple(t.shape) != shapes[name]:
            raise ShapeError(op=op, argument=name, expected=f"shape {shapes[name]}", got=f"{tuple(t.shape)}")
    return torch.empty(x.shape if operands.writes else one, dtype=dtype or x.dtype, device=x.device)


def row_operator(
    schema: str,
    *,
    program: RowProgram | Callable[[dict[str, Any]], RowProgram],
    reference: Callable[..., torch.Tensor],
    gradient: Mapping[str, Callable[..., torch.Tensor]] | Literal["reference"] | None = None,
    converts: bool = False,
    ladder: Mapping[str, Rung] = NO_LADDER,
    **declared: Any,
) -> Callable[[Callable[..., torch.Tensor]], Operator]:
    """Declares an operator that is a row program; decorates the function that checks a call and allocates its output.

    Args:
        schema: see :func:`forge_core.op.operator`.  Its tensors and the result are the program's operands, in any
            order; its floats are the program's numbers; ``dim`` names the dims that make a row.  Several results are
            operands by their names.  What a call leaves out, an optional tensor or an empty result, is no operand of
            the program that is made for it.  With a true ``batch_invariant`` a row's bits do not depend on how many
            there are, for rows of one alignment.
        program: the arithmetic, or what makes it from the arguments of a call by name.
        reference: what the operator means, in PyTorch.
        gradient: for some tensors a function of the gradient, or of those of all results, and of the call's arguments
            by name; most are row operators themselves.  Of all others the gradient is that of the reference, as of all
            with ``"reference"``, which does for gradients, since they are seldom differentiated in turn.  None: not
            differentiable, or ``setup_context`` and ``backward`` are given.
        converts: row operands are rounded to the result's dtype when they are loaded.
        ladder: kernels beside the engine's, by name.
        **declared: what else :func:`forge_core.op.operator` takes.
    """
    parsed = Schema.parse(schema)

    def made(named: dict[str, Any]) -> RowProgram:
        return program if isinstance(program, RowProgram) else program(named)

    def choose(device: Device, out: torch.Tensor, *values: Any) -> Launch:
        named = dict(zip(parsed.parameters, values, strict=True))
        found = made(named)
        operands = found.operands
        results = parsed.results or (*operands.writes, *operands.results)
        given = named | dict(zip(results, several(out), strict=True))
        tensors = {name: given[name] for name in operands.tensors}
        x = tensors[operands.rows[0]]
        dims = normalize_dims(parsed.name, named.get("dim", -1), x.ndim)
        if any(t.dtype.is_complex for t in tensors.values()):
            tensors = _real_views(parsed.name, found, tensors)
            x, out = tensors[operands.rows[0]], torch.view_as_real(out)
        return plan_call(
            parsed.name,
            found,
            tensors,
            dims,
            device,
            named.get("variant", "auto"),
            via=out.dtype if converts and out.dtype != x.dtype else None,
            order=tuple(name for name in (*parsed.tensors, *results) if name in tensors),
            numbers=[float(named[name]) for name in operands.numbers] if operands.numbers else (),
            ladder=ladder,
            invariant=named.get("batch_invariant", False),
        )

    def declare(allocate: Callable[..., torch.Tensor]) -> Operator:
        def mapped(info: Any, in_dims: Sequence[int | None], *args: Any, **kwargs: Any) -> tuple[Any, Any]:
            named = parsed.bind(args, kwargs)
            places = dict(zip(parsed.parameters, in_dims, strict=False))
            return _mapped(made_operator, made(named), info.batch_size, places, named)

        if gradient:
            keep, back = _differentiate(parsed, {} if gradient == "reference" else gradient, reference)
            declared.update(setup_context=keep, backward=back)
        variants = {name: rung.variant for name, rung in ladder.items()} | dict(VARIANTS)
        made_operator = operator(schema, reference=reference, plan=choose, variants=variants, vmap=mapped, **declared)(
            allocate
        )
        return made_operator

    return declare


def _real_views(op: str, program: RowProgram, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Complex tensors with a kept dim more, of their real and imaginary parts, at the same addresses."""
    if not (program.linear and all(t.dtype.is_complex for t in tensors.values())):
        raise UnsupportedError(
            f"{op}: no kernel calculates with complex numbers other than sums of them, and none converts real numbers "
            "to complex ones; pass the real and imaginary parts, torch.view_as_real(x), or set FORGE_BACKEND=ref.",
            requirement="real tensors, or a linear program of complex ones",
        )
    # Only a call that is explained has conjugated views: the dispatcher resolves those of one that runs.
    return {name: torch.view_as_real(t.resolve_conj()) for name, t in tensors.items()}


def _mapped(
    call: Callable[..., Any],
    program: RowProgram,
    batch: int,
    in_dims: Mapping[str, Any],
    named: dict[str, Any],
) -> tuple[Any, Any]:
    """A call over a mapped dim: one call with a dim more, or one for each example where column operands are mapped."""
    operands, call_once = program.operands, dict(named)
    names = [name for name in operands.tensors if name in named]
    if any(in_dims.get(name) is not None for name in operands.columns):
        apart = {name: named[name].unbind(in_dims[name]) for name in names if in_dims.get(name) is not None}
        each = [call(**(named | {name: parts[i] for name, parts in apart.items()})) for i in range(batch)]
        if isinstance(each[0], tuple):
            return tuple(map(torch.stack, zip(*each, strict=True))), (0,) * len(each[0])
        return torch.stack(each), 0
    for name in names:
        if name not in operands.columns:
            t, d = named[name], in_dims.get(name)
            call_once[name] = t.expand(batch, *t.shape) if d is None else t.movedim(d, 0)
    rank = call_once[operands.rows[0]].ndim - 1
    if rank == 0:  # an example without dims is a row of one element
        if "dim" not in named or operands.columns:
            raise UnsupportedError("vmap: expected examples with dims, got numbers", requirement="examples with dims")
        call_once |= {name: call_once[name].unsqueeze(1) for name in operands.rows}
        call_once |= {"dim": _like(named["dim"], (1,))} | ({"keepdim": False} if "keepdim" in named else {})
        result = call(**call_once)
        return (result.squeeze(1) if operands.writes else result), 0
    if "dim" in named:  # without one the last dim makes a row, mapped or not
        call_once["dim"] = _like(named["dim"], [dim + 1 for dim in normalize_dims("vmap", named["dim"], rank)])
    result = call(**call_once)
    if isinstance(result, tuple):  # an empty result has no mapped dim, and each example has it
        whole = [t if t.numel() else t.new_empty((batch, 0)) for t in result]
        return tuple(whole), (0,) * len(whole)
    return result, 0


def _like(dim: Dims, dims: Sequence[int]) -> Dims:
    """Dims as an int where one was given so."""
    return dims[0] if isinstance(dim, int) else tuple(dims)


def _differentiate(
    schema: Schema, gradient: Mapping[str, Callable[..., torch.Tensor]], reference: Callable[..., torch.Tensor]
) -> tuple[Callable[..., None], Callable[..., Any]]:
    """What autograd keeps of a call, and the gradients from it, in the form of ``torch.library.register_autograd``.

    Args:
        schema: the operator's.
        gradient: as of :func:`row_operator`.
        reference: whose gradients are taken of all other tensors.
    """

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
