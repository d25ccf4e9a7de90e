"""Bundles: stores of kernels that were compiled ahead of time and are shipped with an installation.

A bundle is a folder of entries, as in the cache, with a manifest ``bundle.json``.  It is found by ``FORGE_BUNDLES``, a
list of folders, or by the entry-point group ``forge.bundles`` of an installed package:

    [project.entry-points."forge.bundles"]
    sm_90a = "acme_kernels.bundle"        # the folder acme_kernels/bundle

It is read-only, and checked as strictly as the cache: owner, permissions, checksums, and the whole key.
"""

from __future__ import annotations

import datetime as dt
import functools
import importlib.metadata
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forge_core
from forge_core import settings
from forge_core.cache.store import FORMAT, Entry, Store
from forge_core.errors import CacheError
from forge_core.files import write_atomically
from forge_core.toolchain import package_folder

MANIFEST = "bundle.json"
GROUP = "forge.bundles"


def all_bundles() -> Iterator[Store]:
    """All bundles, those of FORGE_BUNDLES first."""
    yield from (open_bundle(folder, "FORGE_BUNDLES") for folder in settings.current().bundles)
    yield from _installed()


@functools.cache
def _installed() -> tuple[Store, ...]:
    found = []
    for point in sorted(importlib.metadata.entry_points(group=GROUP)):
        top, *rest = point.value.split(".")
        folder = package_folder(top)
        if folder is None:
            raise CacheError(f"the entry point {GROUP}:{point.name} names {point.value}, which is not installed")
        found.append(open_bundle(folder.joinpath(*rest), f"the entry point {GROUP}:{point.name}"))
    return tuple(found)


def open_bundle(folder: Path, named_by: str) -> Store:
    """A bundle's store; raises CacheError if there is no bundle, or one of another format."""
    check_format(folder, f"{named_by} names {folder}", f"Make one with: forge-cute cache build --out {folder}")
    return Store(folder, read_only=True, remedy=f"Remove the permission with: chmod -R go-w {folder}")


def check_format(folder: Path, context: str, remedy: str) -> None:
    """Raises CacheError, ``context`` and ``remedy`` around its reason, if a folder is no bundle of this format."""
    try:
        written: Any = json.loads((folder / MANIFEST).read_bytes())["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CacheError(
            f"{context}: expected a bundle of kernels, got {type(error).__name__} for {MANIFEST}: {error}. {remedy}"
        ) from error
    if written != FORMAT:
        raise CacheError(f"{context}: expected a bundle of format {FORMAT}, got {written!r}. {remedy}")


def finish(store: Store) -> None:
    """Writes ``bundle.json``, and removes the folders that only building the bundle needed.

    Raises:
        CacheError: there are no kernels, or some that need the DSL to be loaded.
    """
    root = store.root
    for name in ("work", "locks"):
        shutil.rmtree(root / name, ignore_errors=True)
    entries = [found for found in store.entries() if isinstance(found, Entry)]
    if not entries:
        raise CacheError(f"{root}: nothing was compiled, so there is no bundle.")
    unlinked = [entry for entry in entries if not entry.linked]
    if unlinked:
        raise CacheError(
            f"{root}: {len(unlinked)} kernels could not be linked, because this machine has no linker, so they could "
            "not be loaded without the DSL. Install binutils and build anew."
        )
    manifest = {
        "format": FORMAT,
        "forge": forge_core.__version__,
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "kernels": len(entries),
        "bytes": sum(entry.bytes for entry in entries),
        "archs": sorted({entry.key.arch for entry in entries}),
        "hosts": sorted({entry.key.host for entry in entries}),
        "toolchains": [dict(pairs) for pairs in sorted({entry.key.toolchain for entry in entries})],
    }
    write_atomically(root / MANIFEST, json.dumps(manifest, indent=1) + "\n")
    # Unlike a cache, a bundle is read by other users than the one who installed it.
    for path in [root, *root.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
