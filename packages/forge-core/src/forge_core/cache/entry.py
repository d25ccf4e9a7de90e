"""One compiled kernel on disk: a folder with the object and the JSON file that says what it is.

    <arch>/<digest>/kernel.so      the object; kernel.o where no linker was there to make it loadable by itself
    <arch>/<digest>/kernel.json    the whole key, the object's size and SHA-256, what compiling took

Nothing is loaded that does not agree with its JSON file, with the digest in its folder's name and with the key that was
asked for.  What is loaded are the bytes that were compared, not the file.
"""

from __future__ import annotations

import builtins
import hashlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from forge_core.cache.key import KernelKey

__all__ = ["DESCRIPTION", "FORMAT", "OBJECTS", "Damaged", "Entry", "Image", "describe", "read_entry"]

#: Changes when an entry is written differently, or when the same key would be compiled differently.
FORMAT = 1
DESCRIPTION = "kernel.json"
#: The object's name: loadable by itself, or only by the DSL.
OBJECTS = ("kernel.so", "kernel.o")


class Damaged(Exception):  # noqa: N818 - not an error for the caller: a damaged entry is a miss
    """An entry that is not what it should be; the text says in what."""


@dataclass(frozen=True)
class Image:
    """A compiled object before it is written.

    Attributes:
        data: the object file.
        linked: whether it can be loaded by itself; otherwise the DSL has to be imported to load it.
        seconds: what compiling it took.
    """

    data: bytes
    linked: bool
    seconds: float

    @property
    def file(self) -> str:
        """The object's name in its entry."""
        return OBJECTS[0] if self.linked else OBJECTS[1]


@dataclass(frozen=True)
class Entry:
    """A kernel that lies complete on disk.

    Attributes:
        key: what it was built from.
        folder: where.
        file: the object's name in there.
        bytes: its size.
        sha256: its checksum.
        seconds: what compiling took.
        made: when, in UTC.
        used: when it was last used, in seconds since the epoch; to a minute.
        data: the object, if its checksum was compared: what is loaded, whatever happens to the file.
    """

    key: KernelKey
    folder: Path
    file: str
    bytes: int
    sha256: str
    seconds: float
    made: str
    used: float
    data: builtins.bytes = field(default=b"", repr=False, compare=False)

    @property
    def object(self) -> Path:
        """The object file."""
        return self.folder / self.file

    @property
    def linked(self) -> bool:
        """Whether the object can be loaded without the DSL."""
        return self.file == OBJECTS[0]


def describe(key: KernelKey, image: Image, made: str) -> bytes:
    """The content of an entry's JSON file."""
    told = {
        "format": FORMAT,
        "digest": key.digest,
        "key": key.describe(),
        "object": {
            "file": image.file,
            "bytes": len(image.data),
            "sha256": hashlib.sha256(image.data).hexdigest(),
            "symbol": key.symbol,
        },
        "compiled": {"seconds": round(image.seconds, 4), "date": made},
    }
    return (json.dumps(told, indent=1) + "\n").encode()


def read_entry(folder: Path, *, check: bool, digest: str = "") -> Entry:
    """Reads an entry.

    Args:
        folder: its folder.
        check: whether to read the object and compare its size and checksum, too; without it, only for tables.
        digest: the digest of its key, by default the folder's name.

    Raises:
        FileNotFoundError: there is none.
        Damaged: it is not complete, or does not agree with itself.
        OSError: it cannot be read.
    """
    try:
        text = (folder / DESCRIPTION).read_bytes()
    except FileNotFoundError:
        if folder.is_dir():
            raise Damaged(f"{DESCRIPTION} is missing") from None
        raise
    except NotADirectoryError:
        raise Damaged("it is not a folder") from None
    digest = digest or folder.name
    try:
        told = json.loads(text)
        key = KernelKey.from_description(told["key"])
        described = told["object"]
        entry = Entry(
            key=key,
            folder=folder,
            file=described["file"],
            bytes=_typed(described["bytes"], int),
            sha256=_typed(described["sha256"], str),
            seconds=float(told["compiled"]["seconds"]),
            made=_typed(told["compiled"]["date"], str),
            used=0.0,
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"{DESCRIPTION} cannot be understood: {type(error).__name__}: {error}") from None
    if told.get("format") != FORMAT or entry.file not in OBJECTS:
        found = f"format {told.get('format')!r}, object {entry.file!r}"
        raise Damaged(
            f"{DESCRIPTION} cannot be understood: expected format {FORMAT}, {' or '.join(OBJECTS)}; got {found}"
        )
    if not key.digest == digest == told.get("digest"):
        raise Damaged(f"{DESCRIPTION} describes another kernel: {key.digest[:12]} instead of {digest[:12]}")
    if described.get("symbol") != key.symbol:
        raise Damaged(f"{DESCRIPTION} names another function")
    try:
        entry = replace(entry, used=entry.object.stat().st_mtime)
    except OSError as error:
        raise Damaged(f"{entry.file} is missing: {error.strerror}") from None
    return replace(entry, data=check_object(entry)) if check else entry


def _typed(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ValueError(f"expected {kind.__name__}, got {value!r}")
    return value


def check_object(entry: Entry) -> bytes:
    """Reads the object, once, and compares it with what is told of it.

    Returns:
        The object.

    Raises:
        Damaged: it differs.
        OSError: it cannot be read.
    """
    try:
        data = entry.object.read_bytes()
    except FileNotFoundError:
        raise Damaged(f"{entry.file} is missing") from None
    if len(data) != entry.bytes:
        raise Damaged(f"{entry.file} has {len(data)} bytes instead of {entry.bytes}")
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise Damaged(f"{entry.file} is not what was written: its checksum differs")
    return data
