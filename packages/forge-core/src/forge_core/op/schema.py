"""An operator's schema: what Forge reads from it, and binding, normalizing and checking the arguments of a call.

PyTorch lets ints and dtypes be written in several ways, which are normalized to one:

    as written                                                  normalized
    numpy.int64(1), torch.tensor(1), anything with __index__    1
    float, int, bool (Python's types)                           torch.float64, torch.int64, torch.bool

A number that is not normalized must not be part of a launch's key, where a tensor stands for its layout, not its value.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from typing import Any

import torch

from forge_core import checks
from forge_core.errors import ArgumentTypeError

__all__ = ["Schema"]

# By type of a parameter: what is expected, and exact Python types of arguments that need no further check.  A dtype is
# an int to the parser's ``type``, and itself to its ``real_type`` only.
_KINDS: dict[str, tuple[str, tuple[type, ...]]] = {
    "int": ("an argument of type int", (int,)),
    "str": ("an argument of type str", (str,)),
    "bool": ("an argument of type bool", (bool,)),
    "float": ("an argument of type float", (float, int)),
    "List[int]": ("an int or a tuple of ints", (int,)),
    "Optional[List[int]]": ("an int or a tuple of ints, or None", (int, type(None))),
    "ScalarType": ("a torch.dtype", (torch.dtype,)),
    "Optional[ScalarType]": ("a torch.dtype, or None", (torch.dtype, type(None))),
}
# Other names that PyTorch takes for its parameters, NumPy's among them.
_ALIASES = {"x": ("input", "a"), "input": ("x", "a"), "dim": ("axis",), "keepdim": ("keepdims",)}
_NORMAL = frozenset({int, bool, str, type(None), torch.dtype, torch.SymInt})
_INTS = frozenset({int})


@dataclass(frozen=True)
class Schema:
    """A functional operator's schema, parsed.

    Attributes:
        text: the whole, for example ``"forge_week0::transpose(Tensor x, *, str variant='auto') -> Tensor"``.
        namespace: ``"forge_week0"``.
        name: ``"transpose"``.
        parameters: names in order.
        positional: how many of them may be passed by position.
        defaults: the default of each parameter that has one.
        tensors: names of the tensor parameters, optional ones (``Tensor?``) among them.
        optional: names of those that may be None.
        results: names of the results, where there are several; else empty.
        kinds: the type of each other parameter, as PyTorch's parser names it.
        aliases: other names that a caller may use, as of PyTorch's functions, each with the parameter it stands for.
    """

    text: str
    namespace: str
    name: str
    parameters: tuple[str, ...]
    positional: int
    defaults: dict[str, Any]
    tensors: tuple[str, ...]
    optional: frozenset[str]
    results: tuple[str, ...]
    kinds: dict[str, str]
    aliases: dict[str, str]

    @classmethod
    def parse(cls, text: str) -> Schema:
        """Parses a schema.

        Raises:
            ValueError: it has no namespace, its first parameter is not a tensor, it mutates an argument, or one of
                several results is no tensor with a name.
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
        results = tuple(r.name for r in parsed.returns) if len(parsed.returns) > 1 else ()
        if not all(results) or {str(r.type) for r in parsed.returns} != {"Tensor"}:
            raise ValueError(f"operator schema: expected a tensor, or several with names, as results, got {text!r}")
        aliases = {alias: name for name in names for alias in _ALIASES.get(name, ())}
        return cls(
            text=text,
            namespace=namespace,
            name=name,
            parameters=names,
            positional=sum(not a.kwarg_only for a in arguments),
            defaults={a.name: a.default_value for a in arguments if a.has_default_value()},
            tensors=tuple(a.name for a in arguments if str(a.type) in ("Tensor", "Optional[Tensor]")),
            optional=frozenset(a.name for a in arguments if str(a.type) == "Optional[Tensor]"),
            results=results,
            kinds={a.name: str(a.real_type) for a in arguments if str(a.real_type) in _KINDS},
            aliases={alias: name for alias, name in aliases.items() if alias not in names},
        )

    @functools.cached_property
    def leading(self) -> int:
        """How many arguments a call must pass by position for all of its tensors to be among them."""
        return 1 + max(self.parameters.index(name) for name in self.tensors)

    def placed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same call with all tensors by position, if it names optional ones or leaves them out; else as it is."""
        kwargs, filled = self._own_names(kwargs) if kwargs else kwargs, list(args)
        for name in self.parameters[len(args) : self.leading]:
            if name not in kwargs and name not in self.defaults:
                return args, kwargs
            filled.append(kwargs.get(name, self.defaults.get(name)))
        placed = self.parameters[len(args) : self.leading]
        return tuple(filled), {name: value for name, value in kwargs.items() if name not in placed}

    @functools.cached_property
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

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Names every argument of a call, defaults filled in.

        Raises:
            TypeError: as a Python function of this signature would.
        """
        if len(args) > self.positional:
            raise TypeError(f"{self.name}() takes {self.positional} positional arguments but {len(args)} were given")
        given = dict(zip(self.parameters, args, strict=False))
        for name, value in (self._own_names(kwargs) if kwargs else kwargs).items():
            if name not in self.parameters:
                raise TypeError(f"{self.name}() got an unexpected keyword argument '{name}'")
            if name in given:
                raise TypeError(f"{self.name}() got multiple values for argument '{name}'")
            given[name] = value
        bound = {}
        for name in self.parameters:
            if name in given:
                bound[name] = given[name]
            elif name in self.defaults:
                bound[name] = self.defaults[name]
            else:
                raise TypeError(f"{self.name}() missing required argument: '{name}'")
        return bound

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

    def check(self, op: str, named: dict[str, Any]) -> None:
        """Raises ArgumentTypeError for an argument that is not of its parameter's type.

        The dispatcher checks too, and says so as a RuntimeError about a schema that the caller has never seen.
        """
        for name in self.tensors:
            if not isinstance(named[name], torch.Tensor) and not (named[name] is None and name in self.optional):
                checks.is_tensor(op, name, named[name])
        for name, kind in self.kinds.items():
            value, (expected, exact) = named[name], _KINDS[kind]
            if type(value) not in exact and not _takes(kind, value):
                raise ArgumentTypeError(op=op, argument=name, expected=expected, got=repr(value))

    def normalize(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same call by the parameters' own names, with normalized ints and dtypes.

        What is neither an int nor a dtype is left to be refused.
        """
        if kwargs:
            kwargs = self._own_names(kwargs)
        if _all_normal(args[self.leading :]) and (not kwargs or _all_normal(tuple(kwargs.values()))):
            return args, kwargs
        by_place = tuple([self._normal(name, value) for name, value in zip(self.parameters, args, strict=False)])
        by_name = {name: self._normal(name, value) for name, value in kwargs.items()}
        return (*by_place, *args[len(by_place) :]), by_name

    def _normal(self, name: str, value: Any) -> Any:
        kind = self.kinds.get(name, "")
        if "ScalarType" in kind:
            return _normal_dtype(value)
        if "List" in kind and isinstance(value, (list, tuple)):
            return tuple([_normal_int(one) for one in value])
        return _normal_int(value) if "int" in kind else value

    def traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same call as a graph can hold it: a list of one where a parameter takes several ints and got one.

        A graph of symbolic shapes holds a caller's ``dim`` as a symbol; the dispatcher takes it in a list only.
        """
        kwargs = self._own_names(kwargs)
        # dynamo of PyTorch 2.9 takes strict=False for True: a call that leaves out an argument would not be traced.
        pairs = zip(self.parameters, args)  # noqa: B905
        by_place = tuple([self._traced(name, value) for name, value in pairs])
        by_name = {name: self._traced(name, value) for name, value in kwargs.items()}
        return (*by_place, *args[len(by_place) :]), by_name

    def _traced(self, name: str, value: Any) -> Any:
        kind = self.kinds.get(name, "")
        if "ScalarType" in kind:
            return _normal_dtype(value)
        return [value] if "List" in kind and _is_int(value) else value


def _is_int(value: object) -> bool:
    """Whether it is an integer, a symbolic one of a traced graph among them; True is none."""
    return isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)


