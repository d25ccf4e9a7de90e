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

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling
from torch.fx import Proxy
from torch.overrides import handle_torch_function, has_torch_function

from forge_core import checks, settings
from forge_core import device as devices
from forge_core.cache import builder_at
from forge_core.errors import UnsupportedError
from forge_core.op.eager import NOT_SERVED, EagerPath
from forge_core.op.functorch import functorch_function
from forge_core.op.guard import forward_levels, has_tangent, quiet, transformed
from forge_core.op.launch import Explanation
from forge_core.op.register import register, registered
from forge_core.op.rules import Rules
from forge_core.op.schema import Schema
from forge_core.op.table import LaunchTable
from forge_core.op.values import ByName, several

__all__ = ["Operator", "operator"]

_libraries: dict[str, torch.library.Library] = {}


class Operator(ByName):
    """A PyTorch operator whose CUDA implementation is a family of kernels; made by :func:`operator`.

    As a value it behaves as a module-level function does: it is pickled by its name and copied as itself,
    ``__torch_function__`` gets the operator (or its ``out``) as ``func``, and ``torch.fx.symbolic_trace`` records one
    ``call_function`` node whose target is the operator.  Under ``torch.compile`` both see the registered operator
    instead, for dynamo does not trace PyTorch's dispatch to ``__torch_function__``.
    """

    def __init__(self, rules: Rules) -> None:
        functools.update_wrapper(self, rules.like)
        self.schema = rules.schema
        self.reference = rules.reference
        self._rules = rules
        self.table = LaunchTable(rules)
        self._eager = EagerPath(rules, self.table)
        self._fast_call = self._eager.call
        library = _libraries.get(self.schema.namespace)
        if library is None:
            # Kept for the life of the process: an operator whose library is collected vanishes.
            library = _libraries[self.schema.namespace] = torch.library.Library(self.schema.namespace, "FRAGMENT")
        register(library, rules, self.table.serve, self.like)
        self._op = registered(self.schema, self.schema.name)
        self._out_op = None if self.schema.results else registered(self.schema, f"{self.schema.name}_out")
        self._transformable = None if rules.backward is None else functorch_function(rules, self._op)

    # -- the public face ----------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Runs the operator; the decorated function's docstring says what it takes."""
        result: torch.Tensor
        # Dynamo folds this condition, so that a compiled graph holds the registered operator and nothing else.
        if is_dynamo_compiling():
            args, kwargs = self.schema.traced(args, kwargs)
            result = self._op(*args, **kwargs)
            return result
        result = self._fast_call(args, kwargs)
        if result is not NOT_SERVED:
            return result
        everything = (*args, *kwargs.values())
        if has_torch_function(everything):
            result = handle_torch_function(self, everything, *args, **kwargs)
            return result
        args, kwargs = self.schema.normalize(args, kwargs)
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
            UnsupportedError: an operator of several results.
        """
        if self._out_op is None:
            raise UnsupportedError(
                f"{self.schema.name}: expected an operator of one result for its out form, got one of "
                f"{len(self.schema.results)}; call it without out.",
                requirement="an operator of one result",
            )
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
        args, kwargs = self.schema.normalize(args, kwargs)
        self._check_call(op, args, kwargs)
        checks.materialised(op, "out", out)
        self._out_op(*args, out=out, **kwargs)
        return out

    def variants(self) -> dict[str, str]:
        """The operator's kernels, slowest idea first: name and idea of each."""
        return {name: variant.idea for name, variant in self._rules.variants.items()}

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
        named = self.schema.bind(*self.schema.normalize(args, kwargs))
        x = named[self.schema.parameters[0]]
        checks.is_tensor(self.schema.name, self.schema.parameters[0], x)
        if arch is None and not x.is_cuda:
            arch = settings.current().arch
        output = self.table.check(None, named)
        chosen = "kernel" if arch is not None else self.table.resolve(x.device, named.get("variant", "auto"))
        if chosen == "ref":
            inputs = [named[name] for name in self.schema.tensors if named[name] is not None]
            why = "Backend 'ref' was asked for." if x.is_cuda else "CPU tensors are served by the reference."
            read, written = sum(t.nbytes for t in inputs), sum(t.nbytes for t in several(output))
            return Explanation(self.schema.qualified, "ref", None, None, why, None, read, written, None)
        target = devices.spec_for(arch) if arch is not None else devices.query(x.device)
        launch = self._rules.plan(target, output, *named.values())
        key = builder_at(launch.builder).key(launch.config, arch=target.arch).digest
        planned = {field.name: getattr(launch, field.name) for field in dataclasses.fields(launch)}
        return Explanation(operator=self.schema.qualified, backend="kernel", arch=target.arch, key=key, **planned)

    def like(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Checks a call's metadata and allocates its output, on whatever device or mode the tensors have.

        Raises:
            ArgumentError: the operator does not take these arguments.
        """
        return self._rules.allocate(self.schema.bind(args, kwargs))

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

    def _check_call(self, op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """What must be refused before the dispatcher sees the call; returns all arguments, by position."""
        named = self.schema.bind(args, kwargs)
        self.schema.check(op, named)
        values = tuple(named.values())
        for name in self.schema.tensors:
            # Jagged ones are a subclass that would ask for a kernel of its own.
            if named[name] is not None and named[name].is_nested:
                checks.strided(op, name, named[name])
        return values


def operator(schema: str, **declared: Any) -> Callable[[Callable[..., torch.Tensor]], Operator]:
    """Declares an operator; decorates the function that checks a call and allocates its output.

    Args:
        schema: functional, with every option of the public call, for example
            ``"forge_week0::transpose(Tensor x, *, str variant='auto') -> Tensor"``.  The first parameter is a tensor.
        **declared: the fields of :class:`~forge_core.op.rules.Rules`, by name; ``reference``, ``plan`` and ``variants``
            are needed.

    Raises:
        ValueError: the schema is not functional, or does not begin with a tensor.
    """
    return lambda like: Operator(Rules(Schema.parse(schema), like, **declared))
