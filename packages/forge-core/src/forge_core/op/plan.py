"""Variants of an operator, the plan of a launch, and its explanation."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Variant:
    """A family of kernels of an operator, one for each configuration."""

    path: str  #: ``"module:attribute"`` of the ``@compile_cached`` builder; imported only to compile
    idea: str  #: its idea in one sentence, shown in tables and by ``variants()``


@dataclass  # construction of a frozen one takes three times as long
class Plan:
    """A launch as it follows from metadata: a kernel, its configuration, and the arguments it is launched with.

    Raises:
        ValueError: ``numbered`` without a workspace.
    """

    variant: str  #: its name
    builder: str  #: ``"module:attribute"`` of the ``@compile_cached`` builder
    config: Any  #: the configuration that the kernel is compiled for, a frozen dataclass
    arguments: tuple[float | tuple[int, ...], ...]  #: passed between the pointers and the stream
    why: str  #: the reason for this configuration, in plain words
    read: int  #: bytes read at least
    written: int  #: bytes written at least
    #: Bytes of uninitialized scratch memory, aligned to 256 bytes, allocated at each call; its pointer follows that of
    #: the output.  0: none.
    workspace: int = 0
    #: Pass a unique nonzero 64-bit number after ``arguments``: a workspace slot that holds it was written by this
    #: launch.  A launch captured in a CUDA graph gets a negative number, which repeats at every replay, so the kernel
    #: must clear its slots before it ends.
    numbered: bool = False

    def __post_init__(self) -> None:
        if self.numbered and not self.workspace:
            raise ValueError(f"Plan: {self.variant}: expected a workspace for a numbered launch, got none.")


@dataclass(frozen=True)
class Explanation:
    """What a call would run, and why.

    The other attributes are those of :class:`Plan`.  The reference has no architecture, key, variant, configuration
    or builder.
    """

    operator: str  #: ``"namespace::name"``
    backend: str  #: ``"kernel"`` or ``"ref"``
    variant: str | None
    config: Any
    why: str
    arch: str | None  #: for example ``"sm_90a"``
    read: int
    written: int
    key: str | None  #: cache key of the compiled kernel
    builder: str | None = None
    arguments: tuple[float | tuple[int, ...], ...] = ()
    workspace: int = 0
    numbered: bool = False

    @property
    def integers(self) -> tuple[float | tuple[int, ...], ...]:
        """The arguments that a kernel is traced with: those of the launch, and 1 as its number."""
        return (*self.arguments, 1) if self.numbered else self.arguments

    def as_dict(self) -> dict[str, Any]:
        """The fields as values that JSON can represent, the configuration included."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        if self.backend == "ref":
            return f"{self.operator}: the PyTorch reference. {self.why}"
        return (
            f"{self.operator}: variant '{self.variant}' on {self.arch}. {self.why}\n"
            f"  config {self.config}\n"
            f"  reads {self.read} bytes, writes {self.written} bytes at least; cache key {self.key}"
        )
