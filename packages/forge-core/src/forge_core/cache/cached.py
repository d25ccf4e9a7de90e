"""The decorator ``compile_cached``: from a configuration to a native function.

    build(config, arch=...) -> memory -> the user's cache -> bundles -> compile, publish

A builder is identified by its import path, so all steps but the last work without importing its module, which imports
the compiler.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import logging
import os
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

from forge_core import settings
from forge_core.cache import bundle
from forge_core.cache.compile import Compiled, Compiler, Traceable, compile_options
from forge_core.cache.files import warn_once
from forge_core.cache.key import KernelKey, canonical, modules_of, same, tag
from forge_core.cache.sources import Sources, fingerprint
from forge_core.cache.store import Entry, Store, user_store
from forge_core.errors import CompileError, ForgeError, MissingKernelError
from forge_core.toolchain import require_dsl

log = logging.getLogger("forge_core")

Config = TypeVar("Config")

_AT_TOP_LEVEL = "only a builder at the top level of a module with a file can be stored"


class CompileCached(Generic[Config]):
    """A builder of kernels that compiles each of them once; made by :func:`compile_cached` and :func:`builder_at`.

    Args:
        name: its import path ``"module:qualname"``.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._build: Any = None  # the decorated function, once its module is imported
        self._compiler = Compiler()
        self._by_key: dict[str, Compiled] = {}  # the kernels in memory, by the digests of their keys
        # The same by configuration, architecture and debug setting, which saves computing the key.
        self._by_config: dict[tuple[Any, str, bool], tuple[Any, Compiled]] = {}
        # By the modules that the key names.  Read once, as the modules themselves are imported once.
        self._sources: dict[tuple[str, ...], Sources | None] = {}

    def __call__(self, config: Config, *, arch: str) -> Callable[..., Any]:
        """The native function for ``config`` on ``arch``, looked up or compiled.

        Raises:
            TypeError: the configuration contains a value that cannot be part of a key.
            UnsupportedError: the CuTe DSL is not installed.
            CacheError: the cache's folder is not safe to load native code from.
            CompileError: the kernel does not compile.
            MissingKernelError: it is not stored, and FORGE_JIT=0 disables compiling.
        """
        return self.get(config, arch=arch).launch

    def get(self, config: Config, *, arch: str) -> Compiled:
        """The same as a call, with the kernel's key, origin and compile time; same errors."""
        asked = config, arch, settings.debug_requested()
        try:
            known, found = self._by_config.get(asked, (None, None))
        except TypeError:  # unhashable, so it cannot be part of a key either; `_key` raises the error
            known = found = None
        # Equal configurations can have different keys: 1 and True.
        if found is not None and same(known, config):
            if log.isEnabledFor(logging.DEBUG):
                log.debug("kernel cache hit: %s [%s] %s", self.name, arch, found.key.digest[:12])
            return found
        key, sources = self._key(config, arch)
        found = self._by_key.get(key.digest) or self._load_or_compile(config, key, sources)
        self._by_config[asked] = config, found
        return found

    def key(self, config: Config, *, arch: str) -> KernelKey:
        """The key of ``config`` on ``arch`` under the current settings; imports no kernel.

        Raises:
            TypeError: the configuration contains a value that cannot be part of a key.
        """
        return self._key(config, arch)[0]

    def compile(self, config: Config, *, arch: str) -> Compiled:
        """Compiles without the cache and keeps PTX and machine code; needs no GPU.

        Raises:
            UnsupportedError: the CuTe DSL is not installed.
            CompileError: the kernel does not compile.
        """
        self.imported()
        with compile_lock():
            return self._compiler.compile(self._build, config, self.key(config, arch=arch), keep=True)

    def ensure(self, config: Config, *, arch: str, store: Store) -> tuple[Entry, bool]:
        """Compiles a kernel into a store unless it is there; does not load it.

        Returns:
            The entry, and whether it was compiled by this call.

        Raises:
            CompileError: it does not compile, or cannot be stored.
        """
        key, sources = self._key(config, arch)
        if sources is None:
            raise CompileError(f"{self.name}: {_AT_TOP_LEVEL}")
        with _kernel_lock(key, store):
            if (found := store.find(key)) is not None:
                return found, False
            self.imported()
            with compile_lock():
                found = self._publish(self._compiler.compile(self._build, config, key), sources, store)
        if found is None:
            reason = f"{self.name} was compiled, but could not be stored in {store.root}. {store.remedy}"
            raise CompileError(reason, key=key.digest)
        return found, True

    def imported(self) -> CompileCached[Config]:
        """This builder, once its module is imported.

        Raises:
            UnsupportedError: the CuTe DSL is not installed.
            CompileError: there is no builder at the path.
        """
        if self._build is None:
            require_dsl(self.name)
            importlib.import_module(self.name.partition(":")[0])
        if self._build is None:  # which the decorator sets
            raise CompileError(f"{self.name}: expected the import path of a @compile_cached builder")
        return self

    def clear(self) -> None:
        """Drops the kernels in memory; those on disk remain."""
        self._by_key.clear()
        self._by_config.clear()

    def _key(self, config: Config, arch: str) -> tuple[KernelKey, Sources | None]:
        """The key and the sources in it; None for the sources of a kernel that must not be stored."""
        tagged = canonical(tag(config))
        modules = modules_of(self.name, tagged)
        if modules not in self._sources:
            self._sources[modules] = fingerprint(modules)
        sources = self._sources[modules]
        options = compile_options(arch=arch, debug=settings.debug_requested())
        pairs = sources.pairs if sources is not None else ()
        key = KernelKey.make(self.name, tagged, arch=arch, options=options, sources=pairs)
        # The variables that a nested function captures are in no key, so its kernels are not stored.
        return key, None if "<" in self.name else sources

    def _load_or_compile(self, config: Config, key: KernelKey, sources: Sources | None) -> Compiled:
        if sources is None:
            if not settings.current().jit:
                reason = f"{self.name}: {_AT_TOP_LEVEL}, and FORGE_JIT=0 disables compilation."
                raise MissingKernelError(reason, key=key.digest)
            return self._compile(config, key, None, None)
        store = user_store()
        for entry, origin in find_entries(key, store):
            if found := self._load(entry, origin):
                return self._by_key.setdefault(key.digest, found)
        if not settings.current().jit:
            raise _missing(key, store)
        with _kernel_lock(key, store):
            # Another process or thread may have been faster.
            if store is not None and (found := self._load(store.find(key), "cache")):
                return self._by_key.setdefault(key.digest, found)
            return self._compile(config, key, sources, store)

    def _compile(self, config: Config, key: KernelKey, sources: Sources | None, store: Store | None) -> Compiled:
        """Compiles a kernel for this process and, if it can be stored, for others."""
        self.imported()
        with compile_lock():
            if key.digest not in self._by_key:
                compiled = self._compiler.compile(self._build, config, key)
                stored = None
                try:
                    if sources and store:
                        stored = self._publish(compiled, sources, store)
                except CompileError as error:  # the kernel can still run in this process
                    warn_once(str(error))
                # This process, too, runs the stored object.
                self._by_key[key.digest] = self._load(stored, "compiled") or compiled
            return self._by_key[key.digest]

    def _publish(self, compiled: Compiled, sources: Sources, store: Store) -> Entry | None:
        """Stores a kernel; raises CompileError if its key does not describe it."""
        from forge_core.cache.verify import difference  # imported only after a compilation

        if changed := sources.changed():
            reason = f"{changed} changed after forge_core.cache was imported. Restart to have it cached."
            raise CompileError(f"{self.name} is not stored: {reason}")
        if differs := difference(sources):
            remedy = "Undo that, or make the change in the source and restart, to have it cached."
            raise CompileError(f"{self.name} is not stored: {differs}. {remedy}")
        data, linked = self._compiler.image(compiled)
        return store.publish(compiled.key, data, linked=linked, seconds=compiled.seconds)

    def _load(self, entry: Entry | None, origin: str) -> Compiled | None:
        """Loads an entry; None, with one warning, if it cannot be loaded on this machine."""
        if entry is None:
            return None
        start = time.perf_counter()
        try:
            launch, owner = self._compiler.load(entry.object, entry.key.symbol, linked=entry.linked)
        except ForgeError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the loader raises, the kernel can be compiled
            warn_once(f"the compiled kernel {entry.object} cannot be loaded: {error}")
            return None
        log.debug("loaded: %s [%s] in %.1f ms", entry.object, origin, (time.perf_counter() - start) * 1e3)
        return Compiled(launch=launch, key=entry.key, seconds=entry.seconds, origin=origin, owner=owner)


