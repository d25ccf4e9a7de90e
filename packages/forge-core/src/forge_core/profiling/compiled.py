"""A kernel compiled to be looked at: its PTX, its cubin, its launches; no GPU takes part."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import Any

from forge_core.cache import compile_lock, require_dsl
from forge_core.cache.compile import compile_options
from forge_core.errors import CompileError
from forge_core.op.launch import load
from forge_core.profiling.geometry import RecordedLaunch, record_launches

__all__ = ["Artefacts", "compile_to_look_at"]


@dataclass(frozen=True)
class Artefacts:
    """What compiling a configuration gave.

    Attributes:
        ptx: the PTX of all its kernels.
        cubin: the machine code, an ELF object.
        launches: what its kernels are launched with, in order.
    """

    ptx: str
    cubin: bytes
    launches: tuple[RecordedLaunch, ...]


def compile_to_look_at(
    builder: str, config: Any, arguments: tuple[Any, ...] | None, *, arch: str, workspace: bool = False
) -> Artefacts:
    """Compiles a configuration past the cache, with the options of a normal build, and keeps what comes out.

    Args:
        builder: ``"module:attribute"`` of the ``@compile_cached`` builder.
        config: its configuration.
        arguments: the integers of the launch; None for small ones of the kinds that it is traced with, which give a
            launch of the right blocks and of no particular grid.
        arch: for example ``"sm_90a"``.
        workspace: whether the launch has a scratch buffer, whose pointer follows the output's.

    Raises:
        UnsupportedError: the CuTe DSL is not installed.
        CompileError: the kernel does not compile, or its launch cannot be worked out.
    """
    require_dsl(builder)
    source = load(builder).__wrapped__(config)  # type: ignore[attr-defined]  # set by functools.update_wrapper
    pointers = sum(type(argument).__name__.lower().endswith("pointer") for argument in source.arguments)
    if arguments is None:
        arguments = tuple(_small(argument) for argument in source.arguments[pointers:-1])  # the last is the stream
    launches = record_launches(source.function, arguments, pointers=pointers or 2 + workspace)
    import cutlass.cute as cute

    with compile_lock(), tempfile.TemporaryDirectory() as folder:
        options = f"{compile_options(arch=arch, debug=False)} --keep-ptx --keep-cubin --dump-dir={folder}"
        try:
            compiled = cute.compile(source.function, *source.arguments, options=options)
            return Artefacts(compiled.__ptx__, bytes(compiled.__cubin__), launches)
        except Exception as error:  # the DSL raises what its passes raise
            raise CompileError(f"{builder}: {config} does not compile for {arch}: {error}") from error


def _small(argument: Any) -> Any:
    """A plain integer, or a tuple of them, in place of what a kernel is traced with."""
    return tuple(1 for _ in argument) if isinstance(argument, tuple) else 1
