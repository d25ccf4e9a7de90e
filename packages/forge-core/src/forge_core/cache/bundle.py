"""Kernels that were compiled ahead of time and came with an installation.

A bundle is a folder of entries as the cache has them, with a ``bundle.json`` that tables read.  It is found by

* ``FORGE_BUNDLES``: folders;
* the entry-point group ``forge.bundles`` of an installed package, whose value names the package that holds the folder:

      [project.entry-points."forge.bundles"]
      sm_90a = "acme_kernels.bundle"        # .../acme_kernels/bundle/bundle.json

It is checked as strictly as the cache: owner, permissions, checksums, and the whole key.
"""

from __future__ import annotations

import configparser
import datetime as dt
import functools
import json
import os
import sys
from pathlib import Path
from typing import Any

import forge_core
from forge_core import settings
from forge_core.cache.entry import DESCRIPTION, FORMAT, OBJECTS, Entry
from forge_core.cache.files import remove_tree
from forge_core.cache.store import Store
from forge_core.cache.toolchain import dist_infos, package_folder
from forge_core.errors import CacheError

__all__ = ["GROUP", "check_target", "finish", "installed", "open_bundle"]

MANIFEST = "bundle.json"
GROUP = "forge.bundles"


def installed() -> tuple[Store, ...]:
    """All bundles, those of FORGE_BUNDLES first.

    Raises:
        CacheError: something that is named as a bundle is none.
    """
    return _open_all(settings.current().bundles, tuple(sys.path))


@functools.lru_cache(maxsize=8)
def _open_all(folders: tuple[Path, ...], path: tuple[str, ...]) -> tuple[Store, ...]:
    found = [open_bundle(folder, "FORGE_BUNDLES") for folder in folders]
    found += [open_bundle(folder, f"the entry point {name}") for name, folder in _of_packages(path)]
    return tuple(found)


def open_bundle(folder: Path, named_by: str) -> Store:
    """A bundle's store.

    Raises:
        CacheError: there is no bundle, or one of another format.
    """
    _check_format(
        folder, f"{named_by} names {folder}, which is", f"Make one with: forge-cute cache build --out {folder}"
    )
    return Store(folder, frozen=True, way_out=f"Take the permission away with: chmod -R go-w {folder}")


def _of_packages(path: tuple[str, ...]) -> list[tuple[str, Path]]:
    """Entry point and folder of each bundle that an installed package brings."""
    found = []
    for _, _, folder in dist_infos(path):
        try:
            text = (folder / "entry_points.txt").read_text(encoding="utf-8")
        except OSError:
            continue
        if GROUP in text:
            table = configparser.ConfigParser(delimiters=("=",))
            table.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
            table.read_string(text)
            if table.has_section(GROUP):
                found += [(f"{GROUP}:{name}", _package_folder(name, value)) for name, value in table.items(GROUP)]
    return sorted(found)


def _package_folder(name: str, package: str) -> Path:
    top, *rest = package.strip().split(".")
    folder = package_folder(top)
    if folder is None:
        raise CacheError(f"the entry point {GROUP}:{name} names {package}, which is no installed package")
    return folder.joinpath(*rest)


def _check_format(folder: Path, told: str, way_out: str) -> None:
    """Raises CacheError where a folder is no bundle of this format; the texts begin and end the message."""
    try:
        written: Any = json.loads((folder / MANIFEST).read_bytes())["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CacheError(f"{told} no bundle of kernels: {MANIFEST}: {error}. {way_out}", folder=str(folder)) from error
    if written != FORMAT:
        raise CacheError(
            f"the bundle {folder} has format {written!r}, and this version of Forge reads {FORMAT}. {way_out}",
            folder=str(folder),
        )


# ----------------------------------------------------------------------------------------------------------- making


def check_target(out: Path) -> None:
    """Refuses to build a bundle into a folder that holds something else.

    Raises:
        CacheError: it is not empty, and no bundle of this format.
    """
    if out.exists() and any(out.iterdir()):
        _check_format(out, f"--out {out}: the folder is not empty, and", "Choose another folder, or empty it.")


def finish(store: Store) -> dict[str, Any]:
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
    # A bundle holds kernels and what is told of them: no file of the DSL, and nothing else.
    known = {entry.folder / name for entry in entries for name in (DESCRIPTION, OBJECTS[0])} | {root / MANIFEST}
    resolved = {path.resolve() for path in known}
    strange = sorted(path for path in root.rglob("*") if not path.is_dir() and path.resolve() not in resolved)
    if strange:
        raise CacheError(
            f"{root}: these files belong to no kernel: {', '.join(str(path) for path in strange[:5])}", folder=str(root)
        )
    temporary = root / f".{MANIFEST}.{os.getpid()}"
    temporary.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    temporary.replace(root / MANIFEST)
    # A cache is its user's own; a bundle is read by whoever runs what it was installed for, and written by nobody else.
    for path in [root, *root.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return told
