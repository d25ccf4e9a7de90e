"""Compares the imported modules of this process with their source files.

A kernel's key contains the source files, but the modules in memory are traced.  The two differ if a file was edited
after its import, or if a program replaced a function, a method, a constant or an imported name.  So before a kernel is
published, each imported module in its fingerprint is compared with its file, name by name:

    def         its code object and defaults, with those compiled from the file
    class       each attribute that its body binds, by these rules; added methods
    import      identity with the object in the module that it comes from
    constant    the value of its expression, if that calls nothing but built-in types, a few functions, and math

Nothing is imported; expressions of constants are evaluated, no statement is executed.  docs/cache.md lists what is
not detected.
"""

from __future__ import annotations

import ast
import enum
import functools
import importlib.util
import math
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge_core.cache.key import same
from forge_core.cache.sources import Sources

# What the expression of a constant may call: no side effects, and results that are compared by value.
_PURE = [len, min, max, sum, sorted, round, abs, range, *filter(callable, vars(math).values())]
_PURE += [bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset]
# The packages whose class decorators and metaclasses add methods to a class.
_GENERATORS = {"abc", "collections", "dataclasses", "enum", "functools", "reprlib", "typing"}

_Definitions = Mapping[str, list[ast.AST | None]]


class _DiffersError(Exception):
    """A name differs from the source; the text says which."""


def difference(sources: Sources) -> str | None:
    """The first difference between the imported modules of a fingerprint and its files, for a message, or None.

    Args:
        sources: a fingerprint whose files have not changed since it was taken.
    """
    states = {path: (changed, size) for path, changed, size in sources.files}
    for name, digest in sources.pairs:
        module = sys.modules.get(name)
        if module is None or len(digest) != 64:  # not imported, or not in the key by its source
            continue
        path = getattr(module, "__file__", None)
        if path not in states:
            return f"{name} was imported from {path}, which is not the file in its key"
        try:
            _Comparison(module, *_compiled(path, *states[path])).check()
        except _DiffersError as error:
            return f"{name}.{error}"
        except Exception as error:  # noqa: BLE001 - the objects of a module may raise anything
            return f"{name} cannot be compared with its source: {type(error).__name__}: {error}"
    return None


@functools.lru_cache(maxsize=1024)
def _compiled(path: str, changed: int, size: int) -> tuple[ast.Module, frozenset[types.CodeType]]:
    """The syntax tree of a file, and the code objects of its functions."""
    text = Path(path).read_bytes()
    waiting, codes = [compile(text, path, "exec", dont_inherit=True)], set[types.CodeType]()
    while waiting:
        inner = [value for value in waiting.pop().co_consts if isinstance(value, types.CodeType)]
        codes |= set(inner)
        waiting += inner
    return ast.parse(text), frozenset(codes)


def _definitions(body: Iterable[ast.AST], owner: str = "") -> _Definitions:
    """The statements or expressions that may bind each name of a module or class; None for one that is not compared."""
    found: dict[str, list[ast.AST | None]] = {}
    for name, node in _bindings(body):
        mangled = f"_{owner.lstrip('_')}{name}" if owner and name.startswith("__") and name[-2:] != "__" else name
        found.setdefault(mangled, []).append(node)
    return found


def _bindings(body: Iterable[ast.AST]) -> Iterator[tuple[str, ast.AST | None]]:
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node
            case ast.Import(names=aliases):
                for alias in aliases:
                    yield alias.asname or alias.name.partition(".")[0], ast.Import([alias])
            case ast.ImportFrom(names=aliases):
                for alias in aliases:
                    yield alias.asname or alias.name, ast.ImportFrom(node.module, [alias], node.level)
            case ast.Assign(targets=[ast.Name(id=name)], value=value) | ast.AnnAssign(ast.Name(id=name), value=value):
                if value is not None:
                    yield name, value
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                yield from _bindings(ast.Assign([each], part) for each, part in zip(targets, values, strict=False))
            case ast.If() | ast.Try() | ast.ExceptHandler():
                yield from _bindings(ast.iter_child_nodes(node))
            case ast.stmt():
                for inner in ast.walk(node):
                    if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                        yield inner.id, None


