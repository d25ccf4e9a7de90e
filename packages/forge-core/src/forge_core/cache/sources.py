"""The source fingerprint of a kernel: a SHA-256 for each module that its code depends on.

From the builder's module on, import statements are followed into the project's own modules, without importing anything:

    kernels/column.py --> kernels/values.py --> arithmetic.py
          |    `--------> forge_core/cute/warp.py
          `-------------> configs.py            ops.py, kernels/naive.py: not reached, may change freely

Modules of the builder's own top-level package, of Forge and outside site-packages are followed; other installed
packages count by their version.  Not in the fingerprint: the standard library, torch, the compiler (in the key by its
version), ``forge_core.cache`` and ``forge_core.op``.

Import statements are found by a regular expression, which takes a third of the time of parsing.  It may also match text
that is no statement, in a docstring for example: then a key depends on more sources than needed.  It misses sources
that are imported by another name of ``import_module``, or loaded by their path.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import importlib.util
import re
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NamedTuple

#: When forge_core.cache was imported; a file that changed later may differ from the imported module.
STARTED_NS = time.time_ns()

_BOUNDARY = ("forge_core.cache", "forge_core.op")
_INSTALLED = {"site-packages", "dist-packages"}
_NOT_FOLLOWED = frozenset({"cutlass", "cuda", "tvm_ffi", "torch", "nvidia_cutlass_dsl", *sys.stdlib_module_names})


@dataclass(frozen=True)
class Sources:
    """The sources that a kernel is built from."""

    # Sorted.  A module, with the SHA-256 of its source or "not found"; an installed top-level package, with
    # "distribution==version", of several separated by spaces, or "no version".
    pairs: tuple[tuple[str, str], ...]
    # Path, time of the last change in ns (of content or metadata) and size of each source file.
    files: tuple[tuple[str, int, int], ...]

    def changed(self) -> str | None:
        """The first file of which this process may have imported another version, or None."""
        for path, changed, size in self.files:
            if changed > STARTED_NS or _state(path) != (changed, size):
                return path
        return None


class _Module(NamedTuple):
    """A module on disk."""

    name: str
    path: str  # of its source; "" for a namespace package
    folders: tuple[str, ...]  # of a package's submodules


def fingerprint(roots: Iterable[str], *, excluded: tuple[str, ...] = _BOUNDARY) -> Sources | None:
    """The fingerprint of modules and of what they import from the project but ``excluded`` packages; imports nothing.

    None if a root has no source file, as in an interactive session.  What is not followed, such as torch, adds nothing.
    """
    _locate.cache_clear()  # a module may have appeared since the last fingerprint
    roots = set(roots)
    own = {name.partition(".")[0] for name in roots}
    pairs: dict[str, str] = {}
    files: dict[str, tuple[int, int]] = {}
    waiting, seen = list(roots), set[str]()
    while waiting:
        name = waiting.pop()
        top = name.partition(".")[0]
        if name in seen or top in _NOT_FOLLOWED or any(f"{name}.".startswith(f"{each}.") for each in excluded):
            continue
        seen.add(name)
        module = _locate(name)
        if module is None:
            if name in roots:
                return None
            pairs[name] = "not found"  # an optional import, which may be installed later, or an extension
        elif top not in own and not top.startswith("forge_") and _is_installed(module):
            pairs[top] = _version(top)
        elif module.path:
            try:
                files[module.path] = state = _state(module.path)
                source = _read(module.path, *state)
            except OSError:
                return None
            pairs[name] = source.digest
            waiting += _imports(module, source)
    return Sources(tuple(sorted(pairs.items())), tuple((path, *state) for path, state in sorted(files.items())))


def locate(module: str) -> str:
    """The path of a module's source file, without importing it; "" if there is none."""
    found = _locate(module)
    return found.path if found is not None else ""


def _state(path: str) -> tuple[int, int]:
    try:
        found = Path(path).stat()
    except OSError:
        return (0, -1)
    return max(found.st_mtime_ns, found.st_ctime_ns), found.st_size


class _Source(NamedTuple):
    """A source file: its SHA-256, its text, and its import statements as ``(base, names)`` or ``("", modules)``."""

    digest: str
    text: str
    statements: tuple[tuple[str, tuple[str, ...]], ...]


@functools.lru_cache(maxsize=4096)
def _read(path: str, changed: int, size: int) -> _Source:
    """Reads a file; ``changed`` and ``size`` distinguish its versions in the cache of results."""
    data = Path(path).read_bytes()
    text = data.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n").replace("\\\n", " ")
    statements = []
    for found in _IMPORT.finditer(_TYPE_CHECKING.sub("", text)):
        names = _COMMENT.sub("", found["names"] or found["modules"]).strip(" \t()")
        statements.append(("".join((found["base"] or "").split()), tuple(_FIRST_WORD.findall(names))))
    return _Source(hashlib.sha256(data).hexdigest(), text, tuple(statements))


