"""Eager fast path: looks up the launch directly, bypassing the dispatcher.

    call --- plain tensors, no active mode or transform (``guard``), backend not 'ref'
      |---- no gradient to record ------> launch
      `---- requires_grad --------------> autograd.Function.apply ---> launch, setup_context

Plain CPU tensors take the same path to the reference, which autograd differentiates itself where the declaration says
so (``Rules.cpu_autograd``).  Otherwise launch and autograd rules are those of the registered operator, so results do
not depend on the path.

A call is compared with one before by a cached guard, the last one or that of its shape, which is replaced at every 16th
mismatch; on a mismatch it is looked up by a key of everything that serving it depends on.  ``_of_one_tensor`` does both
for the most common call, of one tensor and at most one int, and ``EagerPath`` for any other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch.autograd import forward_ad
from torch.overrides import has_torch_function

from forge_core import settings
from forge_core.op import guard, table
from forge_core.op.repeat import NOT_SERVED, REFRESH_EVERY, GuardedCalls, Seen, Serve
from forge_core.op.rules import Rules
from forge_core.op.schema import BY_VALUE, INTS, Schema
from forge_core.op.table import ALIGNMENT_MASK, LaunchTable, TableEntry

#: What recording a call needs: how to run it, its positional arguments behind the tensor, its keyword-only arguments.
Saved: TypeAlias = tuple[Serve, tuple[Any, ...], dict[str, Any]]

_CUDA = torch.device("cuda")

#: How a call of one tensor is served: entry of the launch table (None on the CPU), device index, and how to record it.
Ready: TypeAlias = tuple[TableEntry | None, int, Saved]

#: A guarded call of one tensor: guard, address modulo alignment, int argument, ``Rules.ambient()``, how it is served.
Guarded: TypeAlias = tuple[Callable[[object], bool], int, int | None, Any, Ready | None]


class EagerPath:
    """The eager fast path of an operator."""

    def __init__(self, rules: Rules, launch_table: LaunchTable) -> None:
        self._table, self._schema, self._positions = launch_table, rules.schema, rules.schema.leading
        self._record = None if rules.backward is None else _recorder(rules, rules.backward)
        self._record_on_cpu = None if rules.cpu_autograd else self._record
        self._seen: dict[Any, Seen] = {}
        self._guarded = GuardedCalls()
        #: ``call(args, kwargs)`` runs a call, or returns NOT_SERVED if it must go through the dispatcher.
        self.call: Callable[[tuple[Any, ...], dict[str, Any]], Any] = self._call_if_quiet
        if self._positions == 1:
            self.call = _of_one_tensor(rules, launch_table, self._call_if_quiet, self._record)

    def repeatable(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Seen | None:
        """How calls like this normalized one are served; None unless ``guarded_call`` guards all they depend on."""
        if self._table.ambient is not None or not (self._table.no_backend_override() and guard.quiet()):
            return None
        return self._seen.get(self._key(args, kwargs))

    def _repeat(self, entry: TableEntry, serve: Serve, args: Sequence[Any]) -> Any:
        if self._table.chosen is not None:
            return NOT_SERVED
        self._table.log_hit(entry)
        return serve(args)

    def _call_if_quiet(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found: Any = self._guarded.serve(args, kwargs)
        if found is not NOT_SERVED:
            return found
        if not guard.quiet():
            return NOT_SERVED
        key = self._key(args, kwargs) if self._table.no_backend_override() else None
        found, due = self._seen.get(key), self._table.ambient is None and self._guarded.due(args)
        if found is None:
            return self._any_call(args, kwargs, key=key)
        if due:
            self._guarded.guard(args, kwargs, found)
        return found.serve(args)

    def _any_call(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: torch.Tensor | None = None,
        key: tuple[Any, ...] | None = None,
    ) -> Any:
        if self._schema.optional and len(args) < self._positions:
            (args, kwargs), key = self._schema.placed(args, kwargs), None
        if len(args) < self._positions:
            return NOT_SERVED
        on_cuda, no_override = guard.plain_cuda(args[0]), self._table.no_backend_override()
        if not no_override and (not on_cuda or self._table.resolve(_CUDA, "auto") == "ref"):
            return NOT_SERVED
        if out is not None and not on_cuda:
            return NOT_SERVED
        is_plain = guard.plain_cuda if on_cuda else guard.plain_cpu
        needs_gradient = out is not None and out.requires_grad
        for value in args[: self._positions]:
            if isinstance(value, torch.Tensor) or value is args[0]:
                if not is_plain(value):
                    return NOT_SERVED
                needs_gradient = needs_gradient or value.requires_grad
        plain, named = self._schema.normalize(args, kwargs)
        # After normalization the arguments behind the tensors are builtin types, without __torch_function__.
        if has_torch_function(args[: self._positions] if plain is args else (*args, *kwargs.values())):
            return NOT_SERVED
        recorded = needs_gradient and guard.grad_enabled()
        if recorded and (self._record is None or out is not None):
            return NOT_SERVED
        if out is not None:
            return self._table.launch(out, plain, named)
        key = (key or self._key(plain, named)) if no_override else None
        if not on_cuda and key in self._seen:  # the call was unlike this one before it was normalized
            return self._seen[key].serve(plain)
        serve, entry = self._function(plain, named, on_cuda=on_cuda)
        record = (self._record if on_cuda else self._record_on_cpu) if recorded else None
        if record is not None:
            serve = _recorded(record, self._schema, serve, plain, named)
        if key is not None and (entry is not None or not on_cuda):
            if len(self._seen) >= table.MAX_ENTRIES:
                self._seen.clear()
            repeat = serve if entry is None else partial(self._repeat, entry, serve)
            self._seen[key] = Seen(repeat, entry, on_cuda or self._record_on_cpu is not None)
        return serve(plain)

    def _function(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, on_cuda: bool
    ) -> tuple[Serve, TableEntry | None]:
        """The function that serves a call, unrecorded; with its entry if it serves calls like this one each time."""
        if not on_cuda:
            return _run_reference(self._schema, args, self._table.reference(args, kwargs)), None
        if args[0].get_device() != table._current_device():
            return lambda args: self._table.launch(None, args, kwargs), None
        entry = self._table.find_or_compile(None, args, kwargs)
        return partial(self._table.run, entry, None), entry

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
        """Everything that serving a call depends on; None unless all arguments are plain.

        Only the first parameters take tensors; others have tensors converted to numbers.
        """
        parts: list[Any] = [torch._C._is_any_autocast_enabled(), guard.grad_enabled()]
        if self._table.ambient is not None:
            parts.append(self._table.ambient())
        on_cuda, tensors = False, self._positions
        try:
            for place, value in enumerate(args):
                kind = type(value)
                if kind in guard.PLAIN_TYPES and place < tensors:
                    parts += (value.dtype, value.shape, value.stride(), value.device, value.data_ptr() & ALIGNMENT_MASK)
                    parts += (value.requires_grad, value.is_neg(), value.is_conj())
                    on_cuda = on_cuda or value.is_cuda
                elif kind in BY_VALUE:
                    parts += (kind, value)
                elif kind in (tuple, list) and INTS.issuperset(map(type, value)):
                    parts.append(tuple(value))
                else:
                    return None
        except RuntimeError:  # a nested or sparse tensor
            return None
        for name, value in kwargs.items():
            if type(value) not in BY_VALUE:
                return None
            parts += (name, type(value), value)
        if on_cuda:  # asking for the current device initializes CUDA
            parts.append(table._current_device())
        return tuple(parts)

    def call_out(self, out: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an out form, or returns NOT_SERVED; the dispatcher raises the error if a tensor requires grad."""
        return self._any_call(args, kwargs, out) if guard.quiet() and guard.plain_cuda(out) else NOT_SERVED


