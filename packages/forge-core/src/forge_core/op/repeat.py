"""Calls like the one before on plain tensors, which a cached guard tells from others in a microsecond or two."""

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

#: Mismatches per update of the cached guard, which costs as much as five matches save.
REFRESH_EVERY = 16

#: ``again(args, kwargs)`` runs a call, or returns NOT_SERVED for one unlike the call before.
Again: TypeAlias = Callable[[tuple[Any, ...], dict[str, Any]], Any]


class Repeatable(NamedTuple):
    """How an operator serves further calls like one on plain tensors.

    Attributes:
        tensors: the call's tensors by name.
        serve: a function of such tensors, by these names; returns NOT_SERVED if the operator's backend is another.
        on_cuda: whether the tensors are CUDA tensors; a launch depends on more of them than their metadata.
    """

    tensors: Sequence[tuple[str, torch.Tensor]]
    serve: Callable[..., Any]
    on_cuda: bool


def never(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Serves no call."""
    return NOT_SERVED


def repeated(
    args: tuple[Any, ...], kwargs: dict[str, Any], call: Repeatable, results: int | slice | None = None
) -> Again | None:
    """Returns a function that serves calls like this one.

    Args:
        args: positional arguments.
        kwargs: keyword arguments.
        call: the call of an operator that served it.
        results: index or slice of what the operator returns; None for all of it.

    Returns:
        The function; None unless the tensors of both calls are the same.
    """
    values, (passed, serve, on_cuda) = (*args, *kwargs.values()), call
    order = [*map(id, values)]
    given = {i: order.index(id(t)) for i, t in enumerate(values) if isinstance(t, torch.Tensor)}
    others = [(i, value, type(value)) for i, value in enumerate(values) if i not in given]
    if {order[i] for i in given} != {id(t) for _, t in passed} or not all(_by_value(value) for _, value, _ in others):
        return None
    places = [(name, order.index(id(t))) for name, t in passed]
    # Of each tensor: its place, the first place where it was given, its guard, and its address modulo alignment.
    mask = ALIGNMENT_MASK if on_cuda else 0
    tensors = [(i, first, guard.alike(values[i]), values[i].data_ptr() & mask) for i, first in given.items()]
    count, keywords = len(args), tuple(kwargs)
    device, recorded = (table._current_device() if on_cuda else -1), guard.grad_enabled()

    def again(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(args) != count or tuple(kwargs) != keywords or not settings.untouched():
            return NOT_SERVED
        values = (*args, *kwargs.values()) if kwargs else args
        for i, first, alike, offset in tensors:
            x = values[i]
            if type(x) not in guard.PLAIN_TYPES or x.is_nested or not alike(x) or x is not values[first]:
                return NOT_SERVED
            if on_cuda and x.data_ptr() & mask != offset:
                return NOT_SERVED
        for i, value, kind in others:
            x = values[i]
            if x is not value and (type(x) is not kind or x != value or not _by_value(x)):
                return NOT_SERVED
        if guard.dispatch_modes() or guard.function_modes() or forward_ad._current_level >= 0:
            return NOT_SERVED
        if on_cuda and (table._current_device() != device or guard.grad_enabled() is not recorded):
            return NOT_SERVED
        found = serve(**{name: values[i] for name, i in places})
        return found if results is None or found is NOT_SERVED else found[results]

    return again


def _by_value(x: Any) -> bool:
    """Whether an argument is compared by value; of tuples those of ints, since elements of other types may be equal."""
    return type(x) in BY_VALUE or type(x) is torch.Size or (type(x) is tuple and INTS.issuperset(map(type, x)))
