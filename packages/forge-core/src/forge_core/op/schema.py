"""An operator's schema: parsing, and binding, normalizing and checking the arguments of a call.

PyTorch accepts ints and dtypes in several forms, which are normalized for the key of a launch:

    argument                                                    normalized
    numpy.int64(1), torch.tensor(1), anything with __index__    1
    numpy.float32(1), torch.tensor(1.0), other real numbers     1.0, for a float
    float, int, bool (the Python types)                         torch.float64, torch.int64, torch.bool
"""

from __future__ import annotations

import numbers
import operator
from typing import Any

import torch

from forge_core import checks
from forge_core.errors import ArgumentTypeError

# Type of a parameter -> how errors describe it, and the Python types that are accepted as they are.  Keys are the
# parser's ``real_type``; its ``type`` of a dtype is int.
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
# Alternative parameter names that PyTorch accepts, NumPy's included.
_ALIASES = {"x": ("input", "a"), "input": ("x", "a"), "dim": ("axis",), "keepdim": ("keepdims",)}
#: Exact types of normalized arguments.
BY_VALUE = frozenset({int, bool, float, str, type(None), torch.dtype})
INTS = frozenset({int})
_NORMAL = BY_VALUE | {torch.SymInt}


class Schema:
    """A functional schema, parsed.

    Args:
        text: the schema, for example ``"forge_week0::transpose(Tensor x, *, str variant='auto') -> Tensor"``.

    Raises:
        ValueError: the schema has no namespace or mutates an argument, its first parameter is not a tensor, or one of
            several results is not a named tensor.
    """

    def __init__(self, text: str) -> None:
        parsed = torch._C.parse_schema(text)
        self.text, self.qualified = text, parsed.name
        self.namespace, _, self.name = parsed.name.partition("::")
        if not self.name:
            raise ValueError(f"operator schema: expected 'namespace::name(...) -> ...', got {text!r}")
        if parsed.is_mutable:
            raise ValueError(f"operator schema: expected a functional one; the out form is derived, got {text!r}")
        arguments = parsed.arguments
        if not arguments or str(arguments[0].type) != "Tensor":
            raise ValueError(f"operator schema: expected a tensor as the first parameter, got {text!r}")
        #: Names of the results of an operator with several; otherwise empty.
        self.results = tuple(r.name for r in parsed.returns) if len(parsed.returns) > 1 else ()
        if not all(self.results) or {str(r.type) for r in parsed.returns} != {"Tensor"}:
            raise ValueError(f"operator schema: expected a tensor, or several with names, as results, got {text!r}")
        #: Parameter names in order, and how many of them may be passed by position.
        self.parameters = tuple(a.name for a in arguments)
        self.positional = sum(not a.kwarg_only for a in arguments)
        self.defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}
        #: Names of the tensor parameters, and of those that may be None (``Tensor?``).
        self.tensors = tuple(a.name for a in arguments if str(a.type) in ("Tensor", "Optional[Tensor]"))
        self.optional = frozenset(a.name for a in arguments if str(a.type) == "Optional[Tensor]")
        #: Number of leading parameters that includes all tensors.
        self.leading = 1 + max(self.parameters.index(name) for name in self.tensors)
        #: Name of a non-tensor parameter -> its type, as PyTorch's parser prints it.
        self.kinds = {a.name: str(a.real_type) for a in arguments if str(a.real_type) in _KINDS}
        aliases = {alias: name for name in self.parameters for alias in _ALIASES.get(name, ())}
        #: Alternative name of a parameter -> its name.
        self.aliases = {alias: name for alias, name in aliases.items() if alias not in self.parameters}

    def placed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the call with all tensors passed by position, or unchanged if a required one is missing."""
        kwargs = self._own_names(kwargs)
        given, placed = self.defaults | kwargs, self.parameters[len(args) : self.leading]
        if not given.keys() >= set(placed):
            return args, kwargs
        filled = (*args, *(given[name] for name in placed))
        return filled, {name: value for name, value in kwargs.items() if name not in placed}

    def definition(self) -> str:
        """The schema without its namespace, for ``Library.define``."""
        return self.text.partition("::")[2]

    def out_definition(self) -> str:
        """The schema of the out form: adds a mutable keyword ``out``, and returns nothing.

        Returning ``out`` would alias an argument, which ``torch.compile`` cannot functionalize.
        """
        head, _, rest = self.definition().partition("(")
        arguments = rest.rpartition(") ->")[0]
        star = "" if self.positional < len(self.parameters) else "*, "
        return f"{head}_out({arguments}, {star}Tensor(a!) out) -> ()"

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Returns all arguments of a call by name, including defaults.

        Raises:
            TypeError: the call does not match the signature.
        """
        if len(args) > self.positional:
            raise TypeError(f"{self.name}() takes {self.positional} positional arguments but {len(args)} were given")
        bound = dict(zip(self.parameters, args, strict=False))
        if kwargs:
            for name, value in self._own_names(kwargs).items():
                if name not in self.parameters:
                    way = f"; call {self.name}.out for a given output" if name == "out" and not self.results else ""
                    raise TypeError(f"{self.name}() got an unexpected keyword argument '{name}'{way}")
                if name in bound:
                    raise TypeError(f"{self.name}() got multiple values for argument '{name}'")
                bound[name] = value
        if len(args) == len(self.parameters):
            return bound
        bound = self.defaults | bound
        try:
            return {name: bound[name] for name in self.parameters}
        except KeyError as error:
            raise TypeError(f"{self.name}() missing required argument: {error}") from None

    def split(self, values: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the call whose arguments, in the schema's order, are these: keyword-only ones are passed by name."""
        keywords = zip(self.parameters[self.positional :], values[self.positional :], strict=True)
        return values[: self.positional], dict(keywords)

    def _own_names(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Replaces aliases by the parameters' names."""
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

        The dispatcher's own check raises a RuntimeError about a schema that the caller has never seen.
        """
        for name in self.tensors:
            if not isinstance(named[name], torch.Tensor) and not (named[name] is None and name in self.optional):
                checks.is_tensor(op, name, named[name])
        for name, kind in self.kinds.items():
            value = named[name]
            if type(value) not in _KINDS[kind][1] and not _takes(kind, value):
                raise ArgumentTypeError(op=op, argument=name, expected=_KINDS[kind][0], got=repr(value))

    def normalize(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the call with aliases resolved, and ints and dtypes normalized; invalid values stay as they are."""
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
            return tuple([normal_int(one) for one in value])
        if kind == "float":
            return _normal_float(value)
        return normal_int(value) if "int" in kind else value

    def check_devices(self, named: dict[str, Any]) -> None:
        """Raises DeviceError unless all tensors of a call are on the device of the first."""
        first, *others = self.tensors
        for name in others:
            if named[name] is not None:
                checks.same_device(self.name, name, named[name], named[first].device)

    def traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the call for a compiled graph: an int passed as ``int[]`` becomes a list.

        Under dynamic shapes ``dim`` may be a symbol, which the dispatcher accepts in a list only.
        """
        kwargs = self._own_names(kwargs)
        # The dynamo of PyTorch 2.9 treats strict=False as True, and would not trace a call that omits an argument.
        pairs = zip(self.parameters, args)  # noqa: B905
        by_place = tuple([self._traced(name, value) for name, value in pairs])
        by_name = {name: self._traced(name, value) for name, value in kwargs.items()}
        return (*by_place, *args[len(by_place) :]), by_name

    def _traced(self, name: str, value: Any) -> Any:
        kind = self.kinds.get(name, "")
        if "ScalarType" in kind:
            return _normal_dtype(value)
        return [value] if "List" in kind and is_int(value) else value


def is_int(value: object) -> bool:
    """Whether it is an int or a SymInt, but not a bool."""
    return isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)


def _takes(kind: str, value: object) -> bool:
    """Whether a parameter of this type accepts the argument."""
    if "List" in kind and isinstance(value, (list, tuple)):
        return all(map(is_int, value))
    return is_int(value) if "int" in kind else isinstance(value, _KINDS[kind][1])


def _all_normal(values: tuple[Any, ...]) -> bool:
    """Whether non-tensor arguments are normalized, by their exact types."""
    for value in values:
        kind = type(value)
        if kind not in _NORMAL and not (kind in (tuple, list) and INTS.issuperset(map(type, value))):
            return False
    return True


def normal_int(value: Any) -> Any:
    """Converts integer types that PyTorch accepts to int; returns any other value unchanged."""
    if isinstance(value, (bool, torch.SymInt)) or not hasattr(value, "__index__"):
        return value
    if isinstance(value, torch.Tensor) and (value.dim() or value.dtype is torch.bool):
        return value
    try:
        return operator.index(value)
    except TypeError:  # a floating-point tensor has __index__ too
        return value


def _normal_float(value: Any) -> Any:
    """Converts real numbers that PyTorch accepts to float; returns any other value unchanged."""
    if isinstance(value, torch.Tensor):
        real = not (value.dim() or value.is_complex() or value.dtype is torch.bool or value.requires_grad)
    else:
        real = isinstance(value, numbers.Real) and not isinstance(value, (bool, int))
    return float(value) if real else value


def _normal_dtype(value: Any) -> Any:
    """Converts a Python type to its dtype; returns any other value unchanged.  Traced by dynamo."""
    if value is float:
        return torch.float64
    if value is int:
        return torch.int64
    return torch.bool if value is bool else value
