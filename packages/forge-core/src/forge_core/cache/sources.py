"""The sources that a kernel is built from, found by reading them and without importing anything.

From the module of the builder on, every import is followed into the project's own modules:

    kernels/column.py --> kernels/values.py --> arithmetic.py
          |    `--------> forge_core/cute/warp.py
          `-------------> configs.py            ops.py, kernels/naive.py: not reached, may change freely

Followed, each with the SHA-256 of its file, are modules of the builder's own top-level package, of Forge, and whatever
does not lie in a site-packages folder; other installed packages count by their version.  Not in the fingerprint are the
standard library, the DSL and TVM-FFI (in the key by version), torch (a kernel takes the names of dtypes from it),
``forge_core.cache`` (its part in the code is the options in the key) and ``forge_core.op`` (it declares operators).
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Sources", "fingerprint", "locate", "process_start_ns"]

_BOUNDARY = ("forge_core.cache", "forge_core.op")
_INSTALLED = ("site-packages", "dist-packages")
_NOT_FOLLOWED = frozenset({"cutlass", "cuda", "tvm_ffi", "torch", "nvidia_cutlass_dsl", *sys.stdlib_module_names})


def process_start_ns() -> int:
    """Start time of this process, in ns since the epoch.

    On Linux it is read from ``/proc`` and rounded up by one clock tick of 10 ms: rounded down, a file written just
    before the start would look newer than the process, and no interpreter imports its first module within a tick.
    Elsewhere it is the time of the call, so a change between an earlier import and the call is missed.
    """
    now = time.time_ns()
    try:
        # Field 22 is the start, in ticks since boot; fields are counted from the end of the name in parentheses, which
        # may itself contain spaces and parentheses.
        ticks = int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19])
        # Not btime in /proc/stat, which has whole seconds.
        # Of several readings the latest is right: a process that waits between the two clocks computes an earlier time.
        booted = max(time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME) for _ in range(8))
        return booted + (ticks + 1) * 10**9 // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return now


#: When this process started; a fork inherits it with the modules.
STARTED_NS = process_start_ns()


@dataclass(frozen=True)
class Sources:
    """What a kernel is built from.

    Attributes:
        pairs: module and SHA-256 of its source, or top-level package and ``distribution==version``; sorted.
        files: path, time of the last change in ns (of content or of the entry) and size of each source read.
    """

    pairs: tuple[tuple[str, str], ...]
    files: tuple[tuple[str, int, int], ...]

    def changed(self) -> str | None:
        """The first source of which this process may have imported another version; None where there is none.

        A module may have been imported at any time since the process started, before or after Forge, so a file that
        was changed after the start counts as changed.
        """
        for path, changed, size in self.files:
            if changed > STARTED_NS or _state(path) != (changed, size):
                return path
        return None


@dataclass(frozen=True)
class _Module:
    """A module as it lies on disk."""

    name: str
    path: str
    folders: tuple[str, ...] = ()  # where a package's submodules lie


def _state(path: str) -> tuple[int, int]:
    try:
        found = Path(path).stat()
    except OSError:
        return (0, -1)
    return max(found.st_mtime_ns, found.st_ctime_ns), found.st_size


def fingerprint(roots: Iterable[str], *, boundary: tuple[str, ...] = _BOUNDARY) -> Sources | None:
    """The fingerprint of some modules and of all that they import from the project.

    Args:
        roots: full names of modules; none of them is imported.
        boundary: packages that are not followed.

    Returns:
        None where a root has no source file, as in an interactive session.
    """
    _locate.cache_clear()
    roots = list(dict.fromkeys(roots))
    own = {name.partition(".")[0] for name in roots}
    pairs: dict[str, str] = {}
    files: dict[str, tuple[int, int]] = {}
    waiting = list(roots)
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        top = name.partition(".")[0]
        if name in seen or top in _NOT_FOLLOWED or any(f"{name}.".startswith(f"{each}.") for each in boundary):
            continue
        seen.add(name)
        module = _locate(name)
        if module is None:
            if name in roots:
                return None
            # An import that fails today, behind a `try`, and may not tomorrow.
            pairs[name] = "not found"
        elif top not in own and not top.startswith("forge_") and _is_installed(module):
            pairs[top] = _version(top)
        elif module.path:
            state = _state(module.path)
            read = _read(module.path, *state)
            if read is None:
                return None
            digest, imports = read
            pairs[name] = digest
            files[module.path] = state
            waiting += _targets(module, imports)
    return Sources(tuple(sorted(pairs.items())), tuple((path, *state) for path, state in sorted(files.items())))


def _is_installed(module: _Module) -> bool:
    place = module.path or module.folders[0]
    return any(part in _INSTALLED for part in Path(place).parts)


@functools.cache
def _version(top: str) -> str:
    names = importlib.metadata.packages_distributions().get(top, [])
    return " ".join(sorted(f"{name}=={importlib.metadata.version(name)}" for name in set(names))) or "no version"


def locate(module: str) -> str:
    """The path of a module's source file, without importing it; "" where there is none."""
    found = _locate(module)
    return found.path if found is not None else ""


