"""Eager fast path: looks up the launch directly, bypassing the dispatcher.

    call --- plain CUDA tensors, no active mode or transform (``guard``), backend not 'ref'
      |---- no gradient to record ------> launch
      `---- requires_grad --------------> autograd.Function.apply ---> launch, setup_context

Plain CPU tensors take the same path to the reference.  Launch and autograd rules are those of the registered operator,
so results do not depend on the path.

Most of this module serves the common call: one tensor, and at most one int.  Such a call is compared with the previous
one by a cached guard; on a mismatch it is looked up in a small table in front of the launch table.
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

#: An entry for a call of one tensor: launch, device index, and the other positional arguments.
Ready: TypeAlias = tuple[Bound, int, tuple[Any, ...]]

#: Returned for a call that must go through the dispatcher.
NOT_SERVED = object()

#: Mismatches per update of the cached guard.
REFRESH_EVERY = 16


class EagerPath:
    """The eager fast path of an operator.

    Args:
        rules: declaration of the operator.
        launches: launch table of the operator.

    Attributes:
        call: ``call(args, kwargs)`` runs a call, or returns NOT_SERVED if it must go through the dispatcher.
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

    def _any_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: torch.Tensor | None = None) -> Any:
        if self._placed is not None and len(args) < self._positions:
            args, kwargs = self._placed(args, kwargs)
        if len(args) < self._positions:
            return NOT_SERVED
        on_cuda = guard.plain_cuda(args[0])
        if not (self._launches.by_kernels() if on_cuda else out is None and self._launches.no_backend_override()):
            return NOT_SERVED
        is_plain = guard.plain_cuda if on_cuda else guard.plain_cpu
        needs_gradient = out is not None and out.requires_grad
        for value in args[: self._positions]:
            if isinstance(value, torch.Tensor) or value is args[0]:
                if not is_plain(value):
                    return NOT_SERVED
                needs_gradient = needs_gradient or value.requires_grad
        plain, named = self._normalize(args, kwargs)
        # After normalization the arguments behind the tensors are builtin types, without __torch_function__.
        if has_torch_function(args[: self._positions] if plain is args else (*args, *kwargs.values())):
            return NOT_SERVED
        args, kwargs = plain, named
        if needs_gradient and guard.grad_enabled():
            record = self._record if on_cuda else self._record_reference
            return NOT_SERVED if record is None or out is not None else record(*args, kwargs)
        return self._launches.launch(out, args, kwargs) if on_cuda else self._launches.refer(args, kwargs)

    def call_out(self, out: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an out form, or returns NOT_SERVED; the dispatcher raises the error if a tensor requires grad."""
        return self._any_call(args, kwargs, out) if guard.quiet() and guard.plain_cuda(out) else NOT_SERVED


def _of_one_tensor(
    schema: Schema,
    launches: LaunchTable,
    otherwise: Callable[..., Any],
    on_cpu: Callable[..., Any],
    record: Callable[..., torch.Tensor] | None,
) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    """Returns the fast path for calls of one tensor.

    Each check costs 0.03 to 0.1 us, so none repeats what an earlier one implies:

        exact type, not nested   plain tensor; required before ``guard.alike``
        ``guard.alike``          everything that a launch depends on but the address, and most of ``guard.quiet``
        address and strides      strided layout: both raise for a sparse tensor
        hit in ``ready``         plain CUDA memory of a real dtype: ``guard.plain_cuda`` held when the entry was added,
                                 the key contains the device, and a real tensor may be negated but not conjugated

    Updating the cached guard costs as much as five matches save, so only every ``REFRESH_EVERY`` th mismatch does.

    Args:
        schema: schema of the operator.
        launches: launch table of the operator.
        otherwise: serves all other calls.
        on_cpu: serves a CPU tensor that does not match the previous call.
        record: runs a call of a tensor that requires grad; None if the operator is not differentiable.
    """
    ready: dict[Any, Ready] = {}
    # The previous call: guard, address modulo alignment, int argument, ambient state, entry.
    last: tuple[Callable[[object], bool], int, int | None, Any, Ready | None] = (guard.nothing, 0, None, None, None)
    # The previous call of a CPU tensor that does not require grad: guard, int argument, ambient state, reference.
    referred: tuple[Callable[..., Any], int | None, Any, Callable[..., Any]] = guard.nothing, None, None, guard.nothing
    mismatches = 0
    second = schema.parameters[1] if schema.positional > 1 else ""
    optional, defaults = schema.parameters[1 : schema.positional], schema.defaults
    ambient = launches.ambient
    # Closure variables are looked up faster than module attributes.
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
            # The logger's effective level, without the cost of isEnabledFor.
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
                # The same properties as in `LaunchTable.find`.
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
    """Returns functions that run a call and record it for autograd.

    Returns:
        For CUDA tensors, a function of the positional arguments and the dict of keyword arguments; the same for CPU
        tensors; a function of one CUDA tensor and its :data:`Ready` entry.
    """
    schema = rules.schema
    count, defaults = schema.positional, schema.defaults
    keywords = schema.parameters[count:]
    # Defaults of omitted trailing arguments, by the number of arguments passed.
    rest = [tuple(defaults.get(name) for name in schema.parameters[given:count]) for given in range(count + 1)]
    no_keywords = {name: defaults[name] for name in keywords if name in defaults}

    def forward_by(run: Callable[..., torch.Tensor], ctx: Any, *call: Any) -> torch.Tensor:
        args, options = call[:-1], call[-1]
        output = run(args, options)
        given = no_keywords
        if options:
            named = schema.bind(args, options)
            args = tuple(named[name] for name in schema.parameters[:count])
            given = {name: named[name] for name in keywords}
        rules.save(ctx, args + rest[len(args)], output, given)
        return output

    def forward_ready(ctx: Any, x: torch.Tensor, ready: Ready) -> torch.Tensor:
        bound, index, others = ready
        if bound.needs_general_path:
            output = launches.run(bound, None, (x,))
        else:
            output = table._new(bound.shape, bound.strides, bound.dtype)
            bound.launch(x.data_ptr(), output.data_ptr(), *bound.arguments, table._raw_stream(index))
        rules.save(ctx, (x, *others), output, no_keywords)
        return output

    def gradient(ctx: Any, *grads: torch.Tensor) -> Any:
        # One for each positional parameter and one for the last input; autograd drops surplus Nones.
        found = backward(ctx, *grads)
        return (*found, None) if isinstance(found, tuple) else (found, None)

    def recording(forward: Callable[..., Any]) -> Callable[..., torch.Tensor]:
        methods = {"forward": staticmethod(forward), "backward": staticmethod(gradient)}
        function = type(name, (torch.autograd.Function,), methods)
        # Skips the search for functorch transforms in Function.apply, 2 us: `guard.quiet` has ruled them out.
        apply: Callable[..., torch.Tensor] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
        return apply

    name = "".join(part.capitalize() for part in schema.name.split("_"))
    launch = partial(launches.launch, None)
    return (
        recording(partial(forward_by, launch)),
        recording(partial(forward_by, launches.refer)),
        recording(forward_ready),
    )