def _of_one_tensor(
    rules: Rules,
    launch_table: LaunchTable,
    otherwise: Callable[..., Any],
    record: Callable[..., torch.Tensor] | None,
) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    """Returns the fast path for calls of one tensor.

    Each check costs 0.03 to 0.1 us, so none repeats what an earlier one implies:

        exact type, not nested   plain tensor; required before ``tensor_guard``
        ``tensor_guard``         everything that a launch depends on but the address, and most of ``guard.quiet``
        address and strides      strided layout: both raise for a sparse tensor
        hit in ``ready``         plain memory, on CUDA of a real dtype: ``guard`` found it plain when it was added, the
                                 key contains the device, and a real tensor may be negated but not conjugated

    Updating the cached guard costs as much as five matches save, so only every ``REFRESH_EVERY`` th mismatch does.
    All other calls go to ``otherwise``, and those of a tensor that requires grad to ``record``, if there is one.
    """
    ready: dict[Any, Ready] = {}
    last: Guarded = (guard.match_none, 0, None, None, None)
    mismatches = 0
    schema, cpu_autograd = rules.schema, rules.cpu_autograd
    second = schema.parameters[1] if schema.positional > 1 else ""
    optional, defaults = schema.parameters[1 : schema.positional], schema.defaults
    keywords = {name: defaults[name] for name in schema.parameters[schema.positional :] if name in defaults}
    ambient = launch_table.ambient
    # Closure variables are looked up faster than module attributes.
    no_overrides, plain_types, grad_enabled = settings.untouched, guard.PLAIN_TYPES, guard.grad_enabled
    autocast_enabled = torch._C._is_any_autocast_enabled
    quiet, dispatch_modes, function_modes = guard.quiet, guard.dispatch_modes, guard.function_modes
    new, raw_stream, current_device = table._new, table._raw_stream, table._current_device
    log, root, debug, mask = table.log, logging.getLogger(), logging.DEBUG, ALIGNMENT_MASK

    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal last, mismatches
        count = len(args)
        if kwargs:
            integer = kwargs.get(second) if count == len(kwargs) == 1 else None
            usual = type(integer) is int
        elif count == 2:
            integer = args[1]
            usual = type(integer) is int
        else:
            integer = None
            usual = count == 1
        if not usual or launch_table.chosen or not no_overrides():
            return otherwise(args, kwargs)
        x = args[0]
        if type(x) not in plain_types or x.is_nested:
            return NOT_SERVED
        matches, offset, guarded_integer, process_state, found = last
        if (
            matches(x)
            and integer == guarded_integer
            and found is not None
            and (address := x.data_ptr()) & mask == offset
            and (found[0] is None or found[1] == current_device())
            and not (dispatch_modes() or function_modes() or forward_ad._current_level >= 0)
            and (ambient is None or ambient() == process_state)
        ):
            entry, index, saved = found
            # The logger's effective level, without the cost of isEnabledFor.
            if entry is not None and (log.level or root.level) <= debug:
                launch_table.log_hit(entry)
        else:
            if not quiet():
                return NOT_SERVED
            try:
                address = x.data_ptr()
                # As in `LaunchTable.find_or_compile`, without what `usual` and `no_overrides` exclude.
                process_state = None if ambient is None else ambient()
                key = x.dtype, x.shape, x.stride(), x.device, address & mask, integer, process_state
            except RuntimeError:
                return otherwise(args, kwargs)
            found = ready.get(key)
            if found is None:
                index, args, kwargs = x.get_device(), (x, integer) if kwargs else args, {}
                if guard.plain_cuda(x):
                    if index != current_device() or x.dtype.is_complex:
                        return otherwise(args, kwargs)
                    entry = launch_table.find_or_compile(None, args, kwargs)
                    run: Serve = partial(launch_table.run, entry, None)
                    if not entry.needs_general_path:
                        run = partial(_run_directly, entry, index)
                elif guard.plain_cpu(x):
                    entry, run = None, _run_on_first(launch_table.reference(args, kwargs))
                else:
                    return otherwise(args, kwargs)
                saved = run, (*args[1:], *[defaults[name] for name in optional[len(args) - 1 :]]), keywords
                if len(ready) >= table.MAX_ENTRIES:
                    ready.clear()
                ready[key] = found = entry, index, saved
            else:
                entry, index, saved = found
                if entry is None:
                    if x.is_neg() or x.is_conj() or autocast_enabled():
                        return NOT_SERVED
                elif index != current_device() or x.is_neg():
                    return otherwise(args, kwargs)
                elif (log.level or root.level) <= debug:
                    launch_table.log_hit(entry)
            if mismatches % REFRESH_EVERY == 0:
                last = (guard.tensor_guard(x), address & mask, integer, process_state, found)
            mismatches += 1
        if x.requires_grad and grad_enabled():
            if record is None:
                return NOT_SERVED
            if entry is not None or not cpu_autograd:
                return record(x, saved)
        if entry is None or entry.needs_general_path:
            return saved[0]((x,))
        out = new(entry.shape, entry.strides, entry.dtype)
        entry.function(address, out.data_ptr(), *entry.arguments, raw_stream(index))
        return out

    return call


