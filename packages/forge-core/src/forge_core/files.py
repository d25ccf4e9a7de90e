"""Reads and atomically writes files, which are compressed where their names end in ``.gz`` or ``.xz``."""

from __future__ import annotations

import gzip
import lzma
import os
import secrets
import stat
import zlib
from pathlib import Path


def read_unpacked(path: Path) -> bytes:
    """Reads a file, and decompresses it by its suffix.

    Raises:
        OSError: it cannot be read or decompressed.
    """
    data = path.read_bytes()
    unpack = {".gz": gzip.decompress, ".xz": lzma.decompress}.get(path.suffix)
    try:
        return unpack(data) if unpack is not None else data
    except (gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError) as error:
        raise OSError(f"{path}: expected a file packed by {path.suffix[1:]}: {error}") from error


def write_atomically(path: Path, text: str) -> None:
    """Replaces a file atomically, and makes missing folders.

    By its suffix a file is compressed, with equal bytes for equal text.  Links are followed and a file keeps its mode.
    Pipes, devices and files in a read-only folder are written in place.
    """
    data = text.encode()
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    elif path.suffix == ".xz":
        # Parameters for text: a byte is predicted by the whole one before it, wherever it is.
        text_filter = {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0}
        data = lzma.compress(data, filters=[text_filter])
    # Before links are followed: the target of /dev/stdout may have no name.
    mode = path.stat().st_mode if path.exists() else None
    if mode is not None and not (stat.S_ISREG(mode) and os.access(path.resolve().parent, os.W_OK)):
        path.write_bytes(data)
        return
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with beside.open("xb") as file:  # unlike tempfile's, it has the mode that the umask gives
            file.write(data)
        if mode is not None:
            beside.chmod(stat.S_IMODE(mode))
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
