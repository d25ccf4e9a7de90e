"""Whether the imported modules of this process agree with their source files.

The key of a kernel holds the sources on disk; what is traced are the modules in memory.  The two differ where a file
was edited after its import, or a program replaced a global, a function, a method or an imported name.  Before a kernel
is stored, each module in its fingerprint is compared, name by name:

    function, method     its code object with the one compiled from the file, and the values of its defaults
    class                its bases, and each attribute that its body assigns, likewise
    import               the object with the one in the module that it comes from
    other assignment     the value with that of the expression, evaluated again (see ``expressions``)

No module is imported, and no source is run.  docs/cache.md has the rules for what cannot be compared, and the limits.
"""

from __future__ import annotations

import ast
import builtins
import copy
import dataclasses
import dis
import functools
import importlib.util
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge_core.cache.expressions import UnknownError, evaluate, is_same, lookup
from forge_core.cache.sources import Sources

__all__ = ["difference"]

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_SHA256 = re.compile("[0-9a-f]{64}")
# Suffixes of the instructions that look a name up in a module.
_LOOKUPS = ("_GLOBAL", "_GLOBALS", "_NAME")
# Modules that add attributes to a class, and the attributes whose names do not show it.
_GENERATORS = {"abc", "builtins", "dataclasses", "enum", "functools", "reprlib", "typing"}
_GENERATED = {"_abc_impl", "_is_protocol", "_is_runtime_protocol"}
_ABSENT = object()


class _DiffersError(Exception):
    """A name whose value differs from the source; the text says which."""


@dataclass(frozen=True)
class _File:
    """A source file, compiled and not run.

    Attributes:
        codes: of functions and classes, by name and first line.
        globals: names that functions look up in their module, and strings, which may be such names.
        names: of globals, attributes and imports, anywhere in the file.
    """

    tree: ast.Module
    codes: dict[tuple[str, int], types.CodeType]
    globals: frozenset[str]
    names: frozenset[str]


def difference(sources: Sources) -> str | None:
    """The first difference between an imported module and its source, for a message; None if there is none.

    Args:
        sources: the fingerprint of what was traced, whose files have not changed since it was made.
    """
    states = {path: (changed, size) for path, changed, size in sources.files}
    files = {}
    module = sys
    try:
        for name, digest in sources.pairs:
            if sys.modules.get(name) is None or not _SHA256.fullmatch(digest):  # not imported, or in the key by version
                continue
            module = sys.modules[name]
            path = getattr(module, "__file__", None)
            if path not in states:
                return f"{name} was imported from {path}, which is not the file in its key"
            files[module] = _parsed(path, *states[path])
        for module, file in files.items():
            _Comparison(module, file, tuple(files.values())).check()
    except _DiffersError as error:
        return f"{module.__name__}.{error}"
    except Exception as error:  # noqa: BLE001 - comparing an object can raise anything
        return f"{module.__name__} cannot be compared with its source: {type(error).__name__}: {error}"
    return None


@functools.lru_cache(maxsize=1024)
def _parsed(path: str, changed: int, size: int) -> _File:
    """A compiled file; ``changed`` and ``size`` only distinguish its versions in the memory of results."""
    text = Path(path).read_bytes()
    code = compile(text, path, "exec", dont_inherit=True)
    inner = list(_inner(code))
    steps = (step for each in inner for step in dis.get_instructions(each) if step.opname.endswith(_LOOKUPS))
    strings = {value for each in inner for value in each.co_consts if isinstance(value, str)}
    return _File(
        ast.parse(text),
        {(each.co_name, each.co_firstlineno): each for each in inner},
        frozenset(strings | {str(step.argval) for step in steps}),
        frozenset(name for each in (code, *inner) for name in each.co_names),
    )


def _inner(code: types.CodeType) -> Iterator[types.CodeType]:
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            yield value
            yield from _inner(value)


# ----------------------------------------------------------------------------------------- what a source file binds


def _bindings(body: Iterable[ast.AST], *, certain: bool = True) -> Iterator[tuple[str, ast.AST, bool]]:
    """What statements bind: a name; its definition, import or expression; whether it is bound in any case."""
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node, certain
            case ast.Import(names=aliases):
                for alias in aliases:
                    yield alias.asname or alias.name.partition(".")[0], ast.Import([alias]), certain
            case ast.ImportFrom(names=aliases):
                for alias in aliases:
                    yield alias.asname or alias.name, ast.ImportFrom(node.module, [alias], node.level), certain
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    yield from ((name, part, certain) for name, part in _assigned(target, value))
            case ast.AnnAssign(target=ast.Name(id=name), value=value):
                if value is not None:
                    yield name, value, certain
            case ast.If() | ast.Try() | ast.ExceptHandler():
                yield from _bindings(ast.iter_child_nodes(node), certain=False)
            case ast.stmt():  # a loop, `with`, `+=`: only running it would tell
                for inner in ast.walk(node):
                    if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                        yield inner.id, node, False


