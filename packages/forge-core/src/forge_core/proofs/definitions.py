"""Digests of functions, classes and constants, independent of their names, modules and formatting.

A digest is that of the syntax tree without docstrings and annotations, in which the digest of a definition replaces
each name that the project's test code defines:

    test_x ---> helper of the module ---> constant of another test module
       `------> assert_near_float64  ---> half_ulp

So a changed helper changes the digests of everything that uses it.  Names are followed within the module, into
``forge_core.testing`` and into the packages' declarations and error models; any other name, an operator's for example,
counts as its text.  Nothing is imported.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from forge_core.cache.sources import locate

_TESTING = "forge_core.testing."
#: Modules of a package that are followed: its declarations and its error models.
_DECLARATIONS = ("proofs", "bounds")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITIONS = (*_FUNCTIONS, ast.ClassDef)
_SKIPPED = {"annotation", "returns", "ctx", "type_comment", "kind", "type_params"}


@functools.cache
def code_digest(source: bytes) -> str:
    """SHA-256 of a source's syntax tree, without comments, docstrings and positions."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if _documented(node):
            node.body = node.body[1:] or [ast.Pass()]  # type: ignore[attr-defined]
    # The same text from every Python: 3.12 adds a field, 3.13 omits empty ones.
    options: dict[str, bool] = {"show_empty": True} if sys.version_info >= (3, 13) else {}
    return hashlib.sha256(ast.dump(tree, **options).replace(", type_params=[]", "").encode()).hexdigest()


def _documented(node: ast.AST) -> bool:
    return isinstance(node, (ast.Module, *_DEFINITIONS)) and ast.get_docstring(node, clean=False) is not None


class _Module:
    """The top level of a file: each name with the statements that bind it, or with what it is imported from."""

    def __init__(self, path: Path) -> None:
        self.tree = ast.parse(path.read_bytes())
        self.body = list(_top_level(self.tree))
        self.statements: dict[str, list[ast.stmt]] = {}
        self.imports: dict[str, tuple[str, str | None]] = {}
        for statement in self.body:
            self.imports |= _imported(statement)
            for name in _bound_by(statement):
                self.statements.setdefault(name, []).append(statement)


def _top_level(node: ast.AST) -> Iterator[ast.stmt]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        if isinstance(child, (ast.If, ast.Try, ast.With, ast.ExceptHandler)):
            yield from _top_level(child)


def _imported(statement: ast.AST) -> dict[str, tuple[str, str | None]]:
    """What an import binds names to: a module and None, or a module and its name."""
    if isinstance(statement, ast.Import):
        return {a.asname: (a.name, None) for a in statement.names if a.asname is not None}
    if isinstance(statement, ast.ImportFrom):
        return {a.asname or a.name: (statement.module or "", a.name) for a in statement.names}
    return {}


def _bound_by(statement: ast.stmt) -> Iterable[str]:
    nodes: Sequence[ast.AST] = ()
    match statement:
        case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
            return [name]
        case ast.Expr() | ast.For() | ast.Delete():  # a call or a loop may change any name in it
            nodes = [statement]
        case ast.Assign():  # `TABLE[key] = value` changes TABLE and `module.name = value` module
            nodes = statement.targets
        case ast.AnnAssign() | ast.AugAssign():
            nodes = [statement.target]
    return dict.fromkeys(n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name))


