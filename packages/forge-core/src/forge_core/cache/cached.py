"""The decorator, and the way from a configuration to a function.

    build(config, arch=...) -> memory -> disk -> bundles -> compile, publish

A kernel is named by its builder's import path, so all but the last step work without importing the builder's module,
which would import the DSL.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from forge_core import settings
from forge_core.cache import lookup
from forge_core.cache.compile import Compiled, Compiler, Traceable, compile_options
from forge_core.cache.entry import Entry, Image
from forge_core.cache.files import tell_once
from forge_core.cache.key import KernelKey, classes_of, same_key
from forge_core.cache.sources import Sources, fingerprint
from forge_core.cache.store import Store
from forge_core.cache.toolchain import require_dsl
from forge_core.errors import CompileError

__all__ = ["CompileCached", "builder_at", "compile_cached", "compile_lock"]

log = logging.getLogger("forge_core")

Config = TypeVar("Config")

# A process that looks up more configurations than this starts the table anew.
MAX_RECENT = 4096


@dataclass
class _Memory:
    """What this process knows of one builder's kernels."""

    by_key: dict[str, Compiled] = field(default_factory=dict)
    # Configuration -> (arch, debug, kernel, configuration): saves the key, which takes ten times as long, where a plan
    # of another shape gives an equal configuration.
    recent: dict[Any, tuple[str, bool, Compiled, Any]] = field(default_factory=dict)
    sources: dict[tuple[type, ...], Sources | None] = field(default_factory=dict)
    hits: int = 0


#: Every builder that was decorated or named, by its name.
_known: dict[str, CompileCached[Any]] = {}


