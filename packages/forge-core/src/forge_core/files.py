"""Files that are whole or not there."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

__all__ = ["write_atomically"]


def write_atomically(path: Path, text: str) -> None:
    """Writes a file so that a reader finds the old one or the new one, whole; folders that lack are made.

    A link is followed and a file keeps its mode.  What is no file, a pipe or a device, is written to as it is; so is a
    file in a folder in which none can be made.
    """
    # Before links are followed: /dev/stdout is one to something that has no name.
    mode = path.stat().st_mode if path.exists() else None
    if mode is not None and not (stat.S_ISREG(mode) and os.access(path.resolve().parent, os.W_OK)):
        path.write_text(text, encoding="utf-8")
        return
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).chmod(0o666 & ~_umask() if mode is None else stat.S_IMODE(mode))
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    """What a new file's mode lacks; it can be read only by being set."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
