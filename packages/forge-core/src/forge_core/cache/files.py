"""What the store does with files and folders."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from pathlib import Path

from forge_core.cache.entry import OBJECTS

__all__ = ["folders_in", "last_used", "remove_tree", "tell_once", "tree_bytes", "write_new"]

log = logging.getLogger("forge_core")

_told: set[str] = set()


def tell_once(subject: str, message: str, *args: object) -> None:
    """Logs a warning, once in a process for each subject."""
    if subject not in _told:
        _told.add(subject)
        log.warning(message, *args)


def write_new(path: Path, data: bytes) -> None:
    """Writes a file of this user alone; it must not be there."""
    # Without fsync: what a power cut leaves half-written fails its checksum, and is compiled again.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def folders_in(folder: Path) -> list[Path]:
    """The folders in a folder; none where it is not there."""
    try:
        return [Path(found.path) for found in os.scandir(folder) if found.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def last_used(folder: Path) -> float:
    """When an entry was last used: the object carries the time."""
    for name in OBJECTS:
        with contextlib.suppress(OSError):
            return (folder / name).stat().st_mtime
    return 0.0


def tree_bytes(folder: Path) -> int:
    """The size of the files in a folder; those that vanish meanwhile count nothing."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_size
    return total


def remove_tree(folder: Path) -> None:
    """Removes a folder and what is in it, if it is there."""
    shutil.rmtree(folder, ignore_errors=True)