class CompileCached(Generic[Config]):
    """A builder of kernels that remembers: call it with a configuration and an architecture, get the function.

    Args:
        build: what :func:`compile_cached` decorates; None for one that is only named, and imported when it has to be.
        name: ``"module:qualname"``; by default that of ``build``.
        compiler: what compiles and loads.
    """

    def __init__(
        self, build: Callable[[Config], Traceable] | None, *, name: str = "", compiler: Compiler | None = None
    ) -> None:
        if build is not None:
            functools.update_wrapper(self, build)
            name = f"{build.__module__}:{build.__qualname__}"
        self.name = name
        self._build = build
        self._compiler = compiler or Compiler()
        self._memory = _Memory()
        # The variables that a nested function closes over are in no key, so its kernels stay in this process.
        self._shared = "<" not in name
        if self._shared:
            before = _known.get(name)  # by name only, before its module was imported: see `builder_at`
            if before is not None and before._build is None:
                self._memory = before._memory
            _known[name] = self

    # -- the public face ----------------------------------------------------------------------------------------

    def __call__(self, config: Config, *, arch: str) -> Callable[..., Any]:
        """The native function for ``config`` on ``arch``: found, or compiled now.

        Raises:
            TypeError: the configuration holds a value that cannot be part of a key.
            UnsupportedError: the CuTe DSL is not installed.
            CacheError: the folder of the cache is not safe to load native code from.
            CompileError: the kernel could not be compiled.
            MissingKernelError: it is nowhere, and FORGE_JIT=0 forbids to compile it.
        """
        return self.get(config, arch=arch).launch

    def get(self, config: Config, *, arch: str) -> Compiled:
        """As a call, with the key, where the kernel came from and what compiling it took."""
        memory = self._memory
        debug = settings.debug_requested()
        try:
            recent = memory.recent.get(config)
        except TypeError:  # it has no hash, so it holds what has no key either: finding that says why
            recent = None
        if recent is not None and recent[0] == arch and recent[1] is debug and same_key(recent[3], config):
            found = recent[2]
        else:
            found, is_hit = self._get(config, arch, debug)
            if len(memory.recent) >= MAX_RECENT:
                memory.recent.clear()
            memory.recent[config] = (arch, debug, found, config)
            if not is_hit:
                return found
        memory.hits += 1
        if log.isEnabledFor(logging.DEBUG):
            log.debug("cache hit: %s [%s] %s", self.name, arch, found.key.digest[:12])
        return found

    def key(self, config: Config, *, arch: str) -> KernelKey:
        """The key that ``config`` has on ``arch`` under the settings in force; imports no kernel.

        Raises:
            TypeError: the configuration holds a value that cannot be part of a key.
        """
        return self._key(config, arch, settings.debug_requested())[0]

    def compile(self, config: Config, *, arch: str) -> Compiled:
        """Compiles anew, past the cache, and keeps the PTX; needs no GPU.

        Raises:
            UnsupportedError: the CuTe DSL is not installed.
            CompileError: the kernel could not be compiled.
        """
        builder = self._imported()
        with compile_lock():
            return builder._compile(config, self.key(config, arch=arch), keep_ptx=True)

    def ensure(self, config: Config, *, arch: str, store: Store) -> tuple[Entry, bool]:
        """Makes sure that a kernel is in a store, without loading it.

        Returns:
            The entry, and whether it was compiled now.

        Raises:
            CompileError: it could not be compiled, or not be stored.
        """
        key, sources = self._key(config, arch, settings.debug_requested())
        if sources is None:
            raise CompileError(
                f"{self.name}: only a builder at the outermost level of a module with a source file can be stored"
            )
        found = store.find(key)  # first of all: it refuses a folder that is not safe, and a lock is a file in there
        if found is not None:
            return found, False
        with _locked(key, store):
            found = store.find(key)  # another process may have been faster
            if found is not None:
                return found, False
            builder = self._imported()
            with compile_lock():
                image = builder._image(builder._compile(config, key), sources)
            found = store.publish(key, image)
        if found is None:
            raise CompileError(f"{self.name} was compiled, but could not be stored in {store.root}", key=key.digest)
        return found, True

    def clear(self) -> None:
        """Forgets what this process has; what is on disk stays."""
        self._memory.by_key.clear()
        self._memory.recent.clear()
        self._memory.hits = 0

    @property
    def hits(self) -> int:
        """How often this process asked for a kernel that it had."""
        return self._memory.hits

    def __len__(self) -> int:
        return len(self._memory.by_key)

    # -- the key ------------------------------------------------------------------------------------------------

    def _key(self, config: Config, arch: str, debug: bool) -> tuple[KernelKey, Sources | None]:
        """The key, and the sources in it; None where the kernel is not for other processes."""
        sources = self._sources(config)
        key = KernelKey.make(
            self.name,
            config,
            arch=arch,
            options=compile_options(arch=arch, debug=debug),
            sources=sources.pairs if sources is not None else (),
        )
        return key, sources if self._shared else None

    def _sources(self, config: Config) -> Sources | None:
        """The fingerprint, read once: what this process has imported does not change with the files."""
        classes = tuple(dict.fromkeys(classes_of(config)))
        known = self._memory.sources
        if classes not in known:
            known[classes] = fingerprint([self.name.partition(":")[0], *(kind.__module__ for kind in classes)])
        return known[classes]

    # -- the way to a function ----------------------------------------------------------------------------------

    def _get(self, config: Config, arch: str, debug: bool) -> tuple[Compiled, bool]:
        """The kernel, and whether this process had it."""
        by_key = self._memory.by_key
        key, sources = self._key(config, arch, debug)
        found = by_key.get(key.digest)
        if found is not None:
            return found, True
        store = lookup.user_store() if sources is not None else None
        found = lookup.find(key, store, self._compiler) if sources is not None else None
        if found is not None:
            by_key[key.digest] = found
            return found, False
        if not settings.current().jit:
            raise lookup.missing(key, store)
        with _locked(key, store):
            is_hit = key.digest in by_key  # another thread may have been faster
            if not is_hit:
                by_key[key.digest] = self._make(config, key, sources, store)
        return by_key[key.digest], is_hit

    def _make(self, config: Config, key: KernelKey, sources: Sources | None, store: Store | None) -> Compiled:
        """Compiles and publishes a kernel, unless another process has; the caller holds its locks."""
        found = lookup.load(store.find(key), "cache", self._compiler) if store is not None else None
        if found is not None:
            return found
        builder = self._imported()
        with compile_lock():
            compiled = builder._compile(config, key)
            if store is None or sources is None:
                return compiled
            try:
                image = builder._image(compiled, sources)
            except CompileError as error:  # it runs here all the same
                tell_once(f"image {error}", "%s", error)
                return compiled
        # What is stored is what runs, here as in every later process.
        return lookup.load(store.publish(key, image), "compiled", self._compiler) or compiled

    def _image(self, compiled: Compiled, sources: Sources) -> Image:
        """What other processes may have of a compiled kernel; raises CompileError where they may not."""
        from forge_core.cache.verify import difference  # not needed where nothing is compiled

        if changed := sources.changed():
            told = f"{changed} changed after this process started. Restart to have it cached."
            raise CompileError(f"{self.name} is not stored: {told}")
        if differs := difference(sources):
            way_out = "Undo that, or make the change in the source and restart, to have it cached."
            raise CompileError(f"{self.name} is not stored: {differs}. {way_out}")
        return self._compiler.image(compiled)

    def _imported(self) -> CompileCached[Config]:
        """The builder itself: this one, or the one that this one only names."""
        if self._build is not None:
            return self
        require_dsl(self.name)
        module, _, qualname = self.name.partition(":")
        builder: Any = functools.reduce(getattr, qualname.split("."), importlib.import_module(module))
        if not isinstance(builder, CompileCached) or builder.name != self.name:
            told = f"it is {builder.name}" if isinstance(builder, CompileCached) else "it is none"
            raise CompileError(f"{self.name}: expected the import path of a @compile_cached builder, {told}")
        return builder

    def _compile(self, config: Config, key: KernelKey, *, keep_ptx: bool = False) -> Compiled:
        if self._build is None:
            raise CompileError(f"{self.name}: the builder is not imported")
        return self._compiler.compile(self._build, config, key, keep_ptx=keep_ptx)