#: Every builder that was decorated or named, by its import path.
_known: dict[str, CompileCached[Any]] = {}


def compile_cached(build: Callable[[Config], Traceable], *, compiler: Compiler | None = None) -> CompileCached[Config]:
    """Decorates a builder of kernels, so that each kernel is compiled once and kept on disk for all processes.

    Args:
        build: takes a configuration (a frozen dataclass) and returns what to trace.  It is called only to compile.
            Its result must depend on its argument and on the sources that its module imports alone, because nothing
            else is in the key.
        compiler: compiles and loads the kernels; by default the CuTe DSL.
    """
    name = f"{build.__module__}:{build.__qualname__}"
    builder = CompileCached[Config](name) if "<" in name else builder_at(name)
    if builder._build is not None:  # its module is imported anew
        builder = _known[name] = CompileCached(name)
    functools.update_wrapper(builder, build)
    builder._compiler, builder._build = compiler or Compiler(), build
    return builder


def builder_at(path: str) -> CompileCached[Any]:
    """The builder at an import path ``"module:qualname"``, without importing it."""
    return _known.get(path) or _known.setdefault(path, CompileCached(path))


# -------------------------------------------------------------------------------------------------- stored kernels


def find_entries(key: KernelKey, store: Store | None) -> Iterator[tuple[Entry, str]]:
    """The entries for a key that this machine can run, each with its origin, ``"cache"`` or ``"bundle"``."""
    for each in itertools.chain([] if store is None else [store], bundle.all_bundles()):
        for candidate in key.compatible_keys():
            entry = each.find(candidate)
            if entry is not None:
                yield entry, "bundle" if each.read_only else "cache"