def _takes(kind: str, value: object) -> bool:
    """Whether a parameter of a type takes an argument."""
    if "List" in kind and isinstance(value, (list, tuple)):
        return all(map(_is_int, value))
    return _is_int(value) if "int" in kind else isinstance(value, _KINDS[kind][1])


def _all_normal(values: tuple[Any, ...]) -> bool:
    """Whether arguments that are no tensors are normalized, by their exact types."""
    for value in values:
        kind = type(value)
        if kind not in _NORMAL and not (kind in (tuple, list) and _INTS.issuperset(map(type, value))):
            return False
    return True


def _normal_int(value: Any) -> Any:
    """The int that an integer of another kind stands for, as PyTorch takes it; anything else as it is."""
    if isinstance(value, (bool, torch.SymInt)) or not hasattr(value, "__index__"):
        return value
    if isinstance(value, torch.Tensor) and (value.dim() or value.dtype is torch.bool):
        return value
    try:
        return operator.index(value)
    except TypeError:  # a number with a fraction: a tensor of one has the method all the same
        return value


def _normal_dtype(value: Any) -> Any:
    """The dtype that a type of Python's stands for; anything else as it is.  Dynamo traces it."""
    if value is float:
        return torch.float64
    if value is int:
        return torch.int64
    return torch.bool if value is bool else value