def compile_cached(build: Callable[[Config], Traceable]) -> CompileCached[Config]:
    """Makes a builder of one kernel remember what it compiled, on disk and for all processes.

    Args:
        build: takes a frozen dataclass, returns what to trace.  It is called only when something has to be compiled,
            and what it builds is decided by its argument and by the sources that its module imports: nothing else is in
            the key.
    """
    return CompileCached(build)


def builder_at(path: str) -> CompileCached[Any]:
    """The builder that an import path names, without importing it.

    Args:
        path: ``"module:qualname"`` of a function that :func:`compile_cached` decorates, where it is defined.
    """
    found = _known.get(path)
    return found if found is not None else CompileCached(None, name=path)


# ------------------------------------------------------------------------------------------------------------ locks

# Order, from the outside: the kernel's lock in this process, its lock in the store, the compiler's lock.  Whoever waits
# for another process to compile a kernel holds the first two of that kernel alone.
_compile_lock = threading.RLock()
_key_locks: dict[str, threading.RLock] = {}
_held = threading.local()


def _renew_locks_after_fork() -> None:
    # A thread that compiled while the process forked does not exist in the child, and would hold its locks for ever.
    global _compile_lock, _key_locks
    _compile_lock = threading.RLock()
    _key_locks = {}


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks_after_fork)


@contextlib.contextmanager
def compile_lock() -> Iterator[None]:
    """The lock to hold around ``cute.compile``, which is not thread-safe; a new one in a forked child."""
    with _compile_lock:
        before = getattr(_held, "compiling", False)
        _held.compiling = True
        try:
            yield
        finally:
            _held.compiling = before


@contextlib.contextmanager
def _locked(key: KernelKey, store: Store | None) -> Iterator[None]:
    """Holds what keeps other threads, and other processes with the same store, from compiling one kernel as well."""
    if getattr(_held, "compiling", False):
        # A kernel that another one's builder asks for: its lock may be held by one that waits for the compiler's.
        yield
        return
    in_process = _key_locks.setdefault(key.digest, threading.RLock())
    with in_process, contextlib.nullcontext() if store is None else store.lock(key):
        yield
