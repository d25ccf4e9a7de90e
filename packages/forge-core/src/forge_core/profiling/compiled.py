"""Compiling a kernel to inspect it: its PTX, its cubin and its launches; needs no GPU.

A kernel class's ``__call__`` is a ``@cute.jit`` method that calculates grids from the launch's integers and launches
one or several kernels.  Its arithmetic is plain, so it runs as Python over plain integers, on a copy of the object in
which every kernel is replaced by a recorder.
"""

from __future__ import annotations

import copy
import functools
import inspect
from dataclasses import dataclass
from typing import Any

from forge_core import settings
from forge_core.cache import Traceable, builder_at
from forge_core.errors import CompileError


@dataclass(frozen=True)
class RecordedLaunch:
    """What one kernel would be launched with; sizes along x, y, z."""

    name: str  # prefix of the kernel's symbol; empty where the kernel has no name of its own
    grid: tuple[int, int, int]  # blocks
    block: tuple[int, int, int]  # threads
    cluster: tuple[int, int, int]  # blocks of a cluster
    dynamic_smem: int | None  # bytes of a block; None where the compiler determines it
    options: tuple[tuple[str, bool | int | str], ...] = ()  # further ones by name, such as cooperative
    arguments: tuple[Any, ...] = ()  # integers and tuples of them; distinct invalid addresses for pointers
    states_smem: bool = True  # False: the launch does not mention shared memory, and dynamic_smem is 0


@dataclass(frozen=True)
class Artefacts:
    """A compiled configuration: the PTX of all its kernels, the cubin, and the launches in order."""

    ptx: str
    cubin: bytes
    launches: tuple[RecordedLaunch, ...]


def compile_to_look_at(builder: str, config: Any, arguments: tuple[Any, ...] | None, *, arch: str) -> Artefacts:
    """Compiles a configuration of a builder ``"module:attribute"`` as a normal build does, bypassing the cache.

    ``arguments`` are the integers of the launch; None for ones, which give the right blocks but no particular grid.

    Raises:
        UnsupportedError: the CuTe DSL is not installed.
        CompileError: the kernel does not compile, or its launch cannot be worked out.
    """
    launches = launches_of(builder, config, arguments)
    with settings.use_settings(debug=False):
        compiled = builder_at(builder).compile(config, arch=arch)
    return Artefacts(compiled.ptx, compiled.cubin, launches)


@functools.lru_cache(maxsize=512)
def _traceable(builder: str, config: Any) -> Traceable:
    wrapper: Any = builder_at(builder).imported()
    traceable: Traceable = wrapper.__wrapped__(config)
    return traceable


def launches_of(builder: str, config: Any, arguments: tuple[Any, ...] | None) -> tuple[RecordedLaunch, ...]:
    """The launches of a builder's kernels; see :func:`compile_to_look_at` and :func:`record_launches`."""
    source = _traceable(builder, config)
    pointers = sum(type(argument).__name__.lower().endswith("pointer") for argument in source.arguments)
    if arguments is None:
        traced = source.arguments[pointers:-1]  # the last is the stream
        arguments = tuple(tuple(1 for _ in a) if isinstance(a, tuple) else 1 for a in traced)
    return record_launches(source.function, arguments, pointers=pointers)


# Distance between the addresses of two pointers, larger than any offset.
_APART = 2**50


class _NoAddress(int):
    """An invalid address in place of a pointer, on which no grid depends."""

    def toint(self) -> int:
        return int(self)


@dataclass
class _Recorder:
    """Replaces a kernel: logs its launch, with its name and arguments."""

    log: list[RecordedLaunch]
    name: str = ""
    arguments: tuple[Any, ...] = ()

    def set_name_prefix(self, prefix: str, **_: Any) -> None:
        self.name = prefix

    def __call__(self, *args: Any, **named: Any) -> _Recorder:
        self.arguments = _plain([*args, *named.values()])
        return self

    def launch(self, *, grid: Any, block: Any, cluster: Any = None, **others: Any) -> None:
        states_smem, smem = "smem" in others, others.pop("smem", 0)
        smem = None if smem is None else _integer(smem)
        sizes = _dim3(grid), _dim3(block), _dim3(cluster or (1, 1, 1))
        options = tuple(sorted((k, v) for k, v in others.items() if isinstance(v, (bool, int, str))))
        self.log.append(RecordedLaunch(self.name, *sizes, smem, options, self.arguments, states_smem))


def record_launches(function: Any, arguments: tuple[Any, ...], *, pointers: int = 2) -> tuple[RecordedLaunch, ...]:
    """The launches that a kernel object's ``__call__`` would make, in order.

    It takes pointers, then ``arguments``, the launch's integers and tuples of integers, then the stream.

    Raises:
        CompileError: the launch cannot be worked out from these integers alone.
    """
    log: list[RecordedLaunch] = []
    addresses = [_NoAddress(_APART * (i + 1)) for i in range(pointers)]
    try:
        _on_host(function, log)(*addresses, *arguments, None)
    except Exception as error:  # whatever the class's own host code raises
        raise CompileError(
            f"{type(function).__name__}: the launch cannot be worked out on the host: {error!r}"
        ) from error
    if not log:
        raise CompileError(f"{type(function).__name__}: its __call__ launches no kernel that could be recorded")
    return tuple(log)


def _on_host(thing: Any, log: list[RecordedLaunch]) -> Any:
    """A copy of a kernel object, of a subclass whose kernels are recorders and whose ``@cute.jit`` methods are plain.

    So are those of the objects that it holds: it may launch the kernels of another pass.
    """
    own: dict[str, Any] = {}
    for name, attribute in inspect.getmembers_static(type(thing)):
        decorator = getattr(attribute, "_decorator_kind", None)
        if decorator is not None:
            own[name] = _Recorder(log) if decorator == "kernel" else inspect.unwrap(attribute)
    if not own:
        return thing
    host = copy.copy(thing)
    object.__setattr__(host, "__class__", type(type(thing).__name__, (type(thing),), own))
    for name, value in vars(host).items():
        object.__setattr__(host, name, _on_host(value, log))
    return host


def _plain(value: Any) -> Any:
    """Nested tuples of integers; the text of what is neither, such as None."""
    if isinstance(value, (tuple, list)):
        return tuple(_plain(item) for item in value)
    try:
        return _integer(value)
    except (TypeError, ValueError):
        return str(value)


def _dim3(value: Any) -> tuple[int, int, int]:
    x, y, z = (*map(_integer, value), 1, 1, 1)[:3]
    return x, y, z


def _integer(value: Any) -> int:
    # The DSL's integers keep a constant in .value.
    return int(getattr(value, "value", value))
