"""All that is declared of an operator, in one place."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from forge_core.choice import require_known
from forge_core.op.launch import Launch, Variant
from forge_core.op.schema import Schema

__all__ = ["Rules"]


@dataclass(frozen=True)
class Rules:
    """An operator's declaration, as PyTorch's subsystems and Forge ask for it.

    Attributes:
        schema: functional, with every option of the public call.  The first parameter is a tensor.
        like: checks the metadata of a call and allocates its output: the fake, and a real call's first step.  Of an
            operator of several results this is a tuple, as is what the reference and ``jvp`` return; results that a
            call does without are empty, and the launch is not passed their addresses.
        reference: what the operator means, in plain PyTorch; takes the schema's arguments without ``variant``, and
            returns the strides that ``like`` allocates.
        plan: ``plan(device, out, *arguments) -> Launch``: the pure choice of kernel, configuration and integers.
            ``out`` may be a meta tensor.
        variants: name -> :class:`Variant`, slowest idea first.
        setup_context: see ``torch.library.register_autograd``.
        backward: the gradient; calls the public operators, so that it can be differentiated in turn.  None: an error
            where a gradient is asked for.
        vmap: see ``torch.library.register_vmap``.
        jvp: ``jvp(output, tangents, **arguments)``: the tangent of the result, from those of the tensors that have one,
            by name; calls the public operators, so that it can be differentiated in turn.  None: the reference's.
        autocast: by type of device (``"cuda"``, ``"cpu"``) the dtype of the computation under its autocast: it is
            passed as ``dtype`` where the schema has a parameter of that name, so that inputs are converted as they are
            read, and inputs are cast to it where not.  PyTorch's rules are not the same on all devices.
        ambient: what of the process's state, beside the arguments, the output's metadata depends on, for example
            ``torch.get_default_dtype``; None for nothing.
    """

    schema: Schema
    like: Callable[..., torch.Tensor]
    reference: Callable[..., torch.Tensor]
    plan: Callable[..., Launch]
    variants: Mapping[str, Variant]
    setup_context: Callable[..., None] | None = None
    backward: Callable[..., Any] | None = None
    vmap: Callable[..., Any] | None = None
    jvp: Callable[..., torch.Tensor] | None = None
    autocast: Mapping[str, torch.dtype] = field(default_factory=dict)
    ambient: Callable[[], Hashable] | None = None

    def allocate(self, named: dict[str, Any]) -> torch.Tensor:
        """Checks a call, all arguments by name, and allocates its output.

        Raises:
            ArgumentError: the operator does not take these arguments.
        """
        self.schema.check(self.schema.name, named)
        if named.get("variant", "auto") != "auto":
            require_known(self.schema.name, named["variant"], self.variants)
        return self.like(**named)

    def refer(self, named: dict[str, Any]) -> torch.Tensor:
        """The reference's result of a call, all arguments by name."""
        return self.reference(**{name: value for name, value in named.items() if name != "variant"})
