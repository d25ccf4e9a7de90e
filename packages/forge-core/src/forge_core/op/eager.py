"""Eager fast path: looks the launch up directly, bypassing the dispatcher.

    call --- nothing that listens is active (``guard``), plain CUDA tensors, no reference asked for
      |---- no gradient to record ---------> the launch
      `---- a tensor needs a gradient -----> Function.apply(..., launch) ---> the launch, setup_context(...)

The same for plain CPU tensors, whose launch is the reference.  Both are the operator's own launch and its own rules, so
a call gives the same whether it comes this way or through the dispatcher.  ``torch.library`` records through an
``autograd.Function`` as well, behind four more dispatches.

A call of one tensor, with at most one int beside it, by position or by its name, is the common call, and what it costs
is what the rest of this module is written for.  It is compared with the last one; one that differs is looked up in a
small table in front of the other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
from torch.autograd import forward_ad
from torch.overrides import has_torch_function

from forge_core import settings
from forge_core.op import guard, table
from forge_core.op.rules import Rules
from forge_core.op.schema import Schema
from forge_core.op.table import ALIGNMENT_MASK, Bound, LaunchTable

__all__ = ["NOT_SERVED", "EagerPath"]

#: What is ready for a call of one tensor: its launch, the device, and its other positional arguments.
Ready: TypeAlias = tuple[Bound, int, tuple[Any, ...]]

#: What a call returns that has to take the dispatcher.
NOT_SERVED = object()

#: The snapshot of the last call is refreshed at every so many mismatches.
REFRESH_EVERY = 16


class EagerPath:
    """The eager fast path of one operator.

    Args:
        rules: the operator's.
        launches: its table of launches.

    Attributes:
        call: runs a call, given as the tuple and the dict of its arguments; NOT_SERVED where it has to take the
            dispatcher.
    """

    def __init__(self, rules: Rules, launches: LaunchTable) -> None:
        self._positions, self._normalize = rules.schema.leading, rules.schema.normalize
        self._launches, self._placed = launches, rules.schema.placed if rules.schema.optional else None
        self._record = self._record_reference = ready = None
        if rules.backward is not None:
            self._record, self._record_reference, ready = _recorders(rules, launches, rules.backward)
        self.call: Callable[[tuple[Any, ...], dict[str, Any]], Any] = self._call_if_quiet
        if self._positions == 1:
            self.call = _of_one_tensor(rules.schema, launches, self._call_if_quiet, self._any_call, ready)

    def _call_if_quiet(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._any_call(args, kwargs) if guard.quiet() else NOT_SERVED

    def _any_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._placed is not None and len(args) < self._positions:
            args, kwargs = self._placed(args, kwargs)
        if len(args) < self._positions:
            return NOT_SERVED
        on_cuda = guard.plain_cuda(args[0])
        if not (self._launches.by_kernels() if on_cuda else self._launches.no_backend_override()):
            return NOT_SERVED
        is_plain = guard.plain_cuda if on_cuda else guard.plain_cpu
        needs_gradient = False
        for value in args[: self._positions]:
            if isinstance(value, torch.Tensor) or value is args[0]:
                if not is_plain(value):
                    return NOT_SERVED
                needs_gradient = needs_gradient or value.requires_grad
        plain, named = self._normalize(args, kwargs)
        # Normalized arguments behind the tensors are of Python's own types, which have no __torch_function__.
        if has_torch_function(args[: self._positions] if plain is args else (*args, *kwargs.values())):
            return NOT_SERVED
        args, kwargs = plain, named
        if needs_gradient and guard.grad_enabled():
            record = self._record if on_cuda else self._record_reference
            return NOT_SERVED if record is None else record(*args, kwargs)
        return self._launches.launch(None, args, kwargs) if on_cuda else self._launches.refer(args, kwargs)

    def call_out(self, out: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The same for an out form, on a quiet thread: it records nothing, and the dispatcher refuses a gradient."""
        if len(args) < self._positions or not self._launches.by_kernels():
            return NOT_SERVED
        tensors = [out, args[0], *(a for a in args[1:] if isinstance(a, torch.Tensor))]
        if not all(map(guard.plain_cuda, tensors)):
            return NOT_SERVED
        if any(t.requires_grad for t in tensors) and guard.grad_enabled():
            return NOT_SERVED
        plain, named = self._normalize(args, kwargs)
        if has_torch_function(args[: self._positions] if plain is args else (*args, *kwargs.values())):
            return NOT_SERVED
        return self._launches.launch(out, plain, named)


