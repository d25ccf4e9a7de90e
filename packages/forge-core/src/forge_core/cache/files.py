"""File-system helpers of the cache, and the check that no other user can change the native code that is loaded.

On a shared machine another user could create ``/tmp/forge``, or a link of that name, first, and fill it with code.
So an object, its folders inside the store, and links to them must belong to this user or to root and must not be
writable by anybody else; no folder above may be writable by everybody, unless it has the sticky bit.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from forge_core.errors import CacheError

log = logging.getLogger("forge_core")

_told: set[str] = set()


def warn_once(text: str) -> None:
    """Logs a warning, once per process."""
    if text not in _told:
        _told.add(text)
        log.warning("%s", text)


def write_new(path: Path, data: bytes) -> None:
    """Writes a file that must not exist, readable by this user alone."""
    # Without fsync: a file truncated by a power cut fails its checksum, and the kernel is compiled again.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def make_private(folder: Path) -> Path:
    """Makes a folder and its parents, those that are missing with mode 0700; returns the folder."""
    for path in reversed((folder, *folder.parents)):
        if not path.is_dir():
            path.mkdir(mode=0o700, exist_ok=True)
    return folder


def check_writable(folder: Path, *, remedy: str) -> None:
    """Makes a folder, if it is missing; raises CacheError, ending with ``remedy``, if no file can be created in it."""
    try:
        with tempfile.TemporaryFile(dir=make_private(folder)):
            pass
    except OSError as error:
        raise CacheError(f"{folder}: nothing can be written there ({error.strerror}). {remedy}") from error


def tree_bytes(folder: Path) -> int:
    """The size of the files in a folder, some of which may be removed meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_size
    return total


def check_private(path: Path, *, remedy: str) -> Path:
    """Resolves a path that native code may be loaded from; otherwise raises CacheError, which ends with ``remedy``.

    The rules are those above.  If the path itself is a symbolic link, they hold for each link from there on, and for
    the folder of a file at the end.  Links among the folders above are followed, not checked.
    """
    if not hasattr(os, "geteuid"):  # no POSIX permissions, and no kernels either: the DSL needs Linux
        return path
    path.stat()  # not missing, and no loop of links
    for why in _unsafe(path):
        raise CacheError(f"{path}: {why}, so no native code is loaded from it. {remedy}")
    return Path(os.path.realpath(path))


def _unsafe(path: Path) -> Iterator[str]:
    """The places where another user can change what a path leads to, in words."""
    end, links = path, []
    while end.is_symlink():
        links.append(end)
        end = end.parent / end.readlink()
    ends = [end, end.parent] if links and not end.is_dir() else [end]
    for step in (*links, *ends):
        owner, mode = step.lstat().st_uid, step.lstat().st_mode
        if owner not in (os.geteuid(), 0):
            yield f"{step} belongs to user {owner}"
        if step in ends and mode & (stat.S_IWGRP | stat.S_IWOTH):
            yield f"{step} can be written by other users (mode {stat.S_IMODE(mode):o})"
        folder = Path(os.path.realpath(step.parent))
        for parent in (folder, *folder.parents):
            mode = parent.lstat().st_mode
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                yield f"{step} is in {parent}, which every user can write to (mode {stat.S_IMODE(mode):o})"
