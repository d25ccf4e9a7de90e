"""Operators under ``torch.func`` transforms (grad, vjp, jvp, vmap and their nestings) and on dual tensors.

``torch.library.register_autograd`` covers plain autograd only.  Functorch and forward mode need an
``autograd.Function`` with ``setup_context``, ``jvp`` and ``vmap``, which this module builds from the same rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from forge_core.errors import ShapeError
from forge_core.op.rules import Rules
from forge_core.op.values import several


def reference_jvp(rules: Rules) -> Callable[..., torch.Tensor]:
    """The ``jvp`` of an operator that declares none: that of its reference, by double backward.

    The vjp is linear in its cotangent, so the vjp of the vjp is the jvp.  ``torch.func.jvp`` itself would not nest.
    """

    def jvp(output: torch.Tensor, tangents: dict[str, torch.Tensor], **named: Any) -> torch.Tensor:
        def call(*tensors: torch.Tensor) -> torch.Tensor:
            return rules.refer(named | dict(zip(tangents, tensors, strict=True)))

        pull = torch.func.vjp(call, *(named[name] for name in tangents))[1]
        push = torch.func.vjp(pull, tree_map(torch.zeros_like, output))[1]
        found: tuple[torch.Tensor] = push(tuple(tangents.values()))
        return found[0]

    return jvp


def leading_vmap(operator: Callable[..., Any], name: str, rank: int) -> Callable[..., Any]:
    """The ``vmap`` of an operator on one tensor that takes any leading dims: the mapped dim becomes the first.

    An example has at least ``rank`` dims; the error of another names the operator by ``name``.
    """

    def vmap(info: Any, in_dims: tuple[int | None, ...], x: torch.Tensor, *args: Any, **options: Any) -> Any:
        if x.ndim - 1 < rank:
            raise ShapeError(name, "x", f"at least {rank} dimensions in each example", f"{x.ndim - 1}")
        return operator(x.movedim(in_dims[0] or 0, 0), *args, **options), 0

    return vmap


def functorch_function(rules: Rules, call: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Returns ``call``, the registered operator, as a positional function that ``torch.func`` can transform.

    Without a gradient, only its derivatives are refused: transforms of its callers may still record it.
    """
    schema, tangent_of = rules.schema, rules.jvp or reference_jvp(rules)

    class Call(torch.autograd.Function):
        @staticmethod
        def forward(*values: Any) -> torch.Tensor:
            positional, named = schema.split(values)
            return call(*positional, **named)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
            given = dict(zip(schema.parameters, inputs, strict=True))
            ctx.save_for_forward(*(given[name] for name in schema.tensors), *several(output))
            ctx.others = {name: value for name, value in given.items() if name not in schema.tensors}
            positional, named = schema.split(inputs)
            rules.save(ctx, positional, output, named)
            fixed = getattr(ctx, "non_differentiable", None) or ()
            ctx.differentiable = [all(one is not t for t in fixed) for one in several(output)]

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
            if rules.backward is None:
                raise RuntimeError(f"{schema.qualified} was differentiated, but has no gradient: declare one")
            found = several(rules.backward(ctx, *grads))
            return found + (None,) * (len(schema.parameters) - len(found))

        @staticmethod
        def jvp(ctx: Any, *tangents: torch.Tensor | None) -> Any:
            count = len(schema.tensors)
            tensors, found = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
            output = found if schema.results else found[0]
            named = ctx.others | dict(zip(schema.tensors, tensors, strict=True))
            given = zip(schema.parameters, tangents, strict=True)
            found = tangent_of(output, {name: tangent for name, tangent in given if tangent is not None}, **named)
            if not schema.results:
                return found
            return tuple(t if has else None for t, has in zip(found, ctx.differentiable, strict=True))

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None, ...], *values: Any) -> Any:
            if rules.vmap is None:
                raise RuntimeError(f"{schema.qualified} has no vmap rule")
            positional, named = schema.split(values)
            return rules.vmap(info, in_dims[: schema.positional], *positional, **named)

    applied: Callable[..., torch.Tensor] = Call.apply
    return applied