class Definitions:
    """Digests of definitions, each computed once.

    Args:
        root: the repository's root, absolute, up to which conftest.py files are looked for.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.module = functools.cache(_Module)
        self._known: dict[tuple[Path, str], str] = {}
        self._open: list[tuple[Path, str]] = []
        self._reached = 0  # the lowest index in `_open` that an unfinished definition refers to

    def of(self, path: Path, name: str) -> str:
        """The digest of a name that a file defines at its top level; raises KeyError if it does not."""
        key = (path, name)
        if key in self._known:
            return self._known[key]
        if key in self._open:  # recursion counts as its depth
            self._reached = min(self._reached, self._open.index(key))
            return f"recursion {len(self._open) - self._open.index(key)}"
        statements = self.module(path).statements[name]
        before, self._reached = self._reached, len(self._open)
        self._open.append(key)
        text = "\n".join(self.text(path, statement, name) for statement in statements)
        self._open.pop()
        digest = hashlib.sha256(text.encode()).hexdigest()[:32]
        if self._reached >= len(self._open):  # refers to nothing above itself: the digest is the same from anywhere
            self._known[key] = digest
        self._reached = min(before, self._reached)
        return digest

    def tests(self, path: Path, mark: str) -> Iterator[str]:
        """Test functions and classes with a mark: by a decorator, a name in one that holds the mark, or the module."""
        body = self.module(path).body
        assigned = [node for node in body if isinstance(node, (ast.Assign, ast.AnnAssign))]
        names = {name for node in assigned if _marked(node, mark, set()) for name in _bound_by(node)}
        for node in body:
            if isinstance(node, _DEFINITIONS) and node.name.startswith(("test", "Test")):
                decorators = (each for inner in ast.walk(node) for each in getattr(inner, "decorator_list", ()))
                if "pytestmark" in names or any(_marked(each, mark, names) for each in decorators):
                    yield node.name

    def text(self, path: Path, node: ast.AST, name: str = "") -> str:
        """A file's statement or expression as text, with digests in place of what the project defines.

        The ``name`` that the statement itself defines does not count.
        """
        return " ".join(self._tokens(path, node, name, _locals(node, name)))

    def _tokens(self, path: Path, node: ast.AST, own: str, local: frozenset[str]) -> Iterator[str]:
        followed = self._reference(path, node, own, local)
        if followed is not None:
            yield followed
            return
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for bound, (origin, imported) in _imported(node).items():
                yield f"import {bound} {self._followed(origin, imported) or imported or origin}"
            return
        yield type(node).__name__
        named = isinstance(node, _DEFINITIONS) and node.name == own
        if named:
            yield from self._fixtures(path, node)
        for field, value in ast.iter_fields(node):
            if field in _SKIPPED or (named and field == "name"):
                continue
            items = value if isinstance(value, list) else [value]
            for item in items[1:] if field == "body" and _documented(node) else items:
                if isinstance(item, ast.AST):
                    yield from self._tokens(path, item, own, local)
                else:
                    yield f"{type(item).__name__}:{item!r}"
            yield ";"

    def _reference(self, path: Path, node: ast.AST, own: str, local: frozenset[str]) -> str | None:
        """A name, or ``module.name``, as its digest or its text; None for any other node."""
        module = self.module(path)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id not in local:
            home = module.imports.get(node.value.id)
            return self._followed(".".join(filter(None, home)), node.attr) if home is not None else None
        if not isinstance(node, ast.Name):
            return None
        if node.id == own:
            return "'itself"
        if node.id in local:
            return f"'{node.id}"
        defined = f"={self.of(path, node.id)}" if node.id in module.statements else ""
        if node.id not in module.imports:
            return defined or f"'{node.id}"
        origin, imported = module.imports[node.id]
        return defined + (self._followed(origin, imported) or f"'{imported or origin}")

    def _followed(self, origin: str, name: str | None) -> str | None:
        """The digest of a module's name; None if it has none, or its module is not followed."""
        package, _, last = origin.rpartition(".")
        declares = package.isidentifier() and last in _DECLARATIONS
        place = locate(origin) if name and (declares or f"{origin}.".startswith(_TESTING)) else ""
        if not place or name is None:
            return None
        module = self.module(Path(place))
        if name in module.statements:
            return f"={self.of(Path(place), name)}"
        # Else it may be re-exported by the package's __init__.
        return self._followed(*module.imports[name]) if name in module.imports else None

    def _fixtures(self, path: Path, node: ast.AST) -> Iterator[str]:
        """The fixtures that pytest passes to a test or a fixture, and a test's autouse fixtures and ``pytestmark``."""
        if not isinstance(node, _FUNCTIONS) or not (path.name.startswith("test_") or path.name == "conftest.py"):
            return
        is_test = node.name.startswith("test")
        if not is_test and "fixture" not in _decorators(node):
            return
        places = [path, *self._conftests(path)]
        for argument in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]:
            home = next((p for p in places if argument.arg in self.module(p).statements), None)
            if home is not None:
                yield f"fixture={self.of(home, argument.arg)}"
        for place in places if is_test else ():
            for name, statements in self.module(place).statements.items():
                autouse = any("autouse=True" in _decorators(statement) for statement in statements)
                if autouse or (name == "pytestmark" and place == path):
                    yield f"always={self.of(place, name)}"

    def _conftests(self, path: Path) -> Iterator[Path]:
        for folder in path.resolve().parents:
            if (folder / "conftest.py").is_file() and folder / "conftest.py" != path:
                yield folder / "conftest.py"
            if folder == self._root:
                return


def _decorators(statement: ast.AST) -> str:
    return " ".join(map(ast.unparse, getattr(statement, "decorator_list", [])))


def _locals(node: ast.AST, own: str) -> frozenset[str]:
    """Names that are bound inside a statement."""
    found: set[str] = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            found.add(inner.id)
        elif isinstance(inner, ast.arg):
            found.add(inner.arg)
        elif isinstance(inner, (ast.Import, ast.ImportFrom)):
            found |= {a.asname or a.name.partition(".")[0] for a in inner.names}
        elif isinstance(inner, (*_DEFINITIONS, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and inner.name:
            found.add(inner.name)
    return frozenset(found - {own})


def _marked(value: ast.AST, mark: str, names: set[str]) -> bool:
    """Whether an expression holds a mark, or one of some names that do."""
    return any(
        (isinstance(node, ast.Attribute) and ast.unparse(node).endswith(f"mark.{mark}"))
        or (isinstance(node, ast.Name) and node.id in names)
        # Which marks those parameters of the battery's tests that run on a GPU.
        or (mark == "gpu" and isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "battery")
        for node in ast.walk(value)
    )
