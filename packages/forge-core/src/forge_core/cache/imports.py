"""What one source file imports, read off its text."""

from __future__ import annotations

import ast
import functools
import hashlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["NOT_FOLLOWED", "Imports", "read_source"]

#: Top-level packages that a fingerprint does not follow; see ``sources``.
NOT_FOLLOWED = frozenset({"cutlass", "cuda", "tvm_ffi", "torch", "nvidia_cutlass_dsl", *sys.stdlib_module_names})


@dataclass(frozen=True)
class Imports:
    """The import statements of a file: (level, module, names); names is None for ``import module``."""

    statements: tuple[tuple[int, str, tuple[str, ...] | None], ...]
    attributes: tuple[str, ...]  # dotted names such as `package.module.function`
    bound: frozenset[str]  # what the file itself defines, at its outermost level
    computed: bool  # it imports by a name that is not written down


@functools.lru_cache(maxsize=4096)
def read_source(path: str, changed: int, size: int) -> tuple[str, Imports] | None:
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
        if strange or name.partition(b".")[0].decode() not in NOT_FOLLOWED:
            return True
    return False


def _imports(text: bytes, *, is_package: bool) -> Imports:
    if not is_package and not _may_lead_on(text):
        return Imports((), (), frozenset(), computed=False)
    try:
        tree = ast.parse(text)
    except SyntaxError:  # importing it will say so
        return Imports((), (), frozenset(), computed=False)
    statements: list[tuple[int, str, tuple[str, ...] | None]] = []
    waiting: list[ast.AST] = [tree]
    while waiting:  # statements only: they are few, and expressions are many
        node = waiting.pop()
        if isinstance(node, ast.Import):
            statements += [(0, alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            statements.append((node.level, node.module or "", tuple(alias.name for alias in node.names)))
        elif isinstance(node, ast.If) and _is_type_checking(node.test):
            waiting += node.orelse  # the body never runs
        else:
            for part in ("body", "orelse", "finalbody", "handlers", "cases"):
                inner = getattr(node, part, None)
                if isinstance(inner, list):
                    waiting += inner
    attributes: list[str] = []
    computed = False
    if any(names is None and name.partition(".")[0] not in NOT_FOLLOWED for _, name, names in statements):
        attributes = [_dotted(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    if b"import_module" in text or b"__import__" in text:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _dotted(node.func).rpartition(".")[2] in ("import_module", "__import__"):
                first = node.args[0] if node.args else None
                if isinstance(first, ast.Constant) and isinstance(first.value, str) and first.value[:1] != ".":
                    statements.append((0, first.value, None))
                else:
                    computed = True
    return Imports(
        tuple(statements), tuple(filter(None, attributes)), _bound(tree) if is_package else frozenset(), computed
    )


def _is_type_checking(test: ast.expr) -> bool:
    return _dotted(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


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