@functools.lru_cache(maxsize=4096)
def _locate(name: str) -> _Module | None:
    """Where a module lies, without importing it or its parents; remembered during one fingerprint."""
    loaded = sys.modules.get(name)
    path = getattr(loaded, "__file__", None)
    if path is not None and path.endswith(".py"):
        return _Module(name, path, tuple(getattr(loaded, "__path__", ())))
    parent, _, last = name.rpartition(".")
    if parent:
        package = _locate(parent)
        folders = package.folders if package is not None else ()
    else:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            return None
        if spec is None:
            return None
        origin = spec.origin if spec.has_location and spec.origin else ""
        return _Module(name, origin if origin.endswith(".py") else "", tuple(spec.submodule_search_locations or ()))
    for folder in folders:
        inside = Path(folder, last)
        if (inside / "__init__.py").is_file():
            return _Module(name, str(inside / "__init__.py"), (str(inside),))
        if inside.with_name(f"{last}.py").is_file():
            return _Module(name, f"{inside}.py")
        if inside.is_dir():
            return _Module(name, "", (str(inside),))  # a namespace package
    return None


# ------------------------------------------------------------------------------------------- what a file imports


@dataclass(frozen=True)
class _Imports:
    """The import statements of a file: (level, module, names); names is None for ``import module``."""

    statements: tuple[tuple[int, str, tuple[str, ...] | None], ...]
    attributes: tuple[str, ...]  # dotted names such as `package.module.function`
    bound: frozenset[str]  # what the file itself defines, at its outermost level
    computed: bool  # it imports by a name that is not written down


@functools.lru_cache(maxsize=4096)
def _read(path: str, changed: int, size: int) -> tuple[str, _Imports] | None:
    """SHA-256 and imports of a file; ``changed`` and ``size`` make the memory forget what was rewritten."""
    try:
        text = Path(path).read_bytes()
    except OSError:
        return None
    return hashlib.sha256(text).hexdigest(), _imports(text, is_package=path.endswith("__init__.py"))


# Where an import statement could begin, and what it names: more places than there are, text in strings for one, and
# never fewer.
_MAYBE_IMPORT = re.compile(rb"(?:^|[;:])[ \t\f]*(from|import)\b[ \t]*([\w.]*)([^\n]*)", re.MULTILINE)


def _may_lead_on(text: bytes) -> bool:
    """Whether a file could import anything that is followed.  Most do not, and parsing takes most of the time."""
    if b"import_module" in text or b"__import__" in text or b"\r" in text:
        return True
    for statement, name, rest in _MAYBE_IMPORT.findall(text):
        strange = b"\\" in rest or b";" in rest or rest[:1] not in b" \t,#" or (statement == b"import" and b"," in rest)
        if strange or name.partition(b".")[0].decode() not in _NOT_FOLLOWED:
            return True
    return False


