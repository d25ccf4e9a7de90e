"""Calls like the one before on plain CPU tensors, which a cached guard tells from others in a microsecond."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch.autograd import forward_ad

from forge_core import settings
from forge_core.op import guard
from forge_core.op.schema import INTS

#: Exact types of arguments that are compared by value.
BY_VALUE = frozenset({int, bool, float, str, type(None), torch.dtype})

#: Returned for a call that must go another way.
NOT_SERVED = object()

#: Mismatches per update of the cached guard, which costs as much as five matches save.
REFRESH_EVERY = 16

#: ``again(args, kwargs)`` runs a call, or returns NOT_SERVED for one unlike the call before.
Again: TypeAlias = Callable[[tuple[Any, ...], dict[str, Any]], Any]


def never(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Serves no call."""
    return NOT_SERVED


def repeated(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    passed: Sequence[tuple[str, torch.Tensor]],
    serve: Callable[..., Any],
    results: int | slice | None = None,
) -> Again | None:
    """Returns a function that serves calls like this one.

    Args:
        args: positional arguments of the call.
        kwargs: its keyword arguments.
        passed: names, for ``serve``, of the call's tensors: plain tensors on a CPU.
        serve: a function of these tensors by name.
        results: index or slice of what it returns; None for all of it.

    Returns:
        The function; None unless ``passed`` are the tensors of the call.
    """
    values = (*args, *kwargs.values())
    order = [*map(id, values)]
    given = {i: order.index(id(t)) for i, t in enumerate(values) if isinstance(t, torch.Tensor)}
    if {order[i] for i in given} != {id(t) for _, t in passed}:
        return None
    same = [(i, first) for i, first in given.items() if first < i]  # a tensor that is given twice
    places = [(name, order.index(id(t))) for name, t in passed]
    tests = [_like_tensor(v) if isinstance(v, torch.Tensor) else _like_value(v) for v in values]
    count, keywords = len(args), tuple(kwargs)

    def again(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(args) != count or tuple(kwargs) != keywords or not settings.untouched():
            return NOT_SERVED
        values = (*args, *kwargs.values()) if kwargs else args
        if not all(map(operator.call, tests, values)) or (same and any(values[i] is not values[k] for i, k in same)):
            return NOT_SERVED
        if guard.dispatch_modes() or guard.function_modes() or forward_ad._current_level >= 0:
            return NOT_SERVED
        found = serve(**{name: values[i] for name, i in places})
        return found if results is None else found[results]

    return again


def _like_tensor(x: torch.Tensor) -> Callable[[Any], bool]:
    alike, plain = guard.alike(x), guard.PLAIN_TYPES
    return lambda value: type(value) in plain and not value.is_nested and alike(value)


def _like_value(x: Any) -> Callable[[Any], bool]:
    kind = type(x)
    if kind is tuple and INTS.issuperset(map(type, x)):
        # An equal tuple may have other types, for (8,) == (8.0,).
        return lambda value: value is x or (type(value) is tuple and value == x and INTS.issuperset(map(type, value)))
    if kind in BY_VALUE or kind is torch.Size:
        return lambda value: value is x or (type(value) is kind and value == x)
    return guard.nothing
