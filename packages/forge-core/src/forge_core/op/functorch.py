"""An operator under ``torch.func`` and on dual tensors: grad, vjp, jvp, and any nesting of them with vmap.

``torch.library.register_autograd`` serves plain autograd only; under a functorch level, and for a tangent, PyTorch asks
for an ``autograd.Function`` with a separate ``setup_context``, a ``jvp`` and a vmap rule.  This module makes that of
the same rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from forge_core.op.rules import Rules
from forge_core.op.values import several

__all__ = ["functorch_function", "reference_jvp"]


def reference_jvp(rules: Rules) -> Callable[..., torch.Tensor]:
    """The ``jvp`` of an operator that declares none: its reference's, as PyTorch differentiates it.

    The gradient is linear in what it is given, so its own gradient is the tangent; forward mode does not nest.
    """

    def jvp(output: torch.Tensor, tangents: dict[str, torch.Tensor], **named: Any) -> torch.Tensor:
        primals = {name: named.pop(name) for name in tangents}
        named.pop("variant", None)

        def call(*tensors: torch.Tensor) -> torch.Tensor:
            return rules.reference(**named, **dict(zip(primals, tensors, strict=True)))

        pull = torch.func.vjp(call, *primals.values())[1]
        push = torch.func.vjp(pull, tree_map(torch.zeros_like, output))[1]
        found: tuple[torch.Tensor] = push(tuple(tangents.values()))
        return found[0]

    return jvp


def functorch_function(rules: Rules, call: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A function of the schema's arguments, all by position, that ``torch.func`` can transform.

    Args:
        rules: those of an operator that has a gradient.
        call: the registered operator.
    """
    schema, tangent_of = rules.schema, rules.jvp or reference_jvp(rules)
    backward_of: Any = rules.backward
    count = schema.positional
    keywords = schema.parameters[count:]
    places = [schema.parameters.index(name) for name in schema.tensors]
    others = set(schema.parameters) - set(schema.tensors)

    def split(values: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return values[:count], dict(zip(keywords, values[count:], strict=True))

    class Call(torch.autograd.Function):
        @staticmethod
        def forward(*values: Any) -> torch.Tensor:
            positional, named = split(values)
            return call(*positional, **named)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
            ctx.save_for_forward(*(inputs[i] for i in places), *several(output))
            ctx.others = {name: value for name, value in zip(schema.parameters, inputs, strict=True) if name in others}
            if rules.setup_context is None:
                return
            positional, named = split(inputs)
            extra = {"keyword_only_inputs": named} if keywords else {}
            rules.setup_context(ctx=ctx, inputs=positional, output=output, **extra)
            fixed = getattr(ctx, "non_differentiable", None) or ()
            ctx.differentiable = [all(one is not t for t in fixed) for one in several(output)]

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
            found = backward_of(ctx, *grads)
            found = found if isinstance(found, tuple) else (found,)
            return found + (None,) * (len(schema.parameters) - len(found))

        @staticmethod
        def jvp(ctx: Any, *tangents: torch.Tensor | None) -> Any:
            tensors, found = ctx.saved_tensors[: len(places)], ctx.saved_tensors[len(places) :]
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
            positional, named = split(values)
            return rules.vmap(info, in_dims[:count], *positional, **named)

    applied: Callable[..., torch.Tensor] = Call.apply
    return applied