def _is_installed(module: _Module) -> bool:
    return not _INSTALLED.isdisjoint(Path(module.path or module.folders[0]).parts)


@functools.cache
def _version(top: str) -> str:
    names = importlib.metadata.packages_distributions().get(top, [])
    return " ".join(sorted(f"{name}=={importlib.metadata.version(name)}" for name in set(names))) or "no version"


@functools.lru_cache(maxsize=4096)
def _locate(name: str) -> _Module | None:
    """Finds a module without importing it or its parents."""
    loaded = sys.modules.get(name)
    path = getattr(loaded, "__file__", None) or ""
    if path.endswith(".py"):
        return _Module(name, path, tuple(getattr(loaded, "__path__", ())))
    parent, _, last = name.rpartition(".")
    package = _locate(parent) if parent else None
    try:
        if not parent:
            spec = importlib.util.find_spec(name)
        else:  # as a top-level name, because a finder looks for the parent among the imported modules
            spec = PathFinder.find_spec(last, package.folders if package is not None else ())
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    path = spec.origin if spec.origin is not None and spec.origin.endswith(".py") else ""
    folders = tuple(spec.submodule_search_locations or ())
    return _Module(name, path, folders) if path or folders else None


# ------------------------------------------------------------------------------------------------ import statements

_MODULE = r"[\w.]+(?:[ \t]+as[ \t]+\w+)?"
_IMPORT = re.compile(
    r"(?:^|[;:])[ \t\f]*(?:"
    r"from\b[ \t]*(?P<base>[.\w \t]+?)[ \t]*\bimport\b[ \t]*(?P<names>\((?:[^)#]|#[^\n]*)*\)|[^;\n#]*)"
    rf"|import[ \t]+(?P<modules>{_MODULE}(?:[ \t]*,[ \t]*{_MODULE})*)[ \t]*(?=$|[;#]))",
    re.MULTILINE,
)
_TYPE_CHECKING = re.compile(
    r"^([ \t]*)if[ \t]+(?:typing\.)?TYPE_CHECKING:[^\n]*\n(?:(?:\1[ \t]+[^\n]*)?\n)*", re.MULTILINE
)
_DYNAMIC = re.compile(r"\b(?:import_module|__import__)\s*\(\s*(?:[\"'](\w[\w.]*)[\"']\s*[,)])?")
_COMMENT = re.compile(r"#[^\n]*")
_FIRST_WORD = re.compile(r"(?:^|,)\s*([\w.]+)")


def _imports(module: _Module, source: _Source) -> Iterator[str]:
    """Full names of the modules that a module's source imports."""
    package = module.name if module.folders else module.name.rpartition(".")[0]
    for base, names in source.statements:
        if not base:
            for name in names:
                yield from _plain(name, source.text)
        else:
            with contextlib.suppress(ImportError):  # a relative import that leaves the top-level package
                yield from _from(importlib.util.resolve_name(base, package), names)
    for found in _DYNAMIC.finditer(source.text):
        if found[1] is not None:
            yield found[1]
        # What the core imports by name are builders and operators, which are roots of their own.
        elif not module.name.startswith("forge_core."):
            yield from _whole(module.name.partition(".")[0])


def _plain(name: str, text: str) -> Iterator[str]:
    """``import a.b``: a and a.b, and a.c if the file mentions ``a.c.something``."""
    yield name
    top = name.partition(".")[0]
    if top not in _NOT_FOLLOWED:
        dotted = {top, *re.findall(rf"\b{top}(?:\.\w+)+", text)}
        prefixes = {each[: dot.start()] for each in dotted for dot in re.finditer(r"\.|$", each)}
        yield from (each for each in prefixes if _locate(each) is not None)


def _from(base: str, names: tuple[str, ...]) -> Iterator[str]:
    """``from base import names``: submodules among the names, and base if it may define one of them."""
    if base.partition(".")[0] in _NOT_FOLLOWED:
        return
    package = _locate(base)
    if package is None or not package.folders:
        yield base
        return
    own = _read(package.path, *_state(package.path)).text if package.path else ""
    submodules = [name for name in names if _locate(f"{base}.{name}") is not None]
    yield from (f"{base}.{name}" for name in submodules)
    if not names or set(names) - set(submodules) or any(re.search(rf"\b{name}\b", own) for name in submodules):
        yield base


def _whole(top: str) -> Iterator[str]:
    """All modules of a package, for a module that imports by a computed name."""
    package = _locate(top)
    for folder in package.folders if package is not None else ():
        for path in sorted(Path(folder).rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            if all(part.isidentifier() for part in parts):
                yield ".".join([top, *(part for part in parts if part != "__init__")])
