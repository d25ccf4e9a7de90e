"""Whether the modules that this process has imported are what their source files say.

A key holds the sources on disk; what is traced is what the process holds.  The two differ where a file was edited after
its import, or a program replaced a global, a function, a method or an imported name.  Before a kernel is stored, each
module that its fingerprint follows is compared, name by name:

    function, method     the code object with the one compiled from the file, and the values of its defaults
    class                its bases and everything its body binds, likewise
    import               the object with the one in the module that it comes from
    other assignment     the value with that of the expression, evaluated again

An expression is evaluated only if all that it calls is known to have no effects.  A value that cannot be compared
counts as a difference if it can be called, or if code of the followed modules mentions its name.  Nothing is imported,
and no source is run.

Limits: packages that count by their version, ``forge_core.cache``, attributes of functions, and what a decorator does
apart from wrapping.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import dataclasses
import dis
import enum
import functools
import importlib.util
import logging
import math
import operator
import re
import struct
import sys
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from forge_core.cache.sources import Sources

__all__ = ["difference"]

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_SHA256 = re.compile("[0-9a-f]{64}")
# The ends of the names of instructions that look a name up in a module.
_LOOKUPS = ("_GLOBAL", "_GLOBALS", "_NAME")


class _UnknownError(Exception):
    """A value that cannot be evaluated again or compared."""


class _DiffersError(Exception):
    """A value that differs from the source; the text says which."""


@dataclass(frozen=True)
class _Bound:
    """What a source file binds a name to.

    Attributes:
        node: the definition, the import or the expression; None where only running the file would tell.
        imported: for an import, the alias.
        decorators: of a function, also those that are applied by ``name = decorator(name)``.
    """

    node: ast.AST | None
    imported: ast.alias | None = None
    decorators: tuple[ast.expr, ...] = ()


@dataclass(frozen=True)
class _File:
    """A source file, compiled and not run."""

    tree: ast.Module
    codes: dict[tuple[str, int], types.CodeType]  # of functions and classes, by name and first line
    loaded: frozenset[str]  # names that functions look up in their own module, and texts, which may be such names
    mentioned: frozenset[str]  # these, and names of attributes and in imports
    imported: frozenset[str]  # the parts of the names in imports, among others; "" for `from . import`


def difference(sources: Sources) -> str | None:
    """The first thing in which an imported module differs from its source, for a message; None where all agree.

    Args:
        sources: the fingerprint of what was traced, whose files have not changed since it was made.
    """
    states = {path: (changed, size) for path, changed, size in sources.files}
    found = []
    for name, digest in sources.pairs:
        module = sys.modules.get(name)
        if module is None or not _SHA256.fullmatch(digest):  # not imported, or by version
            continue
        path = getattr(module, "__file__", None)
        if path not in states:
            return f"{name} was imported from {path}, which is not the file in its key"
        try:
            found.append((module, _parsed(path, *states[path])))
        except (OSError, SyntaxError, ValueError) as error:
            return f"the source of {name} cannot be read: {error}"
    files = [file for _, file in found]
    for module, file in found:
        try:
            _Comparison(module, file, files).check()
        except _DiffersError as error:
            return f"{module.__name__}.{error}"
        except Exception as error:  # noqa: BLE001 - what an object answers to being compared is its own affair
            return f"{module.__name__} cannot be compared with its source: {type(error).__name__}: {error}"
    return None


@functools.lru_cache(maxsize=1024)
def _parsed(path: str, changed: int, size: int) -> _File:
    """A compiled file; ``changed`` and ``size`` make the memory forget what was rewritten."""
    text = Path(path).read_bytes()
    code = compile(text, path, "exec", dont_inherit=True)
    inner = list(_inner(code))
    steps = (step for each in inner for step in dis.get_instructions(each) if step.opname.endswith(_LOOKUPS))
    loaded = {str(step.argval) for step in steps}
    loaded |= {value for each in inner for value in each.co_consts if isinstance(value, str)}
    names = {name for each in (code, *inner) for name in each.co_names}
    imported = {part for name in names for part in name.split(".")}
    codes = {(each.co_name, each.co_firstlineno): each for each in inner}
    return _File(ast.parse(text), codes, frozenset(loaded), frozenset(loaded | names), frozenset(imported))


def _inner(code: types.CodeType) -> Iterator[types.CodeType]:
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            yield value
            yield from _inner(value)


# ------------------------------------------------------------------------------------------------ what a file binds


class _Bindings:
    """The names that a module or the body of a class binds.

    Args:
        body: the statements.
        test: the value of a condition, or None where it is not known.
    """

    def __init__(self, body: Iterable[ast.stmt], test: Callable[[ast.expr], bool | None]) -> None:
        self._test = test
        #: A name has several where it depends on a condition or an exception which of them was run.
        self.found: dict[str, list[_Bound]] = {}
        self._certain: set[str] = set()
        self._visit(body, certain=True)

    def missing(self, held: Collection[str]) -> Iterator[str]:
        """What is bound in any case, and is not there."""
        return (name for name in self.found if name in self._certain and name not in held)

    def _bind(self, name: str, bound: _Bound, *, certain: bool) -> None:
        if certain:
            self.found[name] = []
            self._certain.add(name)
        self.found.setdefault(name, []).append(bound)

    def _visit(self, body: Iterable[ast.stmt], *, certain: bool) -> None:
        for node in body:
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    # The parts of a property are definitions of one name.
                    parts = self.found.get(node.name, []) if _is_part_of_property(node) else []
                    self._bind(node.name, _Bound(node, decorators=tuple(node.decorator_list)), certain=certain)
                    self.found[node.name] += parts
                case ast.ClassDef():
                    self._bind(node.name, _Bound(node), certain=certain)
                case ast.Import() | ast.ImportFrom():
                    for alias in node.names:
                        whole = isinstance(node, ast.Import) and alias.asname is None
                        name = alias.name.partition(".")[0] if whole else alias.asname or alias.name
                        self._bind(name, _Bound(node, imported=alias), certain=certain and name != "*")
                case ast.Assign(targets=targets, value=value) if not any(isinstance(t, ast.Starred) for t in targets):
                    for target in targets:
                        self._assign(target, value, certain=certain)
                case ast.AnnAssign(target=target, value=value):
                    if value is not None:
                        self._assign(target, value, certain=certain)
                case ast.If(test=test):
                    known = self._test(test)
                    if known is not False:
                        self._visit(node.body, certain=certain and known is True)
                    if known is not True:
                        self._visit(node.orelse, certain=certain and known is False)
                case ast.Try():
                    for part in (node.body, *(handler.body for handler in node.handlers), node.orelse):
                        self._visit(part, certain=False)
                    self._visit(node.finalbody, certain=certain)
                case ast.Delete(targets=targets):
                    for target in targets:
                        if isinstance(target, ast.Name):
                            self.found.pop(target.id, None)
                case ast.Expr() | ast.Pass() | ast.Assert() | ast.Raise():
                    pass
                case _:  # a loop, `with`, `match`, `+=`: only running it would tell
                    for name in _stored(node):
                        self._bind(name, _Bound(None), certain=False)

    def _assign(self, target: ast.expr, value: ast.expr, *, certain: bool) -> None:
        match target:
            case ast.Name(id=name):
                before = self.found.get(name, [])
                match value:
                    case ast.Call(func=decorator, args=[ast.Name(id=same), *_]) if same == name and len(before) == 1:
                        bound = dataclasses.replace(before[0], decorators=(decorator, *before[0].decorators))
                    case _:
                        bound = _Bound(value)
                self._bind(name, bound, certain=certain)
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                match value:
                    case ast.Tuple(elts=values) | ast.List(elts=values) if len(values) == len(targets):
                        for each, part in zip(targets, values, strict=True):
                            self._assign(each, part, certain=certain)
                    case _:
                        for name in _stored(target):
                            self._bind(name, _Bound(None), certain=certain)
            case _:  # an attribute or an element of something else
                pass


def _is_part_of_property(node: _Function) -> bool:
    return any(isinstance(each, ast.Attribute) and each.attr in ("setter", "deleter") for each in node.decorator_list)


def _stored(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}


# --------------------------------------------------------------------------------------------- values and comparing

_LEAVES = (bool, int, str, bytes, complex, type(None), type(...))
# Equal ones behave alike.
_COMPARED = (range, slice, re.Pattern, types.GenericAlias, types.UnionType, PurePath)
_PURE = {
    *(abs, divmod, len, max, min, pow, round, sorted, sum, chr, ord, zip, reversed, range, enumerate, slice),
    *(bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset, type, Path, PurePath),
    *(value for value in vars(math).values() if callable(value)),
    *(value for value in vars(operator).values() if isinstance(value, types.BuiltinFunctionType)),
    functools.partial,
    re.compile,
    logging.getLogger,
    dataclasses.field,
}
_REFUSED = (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)
# What Python itself puts into a class.
_OF_CLASSES = frozenset({"_abc_impl", "_is_protocol", "_is_runtime_protocol"})
_WRAPPED_BY_PYTHON = frozenset({"__new__", "__init_subclass__", "__class_getitem__"})
_GENERATORS = frozenset({"abc", "dataclasses", "enum", "functools", "typing"})


def _evaluate(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """The value of an expression; raises _UnknownError where it could have effects or does not succeed."""
    # The body of a lambda is not run here.
    skipped = {inner for each in ast.walk(node) if isinstance(each, ast.Lambda) for inner in ast.walk(each.body)}
    for each in ast.walk(node):
        if isinstance(each, _REFUSED):
            raise _UnknownError
        if isinstance(each, ast.Call) and each not in skipped and not _is_pure(_looked_up(each.func, names)):
            raise _UnknownError
    try:
        return eval(compile(ast.Expression(node), "<expression>", "eval", dont_inherit=True), dict(names))  # noqa: S307
    except Exception as error:
        raise _UnknownError from error


def _looked_up(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """What a dotted name, or a method of a literal text, stands for."""
    match node:
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.Name(id=name):
            return getattr(builtins, name, None)
        case ast.Attribute(value=ast.Constant(value=str() as text), attr=name):
            return getattr(text, name, None)
        case ast.Attribute(value=value, attr=name):
            return getattr(_looked_up(value, names), name, None)
    return None


def _is_pure(called: Any) -> bool:
    if isinstance(called, type) and dataclasses.is_dataclass(called):
        return bool(called.__dataclass_params__.frozen)  # type: ignore[attr-defined]  # what is_dataclass looks for
    if isinstance(getattr(called, "__self__", None), str):
        return True
    return isinstance(called, (type, types.BuiltinFunctionType, types.FunctionType)) and called in _PURE


def _is_same(value: Any, expected: Any) -> bool:
    """Whether two values are alike, with the types of all that they hold; False where that cannot be said."""
    if value is expected:
        return True
    if type(value) is not type(expected):
        return False
    match value:
        case float():
            return struct.pack("d", value) == struct.pack("d", expected)
        case tuple() | list():
            return len(value) == len(expected) and all(map(_is_same, value, expected))
        case dict():  # in order: a loop over it is traced in order
            return _is_same(list(value.items()), list(expected.items()))
        case set() | frozenset():
            return len(value) == len(expected) and all(any(_is_same(a, b) for b in expected) for a in value)
        case types.CodeType():
            return _is_same_code(value, expected)
        case types.FunctionType():
            return all(
                _is_same(getattr(value, name), getattr(expected, name))
                for name in ("__code__", "__defaults__", "__kwdefaults__")
            )
        case functools.partial():
            return all(_is_same(getattr(value, name), getattr(expected, name)) for name in ("func", "args", "keywords"))
    if isinstance(value, (*_LEAVES, *_COMPARED)) or type(value).__module__ == "typing":
        return bool(value == expected)
    if dataclasses.is_dataclass(value):
        return all(
            _is_same(getattr(value, each.name), getattr(expected, each.name)) for each in dataclasses.fields(value)
        )
    return False


# All that running it depends on: neither file nor lines, nor what a debugger reads.
_CODE_PARTS = (
    *("co_name", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_code", "co_exceptiontable"),
    *("co_names", "co_varnames", "co_freevars", "co_cellvars", "co_consts"),
)


def _is_same_code(value: types.CodeType, expected: types.CodeType) -> bool:
    """Whether two code objects do the same, wherever they stand in a file."""
    # What a file imports from __future__ is in its functions and not in an expression that is evaluated by itself.
    annotations = __future__.annotations.compiler_flag
    if value.co_flags | annotations != expected.co_flags | annotations:
        return False
    return all(_is_same(getattr(value, name), getattr(expected, name)) for name in _CODE_PARTS)


# ---------------------------------------------------------------------------------------------------- the comparison


class _Comparison:
    """One module and its source.

    Args:
        module: as this process holds it.
        file: its source.
        files: the sources of all followed modules.
    """

    def __init__(self, module: types.ModuleType, file: _File, files: Iterable[_File]) -> None:
        self._module = module
        self._file = file
        self._files = tuple(files)

    def check(self) -> None:
        """Raises _DiffersError with the first name that differs."""
        held = vars(self._module)
        bindings = self._bindings(self._file.tree.body, held)
        for name, value in held.items():
            bounds = bindings.found.get(name) or self._starred(bindings, name)
            if bounds:
                self._check_name(name, bounds, value, held)
            elif not _is_dunder(name) and value is not sys.modules.get(f"{self._module.__name__}.{name}"):
                raise _DiffersError(f"{name} is not defined in its source")
        for name in bindings.missing(held):
            if hasattr(builtins, name):  # else whoever uses it fails; it may be bound below what is running now
                raise _DiffersError(f"{name} is missing")

    def _bindings(self, body: Iterable[ast.stmt], names: Mapping[str, Any]) -> _Bindings:
        def test(condition: ast.expr) -> bool | None:
            try:
                return bool(_evaluate(condition, names))
            except _UnknownError:
                return None

        return _Bindings(body, test)

    def _starred(self, bindings: _Bindings, name: str) -> list[_Bound]:
        """The `import *` that may have bound a name."""
        found = []
        for bound in bindings.found.get("*", ()):
            origin = self._origin(bound.node)
            if hasattr(origin, name):
                found.append(_Bound(bound.node, imported=ast.alias(name)))
        return found

    def _check_name(self, path: str, bounds: list[_Bound], value: Any, names: Mapping[str, Any]) -> None:
        parts = [value]
        if isinstance(value, property):
            parts = [part for part in (value.fget, value.fset, value.fdel) if part is not None]
        for part in parts:
            told: list[_DiffersError] = []
            is_unknown = False
            for bound in bounds:
                try:
                    self._check(path, bound, part, names, wrapped=part is not value)
                    break
                except _UnknownError:
                    is_unknown = True
                except _DiffersError as error:
                    told.append(error)
            else:
                if not is_unknown:
                    raise told[0]
                # A class or a function may also be reached without its name: by a configuration, or as the builder.
                if callable(part) or self._is_mentioned(path):
                    raise _DiffersError(f"{path} cannot be compared with its source")

    def _is_mentioned(self, path: str) -> bool:
        """Whether code may look up a name of the module, or of a class where the path has a dot."""
        owner, _, name = path.rpartition(".")
        if name in (self._file.mentioned if owner else self._file.loaded):
            return True
        here = self._module.__name__.rpartition(".")[2]
        others = (file for file in self._files if file is not self._file and (owner or file.imported & {here, ""}))
        return any(name in file.mentioned for file in others)

    def _check(self, path: str, bound: _Bound, value: Any, names: Mapping[str, Any], *, wrapped: bool = False) -> None:
        """Compares one value with what one statement binds; raises _DiffersError or _UnknownError."""
        differs = _DiffersError(f"{path} differs from its source")
        match bound.node:
            case ast.Import() | ast.ImportFrom() as node if bound.imported is not None:
                if not self._is_imported(node, bound.imported, value):
                    raise _DiffersError(f"{path} is not what the import in its source gives")
            case ast.FunctionDef() | ast.AsyncFunctionDef() as node:
                function = self._function(node, bound.decorators, value, names, layers=len(bound.decorators) - wrapped)
                if function is None or not _has_defaults(function, node.args, names):
                    raise differs
            case ast.ClassDef() as node:
                if not isinstance(value, type):
                    raise _UnknownError if node.decorator_list else differs
                self._check_class(path, node, value, names)
            case ast.expr() as node:
                if not _is_same(value, _evaluate(node, names)):
                    raise differs
            case _:
                raise _UnknownError

    def _origin(self, node: ast.AST | None) -> types.ModuleType | None:
        """The module that a `from` names."""
        assert isinstance(node, ast.ImportFrom)  # noqa: S101 - for the type checker
        name = "." * node.level + (node.module or "")
        return sys.modules.get(importlib.util.resolve_name(name, self._module.__package__))

    def _is_imported(self, node: ast.Import | ast.ImportFrom, alias: ast.alias, value: Any) -> bool:
        if isinstance(node, ast.Import):
            return value is sys.modules.get(alias.name if alias.asname else alias.name.partition(".")[0])
        origin = self._origin(node)
        if origin is None:
            raise _UnknownError
        if value is sys.modules.get(f"{origin.__name__}.{alias.name}"):
            return True
        return hasattr(origin, alias.name) and _is_same(value, getattr(origin, alias.name))

    def _function(
        self, node: _Function, decorators: Iterable[ast.expr], value: Any, names: Mapping[str, Any], *, layers: int
    ) -> types.FunctionType | None:
        """The function below its decorators, if its code is that of a definition; else None."""
        line = min([node.lineno, *(each.lineno for each in node.decorator_list)])
        expected = self._file.codes.get((node.name, line))
        makers = {_package(_looked_up(d.func if isinstance(d, ast.Call) else d, names)) for d in decorators}
        if node.name in _WRAPPED_BY_PYTHON and isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        for left in range(max(layers, 0), -1, -1):
            if isinstance(value, types.FunctionType):
                code = _written(value)
                if expected is not None and code is not None and _is_same_code(code, expected):
                    return value
            # A wrapper is one if it was made by a decorator that stands in the source.
            if not left or _package(value) not in makers:
                return None
            value = _inside(value)
        return None

    def _check_class(self, path: str, node: ast.ClassDef, value: type, names: Mapping[str, Any]) -> None:
        held = vars(value)
        inside = {**names, **held}
        bases = tuple(_evaluate(base, names) for base in node.bases)
        if bases not in (value.__bases__, held.get("__orig_bases__")) and (bases or value.__bases__ != (object,)):
            raise _DiffersError(f"{path} has other bases than in its source")
        bindings = self._bindings(node.body, inside)
        bound = {_mangled(name, node.name): bounds for name, bounds in bindings.found.items()}
        fields = held.get("__dataclass_fields__", {})
        members: Mapping[str, Any] = value.__members__ if isinstance(value, enum.EnumType) else {}
        for name, bounds in bound.items():
            if name in fields and isinstance(bounds[0].node, ast.expr):
                self._check_field(f"{path}.{name}", bounds[0].node, fields[name], held, inside)
            elif name in members:
                self._check_name(f"{path}.{name}", bounds, members[name].value, inside)
            elif name in held:
                self._check_name(f"{path}.{name}", bounds, held[name], inside)
        for name, each in held.items():
            if name not in bound and not self._is_generated(name, each, is_enum=bool(members)):
                raise _DiffersError(f"{path}.{name} is not defined in its source")
        for name in bindings.missing({*held, *fields}):
            if not name.startswith("__"):  # its name in the class is another one
                raise _DiffersError(f"{path}.{name} is missing")

    def _check_field(
        self, path: str, node: ast.expr, field: Any, held: Mapping[str, Any], names: Mapping[str, Any]
    ) -> None:
        """The default of a dataclass's field, and the attribute of the class that holds it."""
        expected = _evaluate(node, names)
        factory: Any = dataclasses.MISSING
        if isinstance(expected, dataclasses.Field):
            factory = expected.default_factory
            expected = expected.default
        told = [field.default]
        attribute = held.get(field.name, expected)
        if not isinstance(attribute, types.MemberDescriptorType):  # of a class with slots
            told.append(attribute)
        if not all(_is_same(each, expected) for each in told) or not _is_same(field.default_factory, factory):
            raise _DiffersError(f"{path} differs from its source")

    def _is_generated(self, name: str, value: Any, *, is_enum: bool) -> bool:
        """Whether Python, or a decorator of its library, has put something into a class."""
        if isinstance(value, (types.MemberDescriptorType, types.GetSetDescriptorType)) or name in _OF_CLASSES:
            return True
        if is_enum and (
            (name.startswith("_") and not _is_dunder(name)) or isinstance(value, (enum.Enum, enum.property))
        ):
            return True
        while not isinstance(value, types.FunctionType) and _inside(value) is not None:
            value = _inside(value)
        if not _is_dunder(name):
            return False
        if not isinstance(value, types.FunctionType):  # __doc__, __hash__ = None, __dataclass_fields__
            return type(value).__module__ in {"builtins", *_GENERATORS} and not isinstance(value, type)
        while hasattr(value, "__wrapped__"):
            value = value.__wrapped__
        if value.__globals__ is vars(self._module):  # where dataclasses run the text of __init__ and the like
            return bool(value.__code__.co_filename == "<string>")
        return value.__globals__.get("__name__") in _GENERATORS


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _mangled(name: str, owner: str) -> str:
    return f"_{owner.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name


