"""Keeping a cache small, and finishing a bundle."""

from __future__ import annotations

import datetime as dt
import json
import os
import time
from pathlib import Path
from typing import Any

import forge_core
from forge_core.cache.bundle import MANIFEST
from forge_core.cache.entry import DESCRIPTION, FORMAT, OBJECTS, Entry
from forge_core.cache.files import remove_tree
from forge_core.cache.host import host_levels
from forge_core.cache.key import classes_modules
from forge_core.cache.sources import fingerprint
from forge_core.cache.store import LEFTOVER_S, Store
from forge_core.cache.toolchain import toolchain
from forge_core.errors import CacheError

__all__ = ["check_bundle_target", "finish_bundle", "is_stale", "prune"]


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
        elif stale and is_stale(found):
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


def is_stale(entry: Entry) -> bool:
    """Whether this installation, as it is now, would never ask for an entry."""
    key = entry.key
    if key.toolchain != toolchain() or key.host not in host_levels():
        return True
    modules = [key.name.partition(":")[0], *classes_modules(json.loads(key.config))]
    sources = fingerprint(modules)
    return sources is None or sources.pairs != key.sources


def check_bundle_target(out: Path) -> None:
    """Refuses to build a bundle into a folder that holds something else.

    Raises:
        CacheError: it is not empty, and no bundle of this format.
    """
    if not out.exists() or not any(out.iterdir()):
        return
    manifest = out / MANIFEST
    try:
        written = json.loads(manifest.read_bytes())["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CacheError(
            f"--out {out}: the folder is not empty, and no bundle of kernels: {error}. Choose another, or empty it.",
            folder=str(out),
        ) from error
    if written != FORMAT:
        raise CacheError(f"--out {out}: the bundle there has format {written!r}, not {FORMAT}.", folder=str(out))


def finish_bundle(store: Store) -> dict[str, Any]:
    """Writes a bundle's table of contents, and removes what only building it needed.

    Raises:
        CacheError: there is something in it that does not belong there.
    """
    root = store.root
    if not root.is_dir():
        raise CacheError(f"{root}: nothing was compiled, so there is no bundle.", folder=str(root))
    for name in ("work", "damaged", "locks"):
        remove_tree(root / name)
    entries = [found for found in store.entries() if isinstance(found, Entry)]
    unlinked = [entry for entry in entries if not entry.linked]
    if unlinked:
        raise CacheError(
            f"{root}: {len(unlinked)} kernels could not be linked, because this machine has no linker, so they could "
            "not be loaded without the DSL. Install binutils and build anew.",
            folder=str(root),
        )
    told = {
        "format": FORMAT,
        "forge": forge_core.__version__,
        "date": dt.datetime.now(dt.UTC).replace(microsecond=0).isoformat(),
        "kernels": len(entries),
        "bytes": sum(entry.bytes for entry in entries),
        "archs": sorted({entry.key.arch for entry in entries}),
        "hosts": sorted({entry.key.host for entry in entries}),
        "toolchains": [dict(pairs) for pairs in sorted({entry.key.toolchain for entry in entries})],
    }
    _check_files(root, entries)
    temporary = root / f".{MANIFEST}.{os.getpid()}"
    temporary.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    temporary.replace(root / MANIFEST)
    # A cache is its user's own; a bundle is read by whoever runs what it was installed for, and written by nobody else.
    for path in [root, *root.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return told


def _check_files(root: Path, entries: list[Entry]) -> None:
    """A bundle holds kernels and what is told of them: no file of the DSL, and nothing else."""
    known = {entry.folder / name for entry in entries for name in (DESCRIPTION, OBJECTS[0])} | {root / MANIFEST}
    resolved = {path.resolve() for path in known}
    strange = sorted(path for path in root.rglob("*") if not path.is_dir() and path.resolve() not in resolved)
    if strange:
        raise CacheError(
            f"{root}: these files belong to no kernel: {', '.join(str(path) for path in strange[:5])}", folder=str(root)
        )
