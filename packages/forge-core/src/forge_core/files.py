"""Files that are whole or not there."""

from __future__ import annotations

import os
import secrets
import stat
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
    beside = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    # A new file has the mode that the user's mask gives, which one of tempfile's has not.
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        if mode is not None:
            beside.chmod(stat.S_IMODE(mode))
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
