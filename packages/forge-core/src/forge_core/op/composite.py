"""Public functions over several operators.

call --- plain CPU tensors like those of the last call, no gradient, mode or transform --- operator's CPU function
  `----- anything else --- the chosen operator
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling
from torch.overrides import handle_torch_function, has_torch_function

from forge_core import settings
from forge_core.op import guard
from forge_core.op.declaration import Operator
from forge_core.op.eager import BY_VALUE, NOT_SERVED, REFRESH_EVERY, tensors_of
from forge_core.op.launch import Explanation
from forge_core.op.schema import INTS
from forge_core.op.values import ByName

__all__ = ["Call", "Composite", "composite"]


class Call(NamedTuple):
    """A call of an operator, and which of its results the public function returns.

    Attributes:
        operator: the operator.
        args: its positional arguments, all tensors among them.
        kwargs: its keyword arguments.
        results: index or slice of the operator's results; None: its single result.
    """

    operator: Operator
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: int | slice | None = None


class Composite(ByName):
    """A public function that calls one of several operators, whichever its arguments need; see :func:`composite`.

    Like an :class:`~forge_core.op.Operator` it is pickled and copied like a module-level function, received by
    ``__torch_function__`` as ``func``, recorded by ``torch.fx.symbolic_trace`` as one node, and explains its calls.
    """

    def __init__(self, choose: Callable[..., Call], operators: tuple[Operator, ...]) -> None:
        functools.update_wrapper(self, choose)
        self._choose, self._operators = choose, operators
        self._again: Callable[[tuple[Any, ...], dict[str, Any]], Any] = lambda args, kwargs: NOT_SERVED
        self._misses = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the chosen operator; its arguments are those of the decorated function."""
        if is_dynamo_compiling():
            return _run(self._choose(*args, **kwargs))
        found = self._again(args, kwargs)
        if found is not NOT_SERVED:
            return found
        everything = (*args, *kwargs.values())
        if has_torch_function(everything):
            return handle_torch_function(self, everything, *args, **kwargs)
        call = self._choose(*args, **kwargs)
        found = _run(call)
        if self._misses % REFRESH_EVERY == 0:
            self._again = _repeat(call, args, kwargs) or self._again
        self._misses += 1
        return found

    def variants(self) -> dict[str, str]:
        """The operators' kernels as name -> idea, slowest first."""
        return {name: idea for each in self._operators for name, idea in each.variants().items()}

    def explain(self, *args: Any, arch: str | None = None, **kwargs: Any) -> Explanation:
        """Explains what a call would run, without running it: see :meth:`forge_core.op.Operator.explain`."""
        call = self._choose(*args, **kwargs)
        return call.operator.explain(*call.args, arch=arch, **call.kwargs)

    def __repr__(self) -> str:
        return f"<forge function {self.__module__}.{self.__qualname__}>"


def composite(*operators: Operator) -> Callable[[Callable[..., Any]], Composite]:
    """Declares a public function over some operators; decorates the function that returns its :class:`Call`."""
    return lambda choose: Composite(choose, operators)


def _run(call: Call) -> Any:
    found: Any = call.operator(*call.args, **call.kwargs)
    return found if call.results is None else found[call.results]


def _repeat(
    call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[tuple[Any, ...], dict[str, Any]], Any] | None:
    """A function that runs calls like this one, and returns NOT_SERVED for others.

    None unless it is a call on plain CPU tensors, each given once, of which nothing is recorded.
    """
    values, table = (*args, *kwargs.values()), call.operator.table
    given, passed = tensors_of(values), tensors_of(call.args)
    if not (call.results is None and table.ambient is None and table.no_backend_override() and guard.quiet()):
        return None
    identities = {*map(id, given)}
    if len(identities) < len(given) or identities != {*map(id, passed)}:
        return None
    if not all(guard.plain_cpu(t) and not t.requires_grad for t in given):
        return None
    names, serve = table.referring(call.args, call.kwargs)
    order = [*map(id, values)]
    places = [(name, order.index(id(t))) for name, t in zip(names, passed, strict=True)]
    tests = [_like_tensor(v) if isinstance(v, torch.Tensor) else _like_value(v) for v in values]
    count, keywords = len(args), tuple(kwargs)

    def again(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(args) != count or tuple(kwargs) != keywords or not settings.untouched():
            return NOT_SERVED
        values = (*args, *kwargs.values()) if kwargs else args
        if not all(map(operator.call, tests, values)):
            return NOT_SERVED
        if guard.dispatch_modes() or guard.function_modes() or forward_ad._current_level >= 0:
            return NOT_SERVED
        return serve(**{name: values[i] for name, i in places})

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
