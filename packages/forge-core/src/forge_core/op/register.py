"""Telling PyTorch all it has to know of an operator.

One functional operator and its out form are defined in a :class:`torch.library.Library`:

    key              functional form                         out form
    CUDA             kernel or reference, by the backend     the same, into out
    CPU              reference                               reference, into out
    Meta, fake       like()                                  checks only
    Autograd         backward (registered)                   refuses gradients, then passes on
    vmap             registered rule                         -
    autocast         registered dtype, if any                -
    sparse, quantised, nested   like(), which raises a LayoutError that says what to do
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from forge_core import checks
from forge_core.errors import ArgumentError
from forge_core.op.schema import Schema

__all__ = ["Rules", "register"]

# Backends whose tensors have no plain strides: their call gets a typed error instead of "could not run ... with
# arguments from the 'SparseCUDA' backend".
_WITHOUT_STRIDES = (
    "SparseCPU",
    "SparseCUDA",
    "SparseCsrCPU",
    "SparseCsrCUDA",
    "QuantizedCPU",
    "QuantizedCUDA",
    "NestedTensorCPU",
    "NestedTensorCUDA",
    "MkldnnCPU",
)


@dataclass(frozen=True)
class Rules:
    """An operator's behaviour, as PyTorch's subsystems ask for it.

    Attributes:
        like: checks the arguments' metadata and allocates the output: the fake, and the real path's first step.
        cuda: runs the operator on CUDA tensors; takes ``out`` or None, then the schema's arguments.
        cpu: the same on CPU tensors.
        backward: gradient formula of ``torch.library.register_autograd``, or None: not differentiable.
        setup_context: what the backward keeps.
        vmap: rule of ``torch.library.register_vmap``.
        autocast: by type of device, the dtype that floating-point inputs are cast to under its autocast.
    """

    like: Callable[..., torch.Tensor]
    cuda: Callable[..., torch.Tensor]
    cpu: Callable[..., torch.Tensor]
    backward: Callable[..., Any] | None
    setup_context: Callable[..., None] | None
    vmap: Callable[..., Any] | None
    autocast: Mapping[str, torch.dtype]


def register(library: torch.library.Library, schema: Schema, rules: Rules) -> None:
    """Defines the functional form and the out form of one operator.

    Args:
        library: the namespace's library; it must live as long as the operator does.
        schema: the functional form.
        rules: what the operator does.
    """
    _register_functional(library, schema, rules)
    _register_out(library, schema, rules)


def _register_functional(library: torch.library.Library, schema: Schema, rules: Rules) -> None:
    library.define(schema.definition(), tags=(torch.Tag.pt2_compliant_tag,))
    library.impl(schema.name, lambda *args, **kwargs: rules.cuda(None, *args, **kwargs), "CUDA")
    library.impl(schema.name, lambda *args, **kwargs: rules.cpu(None, *args, **kwargs), "CPU")
    for key in _WITHOUT_STRIDES:
        library.impl(schema.name, rules.like, key)
    torch.library.register_fake(schema.qualified, rules.like, lib=library)
    if rules.backward is not None:
        torch.library.register_autograd(
            schema.qualified, rules.backward, setup_context=rules.setup_context, lib=library
        )
    if rules.vmap is not None:
        torch.library.register_vmap(schema.qualified, rules.vmap, lib=library)
    for device_type, dtype in rules.autocast.items():
        if "dtype" in schema.parameters:
            key = f"Autocast{device_type.upper()}"
            library.impl(schema.name, _with_dtype(schema, key, dtype), key)
        else:
            torch.library.register_autocast(schema.qualified, device_type, dtype, lib=library)


#: The dtypes that autocast is for: it leaves fp64 and integers as they are.
_AUTOCAST_FROM = (torch.float16, torch.bfloat16, torch.float32)


def _with_dtype(schema: Schema, key: str, dtype: torch.dtype) -> Callable[..., torch.Tensor]:
    """Autocast by the operator's own ``dtype``: the input is converted as it is read, not in a pass of its own."""
    excluded = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    place = schema.parameters.index("dtype")

    def call(*args: Any, **kwargs: Any) -> torch.Tensor:
        given = args[place] if len(args) > place else kwargs.get("dtype")
        if args[0].dtype in _AUTOCAST_FROM and given is None:
            args, kwargs = args[:place], {**kwargs, "dtype": dtype}
        with torch._C._ExcludeDispatchKeyGuard(excluded):
            result: torch.Tensor = overload(*args, **kwargs)
        return result

    overload = getattr(getattr(torch.ops, schema.namespace), schema.name).default
    return call


def _register_out(library: torch.library.Library, schema: Schema, rules: Rules) -> None:
    name = f"{schema.name}_out"
    library.define(schema.out_definition(), tags=(torch.Tag.pt2_compliant_tag,))

    def real(run: Callable[..., torch.Tensor]) -> Callable[..., None]:
        def call(*args: Any, out: torch.Tensor, **kwargs: Any) -> None:
            run(out, *args, **kwargs)

        return call

    def fake(*args: Any, out: torch.Tensor, **kwargs: Any) -> None:
        expected = rules.like(*args, **kwargs)
        checks.like_output(name, out, shape=expected.shape, dtype=expected.dtype, device=expected.device)

    def refuse_gradient(*args: Any, out: torch.Tensor, **kwargs: Any) -> None:
        named = schema.bind(args, kwargs)
        tensors = {**{key: named[key] for key in schema.tensors}, "out": out}
        needing = [key for key, value in tensors.items() if value.requires_grad]
        if needing and torch.is_grad_enabled():
            raise ArgumentError(
                op=name,
                argument=needing[0],
                expected="tensors that need no gradient, since an out form cannot be differentiated",
                got="requires_grad=True",
                hint=f"Use {schema.name}(...), or call it under torch.no_grad().",
            )
        with torch._C._AutoDispatchBelowAutograd():
            overload(*args, **kwargs, out=out)

    library.impl(name, real(rules.cuda), "CUDA")
    library.impl(name, real(rules.cpu), "CPU")
    for key in _WITHOUT_STRIDES:
        library.impl(name, fake, key)
    torch.library.register_fake(f"{schema.namespace}::{name}", fake, lib=library)
    overload = getattr(getattr(torch.ops, schema.namespace), name).default
    library.impl(name, refuse_gradient, "Autograd")
