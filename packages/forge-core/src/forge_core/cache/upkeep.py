"""Keeping a cache small."""

from __future__ import annotations

import json
import time
from pathlib import Path

from forge_core.cache.entry import Entry
from forge_core.cache.files import remove_tree
from forge_core.cache.key import classes_modules
from forge_core.cache.sources import fingerprint
from forge_core.cache.store import LEFTOVER_S, Store
from forge_core.cache.toolchain import host_levels, toolchain

__all__ = ["prune"]


def prune(
    store: Store, *, max_bytes: int = 0, older_than_days: float | None = None, stale: bool = False
) -> dict[str, list[Path]]:
    """Removes what is of no use.

    Args:
        store: where.
        max_bytes: the least recently used entries go until the rest takes no more; 0 is no limit.
        older_than_days: entries that were not used for so long go.
        stale: entries go that this installation cannot use.

    Returns:
        What was removed, by reason.

    Raises:
        CacheError: the folder is not safe.
    """
    removed: dict[str, list[Path]] = {"leftovers": [], "set aside": [], "stale": [], "old": [], "over the limit": []}
    root = store.folder()
    if root is None:
        return removed
    now = time.time()
    removed["leftovers"] = store.sweep()
    for folder in _listed(root / "damaged"):
        remove_tree(folder)
        removed["set aside"].append(folder)
    for found in list(store.entries()):
        folder = found[0] if isinstance(found, tuple) else found.folder
        if isinstance(found, tuple):
            reason = "set aside"
        elif older_than_days is not None and now - found.used > older_than_days * 86400:
            reason = "old"
        elif stale and _is_stale(found):
            reason = "stale"
        else:
            continue
        if store.remove(folder):
            removed[reason].append(folder)
    if max_bytes:
        removed["over the limit"] = store.evict(max_bytes)
    # A lock whose kernel is gone; whoever holds it right now keeps it, for a lock is more than its name.
    left = {found.key.digest for found in store.entries() if isinstance(found, Entry)}
    for lock in _listed(root / "locks"):
        if lock.stem not in left and now - lock.lstat().st_mtime >= LEFTOVER_S:
            lock.unlink(missing_ok=True)
            removed["leftovers"].append(lock)
    return removed


def _listed(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _is_stale(entry: Entry) -> bool:
    """Whether this installation, as it is now, would never ask for an entry."""
    key = entry.key
    if key.toolchain != toolchain() or key.host not in host_levels():
        return True
    modules = [key.name.partition(":")[0], *classes_modules(json.loads(key.config))]
    sources = fingerprint(modules)
    return sources is None or sources.pairs != key.sources
