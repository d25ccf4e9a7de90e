"""What there is to prove: each week's kernels, its operators under test, and its tests."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge_core.cache.key import canonical
from forge_core.errors import ForgeError
from forge_core.testing.subject import Subject

__all__ = ["Kernel", "ProofError", "Subject", "Week", "digest_of", "discover", "function_of", "week_of"]


class ProofError(ForgeError, RuntimeError):
    """A proof could not be made, or cannot be believed."""


@dataclass(frozen=True)
class Kernel:
    """One variant of one operator.

    Attributes:
        operator: ``"namespace::name"``.
        variant: its name.
        builder: ``"module:attribute"`` of what builds it.
        chooser: the module that declares the operator.
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
                chooser = operator.__module__
                data = (*_tables(package), *_tables("forge_core.rows"))
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


def function_of(test: str) -> str:
    """The test function, or class, of a test's id: ``"file::name"``."""
    return "::".join(test.partition("[")[0].split("::")[:2])


def digest_of(value: Any) -> str:
    """SHA-256 of a JSON value in its canonical form."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()