def _imports(text: bytes, *, is_package: bool) -> _Imports:
    if not is_package and not _may_lead_on(text):
        return _Imports((), (), frozenset(), computed=False)
    try:
        tree = ast.parse(text)
    except SyntaxError:  # importing it will say so
        return _Imports((), (), frozenset(), computed=False)
    statements: list[tuple[int, str, tuple[str, ...] | None]] = []
    waiting: list[ast.AST] = [tree]
    while waiting:  # statements only: they are few, and expressions are many
        node = waiting.pop()
        if isinstance(node, ast.Import):
            statements += [(0, alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            statements.append((node.level, node.module or "", tuple(alias.name for alias in node.names)))
        elif isinstance(node, ast.If) and _dotted(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            waiting += node.orelse  # the body never runs
        else:
            for part in ("body", "orelse", "finalbody", "handlers", "cases"):
                inner = getattr(node, part, None)
                if isinstance(inner, list):
                    waiting += inner
    attributes: list[str] = []
    computed = False
    if any(names is None and name.partition(".")[0] not in _NOT_FOLLOWED for _, name, names in statements):
        attributes = [_dotted(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    if b"import_module" in text or b"__import__" in text:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _dotted(node.func).rpartition(".")[2] in ("import_module", "__import__"):
                first = node.args[0] if node.args else None
                if isinstance(first, ast.Constant) and isinstance(first.value, str) and first.value[:1] != ".":
                    statements.append((0, first.value, None))
                else:
                    computed = True
    return _Imports(
        tuple(statements), tuple(filter(None, attributes)), _bound(tree) if is_package else frozenset(), computed
    )


def _dotted(node: ast.AST) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])


def _bound(tree: ast.Module) -> frozenset[str]:
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        else:
            names |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return frozenset(names)


# ------------------------------------------------------------------------------------------- where imports lead


def _targets(module: _Module, imports: _Imports) -> Iterator[str]:
    """Full names of the modules that a module's imports lead to."""
    package = module.name if module.folders else module.name.rpartition(".")[0]
    for level, name, names in imports.statements:
        if names is None:
            yield from _plain(name, imports.attributes)
            continue
        with contextlib.suppress(ImportError):  # it leaves the package, which importing it will say
            yield from _from(importlib.util.resolve_name("." * level + name, package), names)
    # The core imports what it is told the path of: builders, which are roots, and an operator's backends.
    if imports.computed and module.name and not module.name.startswith("forge_core."):
        yield from _whole(module.name.partition(".")[0])


def _plain(name: str, attributes: Iterable[str]) -> Iterator[str]:
    """``import a.b``: both, and ``a.c`` where the file says ``a.c.something``."""
    parts = name.split(".")
    yield from (".".join(parts[: i + 1]) for i in range(len(parts)))
    for dotted in attributes:
        if dotted.startswith(f"{parts[0]}."):
            words = dotted.split(".")
            for i in range(2, len(words) + 1):
                found = ".".join(words[:i])
                if words[0] not in _NOT_FOLLOWED and _locate(found) is not None:
                    yield found


def _from(base: str, names: Iterable[str]) -> Iterator[str]:
    """``from base import names``: the submodules among the names, and base for what it defines itself."""
    if base.partition(".")[0] in _NOT_FOLLOWED:
        return
    found = _locate(base)
    if found is None or not found.folders:
        yield base
        return
    read = _read(found.path, *_state(found.path)) if found.path else None
    bound = read[1].bound if read is not None else frozenset[str]()
    for name in names:
        submodule = f"{base}.{name}"
        is_module = name != "*" and _locate(submodule) is not None
        if is_module:
            yield submodule
        if not is_module or name in bound:
            yield base


def _whole(top: str) -> Iterator[str]:
    """All modules of a package, where one of them imports by a name that only running it would tell."""
    package = _locate(top)
    for folder in package.folders if package is not None else ():
        for path in sorted(Path(folder).rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            if all(part.isidentifier() for part in parts):
                yield ".".join([top, *(part for part in parts if part != "__init__")])
