"""Public functions over several operators.

call --- plain tensors like those of a call before, no mode or transform --- the operator's launch or reference
  `----- anything else --- the chosen operator
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from torch.compiler import is_dynamo_compiling
from torch.overrides import handle_torch_function, has_torch_function

from forge_core.op.declaration import Operator
from forge_core.op.plan import Explanation
from forge_core.op.repeat import NOT_SERVED, GuardedCalls
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
        self._guarded = GuardedCalls()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the chosen operator; its arguments are those of the decorated function."""
        if is_dynamo_compiling():
            return _run(self._call(args, kwargs))
        found = self._guarded.serve(args, kwargs)
        if found is not NOT_SERVED:
            return found
        everything = (*args, *kwargs.values())
        if has_torch_function(everything):
            return handle_torch_function(self, everything, *args, **kwargs)
        call = self._call(args, kwargs)
        found = _run(call)
        if self._guarded.due(args):
            passed, named = call.operator.schema.normalize(call.args, call.kwargs)
            self._guarded.guard(args, kwargs, call.operator.repeatable(passed, named), passed, call.results)
        return found

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """The chosen call; ``input`` is PyTorch's name of the first parameter."""
        if "input" in kwargs and not args:
            others = {name: value for name, value in kwargs.items() if name != "input"}
            return self._choose(kwargs["input"], **others)
        return self._choose(*args, **kwargs)

    def variants(self) -> dict[str, str]:
        """The operators' kernels as name -> idea, in the order of their declaration."""
        return {name: idea for each in self._operators for name, idea in each.variants().items()}

    def explain(self, *args: Any, arch: str | None = None, **kwargs: Any) -> Explanation:
        """Explains what a call would run, without running it: see :meth:`forge_core.op.Operator.explain`."""
        call = self._call(args, kwargs)
        return call.operator.explain(*call.args, arch=arch, **call.kwargs)

    def __repr__(self) -> str:
        return f"<forge function {self.__module__}.{self.__qualname__}>"


def composite(*operators: Operator) -> Callable[[Callable[..., Any]], Composite]:
    """Declares a public function over some operators; decorates the function that returns its :class:`Call`."""
    return lambda choose: Composite(choose, operators)


def _run(call: Call) -> Any:
    found: Any = call.operator(*call.args, **call.kwargs)
    return found if call.results is None else found[call.results]