def _of_one_tensor(
    schema: Schema,
    launches: LaunchTable,
    otherwise: Callable[..., Any],
    on_cpu: Callable[..., Any],
    record: Callable[..., torch.Tensor] | None,
) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    """The fast path of a call of one tensor; any other call goes ``otherwise``, that of a CPU tensor ``on_cpu``.

    Every question costs 0.03 to 0.1 us, so each is asked once, and what one answer implies is not asked again:

        exact type, not nested   a plain tensor; ``guard.alike`` must not be given a nested one
        like the last call       ``guard.alike``: all that a launch depends on but the address, and most of
                                 ``guard.quiet``
        address and strides      strided: sparse tensors have none, and raise
        found in ``ready``       plain CUDA memory of a real dtype, seen by ``guard.plain_cuda`` when it was put there;
                                 the key has the device, and a real tensor is never conjugated, only negated

    Refreshing the snapshot of the last call costs what five matches save, so it is refreshed only at every
    ``REFRESH_EVERY`` th mismatch: alternating shapes do not refresh it over and over.
    """
    ready: dict[Any, Ready] = {}
    last: tuple[Callable[[object], bool], int, int | None, Any, Ready | None] = (guard.nothing, 0, None, None, None)
    # The same of the last call of a CPU tensor that needs no gradient, with the reference that served it.
    referred: tuple[Callable[..., Any], int | None, Any, Callable[..., Any]] = guard.nothing, None, None, guard.nothing
    mismatches = 0
    second = schema.parameters[1] if schema.positional > 1 else ""
    optional, defaults = schema.parameters[1 : schema.positional], schema.defaults
    ambient = launches.ambient
    # Names of this function are found faster than those of modules.
    untouched, plain_types, grad_enabled = settings.untouched, guard.PLAIN_TYPES, guard.grad_enabled
    quiet, dispatch_modes, function_modes = guard.quiet, guard.dispatch_modes, guard.function_modes
    new, raw_stream, current_device = table._new, table._raw_stream, table._current_device
    log, root, debug, mask = table.log, logging.getLogger(), logging.DEBUG, ALIGNMENT_MASK

    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal last, referred, mismatches
        count = len(args)
        if kwargs:
            other = kwargs.get(second) if count == len(kwargs) == 1 else None
            usual = type(other) is int
        elif count == 2:
            other = args[1]
            usual = type(other) is int
        else:
            other = None
            usual = count == 1
        if not usual or launches.chosen or not untouched():
            return otherwise(args, kwargs)
        x = args[0]
        if type(x) not in plain_types or x.is_nested:
            return NOT_SERVED
        alike, offset, named, around, found = last
        if (
            alike(x)
            and other == named
            and found is not None
            and (address := x.data_ptr()) & mask == offset
            and found[1] == current_device()
            and not (dispatch_modes() or function_modes() or forward_ad._current_level >= 0)
            and (ambient is None or ambient() == around)
        ):
            bound, index, _ = found
            # The level that a logger inherits, without the call that asks for it.
            if (log.level or root.level) <= debug:
                launches.log_hit(bound)
        else:
            if x.is_cpu:
                alike, named, around, reference = referred
                if (
                    alike(x)
                    and other == named
                    and not (dispatch_modes() or function_modes() or forward_ad._current_level >= 0)
                    and (ambient is None or ambient() == around)
                ):
                    return reference(x)
            if not quiet():
                return NOT_SERVED
            if x.is_cpu and not guard.plain_cuda(x):
                output = on_cpu(args, kwargs)
                if output is not NOT_SERVED and not x.requires_grad:
                    if mismatches % REFRESH_EVERY == 0:
                        (name,), run = launches.referring(args if not kwargs else (x, other), {})
                        around = None if ambient is None else ambient()
                        referred = (guard.alike(x), other, around, lambda x: run(**{name: x}))
                    mismatches += 1
                return output
            try:
                address = x.data_ptr()
                # Everything that a launch depends on, as in `LaunchTable.find`.
                key = (
                    x.dtype,
                    x.shape,
                    x.stride(),
                    x.device,
                    address & mask,
                    other,
                    None if ambient is None else ambient(),
                )
            except RuntimeError:
                return otherwise(args, kwargs)
            found = ready.get(key)
            if found is None:
                if not guard.plain_cuda(x) or x.get_device() != current_device() or x.dtype.is_complex:
                    return otherwise(args, kwargs)
                if kwargs:
                    args = (x, other)
                bound = launches.find(None, args, {})
                index, rest = x.get_device(), (*args[1:], *[defaults[name] for name in optional[len(args) - 1 :]])
                found = (bound, index, rest)
                if bound.needs_general_path:
                    if x.requires_grad and grad_enabled():
                        return NOT_SERVED if record is None else record(x, found)
                    return launches.run(bound, None, (x,))
                if len(ready) >= table.MAX_BOUND:
                    ready.clear()
                ready[key] = found
            else:
                bound, index, _ = found
                if index != current_device() or x.is_neg():
                    return otherwise(args, kwargs)
                if (log.level or root.level) <= debug:
                    launches.log_hit(bound)
            if mismatches % REFRESH_EVERY == 0:
                last = (guard.alike(x), address & mask, other, key[-1], found)
            mismatches += 1
        if x.requires_grad and grad_enabled():
            return NOT_SERVED if record is None else record(x, found)
        out = new(bound.shape, bound.strides, bound.dtype)
        bound.launch(address, out.data_ptr(), *bound.arguments, raw_stream(index))
        return out

    return call