@dataclass(frozen=True)
class _Comparison:
    """One module and its compiled source."""

    module: types.ModuleType
    tree: ast.Module
    codes: frozenset[types.CodeType]

    def check(self) -> None:
        """Raises _DiffersError for the first name that differs."""
        names = vars(self.module)
        found = _definitions(self.tree.body)
        for name, value in names.items():
            if name in found:
                self._check_name(name, found[name], value, names)
            elif not name.startswith("__") and value is not sys.modules.get(f"{self.module.__name__}.{name}", _UNKNOWN):
                raise _DiffersError(f"{name} is not defined in its source")

    def _check_name(self, path: str, nodes: list[ast.AST | None], value: Any, names: Mapping[str, Any]) -> None:
        """Raises _DiffersError unless a value is one that the source may bind to its name."""
        differs = _DiffersError(f"{path} differs from its source")
        for node in nodes:
            try:
                if self._agrees(path, node, value, names):
                    return
            except _DiffersError as error:  # of an attribute of a class
                differs = error
        raise differs

    def _agrees(self, path: str, node: ast.AST | None, value: Any, names: Mapping[str, Any]) -> bool:
        match node:
            case ast.Import(names=[alias]):
                return value is sys.modules.get(alias.name if alias.asname else alias.name.partition(".")[0])
            case ast.ImportFrom(names=[alias]):
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), self.module.__package__)
                # The package may bind another object to the name of a submodule.
                found = getattr(sys.modules.get(base), alias.name, None), sys.modules.get(f"{base}.{alias.name}")
                return any(same(value, each) for each in found)
            case ast.ClassDef():
                return self._is_class(path, node, value, names)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                return self._is_function(path, node, value, names)
            case ast.Lambda():
                return isinstance(value, types.FunctionType) and value.__code__ in self.codes
            case ast.expr():
                return _evaluates_to(node, value, names)
        return True

    def _is_class(self, path: str, node: ast.ClassDef, value: Any, names: Mapping[str, Any]) -> bool:
        if not isinstance(value, type) or (value.__module__, value.__qualname__) != (self.module.__name__, path):
            return False
        found = _definitions(node.body, value.__name__)
        inside = {**names, **vars(value)}
        for name, each in vars(value).items():
            if type(each) in (types.MemberDescriptorType, enum.property, value):  # slots; members of an enum
                continue
            if name in found:
                self._check_name(f"{path}.{name}", found[name], each, inside)
            elif _is_added(each):
                raise _DiffersError(f"{path}.{name} is not defined in its source")
        return True

    def _is_function(
        self, path: str, node: ast.FunctionDef | ast.AsyncFunctionDef, value: Any, names: Mapping[str, Any]
    ) -> bool:
        """Whether a value is a function of the source, possibly wrapped by the decorators in the source."""
        if isinstance(value, property):
            parts = (value.fget, value.fset, value.fdel)
            return all(self._is_function(path, node, part, names) for part in parts if part is not None)
        decorators = [_evaluate(d.func if isinstance(d, ast.Call) else d, names) for d in node.decorator_list]
        makers = {"builtins", *map(_package, decorators)}
        own = sum(getattr(each, "__code__", None) in self.codes for each in decorators)
        while not (isinstance(value, types.FunctionType) and self._is_code(path, _original_code(value))):
            if value is None or _package(value) not in makers:
                return False
            own -= getattr(value, "__code__", None) in self.codes
            if own < 0:  # wrapped by the module's own decorators more often than in the source
                return False
            value = value.func if isinstance(value, functools.cached_property) else getattr(value, "__wrapped__", None)
        by_name = [(a.arg, d) for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if d]
        keywords = ast.Dict([ast.Constant(name) for name, _ in by_name], [default for _, default in by_name])
        positional = ast.Tuple(node.args.defaults, ast.Load())
        return _evaluates_to(positional, value.__defaults__ or (), names) and _evaluates_to(
            keywords, value.__kwdefaults__ or {}, names
        )

    def _is_code(self, path: str, code: types.CodeType) -> bool:
        """Whether code is that of the source at this name; not that of a decorator, which may be of the same module."""
        return code in self.codes and code.co_qualname == path


def _is_added(attribute: Any) -> bool:
    """Whether an attribute is a function not generated by Python or by a decorator of the standard library."""
    function = getattr(attribute, "__func__", attribute)
    code = getattr(function, "__code__", None)
    is_code = code is not None and code.co_filename != "<string>" and _package(function) not in _GENERATORS
    return is_code or isinstance(attribute, property)


def _original_code(function: types.FunctionType) -> types.CodeType:
    """The code that a function was defined with; the DSL replaces it when it traces the function."""
    code = function.__code__
    original: types.CodeType = getattr(function, "_original_code", code)
    return original if (code.co_filename, code.co_name) == (original.co_filename, original.co_name) else code


def _package(value: Any) -> str:
    """The top-level package of a function, a class, or the class of another value."""
    if isinstance(value, (types.FunctionType, types.MethodType)):
        module = getattr(value, "__globals__", {}).get("__name__")  # not __module__, which functools.wraps copies
    else:
        module = (value if isinstance(value, type) else type(value)).__module__
    return str(module).partition(".")[0]


# ------------------------------------------------------------------------------------------------------- constants

_UNKNOWN = object()


def _evaluates_to(node: ast.expr, value: Any, names: Mapping[str, Any]) -> bool:
    """Whether a value is that of an expression; also if the expression's value is not known."""
    expected = _evaluate(node, names)
    return expected is _UNKNOWN or same(value, expected)


def _evaluate(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """The value of an expression, or _UNKNOWN if it calls something that may have side effects.

    Errors of the evaluation are raised: a constant that can no longer be computed differs from its source.
    """
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            try:
                called = _evaluate(call.func, names)
            except NameError:  # a variable of a comprehension
                return _UNKNOWN
            if not any(called is each for each in _PURE):
                return _UNKNOWN
    expression = ast.fix_missing_locations(ast.Expression(node))
    return eval(compile(expression, "<expression>", "eval", dont_inherit=True), dict(names))  # noqa: S307
