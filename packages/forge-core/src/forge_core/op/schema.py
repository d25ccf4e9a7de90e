"""What Forge reads from an operator's schema."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch

from forge_core import checks
from forge_core.errors import ArgumentTypeError
from forge_core.op import written

__all__ = ["Schema"]


# What torch calls the types whose values can be checked by Python's own.
_SIMPLE: dict[str, type] = {"int": int, "str": str, "bool": bool, "float": float}
_LISTS = {"List[int]": False, "Optional[List[int]]": True}
# Other names that PyTorch takes for its parameters, NumPy's among them.
_ALIASES = {"x": ("input", "a"), "input": ("x", "a"), "dim": ("axis",), "keepdim": ("keepdims",)}
# A dtype is an int to the parser's ``type``, and itself to its ``real_type`` only.
_DTYPES = {"ScalarType": False, "Optional[ScalarType]": True}


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
        simple: the Python type of each parameter that is an int, a str, a bool or a float.
        lists: the parameters that are an int or several, each with whether None is taken too.
        dtypes: the parameters that are a dtype, each with whether None is taken too.
        aliases: other names that a caller may use, as of PyTorch's functions, each with the parameter it stands for.
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
    dtypes: dict[str, bool]
    aliases: dict[str, str]

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
        names = tuple(a.name for a in arguments)
        aliases = {alias: name for name in names for alias in _ALIASES.get(name, ())}
        return cls(
            text=text,
            namespace=namespace,
            name=name,
            parameters=names,
            positional=sum(not a.kwarg_only for a in arguments),
            defaults={a.name: a.default_value for a in arguments if a.has_default_value()},
            tensors=tuple(a.name for a in arguments if str(a.type) == "Tensor"),
            simple={a.name: _SIMPLE[str(a.real_type)] for a in arguments if str(a.real_type) in _SIMPLE},
            lists={a.name: _LISTS[str(a.type)] for a in arguments if str(a.type) in _LISTS},
            dtypes={a.name: _DTYPES[str(a.real_type)] for a in arguments if str(a.real_type) in _DTYPES},
            aliases={alias: name for alias, name in aliases.items() if alias not in names},
        )

    @functools.cached_property
    def leading(self) -> int:
        """How many arguments a call must pass by position for all of its tensors to be among them."""
        return 1 + max(self.parameters.index(name) for name in self.tensors)

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
        """Raises ArgumentTypeError for an argument that is not of its parameter's type.

        The dispatcher checks too, and says so as a RuntimeError about a schema that the caller has never seen.
        """
        for name in self.tensors:
            checks.is_tensor(op, name, named[name])
        for name, kind in self.simple.items():
            value = named[name]
            number = kind is float and isinstance(value, int)
            if not (written.is_int(value) if kind is int else number or isinstance(value, kind)):
                raise ArgumentTypeError(
                    op=op, argument=name, expected=f"an argument of type {kind.__name__}", got=repr(value)
                )

        for name, optional in self.lists.items():
            value = named[name]
            several = isinstance(value, (list, tuple)) and all(map(written.is_int, value))
            if not (several or written.is_int(value) or (optional and value is None)):
                expected = "an int or a tuple of ints" + (", or None" if optional else "")
                raise ArgumentTypeError(op=op, argument=name, expected=expected, got=repr(value))

        for name, optional in self.dtypes.items():
            value = named[name]
            if not (isinstance(value, torch.dtype) or (optional and value is None)):
                expected = "a torch.dtype" + (", or None" if optional else "")
                raise ArgumentTypeError(op=op, argument=name, expected=expected, got=repr(value))

    def plain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same call with plain ints and dtypes: see ``written``; and with the parameters' own names.

        What is none of them is left to be refused.
        """
        kwargs = self._own_names(kwargs)
        if written.all_plain(args[self.leading :]) and (not kwargs or written.all_plain(tuple(kwargs.values()))):
            return args, kwargs
        by_place = tuple([self._plain(name, value) for name, value in zip(self.parameters, args, strict=False)])
        by_name = {name: self._plain(name, value) for name, value in kwargs.items()}
        return (*by_place, *args[len(by_place) :]), by_name

    def _own_names(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Arguments by the parameters' own names: see ``aliases``."""
        if not any(name in self.aliases for name in kwargs):
            return kwargs
        own: dict[str, Any] = {}
        for given, value in kwargs.items():
            name = self.aliases.get(given, given)
            if name in own:
                raise TypeError(f"{self.name}() got multiple values for argument '{name}'")
            own[name] = value
        return own

    def _plain(self, name: str, value: Any) -> Any:
        if name in self.lists and isinstance(value, (list, tuple)):
            return tuple([written.plain_int(one) for one in value])
        if name in self.lists or self.simple.get(name) is int:
            return written.plain_int(value)
        return written.plain_dtype(value) if name in self.dtypes else value

    def traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same call as a graph can hold it: a list of one where a parameter takes several ints and got one.

        A graph of symbolic shapes holds a caller's ``dim`` as a symbol; the dispatcher takes it in a list only.
        """
        kwargs = self._own_names(kwargs)
        if not (self.lists or self.dtypes):
            return args, kwargs
        # dynamo of PyTorch 2.9 takes strict=False for True: a call that leaves out an argument would not be traced.
        pairs = zip(self.parameters, args)  # noqa: B905
        by_place = tuple([self._traced(name, value) for name, value in pairs])
        by_name = {name: self._traced(name, value) for name, value in kwargs.items()}
        return (*by_place, *args[len(by_place) :]), by_name

    def _traced(self, name: str, value: Any) -> Any:
        if name in self.dtypes:
            return written.plain_dtype(value)
        return [value] if name in self.lists and written.is_int(value) else value

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Names every argument of a call, defaults filled in.

        Raises:
            TypeError: as a Python function of this signature would.
        """
        if len(args) > self.positional:
            raise TypeError(f"{self.name}() takes {self.positional} positional arguments but {len(args)} were given")
        bound = dict(zip(self.parameters, args, strict=False))
        for name, value in self._own_names(kwargs).items():
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
