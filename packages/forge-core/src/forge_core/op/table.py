"""One operator on real tensors: its launches, ready to go, and the reference where that serves a call.

A call whose key is in the table is launched after one look-up: no checks, no planning, no compiler.  A miss is checked,
planned and compiled, and its launch is kept.  The key holds all that a launch can depend on.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from forge_core import checks, settings
from forge_core import device as devices
from forge_core.cache import builder_at
from forge_core.device import Device
from forge_core.errors import UnsupportedError
from forge_core.op.backend import resolve
from forge_core.op.launch import Launch
from forge_core.op.rules import Rules

__all__ = ["ALIGNMENT_MASK", "MAX_BOUND", "Bound", "LaunchTable"]

log = logging.getLogger("forge_core")

# A process that meets more layouts than this starts its table anew; compiled kernels stay.
MAX_BOUND = 4096

_META = torch.device("meta")

# Wider than any vector access: a launch may depend on an address modulo this, so the table's key holds it.
ALIGNMENT_MASK = 15

# torch.cuda.current_stream() builds an object in 3.5 us; these take 0.1 us, and are absent from a CPU build of torch.
_raw_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0)
_current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", lambda: -1)

# What the driver answers where the blocks of a cooperative launch cannot be resident all at once: the DSL gives the
# error's name in a process that has compiled a kernel, and its number in any.
_REFUSED = re.compile(r"cudaErrorCooperativeLaunchTooLarge|CUDA Error Code: 720\b")

# Without the caching allocator, as for compute-sanitizer, a workspace is uninitialized, and initcheck would report a
# kernel that polls it for a number; so it is zeroed first.
_NEVER_WRITTEN = os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") is not None


def _empty_on_current_device(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:  # pragma: no cover - for a torch without the function below
    return torch.empty_strided(shape, strides, dtype=dtype, device="cuda")


# The allocation that torch.compile's generated code makes: from the same caching allocator, without a way through the
# dispatcher where nothing listens.  0.65 us against 1.1 of empty_like and 1.6 of empty_strided.
_new: Callable[..., torch.Tensor] = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", _empty_on_current_device)


@dataclass(eq=False)  # not frozen, which would take three times as long to make
class Bound:
    """A launch ready to go: the output to allocate, the native function and its integers.

    Of several results ``results`` has shapes, strides and dtypes, and ``shape``, ``strides`` and ``dtype`` are those of
    the first.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    launch: Callable[..., Any]
    arguments: tuple[float | tuple[int, ...], ...]
    debug: bool
    name: str  # the variant, for the log
    workspace: int = 0
    numbered: bool = False
    needs_general_path: bool = False  # more is to be done than to pass the pointers of one input and the output
    plan: Launch | None = None  # what was planned; None where there is nothing to do
    results: tuple[tuple[Any, ...], ...] = ()


