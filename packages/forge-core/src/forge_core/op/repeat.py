"""Cached guards for repeated eager calls, as TorchDynamo's: one that matches is served in a microsecond or two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.autograd import forward_ad

from forge_core import settings
from forge_core.op import guard, table
from forge_core.op.schema import BY_VALUE, INTS
from forge_core.op.table import ALIGNMENT_MASK

#: Returned for a call that must go another way.
NOT_SERVED = object()

#: Mismatches per update of a cached guard, which costs as much as five matches save.
REFRESH_EVERY = 16

#: Shapes that an operator is guarded on, some 5 KB each, until they are forgotten.
MAX_SHAPES = 1024

#: A shape that no call had.
_NONE = (None, 0)

#: Runs a call, given its positional arguments.
Serve: TypeAlias = Callable[[Sequence[Any]], Any]

#: ``call(args, kwargs)`` runs a call that matches its guards, or returns NOT_SERVED.
GuardedCall: TypeAlias = Callable[[tuple[Any, ...], dict[str, Any]], Any]


class Seen(NamedTuple):
    """How an operator serves the calls that match the guards of one."""

    serve: Serve
    entry: table.TableEntry | None  #: the launch; None on the CPU
    by_grad_mode: bool  #: whether ``serve`` is of one grad mode; not if autograd differentiates the reference


def _serve_none(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return NOT_SERVED


def guarded_call(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    seen: Seen,
    passed: tuple[Any, ...] | None = None,
    results: int | slice | None = None,
) -> GuardedCall | None:
    """Returns a function that guards on all a call depends on and serves calls that match; it keeps no tensor alive.

    Args:
        args: positional arguments.
        kwargs: keyword arguments.
        seen: how an operator serves the call; all but its own default backend is compared with each call.
        passed: positional arguments of the operator's call, normalized; None for ``args``.
        results: index or slice of what the operator returns; None for all of it.

    Returns:
        The function; None if an argument cannot be compared, as a tensor that is not passed on but read for a number.
    """
    values, (serve, entry, by_grad_mode) = (*args, *kwargs.values()), seen
    order, on_cuda = [*map(id, values)], entry is not None
    given = [i for i, value in enumerate(values) if isinstance(value, torch.Tensor)]
    others = [(i, value, type(value)) for i, value in enumerate(values) if i not in given]
    template, as_given = list(args if passed is None else passed), passed is None
    places = [(i, id(value)) for i, value in enumerate(template) if isinstance(value, torch.Tensor)]
    if not all(_by_value(value) for _, value, _ in others) or {one for _, one in places} != {order[i] for i in given}:
        return None
    places = [(i, order.index(one)) for i, one in places]
    for i, _ in places:
        template[i] = None
    # Of each tensor: its place, the first place where it was given, its guard, and its address modulo alignment.
    mask = ALIGNMENT_MASK if on_cuda else 0
    tensors = [(i, order.index(order[i]), guard.tensor_guard(values[i]), values[i].data_ptr() & mask) for i in given]
    count, keywords = len(args), [*kwargs]
    device, recorded = (table._current_device() if on_cuda else -1), guard.grad_enabled()
    # Closure variables are looked up faster than module attributes.
    no_overrides, plain_types, grad_enabled = settings.untouched, guard.PLAIN_TYPES, guard.grad_enabled
    dispatch_modes, function_modes = guard.dispatch_modes, guard.function_modes

    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(args) != count or [*kwargs] != keywords or not no_overrides():
            return NOT_SERVED
        values = (*args, *kwargs.values()) if kwargs else args
        for i, first, matches, offset in tensors:
            x = values[i]
            if type(x) not in plain_types or x.is_nested or not matches(x) or x is not values[first]:
                return NOT_SERVED
            if on_cuda and x.data_ptr() & mask != offset:
                return NOT_SERVED
        for i, value, kind in others:
            x = values[i]
            if x is not value and (type(x) is not kind or x != value or not _by_value(x)):
                return NOT_SERVED
        if dispatch_modes() or function_modes() or forward_ad._current_level >= 0:
            return NOT_SERVED
        if (on_cuda and table._current_device() != device) or (by_grad_mode and grad_enabled() is not recorded):
            return NOT_SERVED
        if as_given:
            return serve(args)
        positional = template.copy()
        for i, place in places:
            positional[i] = values[place]
        found = serve(positional)
        return found if results is None or found is NOT_SERVED else found[results]

    return call


class GuardedCalls:
    """Guarded calls, one for each shape of the first argument: models call an operator with a few shapes in turn."""

    def __init__(self) -> None:
        #: Shape -> the guarded call, None before it is made, and the calls that it did not serve.
        self._by_shape: dict[Any, tuple[GuardedCall | None, int]] = {}

    def serve(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a call that matches the guards of its shape, or returns NOT_SERVED."""
        found = self._by_shape.get(_shape(args), _NONE)[0]
        return NOT_SERVED if found is None else found(args, kwargs)

    def due(self, args: tuple[Any, ...]) -> bool:
        """Counts a call that was not served; whether to guard on it: the second of a shape, then each 16th."""
        shape = _shape(args)
        guarded, misses = self._by_shape.get(shape, _NONE)
        if misses == 0 and len(self._by_shape) >= MAX_SHAPES:
            self._by_shape.clear()
        self._by_shape[shape] = guarded, misses + 1
        return misses > 0 if guarded is None else misses % REFRESH_EVERY == 0

    def guard(self, args: tuple[Any, ...], kwargs: dict[str, Any], seen: Seen | None, *passed: Any) -> None:
        """Serves calls like this one from now on: see :func:`guarded_call`; none, if ``seen`` is None."""
        shape = _shape(args)
        found = seen and guarded_call(args, kwargs, seen, *passed)
        self._by_shape[shape] = found or self._by_shape.get(shape, _NONE)[0] or _serve_none, 1


def _shape(args: tuple[Any, ...]) -> Any:
    x: Any = args[0] if args else None
    if type(x) not in guard.PLAIN_TYPES or x.is_nested or guard._tracing():  # a tracer records reading a shape
        return None
    return x.shape


def _by_value(x: Any) -> bool:
    """Whether an argument is compared by value; of tuples those of ints, since elements of other types may be equal."""
    return type(x) in BY_VALUE or type(x) is torch.Size or (type(x) is tuple and INTS.issuperset(map(type, x)))
