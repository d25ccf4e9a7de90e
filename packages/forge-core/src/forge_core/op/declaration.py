"""Declaring a PyTorch operator.

    @operator(
        "forge_week0::transpose(Tensor x, *, str variant='auto') -> Tensor",
        reference=ref.transpose,
        plan=plan_transpose,
        variants=VARIANTS,
        setup_context=..., backward=..., vmap=...,
    )
    def transpose(x, *, variant="auto"):
        '''The public docstring.'''
        checks.min_rank("transpose", "x", x, 2)      # the body is the fake implementation: it checks arguments and
        return x.new_empty(...)                      # returns an empty tensor with the output's metadata

The decorated name becomes an :class:`Operator`.  Its calls take one of three paths, which end in the same launch, or
for CPU tensors in the same reference:

    call --- plain tensors, no active mode or transform --- eager fast path ------------------- launch table - kernel
      |----- torch.func, or a tangent --- autograd.Function (``functorch``) ---.
      `----- anything else --- torch.ops.<namespace>.<name> --- autograd, vmap, autocast, ... --- launch table - kernel
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling
from torch.fx import Proxy
from torch.overrides import handle_torch_function, has_torch_function

from forge_core import checks, settings
from forge_core import device as devices
from forge_core.cache import builder_at
from forge_core.errors import UnsupportedError
from forge_core.op.eager import EagerPath
from forge_core.op.functorch import functorch_function, leading_vmap
from forge_core.op.guard import forward_levels, has_tangent, transformed
from forge_core.op.plan import Explanation
from forge_core.op.register import register
from forge_core.op.repeat import NOT_SERVED
from forge_core.op.rules import Rules
from forge_core.op.schema import Schema
from forge_core.op.table import LaunchTable
from forge_core.op.values import ByName, several


class Operator(ByName):
    """A PyTorch operator whose CUDA implementation is a family of kernels; created by :func:`operator`.

    An operator is pickled and copied like a module-level function.  ``__torch_function__`` receives the operator (or
    its ``out``) as ``func``, and ``torch.fx.symbolic_trace`` records a ``call_function`` node that targets it.  Under
    ``torch.compile`` both see the registered operator, since dynamo does not trace dispatch to ``__torch_function__``.
    """

    def __init__(self, rules: Rules) -> None:
        functools.update_wrapper(self, rules.fake)
        if rules.linear:
            rules = replace(rules, jvp=lambda output, tangents, **named: self(**named | tangents))
        if rules.least_rank is not None:
            rules = replace(rules, vmap=leading_vmap(self, rules.schema.name, rules.least_rank))
        self.schema = rules.schema
        self.reference = rules.reference
        self._rules = rules
        self.table = LaunchTable(rules)
        self._eager = EagerPath(rules, self.table)
        self._fast_call, self.repeatable = self._eager.call, self._eager.repeatable
        self._op, self._out_op = register(rules, self.table.serve, self.fake)
        self._transformable = functorch_function(rules, self._op)

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Runs the operator; its arguments are those of the decorated function."""
        # Dynamo folds this condition, so a compiled graph contains the registered operator only.
        if is_dynamo_compiling():
            args, kwargs = self.schema.traced(args, kwargs)
            return self._op(*args, **kwargs)
        result: torch.Tensor
        result = self._fast_call(args, kwargs)
        if result is not NOT_SERVED:
            return result
        everything = (*args, *kwargs.values())
        if has_torch_function(everything):
            result = handle_torch_function(self, everything, *args, **kwargs)
            return result
        args, kwargs = self.schema.normalize(args, kwargs)
        values = self._check_call(self.schema.name, args, kwargs)
        # Under nested jvp, an autograd.Function loses the outer tangents; the registered operator keeps them.
        if (transformed(values) or has_tangent(values)) and forward_levels() < 2:
            return self._transformable(*values)
        return self._op(*args, **kwargs)

    def out(self, *args: Any, out: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """Writes the result into ``out`` and returns it; not differentiable.

        Args:
            *args: positional arguments of the operator.
            **kwargs: keyword arguments of the operator.
            out: a tensor of the result's shape, dtype and device, of any strides, that does not overlap the inputs.

        Raises:
            ArgumentError: ``out`` is not such a tensor; nothing was written.
            UnsupportedError: the operator has several results.
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
        result = self._eager.call_out(out, args, kwargs)
        if result is not NOT_SERVED:
            return result
        everything = (out, *args, *kwargs.values())
        if has_torch_function(everything):
            if any(isinstance(value, Proxy) for value in everything):
                # fx cannot import a bound method.  The registered out form has a name, and a schema that mutates, so
                # dead-code elimination keeps the call.
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
        """The operator's kernels as name -> idea, in the order of their declaration."""
        return {name: variant.idea for name, variant in self._rules.variants.items()}

    def explain(self, *args: Any, arch: str | None = None, **kwargs: Any) -> Explanation:
        """Explains which kernel and configuration a call would run, without running it.

        Args:
            *args: positional arguments of the operator.
            arch: architecture to plan for, for example ``"sm_90a"``.  Default: that of the tensors' GPU, or
                ``FORGE_ARCH`` for tensors on another device.
            **kwargs: keyword arguments of the operator.

        Raises:
            ArgumentError: the call itself would raise it.
            UnsupportedError: the variant does not support this problem, or the architecture is unknown.
        """
        named = self.schema.bind(*self.schema.normalize(args, kwargs))
        x = named[self.schema.parameters[0]]
        checks.is_tensor(self.schema.name, self.schema.parameters[0], x)
        if arch is None and not x.is_cuda:
            arch = settings.current().arch
        output = self._rules.run_fake(named, on_meta=True)
        chosen = "kernel" if arch is not None else self.table.resolve(x.device, named.get("variant", "auto"))
        if chosen == "ref":
            inputs = [named[name] for name in self.schema.tensors if named[name] is not None]
            why = "Backend 'ref' was asked for." if x.is_cuda else "CPU tensors are served by the reference."
            read, written = sum(t.nbytes for t in inputs), sum(t.nbytes for t in several(output))
            return Explanation(self.schema.qualified, "ref", None, None, why, None, read, written, None)
        target = devices.spec_for(arch) if arch is not None else devices.query(x.device)
        plan = self._rules.plan(target, output, *named.values())
        key = builder_at(plan.builder).key(plan.config, arch=target.arch).digest
        return Explanation(self.schema.qualified, "kernel", arch=target.arch, key=key, **vars(plan))

    def fake(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Runs the fake implementation, as the dispatcher does: see ``torch.library.register_fake``.

        Raises:
            ArgumentError: the arguments are not valid for this operator.
        """
        return self._rules.run_fake(self.schema.bind(args, kwargs))

    @property
    def default_backend(self) -> str:
        """The backend of CUDA tensors, unless a ``backend`` block or ``FORGE_BACKEND`` overrides it."""
        return self.table.chosen or "kernel"

    def set_default_backend(self, name: str) -> None:
        """Sets the backend of this operator's CUDA tensors for the process, including autograd's threads.

        A :func:`~forge_core.op.backend` block and ``FORGE_BACKEND`` take precedence.  CPU tensors always use the
        reference.

        Args:
            name: ``"kernel"`` (the initial value) or ``"ref"``.

        Raises:
            ArgumentError: unknown backend.
        """
        checks.one_of(f"{self.schema.name}.set_default_backend", "name", name, settings.BACKENDS)
        self.table.chosen = None if name == "kernel" else name

    def __repr__(self) -> str:
        return f"<forge operator {self.schema.text}>"

    def __str__(self) -> str:
        return f"{self.schema.namespace}.{self.schema.name}"  # as torch prints the registered operator

    def _check_call(self, op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Checks that must precede the dispatcher; returns all arguments in the schema's order."""
        named = self.schema.bind(args, kwargs)
        self.schema.check(op, named)
        for name in self.schema.tensors:
            # A jagged tensor is a subclass, whose __torch_dispatch__ would demand a kernel for it.
            if named[name] is not None and named[name].is_nested:
                checks.strided(op, name, named[name])
        return tuple(named.values())


def operator(schema: str, **declared: Any) -> Callable[[Callable[..., torch.Tensor]], Operator]:
    """Declares an operator; decorates its fake implementation (see :class:`~forge_core.op.rules.Rules`).

    Args:
        schema: a functional schema with every parameter of the public call, a tensor first, for example
            ``"forge_week0::transpose(Tensor x, *, str variant='auto') -> Tensor"``.
        **declared: fields of :class:`~forge_core.op.rules.Rules`; ``reference``, ``plan`` and ``variants`` are
            required.

    Raises:
        ValueError: the schema is not functional, or its first parameter is not a tensor.
    """
    return lambda fake: Operator(Rules(Schema(schema), fake, **declared))
