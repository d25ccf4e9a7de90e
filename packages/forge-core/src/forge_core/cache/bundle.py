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
import functools
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from forge_core import settings
from forge_core.cache.entry import FORMAT
from forge_core.cache.store import Store
from forge_core.cache.toolchain import dist_infos
from forge_core.errors import CacheError

__all__ = ["GROUP", "MANIFEST", "installed", "open_bundle"]

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
    try:
        told: Any = json.loads((folder / MANIFEST).read_bytes())
        written = told["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CacheError(
            f"{named_by} names {folder}, which is no bundle of kernels: {MANIFEST}: {error}. Make one with: "
            f"forge-cute cache build --out {folder}",
            folder=str(folder),
        ) from error
    if written != FORMAT:
        raise CacheError(
            f"the bundle {folder} has format {written!r}, and this version of Forge reads {FORMAT}. Build it anew with "
            "this version: forge-cute cache build",
            folder=str(folder),
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
    """The folder of a package, without importing it."""
    top, *rest = package.strip().split(".")
    spec = importlib.util.find_spec(top)
    locations = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not locations:
        raise CacheError(f"the entry point {GROUP}:{name} names {package}, which is no installed package")
    return Path(locations[0]).joinpath(*rest)
