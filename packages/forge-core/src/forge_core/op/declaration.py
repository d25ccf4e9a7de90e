"""One declaration, and everything PyTorch knows of an operator.

    @operator(
        "forge_week0::transpose(Tensor x, *, str variant='auto') -> Tensor",
        reference=ref.transpose,
        plan=plan_transpose,
        variants=VARIANTS,
        setup_context=..., backward=..., vmap=...,
    )
    def transpose(x, *, variant="auto"):
        '''The public docstring.'''
        checks.min_rank("transpose", "x", x, 2)      # the body checks metadata
        return x.new_empty(...)                      # and allocates the output: it is the fake

The decorated name is an :class:`Operator`.  A call takes one of two ways:

    call --- plain CUDA tensors, nothing listening at the dispatcher --- eager --- table of launches --- kernel
      `----- anything else --- torch.ops.<namespace>.<name> --- fake, autograd, vmap, autocast, CPU, CUDA --- ...

Both end in the same launch, and the table's key holds everything a launch depends on: dtypes, shapes, strides,
devices, alignments, and every other argument.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling
from torch.fx import Proxy
from torch.overrides import handle_torch_function, has_torch_function

from forge_core import checks, settings
from forge_core import device as devices
from forge_core.op.backend import check_variant
from forge_core.op.eager import NOT_SERVED, EagerPath
from forge_core.op.explanation import Explanation
from forge_core.op.functorch import functorch_function, reference_jvp
from forge_core.op.guard import forward_levels, has_tangent, quiet, transformed
from forge_core.op.launch import Launch, Variant
from forge_core.op.register import Rules, register
from forge_core.op.schema import Schema
from forge_core.op.table import LaunchTable
from forge_core.op.values import ByName

__all__ = ["Operator", "operator"]

_libraries: dict[str, torch.library.Library] = {}


class Operator(ByName):
    """A PyTorch operator whose CUDA implementation is a family of kernels; made by :func:`operator`.

    As a value it behaves as a module-level function does: it is pickled by its name and copied as itself,
    ``__torch_function__`` gets the operator (or its ``out``) as ``func``, and ``torch.fx.symbolic_trace`` records one
    ``call_function`` node whose target is the operator.  Under ``torch.compile`` both see the registered operator
    instead, for dynamo does not trace PyTorch's dispatch to ``__torch_function__``.
    """

    def __init__(
        self,
        schema: Schema,
        like: Callable[..., torch.Tensor],
        *,
        reference: Callable[..., torch.Tensor],
        plan: Callable[..., Launch],
        variants: Mapping[str, Variant],
        setup_context: Callable[..., None] | None = None,
        backward: Callable[..., Any] | None = None,
        vmap: Callable[..., Any] | None = None,
        jvp: Callable[..., torch.Tensor] | None = None,
        autocast: Mapping[str, torch.dtype] | None = None,
        ambient: Callable[[], Hashable] | None = None,
    ) -> None:
        functools.update_wrapper(self, like)
        self.schema = schema
        self.reference = reference
        self._like = like
        self._plan = plan
        self._variants = dict(variants)
        self.table = LaunchTable(schema, self._allocate, reference, plan, ambient)
        self._eager = EagerPath(schema, self.table, backward, setup_context)
        self._call_past = self._eager.call
        library = _libraries.get(schema.namespace)
        if library is None:
            # Kept for the life of the process: an operator whose library is collected vanishes.
            library = _libraries[schema.namespace] = torch.library.Library(schema.namespace, "FRAGMENT")
        register(
            library,
            schema,
            Rules(
                like=self.like,
                serve=self.table.serve,
                reference=reference,
                backward=backward,
                setup_context=setup_context,
                vmap=vmap,
                autocast=dict(autocast or {}),
            ),
        )
        namespace = getattr(torch.ops, schema.namespace)
        self._op = getattr(namespace, schema.name).default
        self._out_op = getattr(namespace, f"{schema.name}_out").default
        self._transformable = None
        if backward is not None:
            tangent = jvp or reference_jvp(schema, reference)
            self._transformable = functorch_function(schema, self._op, backward, setup_context, vmap, tangent)

    # -- the public face ----------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Runs the operator; the decorated function's docstring says what it takes."""
        result: torch.Tensor
        # Dynamo folds this condition, so that a compiled graph holds the registered operator and nothing else.
        if is_dynamo_compiling():
            args, kwargs = self.schema.traced(args, kwargs)
            result = self._op(*args, **kwargs)
            return result
        result = self._call_past(args, kwargs)
        if result is not NOT_SERVED:
            return result
        everything = (*args, *kwargs.values())
        if has_torch_function(everything):
            result = handle_torch_function(self, everything, *args, **kwargs)
            return result
        args, kwargs = self.schema.plain(args, kwargs)
        values = self._check_call(self.schema.name, args, kwargs)
        # Of nested ones PyTorch loses the outer tangents of an autograd.Function; the registered operator does not.
        special = transformed(values) or has_tangent(values)
        if self._transformable is not None and special and forward_levels() < 2:
            return self._transformable(*values)
        result = self._op(*args, **kwargs)
        return result

    def out(self, *args: Any, out: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """Writes the result into ``out`` and returns it; not differentiable.

        Args:
            *args: as for a call.
            **kwargs: as for a call.
            out: a tensor of the result's shape, dtype and device, of any strides, whose memory is apart from the
                inputs'.

        Raises:
            ArgumentError: ``out`` is not that; nothing was written.
        """
        if is_dynamo_compiling():
            args, kwargs = self.schema.traced(args, kwargs)
            self._out_op(*args, out=out, **kwargs)
            return out
        result: torch.Tensor
        if quiet():
            result = self._eager.call_out(out, args, kwargs)
            if result is not NOT_SERVED:
                return result
        everything = (out, *args, *kwargs.values())
        if has_torch_function(everything):
            if any(isinstance(value, Proxy) for value in everything):
                # A graph's code cannot import a bound method.  The registered out form has a name, and its schema says
                # that it writes, so that fx does not remove the call as dead code.
                self._out_op(*args, out=out, **kwargs)
                return out
            result = handle_torch_function(self.out, everything, *args, out=out, **kwargs)
            return result
        op = f"{self.schema.name}_out"
        checks.is_tensor(op, "out", out)
        args, kwargs = self.schema.plain(args, kwargs)
        self._check_call(op, args, kwargs)
        checks.materialised(op, "out", out)
        self._out_op(*args, out=out, **kwargs)
        return out

    def variants(self) -> dict[str, str]:
        """The operator's kernels, slowest idea first: name and idea of each."""
        return {name: variant.idea for name, variant in self._variants.items()}

    def explain(self, *args: Any, arch: str | None = None, **kwargs: Any) -> Explanation:
        """Which kernel and configuration a call would run, and why; runs nothing.

        Args:
            *args: as for a call.
            arch: for example ``"sm_90a"``: answer for a GPU of this architecture instead of the tensors' device.  For
                tensors that are on no GPU, ``FORGE_ARCH`` is its default.
            **kwargs: as for a call.

        Raises:
            ArgumentError: what the call itself would raise.
            UnsupportedError: a variant that cannot do this problem, or an unknown architecture.
        """
        named = self.schema.bind(*self.schema.plain(args, kwargs))
        x = named[self.schema.parameters[0]]
        checks.is_tensor(self.schema.name, self.schema.parameters[0], x)
        if arch is None and not x.is_cuda:
            arch = settings.current().arch
        variant = named.get("variant", "auto")
        check_variant(self.schema.name, variant, tuple(self._variants))
        chosen = "kernel" if arch is not None else self.table.resolve(x.device, variant)
        output = self.table.metadata(named)
        if chosen == "ref":
            inputs = [named[name] for name in self.schema.tensors]
            return Explanation.of_reference(self.schema.qualified, inputs, output)
        target = devices.spec_for(arch) if arch is not None else devices.query(x.device)
        return Explanation.of_launch(self.schema.qualified, self._plan(target, output, *named.values()), target.arch)

    def like(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Checks a call's metadata and allocates its output, on whatever device or mode the tensors have.

        Raises:
            ArgumentError: the operator does not take these arguments.
        """
        return self._allocate(self.schema.bind(args, kwargs))

    @property
    def default_backend(self) -> str:
        """What serves CUDA tensors where neither a ``backend`` block nor ``FORGE_BACKEND`` says otherwise."""
        return self.table.chosen or "kernel"

    def set_default_backend(self, name: str) -> None:
        """Chooses the backend of this operator's CUDA tensors for the whole process, autograd's threads included.

        A :func:`~forge_core.op.backend` block and ``FORGE_BACKEND`` still win over it.  CPU tensors are served by the
        reference whichever is chosen.

        Args:
            name: ``"kernel"``, which is where it starts, or ``"ref"``.

        Raises:
            ArgumentError: another name; nothing is changed.
        """
        checks.one_of(f"{self.schema.name}.set_default_backend", "name", name, settings.BACKENDS)
        self.table.chosen = None if name == "kernel" else name

    def __repr__(self) -> str:
        return f"<forge operator {self.schema.text}>"

    def __str__(self) -> str:
        return f"{self.schema.namespace}.{self.schema.name}"  # as torch prints the registered operator

    # -- before the dispatcher ----------------------------------------------------------------------------------

    def _allocate(self, named: dict[str, Any]) -> torch.Tensor:
        self.schema.check(self.schema.name, named)
        if "variant" in named:
            check_variant(self.schema.name, named["variant"], tuple(self._variants))
        return self._like(**named)

    def _check_call(self, op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """What must be refused before the dispatcher sees the call; returns all arguments, by position."""
        named = self.schema.bind(args, kwargs)
        self.schema.check(op, named)
        values = tuple(named.values())
        for name in self.schema.tensors:
            if named[name].is_nested:  # jagged ones are a subclass that would ask for a kernel of its own
                checks.strided(op, name, named[name])
        return values


def operator(
    schema: str,
    *,
    reference: Callable[..., torch.Tensor],
    plan: Callable[..., Launch],
    variants: Mapping[str, Variant],
    setup_context: Callable[..., None] | None = None,
    backward: Callable[..., Any] | None = None,
    vmap: Callable[..., Any] | None = None,
    jvp: Callable[..., torch.Tensor] | None = None,
    autocast: Mapping[str, torch.dtype] | None = None,
    ambient: Callable[[], Hashable] | None = None,
) -> Callable[[Callable[..., torch.Tensor]], Operator]:
    """Declares an operator; decorates the function that checks a call and allocates its output.

    Args:
        schema: functional, with every option of the public call, for example
            ``"forge_week0::transpose(Tensor x, *, str variant='auto') -> Tensor"``.  The first parameter is a tensor.
        reference: what the operator means, in plain PyTorch; takes the schema's arguments without ``variant``, and
            returns the strides that the decorated function allocates.
        plan: ``plan(device, out, *arguments) -> Launch``: the pure choice of kernel, configuration and integers.
            ``out`` may be a meta tensor.
        variants: name -> :class:`Variant`, slowest idea first.
        setup_context: see ``torch.library.register_autograd``.
        backward: the gradient; calls the public operators, so that it can be differentiated in turn.
        vmap: see ``torch.library.register_vmap``.
        jvp: ``jvp(output, tangents, **arguments)``: the tangent of the result, from those of the tensors that have one,
            by name; calls the public operators, so that it can be differentiated in turn.  None: the reference's.
        autocast: by type of device (``"cuda"``, ``"cpu"``) the dtype of the computation under its autocast: it is
            passed as ``dtype`` where the schema has a parameter of that name, so that inputs are converted as they are
            read, and inputs are cast to it where not.  PyTorch's rules are not the same on all devices.
        ambient: what of the process's state, beside the arguments, the output's metadata depends on, for example
            ``torch.get_default_dtype``; None for nothing.

    Raises:
        ValueError: the schema is not functional, or does not begin with a tensor.
    """

    def declare(like: Callable[..., torch.Tensor]) -> Operator:
        return Operator(
            Schema.parse(schema),
            like,
            reference=reference,
            plan=plan,
            variants=variants,
            setup_context=setup_context,
            backward=backward,
            vmap=vmap,
            jvp=jvp,
            autocast=autocast,
            ambient=ambient,
        )

    return declare
