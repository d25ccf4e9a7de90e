"""Compiling one kernel, by the CuTe DSL.

``cute.compile`` is not thread-safe: whoever calls this module holds a lock (see ``cached``).
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from forge_core.cache import native
from forge_core.cache.entry import Image
from forge_core.cache.files import tell_once
from forge_core.cache.key import KernelKey
from forge_core.cache.toolchain import require_dsl
from forge_core.errors import CompileError

__all__ = ["Compiled", "Compiler", "DslCompiler", "Traceable", "compile_options"]

log = logging.getLogger("forge_core")


@dataclass(frozen=True)
class Traceable:
    """What the compiler needs of one kernel.

    Attributes:
        function: the ``@cute.jit`` callable.
        arguments: example arguments (fake tensors, null pointers, integers, a fake stream); their types matter, not
            their values.
        name: a short and stable name for profilers; it must not contain ``cutlass``, which makes some compilers
            spill registers.
    """

    function: Any
    arguments: tuple[Any, ...]
    name: str


@dataclass(frozen=True)
class Compiled:
    """A compiled kernel.

    Attributes:
        launch: the native function; takes pointers as integers, integers, and the stream as an integer.
        key: what it was built from.
        seconds: time that compiling took, whenever that was.
        origin: where it came from: ``"compiled"`` by this process, ``"cache"`` or ``"bundle"``.
        ptx: the generated PTX, where it was asked for.
        owner: keeps the loaded module alive.
    """

    launch: Callable[..., Any]
    key: KernelKey
    seconds: float
    origin: str = "compiled"
    ptx: str | None = None
    owner: Any = field(default=None, repr=False)


def compile_options(*, arch: str, debug: bool) -> str:
    """The options given to ``cute.compile``.

    The target is always among them: where there is no GPU, detection falls back to sm_100 without a word.
    """
    options = ["--enable-tvm-ffi", f"--gpu-arch {arch}"]
    if debug:
        options += ["--generate-line-info", "--enable-assertions"]
    return " ".join(options)


class Compiler(Protocol):
    """What turns builders into objects and objects into functions."""

    def compile(
        self, build: Callable[[Any], Traceable], config: Any, key: KernelKey, *, keep_ptx: bool = False
    ) -> Compiled:
        """Compiles for this process; raises CompileError or UnsupportedError."""

    def image(self, compiled: Compiled) -> Image:
        """The object of what :meth:`compile` returned, for other processes."""

    def load(self, path: Path, symbol: str, *, linked: bool) -> tuple[Callable[..., Any], Any]:
        """The function of an object that was stored, and what keeps it alive."""


class DslCompiler:
    """The CuTe DSL."""

    def compile(
        self, build: Callable[[Any], Traceable], config: Any, key: KernelKey, *, keep_ptx: bool = False
    ) -> Compiled:
        """Traces and compiles; needs no GPU.

        Raises:
            UnsupportedError: the CuTe DSL is not installed.
            CompileError: the kernel could not be compiled.
        """
        require_dsl(key.name)
        import cutlass.cute as cute

        start = time.perf_counter()
        try:
            source = build(config)
            # The DSL keeps PTX by writing a file, by default into the current folder.
            with tempfile.TemporaryDirectory() as folder:
                options = key.options
                if keep_ptx:
                    options += f" --keep-ptx --dump-dir={folder}"
                compiled = cute.compile(source.function, *source.arguments, options=options)
                ptx = compiled.__ptx__ if keep_ptx else None
        except Exception as error:
            raise CompileError(
                f"{key.name}: {config} does not compile for {key.arch}: {error}", key=key.digest
            ) from error
        seconds = time.perf_counter() - start
        log.debug("compiled: %s %s [%s] in %.2f s, key %s", key.name, config, key.arch, seconds, key.digest[:12])
        # The wrapper that the DSL returns handles keyword arguments in Python; the function inside does not.
        unwrap = getattr(compiled, "__tvm_ffi_object__", None)
        inside = unwrap() if unwrap is not None else None
        return Compiled(
            launch=compiled if inside is None else inside, key=key, seconds=seconds, ptx=ptx, owner=compiled
        )

    def image(self, compiled: Compiled) -> Image:
        """Exports the object and links it.

        Raises:
            CompileError: it cannot be exported.
        """
        with tempfile.TemporaryDirectory(prefix="forge-object-") as folder:
            path = Path(folder) / "kernel.o"
            try:
                compiled.owner.export_to_c(
                    str(path), function_name=compiled.key.symbol, export_only_tvm_ffi_symbols=True
                )
            except Exception as error:
                raise CompileError(
                    f"{compiled.key.name}: the compiled kernel cannot be exported: {error}", key=compiled.key.digest
                ) from error
            data = path.read_bytes()
        try:
            return Image(native.link(data), linked=True, seconds=compiled.seconds)
        except native.LinkError as error:
            tell_once(
                "linker",
                "compiled kernels are stored as they are, because %s. A new process then imports the DSL to load "
                "them, which takes two seconds.",
                error,
            )
            return Image(data, linked=False, seconds=compiled.seconds)

    def load(self, path: Path, symbol: str, *, linked: bool) -> tuple[Callable[..., Any], Any]:
        """See :func:`forge_core.cache.native.load`."""
        return native.load(path, symbol, linked=linked)
