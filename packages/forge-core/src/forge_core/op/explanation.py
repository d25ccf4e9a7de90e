"""What a call would run, and why: the answer of ``Operator.explain``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from forge_core.cache import builder_at
from forge_core.op.launch import Launch

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
        builder: ``"module:attribute"`` of what builds the kernel, or None for the reference.
        arguments: the integers that the kernel is launched with; where it is numbered, without the number.
        workspace: bytes of scratch memory.
        numbered: whether a launch is passed a number of its own behind the arguments.
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

    @classmethod
    def of_reference(cls, operator: str, inputs: Sequence[torch.Tensor], output: torch.Tensor) -> Explanation:
        """Of a call that the reference serves."""
        asked = inputs[0].is_cuda
        return cls(
            operator=operator,
            backend="ref",
            variant=None,
            config=None,
            why="Backend 'ref' was asked for." if asked else "CPU tensors are served by the reference.",
            arch=None,
            read=sum(x.numel() * x.element_size() for x in inputs),
            written=output.numel() * output.element_size(),
            key=None,
        )

    @classmethod
    def of_launch(cls, operator: str, launch: Launch, arch: str) -> Explanation:
        """Of a call that a kernel serves on a GPU of that architecture."""
        return cls(
            operator=operator,
            backend="kernel",
            variant=launch.variant,
            config=launch.config,
            why=launch.why,
            arch=arch,
            read=launch.read,
            written=launch.written,
            key=builder_at(launch.builder).key(launch.config, arch=arch).digest,
            builder=launch.builder,
            arguments=launch.arguments,
            workspace=launch.workspace,
            numbered=launch.numbered,
        )

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
