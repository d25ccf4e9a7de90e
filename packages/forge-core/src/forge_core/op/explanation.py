"""What a call would run, and why: the answer of ``Operator.explain``."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

__all__ = ["Explanation"]


@dataclass(frozen=True)
class Explanation:
    """What a call would run, and why.

    Attributes:
        operator: ``"namespace::name"``.
        backend: ``"kernel"`` or ``"ref"``.
        variant: the kernel's variant, or None for the reference.
        config: the configuration that the kernel is compiled for, or None.
        why: the reason, in plain words.
        arch: the architecture, or None for the reference.
        read: bytes that must be read at least.
        written: bytes that must be written at least.
        key: the compiled kernel's cache key, or None for the reference.
        builder: the import path of the kernel's builder, or None for the reference.
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
