"""Edits of a copy of the repository, by symbols: where a definition lies is looked up, so that it may move.

("edit", symbol, pattern, new)     in the source of the one definition of that name; "Class.method" for a method
("rename", symbol, new)            the definition and every use of the name in all packages
("move", symbol, module)           the module that defines the symbol gets another name, and its imports follow
("format", symbol)                 the file that defines it, written anew from its syntax tree
("imports", symbol)                the file's import statements in reverse order
("comment", symbol) ("docstring", symbol)    a comment in front of it; another docstring
("delete", symbol)                 the file that defines it
("data", glob, pattern, new)       the first file that matches, which is no Python
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def applied(root: Path, edits: list) -> Iterator[None]:
    """The edits, for a block of code."""
    kept: dict[Path, bytes | None] = {}
    try:
        for kind, *words in edits:
            for path, text in EDITS[kind](root, *words).items():
                kept.setdefault(path, path.read_bytes() if path.exists() else None)
                path.unlink(missing_ok=True)
                if text is not None:
                    path.write_text(text)
        yield
    finally:
        for path, before in kept.items():
            path.unlink(missing_ok=True)
            if before is not None:
                path.write_bytes(before)


def sources(root: Path) -> list[Path]:
    return [*sorted(root.glob("packages/*/src/**/*.py")), *sorted(root.glob("packages/*/tests/**/*.py"))]


def find(root: Path, symbol: str) -> tuple[Path, ast.stmt]:
    """The one definition of a symbol: ``"function"``, ``"Class.method"``, ``"NAME"``, or ``"package:..."`` of those."""
    package, _, dotted = symbol.rpartition(":")
    *parents, name = dotted.split(".")
    found = []
    for path in sources(root):
        if package and not str(path.relative_to(root)).startswith(f"packages/{package}"):
            continue
        text = path.read_text()
        if not re.search(rf"\b{name}\b", text):
            continue
        body = ast.parse(text).body
        for parent in parents:
            body = [n for c in body if isinstance(c, ast.ClassDef) and c.name == parent for n in c.body]
        found += [(path, node) for node in body if name in bound(node)]
    if len(found) != 1:
        raise LookupError(f"{symbol}: expected one definition, found {[str(path) for path, _ in found]}")
    return found[0]


def bound(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _lines(path: Path, node: ast.stmt) -> tuple[list[str], int, int]:
    lines = path.read_text().splitlines(keepends=True)
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]) - 1
    return lines, first, node.end_lineno or first


def edit(root: Path, symbol: str, pattern: str, new: str) -> dict:
    path, node = find(root, symbol)
    lines, first, end = _lines(path, node)
    text, count = re.subn(pattern, new, "".join(lines[first:end]), count=1, flags=re.MULTILINE)
    if count != 1:
        raise LookupError(f"{symbol}: has nothing like {pattern!r}")
    return {path: "".join([*lines[:first], text, *lines[end:]])}


def rename(root: Path, symbol: str, new: str) -> dict:
    name = symbol.rpartition(":")[2]
    find(root, symbol)
    pattern = re.compile(rf"\b{name}\b")
    return {path: pattern.sub(new, text) for path in sources(root) if pattern.search(text := path.read_text())}


def move(root: Path, symbol: str, module: str) -> dict:
    path, _ = find(root, symbol)
    old = path.stem
    parent = ".".join(path.parts[path.parts.index("src") + 1 : -1])
    changed: dict = {path: None}
    for other in sources(root):
        text = path.read_text() if other == path else other.read_text()
        now = re.sub(rf"\b{re.escape(parent)}\.{old}\b", f"{parent}.{module}", text)
        now = re.sub(rf"(from {re.escape(parent)} import .*)\b{old}\b", rf"\1{module} as {old}", now)
        if other == path:
            changed[path.with_name(f"{module}.py")] = now
        elif now != text:
            changed[other] = now
    return changed


def formatted(root: Path, symbol: str) -> dict:
    path, _ = find(root, symbol)
    return {path: ast.unparse(ast.parse(path.read_text())) + "\n"}


def imports(root: Path, symbol: str) -> dict:
    path, _ = find(root, symbol)
    lines = path.read_text().splitlines(keepends=True)
    own = [
        n
        for n in ast.parse("".join(lines)).body
        if isinstance(n, (ast.Import, ast.ImportFrom)) and getattr(n, "module", "") != "__future__"
    ]
    texts = ["".join(lines[n.lineno - 1 : n.end_lineno]) for n in own]
    if len(own) < 2:
        raise LookupError(f"{symbol}: expected several imports in {path}")
    for node, text in sorted(zip(own, reversed(texts), strict=True), key=lambda pair: -pair[0].lineno):
        lines[node.lineno - 1 : node.end_lineno] = [text]
    return {path: "".join(lines)}


def comment(root: Path, symbol: str) -> dict:
    path, node = find(root, symbol)
    lines, first, _ = _lines(path, node)
    return {path: "".join([*lines[:first], " " * node.col_offset + "# Another line.\n", *lines[first:]])}


def docstring(root: Path, symbol: str) -> dict:
    return edit(root, symbol, r'"""', '"""Otherwise said: ')


def delete(root: Path, symbol: str) -> dict:
    return {find(root, symbol)[0]: None}


def data(root: Path, glob: str, pattern: str, new: str) -> dict:
    path = min(root.glob(glob))
    text, count = re.subn(pattern, new, path.read_text(), count=1, flags=re.MULTILINE)
    if count != 1:
        raise LookupError(f"{path}: has nothing like {pattern!r}")
    return {path: text}


EDITS = {
    "edit": edit,
    "rename": rename,
    "move": move,
    "format": formatted,
    "imports": imports,
    "comment": comment,
    "docstring": docstring,
    "delete": delete,
    "data": data,
}
