"""Compiles one kernel; loads its object in this or a later process.

    cute.compile -> kernel.o --- ld -shared ---> kernel.so --- tvm_ffi.load_module ---> function

The linked object depends on the DSL's runtime library and TVM-FFI, which are loaded from their own wheels first.
Loading takes less than a millisecond and does not import the DSL, which takes seconds.  On a system without a linker
the object is stored unlinked, and the DSL loads it.

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

log = logging.getLogger("forge_core")

_LINK = (
    *("--no-undefined", "--strip-debug", "--build-id=none", "-z", "relro", "-z", "noexecstack"),
    # Resolve symbols when the object is loaded, not at a launch.
    *("-z", "now"),
    *("-o", "kernel.so", "kernel.o"),
    # The host code calls printf.  By file name, because libc.so is part of the development files.
    *("--as-needed", "-l:libc.so.6", "--no-as-needed"),
)


@dataclass(frozen=True)
class Traceable:
    """The input of the compiler for one kernel."""

    function: Any  #: the @cute.jit callable
    arguments: tuple[Any, ...]  #: examples, of which only the types matter: fake tensors, null pointers, a fake stream
    name: str  #: short and stable


@dataclass(frozen=True)
class Compiled:
    """A compiled kernel."""

    launch: Callable[..., Any]  #: the native function; takes pointers, the numbers of the launch, the stream
    key: KernelKey
    seconds: float  #: compile time, in this process or another
    origin: str = "compiled"  #: in this process; or loaded from "cache" or "bundle"
    ptx: str = ""  #: only if requested
    cubin: bytes = b""  #: likewise
    owner: Any = field(default=None, repr=False)  #: the DSL's compiled object or the loaded module; outlives `launch`


def compile_options(*, arch: str, debug: bool) -> str:
    """The options of ``cute.compile``; without a target it would silently assume sm_100 where there is no GPU."""
    options = ["--enable-tvm-ffi", f"--gpu-arch {arch}"]
    if debug:
        options += ["--generate-line-info", "--enable-assertions"]
    return " ".join(options)


class Compiler:
    """The CuTe DSL; tests substitute a fake."""

    def compile(
        self, build: Callable[[Any], Traceable], config: Any, key: KernelKey, *, keep: bool = False
    ) -> Compiled:
        """Traces and compiles; ``keep`` also keeps PTX and machine code; needs no GPU."""
        require_dsl(key.name)
        import cutlass.cute as cute

        start = time.perf_counter()
        try:
            traceable = build(config)
            # The DSL writes PTX and machine code to files, by default into the current folder.
            with tempfile.TemporaryDirectory() as folder:
                options = key.options + (f" --keep-ptx --keep-cubin --dump-dir={folder}" if keep else "")
                compiled = cute.compile(traceable.function, *traceable.arguments, options=options)
                ptx, cubin = (compiled.__ptx__, bytes(compiled.__cubin__)) if keep else ("", b"")
        except Exception as error:
            raise CompileError(
                f"{key.name} does not compile for {key.arch}: {error} (of {config})", key=key.digest
            ) from error
        seconds = time.perf_counter() - start
        log.debug("compiled: %s %s [%s] in %.2f s, key %s", key.name, config, key.arch, seconds, key.digest[:12])
        # The DSL returns a Python wrapper that handles keyword arguments; the native function inside is faster.
        inside = getattr(compiled, "__tvm_ffi_object__", lambda: None)()
        launch = compiled if inside is None else inside
        return Compiled(launch=launch, key=key, seconds=seconds, ptx=ptx, cubin=cubin, owner=compiled)

    def image(self, compiled: Compiled) -> tuple[bytes, bool]:
        """The object's bytes, and whether it is linked (loadable without the DSL)."""
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
                    f"compiled kernels are stored as they are, because {why}. A new process then imports the DSL to "
                    "load them, which takes two seconds."
                )
                return path.read_bytes(), False
            return path.with_suffix(".so").read_bytes(), True

    def load(self, path: Path, symbol: str, *, linked: bool) -> tuple[Callable[..., Any], Any]:
        """Loads the function ``symbol`` of an object, and its module, which must outlive it.

        Imports the DSL if the object is not linked.
        """
        if not linked:
            require_dsl(f"loading {path}")
            import cutlass.cute as cute

            module = cute.runtime.load_module(str(path), enable_tvm_ffi=True)
            return getattr(module, symbol), module
        require_runtime(f"loading {path}")
        runtime = runtime_library()
        if runtime is not None:
            # The object names its libraries without a path; the loader uses one of that name that is already loaded.
            ctypes.CDLL(str(runtime))
        import tvm_ffi

        module = tvm_ffi.load_module(str(path))
        return module.get_function(symbol), module


# ------------------------------------------------------------------------------------------------------ linking


@functools.cache
def find_linker() -> tuple[str, ...] | None:
    """The command that links kernel.o to kernel.so, without libraries; None where the system has no linker."""
    for name in ("ld", "ld.lld", "ld.mold", "cc", "gcc", "clang"):
        if path := shutil.which(name):
            if name.startswith("ld"):
                return (path, "-shared", *_LINK)
            # -nostdlib: without start-up files.
            return (path, "-shared", "-nostdlib", *(part for flag in _LINK for part in ("-Xlinker", flag)))
    return None


def _link(folder: Path) -> str:
    """Links the kernel.o in a folder to kernel.so; returns the reason of a failure, or ""."""
    command, runtime = find_linker(), runtime_library()
    if command is None:
        return "no linker (ld, cc) was found; install binutils"
    if runtime is None:
        return "the DSL's runtime library was not found"
    import tvm_ffi

    command = (*command, str(runtime), tvm_ffi.libinfo.find_libtvm_ffi())
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return f"{command[0]} failed: {done.stderr.strip() or done.stdout.strip()}" if done.returncode != 0 else ""
