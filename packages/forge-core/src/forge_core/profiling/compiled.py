"""Compiling a kernel to inspect it: its PTX, its cubin and its launches; needs no GPU."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import Any

from forge_core.cache import Traceable, compile_lock, require_dsl
from forge_core.cache.compile import compile_options
from forge_core.errors import CompileError
from forge_core.op.launch import load
from forge_core.profiling.geometry import RecordedLaunch, record_launches

__all__ = ["Artefacts", "compile_to_look_at", "traceable"]


@dataclass(frozen=True)
class Artefacts:
    """What compiling a configuration gave: the PTX of all its kernels, the cubin, and the launches in order."""

    ptx: str
    cubin: bytes
    launches: tuple[RecordedLaunch, ...]


def traceable(builder: str, config: Any) -> tuple[Traceable, int]:
    """What a builder would compile for a configuration, and the number of pointers that its arguments begin with."""
    source: Traceable = load(builder).__wrapped__(config)  # type: ignore[attr-defined]  # of functools.update_wrapper
    return source, sum(type(argument).__name__.lower().endswith("pointer") for argument in source.arguments)


def compile_to_look_at(builder: str, config: Any, arguments: tuple[Any, ...] | None, *, arch: str) -> Artefacts:
    """Compiles a configuration past the cache, with the options of a normal build, and keeps what comes out.

    Args:
        builder: ``"module:attribute"`` of the ``@compile_cached`` builder.
        config: its configuration.
        arguments: the integers of the launch; None for ones, which give the right blocks but no particular grid.
        arch: for example ``"sm_90a"``.

    Raises:
        UnsupportedError: the CuTe DSL is not installed.
        CompileError: the kernel does not compile, or its launch cannot be worked out.
    """
    require_dsl(builder)
    source, pointers = traceable(builder, config)
    if arguments is None:
        traced = source.arguments[pointers:-1]  # the last is the stream
        arguments = tuple(tuple(1 for _ in a) if isinstance(a, tuple) else 1 for a in traced)
    launches = record_launches(source.function, arguments, pointers=pointers)
    import cutlass.cute as cute

    with compile_lock(), tempfile.TemporaryDirectory() as folder:
        options = f"{compile_options(arch=arch, debug=False)} --keep-ptx --keep-cubin --dump-dir={folder}"
        try:
            compiled = cute.compile(source.function, *source.arguments, options=options)
            return Artefacts(compiled.__ptx__, bytes(compiled.__cubin__), launches)
        except Exception as error:  # the DSL raises what its passes raise
            raise CompileError(f"{builder}: {config} does not compile for {arch}: {error}") from error
