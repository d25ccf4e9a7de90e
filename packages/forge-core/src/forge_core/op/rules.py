"""The declaration of an operator."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from forge_core.choice import require_known
from forge_core.op.plan import Plan, Variant
from forge_core.op.schema import Schema


@dataclass(frozen=True)
class Rules:
    """An operator's declaration; an operator of several results returns them as a tuple everywhere."""

    schema: Schema  #: with every parameter of the public call, a tensor first
    #: The fake implementation (``torch.library.register_fake``): checks the arguments and returns an empty tensor with
    #: the output's metadata; the launch allocates the real output.  A call with new metadata runs it once, on meta
    #: tensors.  A result that a call does not compute is empty, and its pointer is not passed to the kernel.
    fake: Callable[..., torch.Tensor]
    #: The operator in plain PyTorch; takes the schema's arguments without ``variant``, and returns the strides of
    #: ``fake``.
    reference: Callable[..., torch.Tensor]
    #: ``plan(device, out, *arguments) -> Plan``: selects kernel, configuration and launch arguments.  A pure function;
    #: ``out`` may be a meta tensor.  Of a row operator it is ``plan_rows`` in ``rows/operator.py``.
    plan: Callable[..., Plan]
    variants: Mapping[str, Variant]  #: by name: the ladder, slowest first, then the engine's
    setup_context: Callable[..., None] | None = None  #: see ``torch.library.register_autograd``
    #: Likewise; calls public operators, so that it is differentiable itself.  None: not differentiable.
    backward: Callable[..., Any] | None = None
    vmap: Callable[..., Any] | None = None  #: see ``torch.library.register_vmap``
    #: Of an example; makes ``vmap``, of an operator on one tensor that takes any leading dims.
    least_rank: int | None = None
    linear: bool = False  #: makes ``jvp``, of an operator that is linear in its only tensor
    #: Takes all arguments of a call on plain CPU tensors by name; returns a function of its tensors, by name, which is
    #: faster than the reference, or None where there is none.
    cpu: Callable[[dict[str, Any]], Callable[..., torch.Tensor] | None] = lambda named: None
    #: ``jvp(output, tangents, **arguments)`` returns the tangent of the output; ``tangents`` maps the names of tensors
    #: to their tangents.  Calls public operators, so that it is differentiable itself.  None: that of the reference.
    jvp: Callable[..., torch.Tensor] | None = None
    #: Device type (``"cuda"``, ``"cpu"``) -> compute dtype under its autocast.  It is passed as ``dtype`` if the schema
    #: has that parameter, so that inputs are converted as they are read; otherwise inputs are cast.
    autocast: Mapping[str, torch.dtype] = field(default_factory=dict)
    #: Process state that the output's metadata depends on beside the arguments, such as ``torch.get_default_dtype``.
    ambient: Callable[[], Hashable] | None = None
    #: Whether autograd differentiates what serves plain CPU tensors, in place of ``backward``: for functions of PyTorch
    #: with the same gradient, which are recorded and differentiated in less time.
    cpu_autograd: bool = False

    def run_fake(self, named: dict[str, Any], *, on_meta: bool = False) -> torch.Tensor:
        """Checks a call, given as all of its arguments by name, and returns what ``fake`` returns.

        With ``on_meta`` the fake is passed meta tensors in place of strided ones.

        Raises:
            ArgumentError: the arguments are not valid for this operator.
        """
        self.schema.check(self.schema.name, named)
        if named.get("variant", "auto") != "auto":
            require_known(self.schema.name, named["variant"], self.variants)
        values = dict(named)
        for name in self.schema.tensors if on_meta else ():
            t = named[name]
            if t is not None and not (t.is_nested or t.is_quantized) and t.layout is torch.strided:
                values[name] = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")
        output = self.fake(**values)  # raises for tensors without strides
        if len(self.schema.tensors) > 1:
            self.schema.check_devices(named)
        return output

    def refer(self, named: dict[str, Any]) -> torch.Tensor:
        """Runs the reference on a call, given as all of its arguments by name."""
        return self.reference(**{name: value for name, value in named.items() if name != "variant"})

    def on_cpu(self, named: dict[str, Any]) -> Callable[..., torch.Tensor]:
        """What serves a call on plain CPU tensors: a function of them, by name."""
        others = {name: value for name, value in named.items() if not isinstance(value, torch.Tensor)}
        others.pop("variant", None)
        return self.cpu(named) or partial(self.reference, **others)

    def save(self, ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor, keywords: dict[str, Any]) -> None:
        """Calls ``setup_context`` as ``torch.library.register_autograd`` does.

        ``inputs`` are all arguments that the schema takes by position, ``keywords`` the keyword-only ones by name.
        """
        if self.setup_context is None:
            return
        if keywords:
            self.setup_context(ctx=ctx, inputs=inputs, output=output, keyword_only_inputs=keywords)
        else:
            self.setup_context(ctx=ctx, inputs=inputs, output=output)
