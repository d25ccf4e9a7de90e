"""The short way of an eager call: past the dispatcher, to the table of launches.

    call --- nothing that listens is active (``guard``), plain CUDA tensors, no reference asked for
      |---- no gradient to record ---------> table.launch(...)
      `---- a tensor needs a gradient -----> Function.apply(..., table) ---> table.launch(...), setup_context(...)

Both are the operator's own launch and its own rules, so a call gives the same whether it comes this way or through the
dispatcher.  ``torch.library`` records through an ``autograd.Function`` as well, behind four more dispatches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from forge_core.op.guard import grad_enabled, plain_cuda
from forge_core.op.schema import Schema
from forge_core.op.table import LaunchTable

__all__ = ["NOT_SERVED", "EagerPath"]

#: What a call returns that has to take the dispatcher.
NOT_SERVED = object()


class EagerPath:
    """The short way of one operator.

    Args:
        schema: the operator's.
        table: its launches.
        backward: its gradient in the form of ``torch.library``; None where it is not differentiable.
        setup_context: what the gradient keeps, in that form.
    """

    def __init__(
        self,
        schema: Schema,
        table: LaunchTable,
        backward: Callable[..., Any] | None,
        setup_context: Callable[..., None] | None,
    ) -> None:
        # How many arguments a call must pass by position for all of its tensors to be among them.
        self._positions = 1 + max(schema.parameters.index(name) for name in schema.tensors)
        self._launch = table.launch
        self._record = None if backward is None else _recorder(schema, table, backward, setup_context)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a call whose thread is quiet, see ``guard.quiet``; NOT_SERVED where it has to take the dispatcher."""
        if len(args) < self._positions or not plain_cuda(args[0]):
            return NOT_SERVED
        needs_gradient = args[0].requires_grad
        if self._positions > 1:
            for other in args[1:]:
                if isinstance(other, torch.Tensor):
                    if not plain_cuda(other):
                        return NOT_SERVED
                    needs_gradient = needs_gradient or other.requires_grad
        if needs_gradient and grad_enabled():
            return NOT_SERVED if self._record is None else self._record(*args, kwargs)
        return self._launch(None, args, kwargs)

    def call_out(self, out: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The same for an out form, which records nothing and refuses what needs a gradient at the dispatcher."""
        if len(args) < self._positions or not plain_cuda(out):
            return NOT_SERVED
        tensors = [out, *(a for a in args if isinstance(a, torch.Tensor))]
        if not all(map(plain_cuda, tensors)) or (any(t.requires_grad for t in tensors) and grad_enabled()):
            return NOT_SERVED
        return self._launch(out, args, kwargs)


def _recorder(
    schema: Schema,
    table: LaunchTable,
    backward: Callable[..., Any],
    setup_context: Callable[..., None] | None,
) -> Callable[..., torch.Tensor]:
    """A function of a call's positional arguments and, last, its keywords, which records the call for autograd."""
    launch = table.launch
    count = schema.positional
    keywords = schema.parameters[count:]
    defaults = schema.defaults
    # The defaults of what a call leaves out at the end, by the number of arguments that it passes.
    rest = [tuple(defaults.get(name) for name in schema.parameters[given:count]) for given in range(count + 1)]
    no_keywords = {name: defaults[name] for name in keywords if name in defaults}

    def forward(ctx: Any, *call: Any) -> torch.Tensor:
        args, kwargs = call[:-1], call[-1]
        output = launch(None, args, kwargs)
        if setup_context is None:
            return output
        if kwargs:
            named = schema.bind(args, kwargs)
            args = tuple(named[name] for name in schema.parameters[:count])
            given = {name: named[name] for name in keywords}
        else:
            args, given = args + rest[len(args)], no_keywords
        if keywords:
            setup_context(ctx=ctx, inputs=args, output=output, keyword_only_inputs=given)
        else:
            setup_context(ctx=ctx, inputs=args, output=output)
        return output

    def gradient(ctx: Any, *grads: torch.Tensor) -> Any:
        # One for each positional parameter, and one for the keywords; autograd drops Nones past what a call passed.
        found = backward(ctx, *grads)
        return (*found, None) if isinstance(found, tuple) else (found, None)

    name = "".join(part.capitalize() for part in schema.name.split("_"))
    rules = {"forward": staticmethod(forward), "backward": staticmethod(gradient)}
    function = type(name, (torch.autograd.Function,), rules)
    # What Function.apply comes to when no functorch transform is active, which `guard.quiet` has established: the
    # look around for transforms in it takes 2 us.
    apply: Callable[..., torch.Tensor] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return apply