def _package(value: Any) -> str:
    """The top-level package that something was defined in."""
    if isinstance(value, types.FunctionType):
        module = value.__globals__.get("__name__", "")
    elif isinstance(value, (type, types.MethodType, types.BuiltinFunctionType)):
        module = value.__module__
    else:
        module = type(value).__module__
    return str(module).partition(".")[0]


def _inside(value: Any) -> Any:
    """What a wrapper wraps; None where that is not known."""
    if isinstance(value, (staticmethod, classmethod)):
        return value.__func__
    if isinstance(value, functools.cached_property):
        return value.func
    return getattr(value, "__wrapped__", None)


def _written(function: types.FunctionType) -> types.CodeType | None:
    """The code that a function was defined with; the DSL replaces it by what it makes of the function's source."""
    code = function.__code__
    original = getattr(function, "_original_code", code)
    return original if (code.co_filename, code.co_name) == (original.co_filename, original.co_name) else None


def _has_defaults(function: types.FunctionType, arguments: ast.arguments, names: Mapping[str, Any]) -> bool:
    by_place = tuple(_evaluate(node, names) for node in arguments.defaults)
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    by_name = {argument.arg: _evaluate(node, names) for argument, node in pairs if node is not None}
    return _is_same(function.__defaults__ or (), by_place) and _is_same(function.__kwdefaults__ or {}, by_name)