def _recorders(
    rules: Rules, launches: LaunchTable, backward: Callable[..., Any]
) -> tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor], Callable[..., torch.Tensor]]:
    """Functions that run a call and record it for autograd, all of one gradient.

    Returns:
        A function of a call's positional arguments and, last, the dict of its keywords; the same for CPU tensors; a
        function of a call's one tensor and what was made ready for the call.
    """
    schema = rules.schema
    count, defaults = schema.positional, schema.defaults
    keywords = schema.parameters[count:]
    # The defaults of what a call leaves out at the end, by the number of arguments that it passes.
    rest = [tuple(defaults.get(name) for name in schema.parameters[given:count]) for given in range(count + 1)]
    no_keywords = {name: defaults[name] for name in keywords if name in defaults}

    def keep(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
        if rules.setup_context is None:
            return output
        if keywords:
            rules.setup_context(ctx=ctx, inputs=inputs, output=output, keyword_only_inputs=given)
        else:
            rules.setup_context(ctx=ctx, inputs=inputs, output=output)
        return output

    def forward_by(run: Callable[..., torch.Tensor], ctx: Any, *call: Any) -> torch.Tensor:
        args, options = call[:-1], call[-1]
        output = run(args, options)
        given = no_keywords
        if options:
            named = schema.bind(args, options)
            args = tuple(named[name] for name in schema.parameters[:count])
            given = {name: named[name] for name in keywords}
        return keep(ctx, args + rest[len(args)], output, given)

    def forward_ready(ctx: Any, x: torch.Tensor, ready: Ready) -> torch.Tensor:
        bound, index, others = ready
        if bound.needs_general_path:
            output = launches.run(bound, None, (x,))
        else:
            output = table._new(bound.shape, bound.strides, bound.dtype)
            bound.launch(x.data_ptr(), output.data_ptr(), *bound.arguments, table._raw_stream(index))
        return keep(ctx, (x, *others), output, no_keywords)

    def gradient(ctx: Any, *grads: torch.Tensor) -> Any:
        # One for each positional parameter, and one for the keywords; autograd drops Nones past what a call passed.
        found = backward(ctx, *grads)
        return (*found, None) if isinstance(found, tuple) else (found, None)

    def gradient_ready(ctx: Any, *grads: torch.Tensor) -> Any:
        found = backward(ctx, *grads)
        return found[0] if isinstance(found, tuple) else found, None

    name = "".join(part.capitalize() for part in schema.name.split("_"))
    return (
        _apply_of(name, partial(forward_by, partial(launches.launch, None)), gradient),
        _apply_of(name, partial(forward_by, launches.refer), gradient),
        _apply_of(name, forward_ready, gradient_ready),
    )


def _apply_of(name: str, forward: Callable[..., Any], gradient: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    rules = {"forward": staticmethod(forward), "backward": staticmethod(gradient)}
    function = type(name, (torch.autograd.Function,), rules)
    # What Function.apply comes to when no functorch transform is active, which `guard.quiet` has established: the
    # look around for transforms in it takes 2 us.
    apply: Callable[..., torch.Tensor] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return apply
