"""What the store does with files and folders."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from forge_core.cache.entry import OBJECTS

__all__ = [
    "folders_in",
    "is_left_by_the_dead",
    "last_used",
    "private_file",
    "remove_tree",
    "tell_once",
    "tree_bytes",
    "work_name",
    "write_new",
]

log = logging.getLogger("forge_core")

_told: set[str] = set()
_numbers = itertools.count()


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


@functools.cache
def _process_ids() -> str:
    """Names the table of processes in which a process id means this process; "" where that is not known."""
    try:
        booted = Path("/proc/sys/kernel/random/boot_id").read_bytes()
        return hashlib.sha256(booted + bytes(Path("/proc/self/ns/pid").readlink())).hexdigest()[:16]
    except OSError:
        return ""


def work_name(what: str) -> str:
    """A new name for a folder that this process works in."""
    return f"{what}.{_process_ids()}.{os.getpid()}.{next(_numbers)}"


def is_left_by_the_dead(name: str) -> bool:
    """Whether a name is of :func:`work_name`, by a process of this host and container that certainly has ended."""
    _, ids, pid, _ = ["", "", "", *name.split(".")][-4:]
    if not ids or ids != _process_ids() or not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # another user's, or none that there could be
        return False
    return False


@contextlib.contextmanager
def private_file(name: str, data: bytes) -> Iterator[Path]:
    """A file for a loader that takes a path, in a new folder that nobody else can reach.

    On Linux it is a link to sealed memory, which nobody can write to, and which is executable also where the folder for
    temporary files is mounted `noexec`.  Elsewhere it is a file.
    """
    with tempfile.TemporaryDirectory(prefix="forge-load-") as folder, contextlib.ExitStack() as stack:
        # The loader takes a path that it has seen for the library that it has loaded from there.  /proc/self/fd/N comes
        # again; the name of this folder does not.
        path = Path(folder) / name
        try:
            file = stack.enter_context(os.fdopen(os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "wb"))
            opened = Path(f"/proc/self/fd/{file.fileno()}")
            opened.stat()  # no /proc here
        except (AttributeError, OSError):
            write_new(path, data)
        else:
            import fcntl

            file.write(data)
            file.flush()
            seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
            path.symlink_to(opened)
        yield path


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
