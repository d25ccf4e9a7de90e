"""The table of launches that are ready to go, and the launch itself.

A call that was seen before, in all that a launch can depend on, goes from its arguments to the GPU through one look-up:
no checks, no planning, no compiler.  A call that was not is checked, planned and compiled, and then kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from forge_core import checks, settings
from forge_core import device as devices
from forge_core.cache import builder_at
from forge_core.op.launch import Launch
from forge_core.op.schema import Schema

__all__ = ["LaunchTable"]

log = logging.getLogger("forge_core")

# A process that meets more layouts than this starts its table anew; compiled kernels stay.
MAX_BOUND = 4096

# Wider than any vector access: a launch may depend on an address modulo this, so the table's key holds it.
ALIGNMENT_MASK = 15

# torch.cuda.current_stream() builds an object in 3.5 us; these take 0.1 us, and are absent from a CPU build of torch.
_raw_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0)
_current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", lambda: -1)


@dataclass(frozen=True)
class _Bound:
    """A launch ready to go: the output to allocate, the native function and its integers."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    launch: Callable[..., Any] | None  # None: there is nothing to compute, the output is empty
    arguments: tuple[int | tuple[int, ...], ...]
    debug: bool
    name: str  # the variant, for the log
    workspace: int = 0


class LaunchTable:
    """The launches of one operator.

    Args:
        schema: the operator's.
        check: ``check(out, named)``: all checks of a call, raising before anything is written; returns a meta tensor
            of the output's shape, strides and dtype.
        plan: the operator's choice of a kernel.
    """

    def __init__(
        self,
        schema: Schema,
        check: Callable[[torch.Tensor | None, dict[str, Any]], torch.Tensor],
        plan: Callable[..., Launch],
    ) -> None:
        self._schema = schema
        self._check = check
        self._plan = plan
        self._one_tensor = len(schema.tensors) == 1
        self._bound: dict[Any, _Bound] = {}

    def __len__(self) -> int:
        return len(self._bound)

    def launch(self, out: torch.Tensor | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        """Runs a call on plain CUDA tensors, into ``out`` or into a new tensor; raises what the checks raise."""
        # Every line here is part of an eager call's host time, so the common case is written out.
        x = args[0]
        key = (
            x.dtype,
            x.shape,
            x.stride(),
            x.get_device(),
            x.data_ptr() & ALIGNMENT_MASK,
            (args[1:] if self._one_tensor else _freeze(args[1:])) if len(args) > 1 else None,
            tuple(kwargs.items()) if kwargs else None,
            None if out is None else _freeze(out),
            settings.debug_requested(),
        )
        try:
            bound = self._bound.get(key)
        except TypeError:  # a list among the arguments, as `dim=[0, 1]`
            key = _freeze(key)
            bound = self._bound.get(key)
        if bound is None:
            bound = self._bind(out, args, kwargs)
            if len(self._bound) >= MAX_BOUND:
                self._bound.clear()
            self._bound[key] = bound
        else:
            if log.isEnabledFor(logging.DEBUG):
                log.debug("cache hit: %s %s", self._schema.qualified, bound.name)
            if out is not None:
                named = self._schema.bind(args, kwargs)
                for name in self._schema.tensors:
                    checks.no_overlap(f"{self._schema.name}_out", out, name, named[name])
        if out is not None:
            # A kernel writes through an address, so autograd has to be told that the tensor is no longer what it was.
            _count_a_write(out)
        else:
            out = torch.empty_strided(bound.shape, bound.strides, dtype=bound.dtype, device=x.device)
        launch = bound.launch
        if launch is None:
            return out
        index = x.get_device()
        if index == _current_device() and self._one_tensor and not bound.debug and not bound.workspace:
            launch(x.data_ptr(), out.data_ptr(), *bound.arguments, _raw_stream(index))
            return out
        with torch.cuda.device(index):
            pointers = [a.data_ptr() for a in args if isinstance(a, torch.Tensor)]
            pointers.append(out.data_ptr())
            if bound.workspace:
                # Given back when this call returns; the allocator hands it out again behind this launch only.
                scratch = torch.empty(bound.workspace, dtype=torch.uint8, device=x.device)
                pointers.append(scratch.data_ptr())
            launch(*pointers, *bound.arguments, _raw_stream(index))
            if bound.debug and not torch.cuda.is_current_stream_capturing():
                torch.cuda.synchronize(index)
        return out

    def _bind(self, out: torch.Tensor | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Bound:
        """Checks a call that was not seen before, plans it, and compiles its kernel."""
        named = self._schema.bind(args, kwargs)
        expected = self._check(out, named)
        output = expected if out is None else out
        debug = settings.debug_requested()
        if output.numel() == 0:
            return _Bound(tuple(output.shape), output.stride(), output.dtype, None, (), debug, "nothing to do")
        target = devices.query(args[0].device)
        plan = self._plan(target, output, *named.values())
        log.debug("%s: %s %s: %s", self._schema.qualified, plan.variant, plan.config, plan.why)
        kernel = builder_at(plan.builder)(plan.config, arch=target.arch)
        return _Bound(
            shape=tuple(output.shape),
            strides=output.stride(),
            dtype=output.dtype,
            launch=kernel,
            arguments=plan.arguments,
            debug=debug,
            name=plan.variant,
            workspace=plan.workspace,
        )


def _count_a_write(out: torch.Tensor) -> None:
    if not out.is_inference():  # inference tensors have no version to count
        torch.autograd.graph.increment_version(out)


def _freeze(value: Any) -> Any:
    """A hashable value that says all that a launch can depend on."""
    if isinstance(value, torch.Tensor):
        return (value.dtype, value.shape, value.stride(), value.device, value.data_ptr() & ALIGNMENT_MASK)
    if isinstance(value, (tuple, list)):
        return tuple(_freeze(item) for item in value)
    return value
