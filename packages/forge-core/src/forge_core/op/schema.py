"""What Forge reads from an operator's schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from forge_core import checks
from forge_core.errors import ArgumentError

__all__ = ["Schema"]


# What torch calls the types whose values can be checked by Python's own.
_SIMPLE: dict[str, type] = {"int": int, "str": str, "bool": bool}
_LISTS = {"List[int]": False, "Optional[List[int]]": True}


@dataclass(frozen=True)
class Schema:
    """A functional operator's schema, taken apart.

    Attributes:
        text: the whole, for example ``"forge_week0::transpose(Tensor x, *, str variant='auto') -> Tensor"``.
        namespace: ``"forge_week0"``.
        name: ``"transpose"``.
        parameters: names in order.
        positional: how many of them may be passed by position.
        defaults: the default of each parameter that has one.
        tensors: names of the tensor parameters.
        simple: the Python type of each parameter that is an int, a str or a bool.
        lists: the parameters that are an int or several, each with whether None is taken too.
    """

    text: str
    namespace: str
    name: str
    parameters: tuple[str, ...]
    positional: int
    defaults: dict[str, Any]
    tensors: tuple[str, ...]
    simple: dict[str, type]
    lists: dict[str, bool]

    @classmethod
    def parse(cls, text: str) -> Schema:
        """Takes a schema apart.

        Raises:
            ValueError: it has no namespace, its first parameter is not a tensor, or it mutates an argument.
        """
        parsed = torch._C.parse_schema(text)
        namespace, _, name = parsed.name.partition("::")
        if not name:
            raise ValueError(f"operator schema: expected 'namespace::name(...) -> ...', got {text!r}")
        if parsed.is_mutable:
            raise ValueError(f"operator schema: expected a functional one; the out form is derived, got {text!r}")
        arguments = parsed.arguments
        if not arguments or str(arguments[0].type) != "Tensor":
            raise ValueError(f"operator schema: expected a tensor as the first parameter, got {text!r}")
        return cls(
            text=text,
            namespace=namespace,
            name=name,
            parameters=tuple(a.name for a in arguments),
            positional=sum(not a.kwarg_only for a in arguments),
            defaults={a.name: a.default_value for a in arguments if a.has_default_value()},
            tensors=tuple(a.name for a in arguments if str(a.type) == "Tensor"),
            simple={a.name: _SIMPLE[str(a.type)] for a in arguments if str(a.type) in _SIMPLE},
            lists={a.name: _LISTS[str(a.type)] for a in arguments if str(a.type) in _LISTS},
        )

    @property
    def qualified(self) -> str:
        """``"namespace::name"``."""
        return f"{self.namespace}::{self.name}"

    def definition(self) -> str:
        """The schema without its namespace, as ``Library.define`` takes it."""
        return self.text.partition("::")[2]

    def out_definition(self) -> str:
        """The schema of the out form: the same call with a keyword ``out`` that is written; it returns nothing.

        An operator that returned ``out`` would return an alias of its argument, which ``torch.compile`` cannot
        functionalise.
        """
        head, _, rest = self.definition().partition("(")
        arguments = rest.rpartition(") ->")[0]
        star = "" if self.positional < len(self.parameters) else "*, "
        return f"{head}_out({arguments}, {star}Tensor(a!) out) -> ()"

    def check(self, op: str, named: dict[str, Any]) -> None:
        """Raises ArgumentError for a tensor, an int, a str, a bool or a list of ints that is something else.

        The dispatcher checks too, and says so as a RuntimeError about a schema that the caller has never seen.
        """
        for name in self.tensors:
            checks.is_tensor(op, name, named[name])
        for name, kind in self.simple.items():
            value = named[name]
            if not (_is_int(value) if kind is int else isinstance(value, kind)):
                raise ArgumentError(
                    op=op, argument=name, expected=f"an argument of type {kind.__name__}", got=repr(value)
                )

        for name, optional in self.lists.items():
            value = named[name]
            several = isinstance(value, (list, tuple)) and all(map(_is_int, value))
            if not (several or _is_int(value) or (optional and value is None)):
                expected = "an int or a tuple of ints" + (", or None" if optional else "")
                raise ArgumentError(op=op, argument=name, expected=expected, got=repr(value))

    def with_lists(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same call with a list of one where a parameter takes an int or several and got an int.

        A graph of symbolic shapes holds a caller's ``dim`` as a symbol; the dispatcher takes it in a list only.
        """
        if not self.lists:
            return args, kwargs
        named = zip(self.parameters, args, strict=False)
        listed = tuple([_listed(value) if name in self.lists else value for name, value in named])
        by_name = {name: _listed(value) if name in self.lists else value for name, value in kwargs.items()}
        return (*listed, *args[len(listed) :]), by_name

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Names every argument of a call, defaults filled in.

        Raises:
            TypeError: as a Python function of this signature would.
        """
        if len(args) > self.positional:
            raise TypeError(f"{self.name}() takes {self.positional} positional arguments but {len(args)} were given")
        bound = dict(zip(self.parameters, args, strict=False))
        for name, value in kwargs.items():
            if name not in self.parameters:
                raise TypeError(f"{self.name}() got an unexpected keyword argument '{name}'")
            if name in bound:
                raise TypeError(f"{self.name}() got multiple values for argument '{name}'")
            bound[name] = value
        for name in self.parameters:
            if name not in bound:
                if name not in self.defaults:
                    raise TypeError(f"{self.name}() missing required argument: '{name}'")
                bound[name] = self.defaults[name]
        return {name: bound[name] for name in self.parameters}


def _listed(value: Any) -> Any:
    return [value] if _is_int(value) else value


def _is_int(value: object) -> bool:
    """Whether it is an integer, a symbolic one of a traced graph among them; True is none."""
    return isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)