def _run_directly(entry: TableEntry, index: int, args: Sequence[Any]) -> torch.Tensor:
    """``LaunchTable.run`` without its general path: a launch of one tensor on the current device, as ``call`` ends."""
    out = table._new(entry.shape, entry.strides, entry.dtype)
    entry.function(args[0].data_ptr(), out.data_ptr(), *entry.arguments, table._raw_stream(index))
    return out


def _run_on_first(reference: Callable[..., torch.Tensor]) -> Serve:
    return lambda args: reference(args[0])


def _run_reference(schema: Schema, args: tuple[Any, ...], reference: Callable[..., torch.Tensor]) -> Serve:
    """A function of a call's positional arguments that runs its reference on the tensors among them, by their names."""
    named = [(schema.parameters[i], i) for i, value in enumerate(args) if isinstance(value, torch.Tensor)]
    return lambda args: reference(**{name: args[i] for name, i in named})


def _recorded(
    record: Callable[..., torch.Tensor], schema: Schema, run: Serve, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Serve:
    """A function like ``run``, of the positional arguments of a call, that records it for autograd."""
    positional, keywords = schema.split(tuple(schema.bind(args, kwargs).values()))
    saved = run, positional[len(args) :], keywords
    return lambda args: record(*args, saved)


def _recorder(rules: Rules, backward: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """Returns a function of a call's positional arguments and :data:`Saved` that runs and records it for autograd."""

    def forward(ctx: Any, *call: Any) -> torch.Tensor:
        args, (run, rest, given) = call[:-1], call[-1]
        output: torch.Tensor = run(args)
        rules.save(ctx, args + rest, output, given)
        return output

    def gradient(ctx: Any, *grads: torch.Tensor) -> Any:
        # One for each positional parameter and one for the last input; autograd drops surplus Nones.
        found = backward(ctx, *grads)
        return (*found, None) if isinstance(found, tuple) else (found, None)

    name = "".join(part.capitalize() for part in rules.schema.name.split("_"))
    methods = {"forward": staticmethod(forward), "backward": staticmethod(gradient)}
    function = type(name, (torch.autograd.Function,), methods)
    # Skips the search for functorch transforms in Function.apply, 2 us: `guard.quiet` has ruled them out.
    apply: Callable[..., torch.Tensor] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return apply
