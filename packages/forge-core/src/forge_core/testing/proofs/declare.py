"""What there is to prove: each week's kernels, the sources that make them, and its tests.

The sources of a kernel are three parts, all found by reading files:

    all that its builder's module imports                      the fingerprint of the cache
    what the operator's module imports from its own package    which kernel is chosen, with which configuration
    the way of a call to its launch (``LAUNCH``)               checks, streams, devices, tables of launches

and the package's tables of measured thresholds, which are data.  A version of another package is no part: it differs
from machine to machine, and the record says which ones the proof was made with.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge_core.cache.key import canonical
from forge_core.cache.sources import fingerprint
from forge_core.errors import ForgeError
from forge_core.testing.subject import Subject

__all__ = [
    "LAUNCH",
    "Kernel",
    "ProofError",
    "Subject",
    "Week",
    "digest_of",
    "discover",
    "gpu_tests",
    "sources_of",
    "week_of",
]

#: Modules (and packages) of the core that stand between a call and its launch.  The rest that they import is messages,
#: settings and commands, whose tests need no GPU.
LAUNCH = (
    "forge_core.checks",
    "forge_core.device",
    "forge_core.dims",
    "forge_core.dtypes",
    "forge_core.op",
    "forge_core.thresholds",
)


class ProofError(ForgeError, RuntimeError):
    """A proof could not be made, or cannot be believed."""


@dataclass(frozen=True)
class Kernel:
    """One variant of one operator.

    Attributes:
        operator: ``"namespace::name"``.
        variant: its name.
        builder: ``"module:attribute"`` of what builds it; the module is a root of the fingerprint.
        chooser: the operator's module.
        data: files that its configuration is read from.
    """

    operator: str
    variant: str
    builder: str
    chooser: str
    data: tuple[Path, ...] = ()

    @property
    def name(self) -> str:
        """The kernel in one word: ``"forge_week1::reduce_sum/column"``."""
        return f"{self.operator}/{self.variant}"


@dataclass(frozen=True)
class Week:
    """What one package has to prove.

    Attributes:
        name: for example ``"week1"``.
        package: its import name.
        tests: the folder of its tests, relative to the repository's root.
        kernels: all of them.
        subjects: its operators.
    """

    name: str
    package: str
    tests: str
    kernels: tuple[Kernel, ...]
    subjects: tuple[Subject, ...] = ()


def week_of(name: str, package: str, tests: str, subjects: Sequence[Subject]) -> Week:
    """A week whose kernels are all variants of its operators.

    Args:
        name: for example ``"week1"``.
        package: its import name.
        tests: the folder of its tests, relative to the repository's root.
        subjects: its operators.
    """
    kernels = []
    for subject in subjects:
        operator = subject.operator
        for variant, found in operator._variants.items():
            if variant not in subject.absent:
                chooser = operator._plan.__module__
                data = _tables(package)
                kernels.append(Kernel(operator.schema.qualified, variant, found.path, chooser, data))
    return Week(name, package, tests, tuple(kernels), tuple(subjects))


def _tables(package: str) -> tuple[Path, ...]:
    spec = importlib.util.find_spec(package)
    places = spec.submodule_search_locations if spec is not None else None
    return tuple(sorted(Path(next(iter(places)), "thresholds").glob("*.toml"))) if places else ()


def discover(names: Collection[str] = ()) -> list[Week]:
    """The declarations of the installed packages that have one: the object ``PROOFS`` of their module ``proofs``.

    Args:
        names: of weeks; none for all.

    Raises:
        ProofError: no such week, or a package whose declaration is something else.
    """
    from forge_core.bench import plan

    weeks = []
    for bench in plan.discover():
        if importlib.util.find_spec(f"{bench.package}.proofs") is None:
            continue
        week = importlib.import_module(f"{bench.package}.proofs").PROOFS
        if not isinstance(week, Week):
            raise ProofError(f"{bench.package}.proofs.PROOFS: expected a Week, got {type(week).__name__}")
        weeks.append(week)
    unknown = set(names) - {week.name for week in weeks}
    if unknown:
        known = ", ".join(week.name for week in weeks) or "none"
        raise ProofError(f"no proofs are declared for {', '.join(sorted(unknown))}; weeks that declare some: {known}")
    return [week for week in weeks if not names or week.name in names]


# ------------------------------------------------------------------------------------------------------- the sources


def sources_of(kernels: Iterable[Kernel]) -> dict[str, dict[str, str]]:
    """The sources of each kernel, by its name: module (or file) and SHA-256.

    Raises:
        ProofError: a module of a kernel has no source file.
    """
    read: dict[str, dict[str, str]] = {}

    def closure(root: str) -> dict[str, str]:
        if root not in read:
            found = fingerprint([root])
            if found is None:
                raise ProofError(f"{root}: expected a module with a source file; without it nothing can be proven")
            # What is no digest is the version of a package, or says that a module is missing on this machine.
            read[root] = {name: digest for name, digest in found.pairs if len(digest) == 64}
        return read[root]

    result = {}
    for kernel in kernels:
        found = dict(closure(kernel.builder.partition(":")[0]))
        own = kernel.chooser.partition(".")[0]
        choosing = tuple(f"{prefix}." for prefix in (own, *LAUNCH))
        found |= {name: sha for name, sha in closure(kernel.chooser).items() if f"{name}.".startswith(choosing)}
        for path in kernel.data:
            found[f"{own}/{path.parent.name}/{path.name}"] = hashlib.sha256(path.read_bytes()).hexdigest()
        result[kernel.name] = dict(sorted(found.items()))
    return result


def digest_of(value: Any) -> str:
    """SHA-256 of a JSON value in its canonical form."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


# --------------------------------------------------------------------------------------------------------- the tests


def gpu_tests(root: Path, folder: str) -> list[str]:
    """The test functions of a folder that run on a GPU: ``"packages/.../test_x.py::test_y"``, read off the files.

    Args:
        root: the repository's root.
        folder: relative to it.
    """
    found = []
    for path in sorted(Path(root, folder).rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found += [f"{path.relative_to(root).as_posix()}::{name}" for name in _marked(tree)]
    return found


def _marked(tree: ast.Module) -> Iterator[str]:
    """Functions marked `gpu`: by a decorator, by a name such as DEVICES that holds the mark, or all of the module.

    A test of the battery has the mark on the parameters that run on a GPU.
    """
    names = set()
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None and _says_gpu(node.value, set()):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test"):
            continue
        if "pytestmark" in names or any(_says_gpu(mark, names) for mark in node.decorator_list):
            yield node.name


def _says_gpu(value: ast.AST, names: set[str]) -> bool:
    for node in ast.walk(value):
        if isinstance(node, ast.Attribute) and ast.unparse(node).endswith("mark.gpu"):
            return True
        if isinstance(node, ast.Name) and node.id in names:
            return True
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "battery":
            return True
    return False
