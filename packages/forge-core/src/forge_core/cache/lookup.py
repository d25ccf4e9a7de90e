"""Where a kernel that was compiled before may be: the user's cache, then the bundles."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Iterator

from forge_core import settings
from forge_core.cache import bundle
from forge_core.cache.compile import Compiled, Compiler
from forge_core.cache.entry import Entry
from forge_core.cache.files import private_file, tell_once
from forge_core.cache.key import KernelKey
from forge_core.cache.store import Store
from forge_core.errors import ForgeError, MissingKernelError

__all__ = ["build_command", "entries", "find", "load", "missing", "user_store"]

log = logging.getLogger("forge_core")


def user_store() -> Store | None:
    """The cache on disk under the settings in force; None where it is switched off."""
    current = settings.current()
    if not current.cache:
        return None
    return Store.of_user(current.folder, max_bytes=current.cache_max_bytes)


def entries(key: KernelKey, store: Store | None) -> Iterator[tuple[Entry, str]]:
    """Where a kernel lies, not loaded: each entry that serves here, and whether ``"cache"`` or ``"bundle"`` has it.

    Raises:
        CacheError: a folder is not safe to load native code from, or what is named as a bundle is none.
    """
    if store is not None:
        yield from ((entry, "cache") for entry in _entries_in(store, key))
    for shipped in bundle.installed():
        yield from ((entry, "bundle") for entry in _entries_in(shipped, key))


def _entries_in(store: Store, key: KernelKey) -> Iterator[Entry]:
    for candidate in key.equivalents():
        entry = store.find(candidate)
        if entry is not None:
            yield entry


def find(key: KernelKey, store: Store | None, compiler: Compiler) -> Compiled | None:
    """A kernel from the cache or a bundle, loaded; None where it is in neither.

    Raises:
        CacheError: as :func:`entries`.
    """
    for entry, origin in entries(key, store):
        found = load(entry, origin, compiler)
        if found is not None:
            return found
    return None


def load(entry: Entry | None, origin: str, compiler: Compiler) -> Compiled | None:
    """Loads the object that was read with an entry; None, and a warning once, where it does not load here."""
    if entry is None:
        return None
    start = time.perf_counter()
    try:
        # Not the file, which may be another one by now.
        with private_file(entry.file, entry.data) as path:
            launch, owner = compiler.load(path, entry.key.symbol, linked=entry.linked)
    except ForgeError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the loader says, the kernel can be compiled; it is told
        tell_once(f"load {entry.object}", "the compiled kernel %s cannot be loaded: %s", entry.object, error)
        return None
    log.debug("loaded: %s [%s] in %.1f ms", entry.object, origin, (time.perf_counter() - start) * 1e3)
    return Compiled(launch=launch, key=entry.key, seconds=entry.seconds, origin=origin, owner=owner)


def build_command(key: KernelKey) -> str:
    """The command that compiles one kernel into the cache."""
    words = ["forge-cute", "cache", "warm", "--arch", key.arch, "--kernel", key.name, "--config", key.config]
    return shlex.join(words)


def missing(key: KernelKey, store: Store | None) -> MissingKernelError:
    """The error for a kernel that is nowhere, or that does not load here, and may not be compiled."""
    there = [str(entry.object) for entry, _ in entries(key, store)]
    if there:
        told = "is there, and cannot be loaded here (the warning before this says why): " + ", ".join(there)
    else:
        cache = f"cache {store.root}" if store is not None else "the cache is switched off"
        bundles = ", ".join(str(shipped.root) for shipped in bundle.installed()) or "none"
        told = f"is neither in the compile cache nor in a bundle ({cache}; bundles: {bundles})"
    return MissingKernelError(
        f"{key.name} for {key.arch} {told}, and FORGE_JIT=0 forbids to compile it.",
        key=key.digest,
        command=build_command(key),
    )
