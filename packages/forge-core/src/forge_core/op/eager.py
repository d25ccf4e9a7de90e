"""Eager fast path: looks up the launch directly, bypassing the dispatcher.

    call --- plain tensors, no active mode or transform (``guard``), backend not 'ref'
      |---- no gradient to record ------> launch
      `---- requires_grad --------------> autograd.Function.apply ---> launch, setup_context

Plain CPU tensors take the same path to the reference, which autograd differentiates itself where the declaration says
so (``Rules.cpu_autograd``).  Otherwise launch and autograd rules are those of the registered operator, so results do
not depend on the path.

A call of several tensors, or with other arguments, is served by ``_again``, its cached guard, or ``_seen``, by key.

The second half of this module serves the most common call: one tensor, and at most one int. Such a call is compared
with one before (``last``) by a cached guard, which is replaced at every 16th mismatch; on a mismatch it is looked up
in a small table (``ready``) in front of the launch table; if its launch has a workspace, in the launch table. Any
other call is looked up by a key of all its arguments.
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
from forge_core.op.repeat import BY_VALUE, NOT_SERVED, REFRESH_EVERY, Again, Repeatable, never, repeated
from forge_core.op.rules import Rules
from forge_core.op.schema import INTS, Schema
from forge_core.op.table import ALIGNMENT_MASK, Entry, LaunchTable

#: Runs a call, given its positional arguments.
Serve: TypeAlias = Callable[[tuple[Any, ...]], Any]

#: What recording a call needs: how to run it, its positional arguments behind the tensor, its keyword-only arguments.
Saved: TypeAlias = tuple[Serve, tuple[Any, ...], dict[str, Any]]

#: An entry for a call of one tensor: launch, device index, and how to record it.
Ready: TypeAlias = tuple[Entry, int, Saved]


class EagerPath:
    """The eager fast path of an operator.

    Args:
        rules: declaration of the operator.
        launches: launch table of the operator.

    Attributes:
        call: ``call(args, kwargs)`` runs a call, or returns NOT_SERVED if it must go through the dispatcher.
    """

    def __init__(self, rules: Rules, launches: LaunchTable) -> None:
        self._rules, self._launches = rules, launches
        self._schema, self._positions = rules.schema, rules.schema.leading
        self._record = None if rules.backward is None else _recorder(rules, rules.backward)
        self._record_on_cpu = None if rules.cpu_autograd else self._record
        self._seen: dict[Any, tuple[Serve, Entry | None]] = {}
        self._again: Again = never
        self._misses = 0
        self.call: Callable[[tuple[Any, ...], dict[str, Any]], Any] = self._call_if_quiet
        if self._positions == 1:
            self.call = _of_one_tensor(rules, launches, self._call_if_quiet, self._record)

    def repeatable(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Repeatable | None:
        """How further calls like this one, whose tensors are positional, are served.

        None unless its tensors are plain, and all that its way depends on is compared with each call.
        """
        args, kwargs = self._schema.normalize(args, kwargs)
        tensors, launches = tensors_of(args), self._launches
        if not (launches.ambient is None and launches.no_backend_override() and guard.quiet()):
            return None
        if not all(map(guard.plain_cuda, tensors)):
            if not all(map(guard.plain_cpu, tensors)):
                return None
            if not self._rules.cpu_autograd and any(t.requires_grad for t in tensors):
                return None
            names, reference = launches.referring(args, kwargs)
            return Repeatable([*zip(names, tensors, strict=True)], reference, on_cuda=False)
        key = _key(args, kwargs, self._positions)
        serve, entry = self._seen.get(tuple(key), (None, None)) if key is not None else (None, None)
        if serve is None or entry is None:
            return None
        places = [i for i, value in enumerate(args) if isinstance(value, torch.Tensor)]
        others = [None if i in places else value for i, value in enumerate(args)]  # no tensor is kept alive

        def again(**tensors: torch.Tensor) -> Any:
            if launches.chosen is not None:
                return NOT_SERVED
            launches.log_hit(entry)
            call = others.copy()
            for i, t in zip(places, tensors.values(), strict=True):
                call[i] = t
            return serve(tuple(call))

        return Repeatable([(f"tensor{i}", args[i]) for i in places], again, on_cuda=True)

    def _call_if_quiet(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found = self._again(args, kwargs)
        if found is not NOT_SERVED:
            return found
        if not guard.quiet():
            return NOT_SERVED
        key = _key(args, kwargs, self._positions) if self._launches.no_backend_override() else None
        if key is None:
            return self._any_call(args, kwargs)
        if self._launches.ambient is not None:
            key.append(self._launches.ambient())
        found = self._seen.get(frozen := tuple(key))
        if found is None:
            return self._any_call(args, kwargs, key=frozen)
        serve, entry = found
        if entry is not None:
            self._launches.log_hit(entry)
        if self._misses % REFRESH_EVERY == 0 and (call := self.repeatable(args, kwargs)) is not None:
            self._again = repeated(args, kwargs, call) or self._again
        self._misses += 1
        return serve(args)

    def _any_call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], out: torch.Tensor | None = None, key: Any = None
    ) -> Any:
        if self._schema.optional and len(args) < self._positions:
            (args, kwargs), key = self._schema.placed(args, kwargs), None
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
        plain, named = self._schema.normalize(args, kwargs)
        # After normalization the arguments behind the tensors are builtin types, without __torch_function__.
        if has_torch_function(args[: self._positions] if plain is args else (*args, *kwargs.values())):
            return NOT_SERVED
        recorded = needs_gradient and guard.grad_enabled()
        if recorded and (self._record is None or out is not None):
            return NOT_SERVED
        record = (self._record if on_cuda else self._record_on_cpu) if recorded else None
        if out is not None:
            return self._launches.launch(out, plain, named)
        run, entry = self._runner(plain, named, on_cuda=on_cuda)
        serve = run if record is None else partial(_recorded, record, _saved(self._schema, run, plain, named))
        if key is not None and (entry is not None or not on_cuda):
            if len(self._seen) >= table.MAX_ENTRIES:
                self._seen.clear()
            self._seen[key] = serve, entry
        return serve(plain)

    def _runner(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, on_cuda: bool) -> tuple[Serve, Entry | None]:
        """A function of the positional arguments that runs this call, and its launch if that can be repeated."""
        launches = self._launches
        if not on_cuda:
            names, reference = launches.referring(args, kwargs)
            return lambda args: reference(**dict(zip(names, tensors_of(args), strict=True))), None
        if args[0].get_device() != table._current_device():
            return lambda args: launches.launch(None, args, kwargs), None
        entry = launches.find(None, args, kwargs)
        return partial(launches.run, entry, None), entry

    def call_out(self, out: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an out form, or returns NOT_SERVED; the dispatcher raises the error if a tensor requires grad."""
        return self._any_call(args, kwargs, out) if guard.quiet() and guard.plain_cuda(out) else NOT_SERVED


