"""Files and folders of the store, and from which of them native code may be loaded.

On a shared machine, somebody could prepare ``/tmp/forge`` or a link of that name, and the next user's process would run
their code.  So a folder of kernels and each kernel in it must belong to this user or to root, and nobody else may write
to them.  A folder above that everybody can write to is refused as well, since the folder of kernels could be exchanged
there; one that a group can write to, or that another user owns, is not.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from forge_core.errors import CacheError

__all__ = [
    "check_folder",
    "check_inside",
    "folders_in",
    "is_left_by_the_dead",
    "make_private",
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


# ------------------------------------------------------------------------------------- whose folders they are


def make_private(folder: Path) -> None:
    """Makes a folder and those above it that are missing, for this user alone."""
    for path in reversed((folder, *folder.parents)):
        if not path.is_dir():
            # Where another process is faster: what it made is checked by whoever uses it.
            path.mkdir(mode=0o700, exist_ok=True)


def check_folder(folder: Path, *, what: str, way_out: str) -> Path:
    """The folder without symbolic links, safe to load native code from.

    Args:
        folder: an existing folder, or a link to one.
        what: what it is, for the message.
        way_out: what to do about it, as a full sentence.

    Raises:
        CacheError: another user owns it, can write to it, or can replace it.
        OSError: it cannot be looked at.
    """
    with _refusing(what, way_out):
        return _safe_folder(folder)


def check_inside(paths: Iterable[Path], *, what: str, way_out: str) -> None:
    """Checks what lies in a folder that :func:`check_folder` accepted: nobody else may write to any of it.

    A link is judged by where it leads: the folder there has to be one that :func:`check_folder` accepts.  Raises as
    that does.
    """
    with _refusing(what, way_out):
        for path in paths:
            found = path.stat()
            if path.is_symlink():
                _check_link(path)
            _check_owner(path, found)
            _check_mode(path, found)


class _UnsafeError(Exception):
    """What must not be trusted, and why."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason


@contextlib.contextmanager
def _refusing(what: str, way_out: str) -> Iterator[None]:
    try:
        yield
    except _UnsafeError as error:
        told = f"{what} {error.path} {error.reason}, so no native code is loaded from it. {way_out}"
        raise CacheError(told, folder=str(error.path)) from None


def _safe_folder(folder: Path) -> Path:
    if not hasattr(os, "geteuid"):  # no POSIX permissions, and no kernels either: the DSL needs Linux
        return folder
    _check_owner(folder, os.lstat(folder))  # of a link, too
    real = Path(os.path.realpath(folder, strict=True))
    found = os.lstat(real)
    if not stat.S_ISDIR(found.st_mode):
        raise _UnsafeError(folder, "is not a folder")
    _check_owner(folder, found)
    _check_mode(folder, found)
    _check_above(folder, real)
    return real


def _check_link(link: Path) -> None:
    """Checks each step of a link, and the folder that it leads to or that holds the file it leads to."""
    leads, step = "", link
    try:
        while step.is_symlink():
            _check_owner(step, step.lstat())
            _check_above(step, Path(os.path.realpath(step.parent), step.name))
            step = step.parent / step.readlink()
        leads = "it leads to a folder: "
        _safe_folder(step if step.is_dir() else step.parent)
    except _UnsafeError as error:
        raise _UnsafeError(link, f"is a link, and {leads}{error.path} {error.reason}") from None


def _check_above(named: Path, real: Path) -> None:
    """Refuses what every user can replace."""
    for parent in real.parents:
        mode = os.lstat(parent).st_mode
        # Who can write to a folder above can rename this one away; the sticky bit of /tmp forbids that.
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            reason = f"lies in {parent}, which every user can write to (mode {stat.S_IMODE(mode):o})"
            raise _UnsafeError(named, reason)


def _check_owner(named: Path, found: os.stat_result) -> None:
    if hasattr(os, "geteuid") and found.st_uid not in (os.geteuid(), 0):
        try:
            import pwd

            owner = pwd.getpwuid(found.st_uid).pw_name
        except (ImportError, KeyError):
            owner = str(found.st_uid)
        raise _UnsafeError(named, f"belongs to user {owner}")


def _check_mode(named: Path, found: os.stat_result) -> None:
    if hasattr(os, "geteuid") and found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _UnsafeError(named, f"can be written by other users (mode {stat.S_IMODE(found.st_mode):o})")
