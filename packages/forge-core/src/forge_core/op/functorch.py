"""An operator under ``torch.func``: grad, vjp, jacrev, and any nesting of them with vmap.

``torch.library.register_autograd`` serves plain autograd only; under a functorch level PyTorch asks for an
``autograd.Function`` with a separate ``setup_context`` and a vmap rule.  This module makes that of the same rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from forge_core.op.schema import Schema

__all__ = ["functorch_function"]


def functorch_function(
    schema: Schema,
    call: Callable[..., torch.Tensor],
    backward: Callable[..., Any],
    setup_context: Callable[..., None] | None,
    vmap: Callable[..., Any] | None,
) -> Callable[..., torch.Tensor]:
    """A function of the schema's arguments, all by position, that ``torch.func`` can transform.

    Args:
        schema: the operator's.
        call: the registered operator.
        backward: the gradient, in the form that ``torch.library`` takes.
        setup_context: what it keeps, in that form.
        vmap: the rule, in that form.
    """
    count = schema.positional
    keywords = schema.parameters[count:]

    def split(values: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return values[:count], dict(zip(keywords, values[count:], strict=True))

    class Call(torch.autograd.Function):
        @staticmethod
        def forward(*values: Any) -> torch.Tensor:
            positional, named = split(values)
            return call(*positional, **named)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
            if setup_context is None:
                return
            positional, named = split(inputs)
            extra = {"keyword_only_inputs": named} if keywords else {}
            setup_context(ctx=ctx, inputs=positional, output=output, **extra)

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
            found = backward(ctx, *grads)
            found = found if isinstance(found, tuple) else (found,)
            return found + (None,) * (len(schema.parameters) - len(found))

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None, ...], *values: Any) -> Any:
            if vmap is None:
                raise RuntimeError(f"{schema.qualified} has no vmap rule")
            positional, named = split(values)
            return vmap(info, in_dims[:count], *positional, **named)

    applied: Callable[..., torch.Tensor] = Call.apply
    return applied
