"""What is validated: the kernels of each package, its operators and its tests."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forge_core.cache.key import canonical
from forge_core.errors import ForgeError
from forge_core.testing.subject import Subject


class ProofError(ForgeError, RuntimeError):
    """Kernels cannot be validated, or a record cannot be used."""


@dataclass(frozen=True)
class Kernel:
    """One variant of one operator."""

    operator: str  # "namespace::name"
    variant: str
    builder: str  # "module:attribute" of its builder
    chooser: str  # the module that declares the operator

    @property
    def name(self) -> str:
        """``"forge_week1::reduce_sum/column"``."""
        return f"{self.operator}/{self.variant}"


@dataclass(frozen=True)
class Week:
    """What is validated of one package."""

    name: str  # that of its benchmark, for example "week1"
    package: str  # its import name
    tests: str  # the folder of its tests, relative to the repository's root
    kernels: tuple[Kernel, ...]  # the variants of its operators
    subjects: tuple[Subject, ...] = ()  # its operators


def week_of(name: str, package: str, tests: str, subjects: Sequence[Subject]) -> Week:
    """A :class:`Week` whose kernels are the variants of its operators, except those declared absent."""
    kernels = tuple(
        Kernel(subject.operator.schema.qualified, variant, found.path, subject.operator.__module__)
        for subject in subjects
        for variant, found in subject.operator._rules.variants.items()
        if variant not in subject.absent
    )
    return Week(name, package, tests, kernels, tuple(subjects))


def discover(names: Sequence[str] = ()) -> list[Week]:
    """``PROOFS`` of each installed package with a module ``proofs``, or of those named; UsageError for other names."""
    from forge_core.bench import plan

    benches = [bench for bench in plan.discover() if importlib.util.find_spec(f"{bench.package}.proofs")]
    chosen = plan.packages_named(benches, names)
    return [importlib.import_module(f"{bench.package}.proofs").PROOFS for bench in chosen]


def function_of(test: str) -> str:
    """The test function, or class, of a test id: ``"file::name"``."""
    return "::".join(test.partition("[")[0].split("::")[:2])


def measured(name: str) -> str:
    """The test id of a kernel's measurement."""
    return f"forge_core.testing.proofs.measure::{name}"


def digest_of(value: Any) -> str:
    """SHA-256 of a JSON value."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()
