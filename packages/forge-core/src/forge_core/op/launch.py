"""What an operator decided to launch for one set of arguments, and how it explains that."""

from __future__ import annotations

import dataclasses
import importlib
from dataclasses import dataclass
from typing import Any

from forge_core.cache import CompileCached, require_dsl

__all__ = ["Explanation", "Launch", "Variant", "load"]


@dataclass(frozen=True)
class Variant:
    """One kernel of an operator: where it lives, and its one idea.

    Attributes:
        path: ``"module:attribute"`` of the ``@compile_cached`` builder; imported when a kernel has to be compiled.
        idea: one sentence for tables and ``variants()``.
    """

    path: str
    idea: str


@dataclass(frozen=True)
class Launch:
    """A kernel's configuration and the integers it is launched with.

    Attributes:
        variant: the variant's name.
        builder: ``"module:attribute"`` of the ``@compile_cached`` builder.
        config: the frozen dataclass that the kernel is compiled for.
        arguments: the numbers, and tuples of integers, that follow the pointers and precede the stream.
        why: why this configuration, in plain words.
        read: bytes that must be read at least.
        written: bytes that must be written at least.
        workspace: bytes of scratch memory, uninitialised and aligned to 256; where not 0, they are allocated for each
            call and their address follows the output's.
        numbered: the launch is passed a unique nonzero number after ``arguments``: a workspace slot that holds it was
            written by this launch.  Under graph capture it is negative and repeats at every replay, so the kernel must
            clear its slots before it ends.

    Raises:
        ValueError: a launch that is numbered and has no workspace.
    """

    variant: str
    builder: str
    config: Any
    arguments: tuple[float | tuple[int, ...], ...]
    why: str
    read: int
    written: int
    workspace: int = 0
    numbered: bool = False

    def __post_init__(self) -> None:
        if self.numbered and not self.workspace:
            raise ValueError(f"Launch: {self.variant}: expected a workspace for a numbered launch, got none.")


@dataclass(frozen=True)
class Explanation:
    """What a call would run, and why.

    Attributes:
        operator: ``"namespace::name"``.
        backend: ``"kernel"`` or ``"ref"``.
        arch: the architecture, or None for the reference.
        key: the compiled kernel's cache key, or None for the reference.

    The others are those of :class:`Launch`; the reference has no variant, configuration or builder.
    """

    operator: str
    backend: str
    variant: str | None
    config: Any
    why: str
    arch: str | None
    read: int
    written: int
    key: str | None
    builder: str | None = None
    arguments: tuple[float | tuple[int, ...], ...] = ()
    workspace: int = 0
    numbered: bool = False

    @property
    def integers(self) -> tuple[float | tuple[int, ...], ...]:
        """All integers of a launch as a kernel is traced with them; 1 stands for its number."""
        return (*self.arguments, 1) if self.numbered else self.arguments

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return dataclasses.asdict(self)  # the configuration is a dataclass too

    def __str__(self) -> str:
        if self.backend == "ref":
            return f"{self.operator}: the PyTorch reference. {self.why}"
        return (
            f"{self.operator}: variant '{self.variant}' on {self.arch}. {self.why}\n"
            f"  config {self.config}\n"
            f"  reads {self.read} bytes, writes {self.written} bytes at least; cache key {self.key}"
        )


def load(path: str) -> CompileCached[Any]:
    """Imports the builder that a path ``"module:attribute"`` names; this is what imports cutlass.

    A launch does without: :func:`forge_core.cache.builder_at` finds a kernel that was compiled by the path alone.

    Raises:
        UnsupportedError: the CuTe DSL is not installed.
    """
    require_dsl(path)
    module, _, attribute = path.partition(":")
    builder: CompileCached[Any] = getattr(importlib.import_module(module), attribute)
    return builder
