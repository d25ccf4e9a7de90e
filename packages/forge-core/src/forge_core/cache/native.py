"""From the compiler's object file to a function that can be called, in this process or in a later one.

    cute.compile -> kernel.o --- ld -shared ---> kernel.so --- tvm_ffi.load_module ---> function

The linked object names the DSL's runtime library and TVM-FFI as libraries that it needs, and holds nothing of either:
they are loaded from their own wheels first.  It is loaded in under a millisecond and without importing the DSL, which
takes seconds.  Linking takes the linker of the system, and 10 ms.  Where there is none, the object is kept as it came
and the DSL itself loads it.
"""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forge_core.cache.toolchain import require_dsl, require_runtime, runtime_library

__all__ = ["LinkError", "find_linker", "link", "load"]

# `now`: what is missing is found when the object is loaded, not in the middle of a launch.
_FLAGS = ("--no-undefined", "--strip-debug", "--build-id=none", "-z", "now", "-z", "relro", "-z", "noexecstack")
# Some launches check their shared memory and print; by its name, for systems without the files of developers.
_LIBC = ("--as-needed", "-l:libc.so.6")
_LINKERS = ("ld", "ld.lld", "ld.mold")
_DRIVERS = ("cc", "gcc", "clang")


class LinkError(Exception):
    """An object could not be linked; the text says why."""


@functools.cache
def find_linker() -> tuple[str, ...] | None:
    """The command that links, without files, or None where the system has none."""
    for name in _LINKERS:
        path = shutil.which(name)
        if path is not None:
            return (path, "-shared", *_FLAGS)
    for name in _DRIVERS:
        path = shutil.which(name)
        if path is not None:
            # Without start-up files, which the object does not need.
            return (path, "-shared", "-nostdlib", *_through((path, "-nostdlib"), _FLAGS))
    return None


def _through(command: tuple[str, ...], flags: tuple[str, ...]) -> tuple[str, ...]:
    """Flags for a linker, as the command takes them: itself, or a compiler that hands them on."""
    return tuple(part for flag in flags for part in ("-Xlinker", flag)) if "-nostdlib" in command else flags


def link(data: bytes) -> bytes:
    """Makes a relocatable object loadable by itself.

    Raises:
        LinkError: there is no linker, or it refused.
    """
    command, runtime = find_linker(), runtime_library()
    if command is None:
        raise LinkError("no linker (ld, cc) was found; install binutils")
    if runtime is None:
        raise LinkError("the DSL's runtime library was not found")
    import tvm_ffi

    libraries = [str(runtime), tvm_ffi.libinfo.find_libtvm_ffi()]
    with tempfile.TemporaryDirectory(prefix="forge-link-") as name:
        folder = Path(name)
        (folder / "kernel.o").write_bytes(data)
        done = subprocess.run(
            [*command, "-o", "kernel.so", "kernel.o", *libraries, *_through(command, _LIBC)],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise LinkError(f"{command[0]} failed: {done.stderr.strip() or done.stdout.strip()}")
        return (folder / "kernel.so").read_bytes()


@functools.cache
def _load_runtime(path: Path) -> ctypes.CDLL:
    # An object names its libraries without a path; the loader is content with one of that name that is there already.
    return ctypes.CDLL(str(path))


def load(path: Path, symbol: str, *, linked: bool) -> tuple[Callable[..., Any], Any]:
    """The function of an object, and what has to be kept alive with it.

    Args:
        path: a file whose checksum was verified.
        symbol: the function's name.
        linked: whether it can be loaded by itself; otherwise this imports the DSL.

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