def _assigned(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    match target:
        case ast.Name(id=name):
            yield name, value
        case ast.Tuple(elts=targets) | ast.List(elts=targets):
            for place, each in enumerate(targets):
                element = ast.Subscript(value, ast.Constant(place), ast.Load())
                yield from _assigned(each, ast.fix_missing_locations(ast.copy_location(element, value)))


def _collected(body: Iterable[ast.AST], owner: str = "") -> tuple[dict[str, list[ast.AST]], set[str]]:
    """What a module or a class binds: the possible definitions of each name, and the names bound in any case."""
    found: dict[str, list[ast.AST]] = {}
    always = set()
    for name, node, certain in _bindings(body):
        if owner and name.startswith("__") and not name.endswith("__"):
            name = f"_{owner.lstrip('_')}{name}"  # noqa: PLW2901 - as Python stores private names
        match found.get(name), node:
            case [ast.FunctionDef() as function], ast.Call(func=decorator, args=[ast.Name(id=argument), *_]):
                if name == argument:  # f = decorator(f)
                    node = copy.copy(function)  # noqa: PLW2901
                    node.decorator_list = [*function.decorator_list, decorator]
        if certain:
            always.add(name)
            if not (isinstance(node, _Function) and node.decorator_list):  # else it may be a property's setter
                found[name] = []
        found.setdefault(name, []).append(node)
    return found, always


# ---------------------------------------------------------------------------------------------------- the comparison


@dataclass(frozen=True)
class _Comparison:
    """One module and its source.

    Attributes:
        module: as imported.
        file: its source.
        files: the sources of all modules in the fingerprint.
    """

    module: types.ModuleType
    file: _File
    files: tuple[_File, ...]

    def check(self) -> None:
        """Raises _DiffersError with the first name that differs."""
        names = vars(self.module)
        found, always = _collected(self.file.tree.body)
        for name in sorted(always - names.keys()):
            if hasattr(builtins, name):  # other missing names raise NameError, or are bound after the running line
                raise _DiffersError(f"{name} is missing")
        for name, value in names.items():
            if name in found:
                self._check_name(name, found[name], value, names)
            elif not name.startswith("__") and value is not sys.modules.get(f"{self.module.__name__}.{name}", _ABSENT):
                raise _DiffersError(f"{name} is not defined in its source")

    def _check_class(self, path: str, node: ast.ClassDef, value: type, names: Mapping[str, Any]) -> None:
        bases = tuple(evaluate(base, names) for base in node.bases)
        held = {**vars(value), **{name: member.value for name, member in getattr(value, "__members__", {}).items()}}
        if (bases or (object,)) not in (value.__bases__, held.get("__orig_bases__")):
            raise _DiffersError(f"{path} has other bases than in its source")
        inside = {**names, **held}
        fields = held.get("__dataclass_fields__", {})
        for name, field in fields.items():
            attribute = held.get(name, field.default)
            if attribute is not field.default and not isinstance(attribute, types.MemberDescriptorType):
                raise _DiffersError(f"{path}.{name} differs from its source")
        held |= fields
        found, always = _collected(node.body, node.name)
        for name in sorted(always - held.keys()):
            raise _DiffersError(f"{path}.{name} is missing")
        for name, each in held.items():
            if name in found:
                self._check_name(f"{path}.{name}", found[name], each, inside)
            elif name not in fields and not self._is_generated(name, each):
                raise _DiffersError(f"{path}.{name} is not defined in its source")

    def _check_name(self, path: str, nodes: list[ast.AST], value: Any, names: Mapping[str, Any]) -> None:
        """Compares a value with the possible definitions of its name; raises _DiffersError."""
        if isinstance(value, property):
            for part in (value.fget, value.fset, value.fdel):
                if part is not None:
                    self._check_name(path, nodes, part, names)
            return
        told = f"{path} differs from its source"
        is_unknown = False
        for node in nodes:
            try:
                if self._agrees(path, node, value, names):
                    return
            except UnknownError:
                is_unknown = True
            except _DiffersError as error:
                told = str(error)
        if not is_unknown:
            raise _DiffersError(told)
        # A class or a function can also be reached without its name (from a configuration, or as the builder), and
        # so can the attributes of a class.
        if callable(value) or "." in path or self._is_mentioned(path):
            raise _DiffersError(f"{path} cannot be compared with its source")

    def _is_mentioned(self, name: str) -> bool:
        """Whether code of the fingerprint may look up a name of the module."""
        here = {self.module.__name__.rpartition(".")[2], ""}  # "" for `from . import`
        importers = (file for file in self.files if here & {part for each in file.names for part in each.split(".")})
        others = (file.names | file.globals for file in importers if file is not self.file)
        return any(name in names for names in (self.file.globals, *others))

    def _agrees(self, path: str, node: ast.AST, value: Any, names: Mapping[str, Any]) -> bool:
        """Whether a value is what one statement binds; raises UnknownError, or _DiffersError for part of a class."""
        match node:
            case ast.Import(names=[alias]):
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                return value is sys.modules.get(name, _ABSENT)
            case ast.ImportFrom(names=[alias]):
                base = "." * node.level + (node.module or "")
                base = importlib.util.resolve_name(base, self.module.__package__)
                # A submodule may be hidden by a name of its package.
                submodule = sys.modules.get(f"{base}.{alias.name}", _ABSENT)
                return value is submodule or is_same(value, getattr(sys.modules.get(base), alias.name, _ABSENT))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                return self._is_function(node, value, names)
            case ast.ClassDef() if isinstance(value, type):
                self._check_class(path, node, value, names)
                return True
            case ast.expr():
                expected = evaluate(node, names)
                if isinstance(value, dataclasses.Field):
                    if not isinstance(expected, dataclasses.Field):
                        expected = dataclasses.field(default=expected)
                    value = value.default, value.default_factory
                    expected = expected.default, expected.default_factory
                return is_same(value, expected)
        raise UnknownError

    def _is_function(self, node: _Function, value: Any, names: Mapping[str, Any]) -> bool:
        """Whether a value is a function of the source, possibly wrapped by the decorators in the source."""
        line = min([node.lineno, *(each.lineno for each in node.decorator_list)])
        expected = self.file.codes.get((node.name, line))
        makers = {_package(lookup(d.func if isinstance(d, ast.Call) else d, names)) for d in node.decorator_list}
        if node.name in ("__new__", "__init_subclass__", "__class_getitem__"):
            makers.add("builtins")  # Python makes them static and class methods
        while not (isinstance(value, types.FunctionType) and is_same(_original_code(value), expected)):
            if value is None or _package(value) not in makers:
                return False
            value = _wrapped(value)
        arguments = node.args
        by_place = tuple(evaluate(default, names) for default in arguments.defaults)
        pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        by_name = {argument.arg: evaluate(default, names) for argument, default in pairs if default is not None}
        return is_same(value.__defaults__ or (), by_place) and is_same(value.__kwdefaults__ or {}, by_name)

    def _is_generated(self, name: str, value: Any) -> bool:
        """Whether Python or a class decorator of its library, not a program, has added an attribute to a class."""
        if isinstance(value, types.MemberDescriptorType) or name in _GENERATED:
            return True
        if not (name.startswith("_") and name.endswith("_")):
            return False
        value = getattr(value, "__func__", value)  # of a static or class method
        if getattr(value, "__globals__", None) is vars(self.module):
            return bool(value.__code__.co_filename == "<string>")  # dataclasses compile __init__ in the module
        return _package(value) in _GENERATORS


def _package(value: Any) -> str:
    """The top-level package of a function, a class, or the class of another value."""
    if isinstance(value, (types.FunctionType, types.MethodType)):
        module = getattr(value, "__globals__", {}).get("__name__")  # not __module__, which functools.wraps copies
    else:
        module = (value if isinstance(value, type) else type(value)).__module__
    return str(module).partition(".")[0]


def _wrapped(value: Any) -> Any:
    return value.func if isinstance(value, functools.cached_property) else getattr(value, "__wrapped__", None)


def _original_code(function: types.FunctionType) -> types.CodeType:
    """The code that a function was defined with; the DSL replaces it when it traces the function."""
    code = function.__code__
    original: types.CodeType = getattr(function, "_original_code", code)
    return original if (code.co_filename, code.co_name) == (original.co_filename, original.co_name) else code
