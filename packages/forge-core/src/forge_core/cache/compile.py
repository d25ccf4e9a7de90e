"""Compiling, and remembering what was compiled.

A kernel module decorates one function that says what to trace for a configuration::

    @compile_cached
    def build(config: TiledConfig) -> Traceable:
        return Traceable(Tiled(config), example_arguments(config), name=f"transpose_tiled_{config.tile}")

    launch = build(config, arch="sm_90a")  # compiled at the first call, looked up afterwards
    launch(*arguments)

``cute.compile`` is not thread-safe, so one lock serialises it; look-ups take no lock.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from forge_core import settings
from forge_core.cache.key import KernelKey
from forge_core.errors import CompileError, UnsupportedError

__all__ = ["CompileCached", "Compiled", "Traceable", "compile_cached", "require_dsl"]

log = logging.getLogger("forge_core")

Config = TypeVar("Config")

_compile_lock = threading.RLock()


def _renew_lock_after_fork() -> None:
    # A thread that compiled while the process forked does not exist in the child, and would hold the lock for ever.
    global _compile_lock
    _compile_lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock_after_fork)


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
        seconds: time that compiling took.
        ptx: the generated PTX, where it was asked for.
        owner: keeps the loaded module alive.
    """

    launch: Callable[..., Any]
    key: KernelKey
    seconds: float
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


def require_dsl(name: str) -> None:
    """Raises UnsupportedError, with the command that installs it, where the CuTe DSL cannot be imported."""
    missing = [module for module in ("cutlass", "tvm_ffi") if importlib.util.find_spec(module) is None]
    if missing:
        raise UnsupportedError(
            f"{name}: kernels are compiled by the CuTe DSL, and {' and '.join(missing)} cannot be imported. "
            "Install it with: pip install 'nvidia-cutlass-dsl>=4.7,<5' 'apache-tvm-ffi>=0.1.11' "
            "(Linux only; elsewhere the CPU reference works).",
            requirement="nvidia-cutlass-dsl and apache-tvm-ffi",
        )


class CompileCached(Generic[Config]):
    """The decorated builder: call it with a configuration and an architecture, get the native function."""

    def __init__(self, build: Callable[[Config], Traceable]) -> None:
        functools.update_wrapper(self, build)
        self._build = build
        self.name = f"{build.__module__}.{build.__qualname__}"
        self._by_key: dict[str, Compiled] = {}
        self.hits = 0

    def __call__(self, config: Config, *, arch: str) -> Callable[..., Any]:
        """The native function for ``config`` on ``arch``; compiles it if this process has not yet.

        Raises:
            TypeError: the configuration holds a value that cannot be part of a key.
            UnsupportedError: the CuTe DSL is not installed.
            CompileError: the kernel could not be compiled.
        """
        return self.get(config, arch=arch).launch

    def get(self, config: Config, *, arch: str) -> Compiled:
        """As a call, with the key, the compile time and, for a debug build, the PTX."""
        debug = settings.debug_requested()
        key = self.key(config, arch=arch)
        found = self._by_key.get(key.digest)
        if found is None:
            with _compile_lock:
                found = self._by_key.get(key.digest)
                if found is None:
                    found = self._compile(config, key, arch=arch, debug=debug, keep_ptx=False)
                    self._by_key[key.digest] = found
                    return found
        self.hits += 1
        log.debug("cache hit: %s [%s] %s", self.name, arch, key.digest[:12])
        return found

    def key(self, config: Config, *, arch: str) -> KernelKey:
        """The key that ``config`` has on ``arch`` under the settings in force."""
        options = compile_options(arch=arch, debug=settings.debug_requested())
        return KernelKey.make(self.name, config, arch=arch, options=options)

    def compile(self, config: Config, *, arch: str) -> Compiled:
        """Compiles anew, past the cache, and keeps the PTX; needs no GPU.

        Raises:
            UnsupportedError: the CuTe DSL is not installed.
            CompileError: the kernel could not be compiled.
        """
        debug = settings.debug_requested()
        with _compile_lock:
            return self._compile(config, self.key(config, arch=arch), arch=arch, debug=debug, keep_ptx=True)

    def clear(self) -> None:
        """Forgets what was compiled."""
        self._by_key.clear()
        self.hits = 0

    def __len__(self) -> int:
        return len(self._by_key)

    def _compile(self, config: Config, key: KernelKey, *, arch: str, debug: bool, keep_ptx: bool) -> Compiled:
        require_dsl(self.name)
        import cutlass.cute as cute

        start = time.perf_counter()
        try:
            source = self._build(config)
            # The DSL keeps PTX by writing a file, by default into the current folder.
            with tempfile.TemporaryDirectory() as folder:
                options = compile_options(arch=arch, debug=debug)
                if keep_ptx:
                    options += f" --keep-ptx --dump-dir={folder}"
                compiled = cute.compile(source.function, *source.arguments, options=options)
                ptx = compiled.__ptx__ if keep_ptx else None
        except Exception as error:
            raise CompileError(f"{self.name}: {config} does not compile for {arch}: {error}", key=key.digest) from error
        seconds = time.perf_counter() - start
        log.debug("compiled: %s %s [%s] in %.2f s, key %s", self.name, config, arch, seconds, key.digest[:12])
        # The wrapper that the DSL returns handles keyword arguments in Python; the function inside does not.
        unwrap = getattr(compiled, "__tvm_ffi_object__", None)
        native = unwrap() if unwrap is not None else None
        return Compiled(
            launch=compiled if native is None else native,
            key=key,
            seconds=seconds,
            ptx=ptx,
            owner=compiled,
        )


def compile_cached(build: Callable[[Config], Traceable]) -> CompileCached[Config]:
    """Makes a builder of one kernel remember what it compiled.

    Args:
        build: takes a frozen dataclass, returns what to trace.  It is called only when something has to be compiled.
    """
    return CompileCached(build)
