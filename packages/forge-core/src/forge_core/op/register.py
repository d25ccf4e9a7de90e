"""Registration of an operator with the dispatcher.

The functional operator and its out form are defined in a :class:`torch.library.Library`:

dispatch key                functional form                         out form
CUDA                        kernel or reference, by the backend     same, into out
CPU                         reference                               same, into out
Meta, fake                  fake()                                  checks only
Autograd                    backward, or an error in backward();    raises for requires_grad or a tangent,
                            reference if an input has a tangent     then redispatches
vmap                        registered rule                         -
autocast                    registered dtype                        -
sparse, quantised, nested   fake(), which raises a LayoutError      checks, which raise a LayoutError
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._library.autograd import Info, make_autograd_impl

from forge_core import checks
from forge_core.errors import GradientError, UnsupportedError
from forge_core.op.guard import has_tangent
from forge_core.op.rules import Rules
from forge_core.op.schema import Schema

# Backends of tensors without strides: registered so that the error is a LayoutError, not "could not run ... with
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


@functools.cache
def _library(namespace: str) -> torch.library.Library:
    """The library of a namespace, kept alive for the process: collecting it removes its operators."""
    return torch.library.Library(namespace, "FRAGMENT")


def register(
    rules: Rules, serve: Callable[..., torch.Tensor], fake: Callable[..., torch.Tensor]
) -> tuple[Callable[..., torch.Tensor], Callable[..., None] | None]:
    """Registers the functional form of an operator, and its out form if it has a single result.

    Args:
        rules: declaration of the operator.
        serve: runs the operator on CPU or CUDA tensors; takes ``out`` or None, then the schema's arguments.
        fake: the fake implementation; takes the schema's arguments.

    Returns:
        The registered ``OpOverload`` of each form; None for a missing out form.
    """
    schema, library = rules.schema, _library(rules.schema.namespace)
    overload = _define(library, schema.definition(), functools.partial(serve, None), fake)
    library.impl(schema.name, _autograd(rules, overload, fake), "Autograd", with_keyset=True)
    if rules.vmap is not None:
        torch.library.register_vmap(schema.qualified, rules.vmap, lib=library)
    for device_type, dtype in rules.autocast.items():
        if "dtype" in schema.parameters:
            key = f"Autocast{device_type.upper()}"
            library.impl(schema.name, _with_dtype(overload, schema.parameters.index("dtype"), key, dtype), key)
        else:
            torch.library.register_autocast(schema.qualified, device_type, dtype, lib=library)
    return overload, None if schema.results else _register_out(library, schema, serve, fake)


def _define(library: torch.library.Library, definition: str, real: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Defines an operator, with its implementations on all devices; returns its ``OpOverload``."""
    name = library.define(definition, tags=(torch.Tag.pt2_compliant_tag,))
    for key in ("CUDA", "CPU"):
        library.impl(name, real, key)
    for key in _WITHOUT_STRIDES:
        library.impl(name, fake, key)
    torch.library.register_fake(f"{library.ns}::{name}", fake, lib=library)
    return getattr(getattr(torch.ops, library.ns), name).default


def _autograd(rules: Rules, overload: Any, fake: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The kernel of ``torch.library.register_autograd``, which alone would silently drop a tangent."""
    plain = make_autograd_impl(overload, Info(rules.backward, rules.setup_context))

    def call(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        if has_tangent((*args, *kwargs.values())):
            fake(*args, **kwargs)
            return rules.refer(rules.schema.bind(args, kwargs))
        return plain(keyset, *args, **kwargs)

    return call


#: Input dtypes that autocast applies to.
_AUTOCAST_FROM = (torch.float16, torch.bfloat16, torch.float32)


def _with_dtype(overload: Any, place: int, key: str, dtype: torch.dtype) -> Callable[..., torch.Tensor]:
    """Autocast by the parameter ``dtype`` at ``place``: converts as the input is read, without a kernel that casts."""
    excluded = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def call(*args: Any, **kwargs: Any) -> Any:
        given = args[place] if len(args) > place else kwargs.get("dtype")
        if args[0].dtype in _AUTOCAST_FROM and given is None:
            args, kwargs = args[:place], {**kwargs, "dtype": dtype}
        with torch._C._ExcludeDispatchKeyGuard(excluded):
            return overload(*args, **kwargs)

    return call


def _register_out(
    library: torch.library.Library,
    schema: Schema,
    serve: Callable[..., torch.Tensor],
    fake: Callable[..., torch.Tensor],
) -> Any:
    name = f"{schema.name}_out"

    def real(*args: Any, out: torch.Tensor, **kwargs: Any) -> None:
        serve(out, *args, **kwargs)

    def fake_out(*args: Any, out: torch.Tensor, **kwargs: Any) -> None:
        expected = fake(*args, **kwargs)
        checks.like_output(name, out, shape=expected.shape, dtype=expected.dtype, device=expected.device)

    def refuse_gradient(*args: Any, out: torch.Tensor, **kwargs: Any) -> None:
        named = schema.bind(args, kwargs)
        tensors = {**{key: named[key] for key in schema.tensors}, "out": out}
        needing = [key for key, value in tensors.items() if value is not None and value.requires_grad]
        if needing and torch.is_grad_enabled():
            expected = "tensors that need no gradient, since an out form cannot be differentiated"
            hint = f"Use {schema.name}(...), or call it under torch.no_grad()."
            raise GradientError(name, needing[0], expected, "requires_grad=True", hint)
        if has_tangent(tuple(tensors.values())):
            raise UnsupportedError(
                f"{name}: expected tensors without a tangent, since an out form cannot be differentiated, got one of "
                f"forward-mode differentiation; use {schema.name}(...).",
                requirement="tensors without a tangent",
            )
        with torch._C._AutoDispatchBelowAutograd():
            overload(*args, **kwargs, out=out)

    overload = _define(library, schema.out_definition(), real, fake_out)
    library.impl(name, refuse_gradient, "Autograd")
    return overload
