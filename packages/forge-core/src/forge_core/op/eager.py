"""The short way of an eager call: past the dispatcher, to the table of launches.

    call --- nothing that listens is active (``guard``), plain CUDA tensors, no reference asked for
      |---- no gradient to record ---------> the launch
      `---- a tensor needs a gradient -----> Function.apply(..., launch) ---> the launch, setup_context(...)

Both are the operator's own launch and its own rules, so a call gives the same whether it comes this way or through the
dispatcher.  ``torch.library`` records through an ``autograd.Function`` as well, behind four more dispatches.

A call of one tensor, with at most one int beside it, by position or by its name, is looked up in a small table in
front of the other: that is the common call, and what it costs is what the rest of this module is written for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from forge_core import settings
from forge_core.op import guard, table
from forge_core.op.schema import Schema
from forge_core.op.served import Served
from forge_core.op.table import ALIGNMENT_MASK, Bound

__all__ = ["NOT_SERVED", "EagerPath"]

#: What a call returns that has to take the dispatcher.
NOT_SERVED = object()


class EagerPath:
    """The short way of one operator.

    Args:
        schema: the operator's.
        served: its launches, and who serves it.
        backward: its gradient in the form of ``torch.library``; None where it is not differentiable.
        setup_context: what the gradient keeps, in that form.

    Attributes:
        call: runs a call, given as the tuple and the dict of its arguments, whose thread is quiet (``guard.quiet``);
            NOT_SERVED where it has to take the dispatcher.
    """

    def __init__(
        self,
        schema: Schema,
        served: Served,
        backward: Callable[..., Any] | None,
        setup_context: Callable[..., None] | None,
    ) -> None:
        # How many arguments a call must pass by position for all of its tensors to be among them.
        self._positions = 1 + max(schema.parameters.index(name) for name in schema.tensors)
        self._served = served
        self._record = None if backward is None else _recorder(schema, served, backward, setup_context)
        self.call = (
            self._any_call if self._positions > 1 else _of_one_tensor(schema, served, self._any_call, self._record)
        )

    def _any_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(args) < self._positions or not self._served.by_kernels():
            return NOT_SERVED
        needs_gradient = False
        for value in args[: self._positions]:
            if isinstance(value, torch.Tensor) or value is args[0]:
                if not guard.plain_cuda(value):
                    return NOT_SERVED
                needs_gradient = needs_gradient or value.requires_grad
        if needs_gradient and guard.grad_enabled():
            return NOT_SERVED if self._record is None else self._record(*args, kwargs)
        return self._served.table.launch(None, args, kwargs)

    def call_out(self, out: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The same for an out form, which records nothing and refuses what needs a gradient at the dispatcher."""
        if len(args) < self._positions or not self._served.by_kernels():
            return NOT_SERVED
        tensors = [out, args[0], *(a for a in args[1:] if isinstance(a, torch.Tensor))]
        if not all(map(guard.plain_cuda, tensors)):
            return NOT_SERVED
        if any(t.requires_grad for t in tensors) and guard.grad_enabled():
            return NOT_SERVED
        return self._served.table.launch(out, args, kwargs)


def _of_one_tensor(
    schema: Schema, served: Served, otherwise: Callable[..., Any], record: Callable[..., torch.Tensor] | None
) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    """The short way of the common call; any other goes ``otherwise``."""
    ready: dict[Any, Bound] = {}
    second = schema.parameters[1] if schema.positional > 1 else None
    ambient = served.table.ambient
    # Names of this function are found faster than those of modules.
    untouched, plain_cuda, grad_enabled = settings.untouched, guard.plain_cuda, guard.grad_enabled
    new, raw_stream, current_device = table._new, table._raw_stream, table._current_device
    shows, debug, mask = table.log.isEnabledFor, logging.DEBUG, ALIGNMENT_MASK

    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs and len(kwargs) == len(args) == 1 and second in kwargs:
            args, kwargs = (args[0], kwargs[second]), {}
        count = len(args)
        if kwargs or not (count == 1 or (count == 2 and type(args[1]) is int)) or served.chosen or not untouched():
            return otherwise(args, kwargs)
        x = args[0]
        if not plain_cuda(x):
            return NOT_SERVED
        index = x.get_device()
        if index != current_device():
            return otherwise(args, kwargs)
        # Everything that a launch depends on, as in `LaunchTable.find`.
        key = (
            x.dtype,
            x.shape,
            x.stride(),
            index,
            x.data_ptr() & mask,
            args[1] if count == 2 else None,
            None if ambient is None else ambient(),
        )
        bound = ready.get(key)
        if bound is None:
            found = served.table.find(None, args, kwargs)
            if found.special:
                return otherwise(args, kwargs)
            if len(ready) >= table.MAX_BOUND:
                ready.clear()
            bound = ready[key] = found
        elif shows(debug):
            table.log.debug("cache hit: %s %s", served.table.name, bound.name)
        if x.requires_grad and grad_enabled():
            return NOT_SERVED if record is None else record(*args, bound)
        out = new(bound.shape, bound.strides, bound.dtype)
        bound.launch(x.data_ptr(), out.data_ptr(), *bound.arguments, raw_stream(index))
        return out

    return call


def _recorder(
    schema: Schema,
    served: Served,
    backward: Callable[..., Any],
    setup_context: Callable[..., None] | None,
) -> Callable[..., torch.Tensor]:
    """A function of a call's positional arguments and, last, its keywords or its launch, which records the call."""
    count = schema.positional
    keywords = schema.parameters[count:]
    defaults = schema.defaults
    # The defaults of what a call leaves out at the end, by the number of arguments that it passes.
    rest = [tuple(defaults.get(name) for name in schema.parameters[given:count]) for given in range(count + 1)]
    no_keywords = {name: defaults[name] for name in keywords if name in defaults}

    def forward(ctx: Any, *call: Any) -> torch.Tensor:
        args, last = call[:-1], call[-1]
        if type(last) is Bound:
            x = args[0]
            output = table._new(last.shape, last.strides, last.dtype)
            last.launch(x.data_ptr(), output.data_ptr(), *last.arguments, table._raw_stream(x.get_device()))
        else:
            output = served.table.launch(None, args, last)
        if setup_context is None:
            return output
        if type(last) is dict and last:
            named = schema.bind(args, last)
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
        # One for each positional parameter, and one for what comes last; autograd drops Nones past what a call passed.
        found = backward(ctx, *grads)
        return (*found, None) if isinstance(found, tuple) else (found, None)

    name = "".join(part.capitalize() for part in schema.name.split("_"))
    rules = {"forward": staticmethod(forward), "backward": staticmethod(gradient)}
    function = type(name, (torch.autograd.Function,), rules)
    # What Function.apply comes to when no functorch transform is active, which `guard.quiet` has established: the
    # look around for transforms in it takes 2 us.
    apply: Callable[..., torch.Tensor] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return apply