def _missing(key: KernelKey, store: Store | None) -> MissingKernelError:
    there = [str(entry.object) for entry, _ in find_entries(key, store)]
    if there:
        reason = "is stored, and cannot be loaded here (the warning before this says why): " + ", ".join(there)
    else:
        cache = f"cache {store.root}" if store is not None else "the cache is switched off"
        bundles = ", ".join(str(shipped.root) for shipped in bundle.all_bundles()) or "none"
        reason = f"is neither in the compile cache nor in a bundle ({cache}; bundles: {bundles})"
    message = f"{key.name} for {key.arch} {reason}, and FORGE_JIT=0 disables compilation."
    command = ["forge-cute", "cache", "warm", "--arch", key.arch, "--kernel", key.name, "--config", key.config]
    return MissingKernelError(message, key=key.digest, command=shlex.join(command))


# ----------------------------------------------------------------------------------------------------------- locks

# A kernel's lock is taken before the compiler's: while a thread waits for another process to compile a kernel, other
# threads can compile.
_compile_lock = threading.RLock()
_compiling: ContextVar[bool] = ContextVar("forge_compiling", default=False)


def _renew_lock_after_fork() -> None:
    # A thread that held the lock during the fork does not exist in the child.
    global _compile_lock
    _compile_lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock_after_fork)


@contextlib.contextmanager
def compile_lock() -> Iterator[None]:
    """The lock to hold around ``cute.compile``, which is not thread-safe; a new one in a forked child."""
    with _compile_lock:
        token = _compiling.set(True)
        try:
            yield
        finally:
            _compiling.reset(token)


def _kernel_lock(key: KernelKey, store: Store | None) -> contextlib.AbstractContextManager[None]:
    """A kernel's lock in a store; none within a compilation.

    A builder that requests another kernel, whose lock is held by a thread that waits for the compiler, would deadlock.
    """
    if store is None or _compiling.get():
        return contextlib.nullcontext()
    return store.lock(key)
