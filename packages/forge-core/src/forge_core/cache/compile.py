"""Compiles one kernel, and loads its object in this process or a later one.

    cute.compile -> kernel.o --- ld -shared ---> kernel.so --- tvm_ffi.load_module ---> function

The linked object names the DSL's runtime library and TVM-FFI as libraries that it needs, which are loaded from their
own wheels first.  Loading it takes less than a millisecond and does not import the DSL, which takes seconds.  On a
system without a linker the object is kept as it is, and the DSL loads it.

``cute.compile`` is not thread-safe: callers of ``Compiler.compile`` hold ``cached.compile_lock``.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forge_core.cache.files import warn_once
from forge_core.cache.key import KernelKey
from forge_core.errors import CompileError
from forge_core.toolchain import require_dsl, require_runtime, runtime_library

__all__ = ["Compiled", "Compiler", "Traceable", "compile_options", "find_linker"]

log = logging.getLogger("forge_core")

_LINK = (
    *("--no-undefined", "--strip-debug", "--build-id=none", "-z", "relro", "-z", "noexecstack"),
    # A missing symbol is an error when the object is loaded, not at a launch.
    *("-z", "now"),
    *("-o", "kernel.so", "kernel.o"),
    # Launches that check their shared memory print; by file name, because libc.so is part of the development files.
    *("--as-needed", "-l:libc.so.6", "--no-as-needed"),
)


@dataclass(frozen=True)
class Traceable:
    """What the compiler needs of one kernel.

    Attributes:
        function: the ``@cute.jit`` callable.
        arguments: example arguments (fake tensors, null pointers, integers, a fake stream), of which the types matter.
        name: a short and stable name for profilers; a name with ``cutlass`` makes some compilers spill registers.
    """

    function: Any
    arguments: tuple[Any, ...]
    name: str


@dataclass(frozen=True)
class Compiled:
    """A compiled kernel."""

    launch: Callable[
        ..., Any
    ]  # the native function; takes pointers as integers, integers, and the stream as an integer
    key: KernelKey
    seconds: float  # what compiling took, in this process or another
    origin: str = "compiled"  # by this process; or "cache", "bundle"
    ptx: str = ""  # if it was asked for
    cubin: bytes = b""  # likewise
    #: The DSL's compiled object, or the loaded module, which must outlive the function.
    owner: Any = field(default=None, repr=False)


def compile_options(*, arch: str, debug: bool) -> str:
    """The options given to ``cute.compile``.

    The target is always among them: where there is no GPU, detection falls back to sm_100 without a word.
    """
    options = ["--enable-tvm-ffi", f"--gpu-arch {arch}"]
    if debug:
        options += ["--generate-line-info", "--enable-assertions"]
    return " ".join(options)


class Compiler:
    """The CuTe DSL; the cache's tests put a fake in its place."""

    def compile(
        self, build: Callable[[Any], Traceable], config: Any, key: KernelKey, *, keep: bool = False
    ) -> Compiled:
        """Traces and compiles, and keeps PTX and machine code if asked to; needs no GPU.

        Raises:
            UnsupportedError: the CuTe DSL is not installed.
            CompileError: the kernel could not be compiled.
        """
        require_dsl(key.name)
        import cutlass.cute as cute

        start = time.perf_counter()
        try:
            source = build(config)
            # The DSL writes what it keeps to files, by default into the current folder.
            with tempfile.TemporaryDirectory() as folder:
                options = key.options + (f" --keep-ptx --keep-cubin --dump-dir={folder}" if keep else "")
                compiled = cute.compile(source.function, *source.arguments, options=options)
                ptx, cubin = (compiled.__ptx__, bytes(compiled.__cubin__)) if keep else ("", b"")
        except Exception as error:
            raise CompileError(
                f"{key.name}: {config} does not compile for {key.arch}: {error}", key=key.digest
            ) from error
        seconds = time.perf_counter() - start
        log.debug("compiled: %s %s [%s] in %.2f s, key %s", key.name, config, key.arch, seconds, key.digest[:12])
        # The wrapper that the DSL returns handles keyword arguments in Python; the function inside does not.
        unwrap = getattr(compiled, "__tvm_ffi_object__", None)
        inside = unwrap() if unwrap is not None else None
        launch = compiled if inside is None else inside
        return Compiled(launch=launch, key=key, seconds=seconds, ptx=ptx, cubin=cubin, owner=compiled)

    def image(self, compiled: Compiled) -> tuple[bytes, bool]:
        """The object, and whether it is linked: loadable without the DSL.

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
            if why := _link(path.parent):
                warn_once(
                    "linker",
                    "compiled kernels are stored as they are, because %s. A new process then imports the DSL to load "
                    "them, which takes two seconds.",
                    why,
                )
                return path.read_bytes(), False
            return path.with_suffix(".so").read_bytes(), True

    def load(self, path: Path, symbol: str, *, linked: bool) -> tuple[Callable[..., Any], Any]:
        """Loads the function ``symbol`` of an object, which imports the DSL if it is not linked.

        Returns:
            The function, and what must outlive it.

        Raises:
            UnsupportedError: the DSL or TVM-FFI is not installed.
            OSError, RuntimeError, AttributeError: it is not an object for this machine, or has no such function.
        """
        if not linked:
            require_dsl(f"loading {path}")
            import cutlass.cute as cute

            module = cute.runtime.load_module(str(path), enable_tvm_ffi=True)
            return getattr(module, symbol), module
        require_runtime(f"loading {path}")
        runtime = runtime_library()
        if runtime is not None:
            _load_runtime(runtime)
        import tvm_ffi

        module = tvm_ffi.load_module(str(path))
        return module.get_function(symbol), module


# ------------------------------------------------------------------------------------------------------ linking


@functools.cache
def find_linker() -> tuple[str, ...] | None:
    """The command that links kernel.o to kernel.so, without the libraries; None where the system has no linker."""
    for name in ("ld", "ld.lld", "ld.mold"):
        if path := shutil.which(name):
            return (path, "-shared", *_LINK)
    for name in ("cc", "gcc", "clang"):
        if path := shutil.which(name):
            # Without start-up files, which the object does not need.
            return (path, "-shared", "-nostdlib", *(part for flag in _LINK for part in ("-Xlinker", flag)))
    return None


def _link(folder: Path) -> str:
    """Links the kernel.o in a folder to kernel.so; returns why that is not possible, or ""."""
    command, runtime = find_linker(), runtime_library()
    if command is None:
        return "no linker (ld, cc) was found; install binutils"
    if runtime is None:
        return "the DSL's runtime library was not found"
    import tvm_ffi

    command = (*command, str(runtime), tvm_ffi.libinfo.find_libtvm_ffi())
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return f"{command[0]} failed: {done.stderr.strip() or done.stdout.strip()}" if done.returncode != 0 else ""


@functools.cache
def _load_runtime(path: Path) -> ctypes.CDLL:
    # An object names its libraries without a path, and the loader takes one of that name that is loaded already.
    return ctypes.CDLL(str(path))