class LaunchTable:
    """The launches of one operator; also its implementation for the dispatcher, on CPU and CUDA tensors.

    Args:
        rules: the operator's.

    Attributes:
        chosen: the backend chosen for the operator's CUDA tensors, or None.
    """

    def __init__(self, rules: Rules) -> None:
        self.name = rules.schema.qualified
        self.ambient = rules.ambient
        self.chosen: str | None = None
        self._rules = rules
        self._schema = rules.schema
        self._bound: dict[Any, Bound] = {}
        self._checked: dict[Any, tuple[tuple[str, ...], Callable[..., torch.Tensor]]] = {}

    def __len__(self) -> int:
        return len(self._bound)

    def anew(self) -> LaunchTable:
        """An empty table of the same operator: its calls are planned again, under whatever holds then."""
        return LaunchTable(self._rules)

    def launches(self) -> list[tuple[str, int, tuple[float | tuple[int, ...], ...]]]:
        """What has been bound: for each, the variant, which compiled kernel, and the integers it is launched with."""
        return [(bound.name, id(bound.launch), bound.arguments) for bound in self._bound.values()]

    # -- the backend of a call ----------------------------------------------------------------------------------

    def by_kernels(self) -> bool:
        """Whether nobody asked for the reference."""
        if self.chosen is None and settings.untouched():
            return True
        return (settings.requested_backend() or self.chosen) != "ref"

    def no_backend_override(self) -> bool:
        """Whether no backend was set, neither for the operator nor in the settings."""
        return self.chosen is None and settings.untouched()

    def resolve(self, device: torch.device, variant: str) -> str:
        """The backend that serves a call: see ``backend.resolve``."""
        return resolve(self._schema.name, device, variant, self.chosen)

    def serve(self, out: torch.Tensor | None, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The operator on CPU or CUDA tensors, into ``out`` or into a new tensor: what the dispatcher calls."""
        named = self._schema.bind(args, kwargs)
        device, variant = named[self._schema.parameters[0]].device, named.get("variant", "auto")
        if device.type == "cuda" and self.resolve(device, variant) == "kernel":
            return self.launch(out, args, kwargs)
        self.check(out, named)
        self.resolve(device, variant)  # of CPU tensors, whose call is checked first
        result = self._rules.refer(named)
        return result if out is None else out.copy_(result)

    def check(self, out: torch.Tensor | None, named: dict[str, Any]) -> Any:
        """All checks of a call, before anything is written; returns the meta tensor of the output, or those of several."""
        values = dict(named)
        first, *others = self._schema.tensors
        for name in self._schema.tensors:
            t = named[name]
            if isinstance(t, torch.Tensor) and not (t.is_nested or t.is_quantized) and t.layout is torch.strided:
                values[name] = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=_META)
        expected = self._rules.allocate(values)  # which refuses the others
        for name in others:
            if named[name] is not None:
                checks.same_device(self._schema.name, name, named[name], named[first].device)
        if out is not None:
            op = f"{self._schema.name}_out"
            checks.like_output(op, out, shape=expected.shape, dtype=expected.dtype, device=named[first].device)
            self._check_apart(out, named)
        return expected

    def _check_apart(self, out: torch.Tensor, named: dict[str, Any]) -> None:
        for name in self._schema.tensors:
            if named[name] is not None:
                checks.no_overlap(f"{self._schema.name}_out", out, name, named[name])

    def refer(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        """The reference on plain CPU tensors, by position; calls of the same metadata are checked once."""
        names, reference = self.referring(args, kwargs)
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        return reference(**dict(zip(names, tensors, strict=True)))

    def referring(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[str, ...], Callable[..., torch.Tensor]]:
        """The names of the tensors of a call, and the reference with its other arguments; as :meth:`refer`."""
        key = (
            tuple([_freeze_on_cpu(value) for value in args]),
            _freeze(tuple(kwargs.items())) if kwargs else None,
            None if self.ambient is None else self.ambient(),
        )
        try:
            found = self._checked.get(key)
        except TypeError:  # as of a launch
            self.check(None, self._schema.bind(args, kwargs))
            raise
        if found is None:
            named = self._schema.bind(args, kwargs)
            self.check(None, named)
            self.resolve(args[0].device, named.get("variant", "auto"))
            names = tuple(n for n, value in named.items() if isinstance(value, torch.Tensor))
            others = {n: value for n, value in named.items() if n not in (*names, "variant")}
            found = (names, partial(self._rules.reference, **others))
            if len(self._checked) >= MAX_BOUND:
                self._checked.clear()
            self._checked[key] = found
        return found

    # -- launches -----------------------------------------------------------------------------------------------

    def launch(self, out: torch.Tensor | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        """Runs a call on plain CUDA tensors, into ``out`` or into a new tensor; raises what the checks raise."""
        index = args[0].get_device()
        if index != _current_device():
            with torch.cuda.device(index):
                return self.run(self.find(out, args, kwargs), out, args)
        return self.run(self.find(out, args, kwargs), out, args)

    def find(self, out: torch.Tensor | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Bound:
        """The launch of a call, made ready if it was not seen before; raises what the checks raise."""
        x = args[0]
        key: Any = (
            x.dtype,
            x.shape,
            x.stride(),
            x.get_device(),
            x.data_ptr() & ALIGNMENT_MASK,
            None if len(args) == 1 else args[1] if len(args) == 2 and type(args[1]) is int else _freeze(args[1:]),
            _freeze(tuple(kwargs.items())) if kwargs else None,
            None if out is None else _freeze(out),
            settings.debug_requested(),
            None if self.ambient is None else self.ambient(),
        )
        try:
            bound = self._bound.get(key)
        except TypeError:  # an argument that has no hash is none that a kernel takes: the checks say why
            self.check(out, self._schema.bind(args, kwargs))
            raise
        if bound is None:
            bound = self._bind(out, args, kwargs)
            if len(self._bound) >= MAX_BOUND:
                self._bound.clear()
            self._bound[key] = bound
        else:
            self.log_hit(bound)
            if out is not None:
                self._check_apart(out, self._schema.bind(args, kwargs))
        return bound

    def planned(self, target: Device, out: torch.Tensor | None, named: dict[str, Any]) -> Launch:
        """What a call would launch on a GPU; its tensors may be on ``meta``.  Raises what the checks raise."""
        expected = self.check(None, named)
        return self._rules.plan(target, expected if out is None else out, *named.values())

    def log_hit(self, bound: Bound) -> None:
        """Logs that a launch was found in the table."""
        if log.isEnabledFor(logging.DEBUG):
            log.debug("cache hit: %s %s", self.name, bound.name)

    def run(self, bound: Bound, out: torch.Tensor | None, args: tuple[Any, ...]) -> torch.Tensor:
        """Runs a launch on the current device, which is that of the tensors."""
        index = args[0].get_device()
        if out is not None:
            # A kernel writes through an address, so autograd has to be told that the tensor is no longer what it was.
            _count_a_write(out)
            written: tuple[torch.Tensor, ...] = (out,)
        elif bound.results:
            written = tuple([_new(*one) for one in bound.results])
            for t in written if bound.plan is None else ():  # sums over no rows
                t.zero_()
        else:
            written = (_new(bound.shape, bound.strides, bound.dtype),)
        pointers = [a.data_ptr() for a in args if isinstance(a, torch.Tensor)]
        pointers += [t.data_ptr() for t in written if not bound.results or t.numel()]
        if bound.workspace:
            # Given back when this call returns; the allocator hands it out again behind this launch only.
            scratch = _new((bound.workspace,), (1,), torch.uint8)
            pointers.append(scratch.data_ptr())
        if bound.numbered:
            self._run_numbered(bound, pointers, scratch, index)
        else:
            bound.launch(*pointers, *bound.arguments, _raw_stream(index))
        if bound.debug and not torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize(index)
        found: Any = written if bound.results else written[0]
        result: torch.Tensor = found
        return result

    def _run_numbered(self, bound: Bound, pointers: list[int], scratch: torch.Tensor, index: int) -> None:
        """Runs a launch that is passed a number: negative where it comes again, whenever the graph is replayed."""
        number = next(_numbers)
        if torch.cuda.is_current_stream_capturing():
            number = -number
        if _NEVER_WRITTEN:
            scratch.zero_()
        try:
            bound.launch(*pointers, *bound.arguments, number, _raw_stream(index))
        except Exception as error:  # of a type that depends on whether this process has compiled a kernel
            if not _REFUSED.search(str(error)):
                raise
            raise UnsupportedError(
                f"{self.name}: variant '{bound.name}' needs all of its blocks resident at once, and the driver finds "
                f"no room for them ({error}). Where a part of the GPU's multiprocessors is to be had, ask for another "
                "variant: variants() names them.",
                requirement="multiprocessors for all blocks at once",
            ) from error

    def _bind(self, out: torch.Tensor | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Bound:
        """Checks a call that was not seen before, plans it, and compiles its kernel."""
        named = self._schema.bind(args, kwargs)
        expected = self.check(out, named)
        output = expected if out is None else out
        debug = settings.debug_requested()
        first, *others = [
            (tuple(t.shape), t.stride(), t.dtype) for t in (output if isinstance(output, tuple) else (output,))
        ]
        results = (first, *others) if others else ()
        if 0 in first[0]:
            return Bound(*first, _no_op_launch, (), debug, "nothing to do", needs_general_path=True, results=results)
        target = devices.query(args[0].device)
        plan = self._rules.plan(target, output, *named.values())
        log.debug("%s: %s %s: %s", self._schema.qualified, plan.variant, plan.config, plan.why)
        kernel = builder_at(plan.builder)(plan.config, arch=target.arch)
        return Bound(
            *first,
            launch=kernel,
            arguments=plan.arguments,
            debug=debug,
            name=plan.variant,
            workspace=plan.workspace,
            numbered=plan.numbered,
            needs_general_path=debug or plan.workspace > 0 or len(self._schema.tensors) > 1,
            plan=plan,
            results=results,
        )


# The numbers of launches that need one of their own (see ``Launch.numbered``) begin anywhere from 1 to 2^62, so that
# uninitialized memory holds none of them, and are counted up from there; in the child of a fork they begin anew.
_numbers = itertools.count(1 + secrets.randbelow(2**62))


def _begin_anew_after_fork() -> None:
    global _numbers
    _numbers = itertools.count(1 + secrets.randbelow(2**62))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew_after_fork)


def _no_op_launch(*arguments: Any) -> None:
    """The launch of a call whose output is empty."""


def _count_a_write(out: torch.Tensor) -> None:
    if not out.is_inference():  # inference tensors have no version to count
        torch.autograd.graph.increment_version(out)


def _freeze(value: Any) -> Any:
    """A hashable value that says all that a launch can depend on; an int is told from an equal bool or float."""
    if isinstance(value, torch.Tensor):
        return (value.dtype, value.shape, value.stride(), value.get_device(), value.data_ptr() & ALIGNMENT_MASK)
    if isinstance(value, (tuple, list)):
        return tuple([_freeze(item) for item in value])
    return (type(value), value)


def _freeze_on_cpu(value: Any) -> Any:
    """The same of what a reference depends on, whose tensors lie anywhere."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.stride()
    return value if type(value) is int else _freeze(value)
