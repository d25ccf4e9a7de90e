"""Re-evaluation of a source expression without side effects, and comparison of its value with one in the process."""

from __future__ import annotations
import __future__

import ast
import builtins
import dataclasses
import functools
import logging
import math
import re
import struct
import types
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

__all__ = ["UnknownError", "evaluate", "is_same", "lookup"]

_PURE = {
    *(abs, divmod, len, max, min, pow, round, sorted, sum, chr, ord, zip, reversed, range, enumerate, slice),
    *(bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset, type, Path, PurePath),
    *(functools.partial, re.compile, logging.getLogger, dataclasses.field),
    *(value for value in vars(math).values() if callable(value)),
}
# Immutable types whose equal values are interchangeable.
_BY_EQUALITY = (
    *(bool, int, str, bytes, complex, range, slice, PurePath),
    *(re.Pattern, types.GenericAlias, types.UnionType),
)
# Everything that decides what a call does; neither the file nor the line numbers.
_ATTRIBUTES: dict[type, tuple[str, ...]] = {
    types.FunctionType: ("__code__", "__defaults__", "__kwdefaults__"),
    functools.partial: ("func", "args", "keywords"),
    types.CodeType: (
        *("co_name", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_code", "co_exceptiontable"),
        *("co_names", "co_varnames", "co_freevars", "co_cellvars", "co_consts"),
    ),
}


class UnknownError(Exception):
    """An expression whose value is not known: it may have side effects, or its evaluation fails."""


def evaluate(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """The value of an expression in a namespace; raises UnknownError."""
    bodies = (inner.body for inner in ast.walk(node) if isinstance(inner, ast.Lambda))
    not_called = {call for body in bodies for call in ast.walk(body)}
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and call not in not_called and not _is_pure(lookup(call.func, names)):
            raise UnknownError
    try:
        return eval(compile(ast.Expression(node), "<expression>", "eval", dont_inherit=True), dict(names))  # noqa: S307
    except Exception as error:
        raise UnknownError from error


def lookup(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """The object that a dotted name, or a method of a string literal, refers to; None if there is none."""
    match node:
        case ast.Name(id=name):
            return names.get(name, getattr(builtins, name, None))
        case ast.Constant(value=str() as text):
            return text
        case ast.Attribute(value=value, attr=name):
            return getattr(lookup(value, names), name, None)
    return None


def _is_pure(called: Any) -> bool:
    if isinstance(called, type) and dataclasses.is_dataclass(called):
        return bool(called.__dataclass_params__.frozen)  # type: ignore[attr-defined]  # what is_dataclass looks for
    if isinstance(getattr(called, "__self__", None), str):
        return True
    return isinstance(called, (type, types.BuiltinFunctionType, types.FunctionType)) and called in _PURE


def is_same(value: Any, expected: Any) -> bool:
    """Whether two values are interchangeable, including the types of their elements; False where that is not known."""
    if value is expected:
        return True
    if type(value) is not type(expected):
        return False
    match value:
        case float():  # -0.0 and 0.0 differ, and a NaN is itself
            return struct.pack("d", value) == struct.pack("d", expected)
        case tuple() | list():
            return len(value) == len(expected) and all(map(is_same, value, expected))
        case dict():  # in order: a loop over it is traced in order
            return is_same(list(value.items()), list(expected.items()))
        case set() | frozenset():
            return len(value) == len(expected) and all(any(is_same(a, b) for b in expected) for a in value)
    if isinstance(value, _BY_EQUALITY) or type(value).__module__ == "typing":
        return bool(value == expected)
    if isinstance(value, types.CodeType):
        # `from __future__ import annotations` marks the functions of a file but not an expression compiled by itself.
        ignored = ~__future__.annotations.compiler_flag
        if value.co_flags & ignored != expected.co_flags & ignored:
            return False
    fields = tuple(field.name for field in dataclasses.fields(value)) if dataclasses.is_dataclass(value) else ()
    compared = _ATTRIBUTES.get(type(value), fields)
    return bool(compared) and all(is_same(getattr(value, name), getattr(expected, name)) for name in compared)