def _of_one_tensor(
    rules: Rules,
    launches: LaunchTable,
    otherwise: Callable[..., Any],
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
        rules: declaration of the operator.
        launches: launch table of the operator.
        otherwise: serves all other calls, among them those of CPU tensors unlike the previous one.
        record: runs a call of a tensor that requires grad; None if the operator is not differentiable.
    """
    ready: dict[Any, Ready] = {}
    # The guarded call: guard, address modulo alignment, int argument, ambient state, entry.
    last: tuple[Callable[[object], bool], int, int | None, Any, Ready | None] = (guard.nothing, 0, None, None, None)
    # The guarded call of a CPU tensor without an autograd rule of ours: guard, int argument, ambient state, reference.
    referred: tuple[Callable[..., Any], int | None, Any, Callable[..., Any]] = guard.nothing, None, None, guard.nothing
    mismatches = 0
    schema, cpu_autograd = rules.schema, rules.cpu_autograd
    second = schema.parameters[1] if schema.positional > 1 else ""
    optional, defaults = schema.parameters[1 : schema.positional], schema.defaults
    keywords = {name: defaults[name] for name in schema.parameters[schema.positional :] if name in defaults}
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
            entry, index, _ = found
            # The logger's effective level, without the cost of isEnabledFor.
            if (log.level or root.level) <= debug:
                launches.log_hit(entry)
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
                output = otherwise(args, kwargs)
                if output is not NOT_SERVED and (cpu_autograd or not x.requires_grad):
                    if mismatches % REFRESH_EVERY == 0:
                        (name,), run = launches.referring(args if not kwargs else (x, other), {})
                        around = None if ambient is None else ambient()
                        referred = (guard.alike(x), other, around, lambda x: run(**{name: x}))
                    mismatches += 1
                return output
            try:
                address = x.data_ptr()
                # The properties of `LaunchTable.find`, without those that `usual` and `untouched` exclude.
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
                entry = launches.find(None, args, {})
                index, run = x.get_device(), partial(launches.run, entry, None)
                if not entry.needs_general_path:
                    run = partial(_run_directly, entry, index)
                rest = (*args[1:], *[defaults[name] for name in optional[len(args) - 1 :]])
                found = (entry, index, (run, rest, keywords))
                if entry.needs_general_path:
                    if x.requires_grad and grad_enabled():
                        return NOT_SERVED if record is None else record(x, found[2])
                    return launches.run(entry, None, (x,))
                if len(ready) >= table.MAX_ENTRIES:
                    ready.clear()
                ready[key] = found
            else:
                entry, index, _ = found
                if index != current_device() or x.is_neg():
                    return otherwise(args, kwargs)
                if (log.level or root.level) <= debug:
                    launches.log_hit(entry)
            if mismatches % REFRESH_EVERY == 0:
                last = (guard.alike(x), address & mask, other, key[-1], found)
            mismatches += 1
        if x.requires_grad and grad_enabled():
            return NOT_SERVED if record is None else record(x, found[2])
        out = new(entry.shape, entry.strides, entry.dtype)
        entry.launch(address, out.data_ptr(), *entry.arguments, raw_stream(index))
        return out

    return call


def _run_directly(entry: Entry, index: int, args: tuple[Any, ...]) -> torch.Tensor:
    """``LaunchTable.run`` for a launch of one tensor on the current device without a general path."""
    out = table._new(entry.shape, entry.strides, entry.dtype)
    entry.launch(args[0].data_ptr(), out.data_ptr(), *entry.arguments, table._raw_stream(index))
    return out


def tensors_of(args: tuple[Any, ...]) -> list[torch.Tensor]:
    """The tensors among some arguments, in order."""
    return [value for value in args if isinstance(value, torch.Tensor)]


def _key(args: tuple[Any, ...], kwargs: dict[str, Any], tensors: int) -> list[Any] | None:
    """Everything that serving a call depends on except the ambient state; None unless all arguments are plain.

    Args:
        args: positional arguments.
        kwargs: keyword arguments; of a call with a key none is a tensor.
        tensors: how many of the parameters, the first ones, are tensors; others have tensors converted to numbers.
    """
    parts: list[Any] = [torch._C._is_any_autocast_enabled(), guard.grad_enabled()]
    on_cuda = False
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
    return parts


def _saved(schema: Schema, run: Serve, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Saved:
    """What recording a call needs besides its positional arguments."""
    named = schema.bind(args, kwargs)
    rest = tuple([named[name] for name in schema.parameters[len(args) : schema.positional]])
    return run, rest, {name: named[name] for name in schema.parameters[schema.positional :]}


def _recorded(record: Callable[..., torch.Tensor], saved: Saved, args: tuple[Any, ...]) -> torch.Tensor:
    return record(*args, saved)


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
