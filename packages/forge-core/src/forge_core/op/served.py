"""Who computes a call on real tensors, and what is checked before: what the dispatcher calls for CPU and for CUDA."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

from forge_core import checks, settings
from forge_core.op.backend import resolve
from forge_core.op.launch import Launch
from forge_core.op.schema import Schema
from forge_core.op.table import LaunchTable

__all__ = ["Served"]


class Served:
    """One operator's implementations: its launches and its reference.

    Args:
        schema: the operator's.
        like: checks a call's metadata and allocates its output.
        reference: what it means, in plain PyTorch.
        plan: its choice of a kernel.
        ambient: see ``table.LaunchTable``.

    Attributes:
        table: its launches.
        chosen: the backend chosen for its CUDA tensors, or None.
    """

    def __init__(
        self,
        schema: Schema,
        like: Callable[..., torch.Tensor],
        reference: Callable[..., torch.Tensor],
        plan: Callable[..., Launch],
        ambient: Callable[[], Hashable] | None = None,
    ) -> None:
        self.table = LaunchTable(schema, self.check, plan, ambient)
        self.chosen: str | None = None
        self._schema = schema
        self._like = like
        self._reference = reference

    def by_kernels(self) -> bool:
        """Whether nobody asked for the reference."""
        if self.chosen is None and settings.untouched():
            return True
        return (settings.requested_backend() or self.chosen) != "ref"

    def resolve(self, device: torch.device, variant: str) -> str:
        """The backend that serves a call: see ``backend.resolve``."""
        return resolve(self._schema.name, device, variant, self.chosen)

    def on_cpu(self, out: torch.Tensor | None, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The operator on CPU tensors, into ``out`` or into a new tensor."""
        named = self._schema.bind(args, kwargs)
        self.check(out, named)
        self.resolve(named[self._schema.parameters[0]].device, named.get("variant", "auto"))
        return self._by_reference(out, named)

    def on_cuda(self, out: torch.Tensor | None, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The operator on CUDA tensors, into ``out`` or into a new tensor."""
        named = self._schema.bind(args, kwargs)
        variant = named.get("variant", "auto")
        if self.resolve(named[self._schema.parameters[0]].device, variant) == "ref":
            self.check(out, named)
            return self._by_reference(out, named)
        return self.table.launch(out, args, kwargs)

    def check(self, out: torch.Tensor | None, named: dict[str, Any]) -> torch.Tensor:
        """All checks of a call, before anything is written; returns the output's metadata as a meta tensor."""
        expected = self.metadata(named)
        device = named[self._schema.parameters[0]].device
        for name in self._schema.tensors[1:]:
            checks.same_device(self._schema.name, name, named[name], device)
        if out is not None:
            op = f"{self._schema.name}_out"
            checks.like_output(op, out, shape=expected.shape, dtype=expected.dtype, device=device)
            for name in self._schema.tensors:
                checks.no_overlap(op, out, name, named[name])
        return expected

    def metadata(self, named: dict[str, Any]) -> torch.Tensor:
        """The output on the meta device: all the checks, and no memory."""
        return self._like(**{name: _meta(value) for name, value in named.items()})

    def _by_reference(self, out: torch.Tensor | None, named: dict[str, Any]) -> torch.Tensor:
        result = self._reference(**{name: value for name, value in named.items() if name != "variant"})
        return result if out is None else out.copy_(result)


def _meta(value: Any) -> Any:
    """A strided tensor's shape, strides and dtype without its memory; anything else as it is, for the checks."""
    if not isinstance(value, torch.Tensor) or value.is_nested or value.is_quantized:
        return value
    if value.layout is not torch.strided:
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
