"""Declarations: the kernels of each package, its operators under test and its tests."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from forge_core.cache.key import canonical
from forge_core.errors import ForgeError
from forge_core.testing.subject import Subject

__all__ = ["Kernel", "ProofError", "Subject", "Week", "digest_of", "discover", "function_of", "measured", "week_of"]


class ProofError(ForgeError, RuntimeError):
    """A proof cannot be made, or a record cannot be used."""


@dataclass(frozen=True)
class Kernel:
    """One variant of one operator.

    Attributes:
        operator: ``"namespace::name"``.
        variant: its name.
        builder: ``"module:attribute"`` of the function that builds it.
        chooser: the module that declares the operator.
    """

    operator: str
    variant: str
    builder: str
    chooser: str

    @property
    def name(self) -> str:
        """``"forge_week1::reduce_sum/column"``."""
        return f"{self.operator}/{self.variant}"


@dataclass(frozen=True)
class Week:
    """The kernels of one package.

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
    """A :class:`Week` whose kernels are the variants of its operators that are not declared absent."""
    kernels = tuple(
        Kernel(subject.operator.schema.qualified, variant, found.path, subject.operator.__module__)
        for subject in subjects
        for variant, found in subject.operator._rules.variants.items()
        if variant not in subject.absent
    )
    return Week(name, package, tests, kernels, tuple(subjects))


def discover(names: Collection[str] = ()) -> list[Week]:
    """The declarations of the installed packages: ``PROOFS`` of their module ``proofs``.

    Args:
        names: names of weeks; empty for all.

    Raises:
        ProofError: a name is unknown, or a declaration is not a :class:`Week`.
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
    """The test function, or class, of a test id: ``"file::name"``."""
    return "::".join(test.partition("[")[0].split("::")[:2])


def measured(name: str) -> str:
    """The test id of a kernel's measurement."""
    return f"forge_core.testing.proofs.measure::{name}"  # where the module was when records first named it


def digest_of(value: Any) -> str:
    """SHA-256 of a JSON value in its canonical form."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()
