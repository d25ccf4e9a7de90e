"""Which folders native code may be loaded from.

Symptom where this is not checked: on a shared machine, somebody prepares ``/tmp/forge`` or a link of that name, and the
next user's process runs their code.  Invariant kept here: a folder of kernels and each kernel in it belong to this user
or to root, and nobody else can write to them.  A folder above that everybody can write to is refused as well, since the
folder of kernels could be exchanged there; one that a group can write to, or that another user owns, is not.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from forge_core.errors import CacheError

__all__ = ["PRIVATE", "check_folder", "check_inside", "default_folder", "make_private"]

#: The permissions of every folder that is made here.
PRIVATE = 0o700

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def default_folder() -> Path:
    """The user's cache folder."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("forge-cute"))


def check_folder(folder: Path, *, what: str, way_out: str) -> Path:
    """The folder without symbolic links, safe to load native code from.

    Args:
        folder: an existing folder, or a link to one.
        what: what it is, for the message: ``"the cache folder"``.
        way_out: what to do about it, as a full sentence.

    Raises:
        CacheError: another user owns it, can write to it, or can replace it.
        OSError: it cannot be looked at; FileNotFoundError where it is not there.
    """
    if not hasattr(os, "geteuid"):  # no POSIX permissions, and no kernels either: the DSL needs Linux
        return folder
    trusted = {os.geteuid(), 0}

    def refuse(reason: str) -> CacheError:
        return _refusal(folder, what, reason, way_out)

    link = os.lstat(folder)
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in trusted:
        raise refuse(f"is a link that belongs to {_user(link.st_uid)}")
    real = Path(os.path.realpath(folder, strict=True))
    found = os.lstat(real)
    if not stat.S_ISDIR(found.st_mode):
        raise refuse("is not a folder")
    if found.st_uid not in trusted:
        raise refuse(f"belongs to {_user(found.st_uid)}")
    if found.st_mode & _OTHERS_WRITE:
        raise refuse(f"can be written by other users (mode {stat.S_IMODE(found.st_mode):o})")
    _check_above(real, what=what, way_out=way_out, named=folder)
    return real


def _check_above(real: Path, *, what: str, way_out: str, named: Path) -> None:
    """Refuses what every user can replace."""
    for parent in real.parents:
        above = os.lstat(parent)
        # Who can write to a folder above can rename this one away; the sticky bit of /tmp forbids that.
        if above.st_mode & stat.S_IWOTH and not above.st_mode & stat.S_ISVTX:
            reason = f"lies in {parent}, which every user can write to (mode {stat.S_IMODE(above.st_mode):o})"
            raise _refusal(named, what, reason, way_out)


def _check_link(link: Path, *, what: str, way_out: str) -> None:
    """Checks each step of a link, and the folder that it leads to or that holds the file it leads to."""
    step = link
    while step.is_symlink():
        owner = step.lstat().st_uid
        if owner not in {os.geteuid(), 0}:
            raise _refusal(step, what, f"belongs to {_user(owner)}", way_out)
        _check_above(Path(os.path.realpath(step.parent), step.name), what=what, way_out=way_out, named=step)
        step = step.parent / step.readlink()
    check_folder(step if step.is_dir() else step.parent, what=f"{what} it leads to a folder:", way_out=way_out)


def check_inside(paths: Iterable[Path], *, what: str, way_out: str) -> None:
    """Checks what lies in a folder that :func:`check_folder` accepted: nobody else may write to any of it.

    A link is judged by where it leads: the folder there has to be one that :func:`check_folder` accepts.

    Args:
        paths: existing files and folders.
        what: as for :func:`check_folder`.
        way_out: likewise.

    Raises:
        CacheError: another user owns one, or can write to it.
        OSError: one cannot be looked at; FileNotFoundError where it is not there.
    """
    if not hasattr(os, "geteuid"):
        return
    trusted = {os.geteuid(), 0}
    for path in paths:
        found = path.stat()
        if path.is_symlink():
            _check_link(path, what=f"{what} {path} is a link, and", way_out=way_out)
        if found.st_uid not in trusted:
            raise _refusal(path, what, f"belongs to {_user(found.st_uid)}", way_out)
        if found.st_mode & _OTHERS_WRITE:
            mode = f"{stat.S_IMODE(found.st_mode):o}"
            raise _refusal(path, what, f"can be written by other users (mode {mode})", way_out)


def _refusal(path: Path, what: str, reason: str, way_out: str) -> CacheError:
    told = f"{what} {path} {reason}, so no native code is loaded from it. {way_out}"
    return CacheError(told, folder=str(path))


def make_private(folder: Path) -> None:
    """Makes a folder and those above it that are missing, for this user alone."""
    if folder.is_dir():
        return
    missing = [folder]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for path in reversed(missing):
        try:
            path.mkdir(mode=PRIVATE)
        except FileExistsError:  # another process was faster; what it made is checked by whoever uses it
            if not path.is_dir():
                raise


def _user(uid: int) -> str:
    try:
        import pwd

        return f"user {pwd.getpwuid(uid).pw_name}"
    except (ImportError, KeyError):
        return f"user {uid}"
