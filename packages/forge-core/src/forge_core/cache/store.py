"""Compiled kernels on disk.

An entry is a folder with one kernel; a store is a folder of entries:

    sm_90a/<digest>/kernel.so      the object; kernel.o where there was no linker (see ``compile``)
    sm_90a/<digest>/kernel.json    the whole key, the object's size and SHA-256, the compile time
    work/                          entries that are being written or removed
    locks/<digest>.lock            one for each key that was compiled

An entry is written into a folder of its own in work/, which is then renamed into place, so a reader finds all of it or
nothing, whenever a writer is killed.  A rename onto an entry fails, so an entry is never replaced.  A reader compares
the JSON file with the requested key and the object with its checksum; on a mismatch the entry is damaged: it is
removed, and the kernel is compiled again.  Locks only save work: on a file system without them, two processes may
compile the same kernel, and the second result is dropped.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge_core import settings
from forge_core.cache.files import check_private, make_private, tree_bytes, warn_once, write_new
from forge_core.cache.key import KernelKey, modules_of
from forge_core.cache.sources import fingerprint
from forge_core.errors import CacheError
from forge_core.toolchain import host_levels, toolchain

#: Changes when the format of an entry changes, or when the same key would be compiled differently.
FORMAT = 1
DESCRIPTION = "kernel.json"
#: The object's name: linked, or loadable only by the DSL.
OBJECTS = ("kernel.so", "kernel.o")
#: A process waits for another's compilation for this long, then continues without the lock.
LOCK_TIMEOUT_S = 600.0
#: Anything older in work/ was left by a process that was killed; a lock that was taken longer ago is free.
LEFTOVER_S = 3600.0
_USE_STEP_S = 60.0  # the resolution of an entry's time of use


class Damaged(Exception):  # noqa: N818 - not an error for the caller: a damaged entry is a miss
    """An entry does not agree with its key or its checksum."""

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(reason)
        self.folder = folder


@dataclass(frozen=True)
class Entry:
    """A kernel on disk."""

    key: KernelKey
    folder: Path
    file: str  # the object's name, one of OBJECTS
    bytes: int  # the object's size
    sha256: str  # of the object
    seconds: float  # compile time
    made: str  # the date of compilation in UTC
    used: float  # the time of the last use in seconds since the epoch, to a minute

    @classmethod
    def read(cls, folder: Path, *, check: bool) -> Entry:
        """Reads an entry; ``check`` also compares the object with its size and checksum.

        Raises:
            FileNotFoundError: there is none.
            Damaged: it is incomplete or inconsistent, or the folder's name is not its digest.
        """
        try:
            described: Any = json.loads((folder / DESCRIPTION).read_bytes())
            entry = cls(
                key=KernelKey.from_description(described["key"]),
                folder=folder,
                file=str(described["object"]["file"]),
                bytes=int(described["object"]["bytes"]),
                sha256=str(described["object"]["sha256"]),
                seconds=float(described["compiled"]["seconds"]),
                made=str(described["compiled"]["date"]),
                used=folder.stat().st_mtime,
            )
            data = entry.object.read_bytes() if check and entry.file in OBJECTS else b""
        except FileNotFoundError as error:
            if not folder.is_dir():
                raise
            raise Damaged(folder, f"{Path(str(error.filename)).name} is missing") from None
        except NotADirectoryError:
            raise Damaged(folder, "it is not a folder") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Damaged(folder, f"{DESCRIPTION} is not of this kernel: {type(error).__name__}: {error}") from None
        if described.get("format") != FORMAT or entry.file not in OBJECTS or entry.key.digest != folder.name:
            found = f"format {described.get('format')!r}, object {entry.file!r}, key {entry.key.digest[:12]}"
            raise Damaged(folder, f"{DESCRIPTION} is not of this kernel: {found}")
        if check and (len(data), hashlib.sha256(data).hexdigest()) != (entry.bytes, entry.sha256):
            raise Damaged(folder, f"{entry.file} has {len(data)} bytes instead of {entry.bytes}, or another checksum")
        return entry

    @property
    def object(self) -> Path:
        """The path of the object."""
        return self.folder / self.file

    @property
    def linked(self) -> bool:
        """Whether the object can be loaded without the DSL."""
        return self.file == OBJECTS[0]


@dataclass(frozen=True)
class Store:
    """A folder of entries: the user's cache, or a bundle.

    All methods raise CacheError if it is not safe to load native code from the folder.
    """

    root: Path  # made by the first write
    max_bytes: int = 0  # above it the least recently used entries are removed; 0 is no limit
    read_only: bool = False  # a bundle
    # What to do if the folder is not safe or cannot be written to.
    remedy: str = "Choose another folder by FORGE_CACHE_DIR, or remove that one."

    @classmethod
    def of_user(cls) -> Store:
        """The cache in the folder of the current settings, whether the cache is enabled or not."""
        current = settings.current()
        return cls(current.folder / f"kernels-{FORMAT}", max_bytes=current.cache_max_bytes)

    # -- reading ------------------------------------------------------------------------------------------------

    def folder(self) -> Path:
        """The resolved folder; raises FileNotFoundError if there is none."""
        folder = check_private(self.root, remedy=self.remedy)
        if not folder.is_dir():
            raise CacheError(f"{self.root} is not a folder, so no native code is loaded from it. {self.remedy}")
        return folder

    def _glob(self, *patterns: str) -> list[Path]:
        try:
            root = self.folder()
        except FileNotFoundError:
            return []
        return sorted(path for pattern in patterns for path in root.glob(pattern))

    def find(self, key: KernelKey) -> Entry | None:
        """The entry of a key, or None; a damaged one is removed."""
        try:
            folder = self.folder() / key.arch / key.digest
            # Not only the checksum, which anyone who can write to an entry can recompute.
            for path in (folder.parent, folder, folder / DESCRIPTION, *(folder / name for name in OBJECTS)):
                if path.exists():
                    check_private(path, remedy=self.remedy)
            entry = Entry.read(folder, check=True)
            now = time.time()
            if not self.read_only and now - entry.used > _USE_STEP_S:
                with contextlib.suppress(PermissionError):
                    os.utime(folder, (now, now))
        except FileNotFoundError:
            return None
        except OSError as error:
            warn_once(f"compiled kernels cannot be read from {self.root}: {error.strerror or error}")
            return None
        except Damaged as error:
            warn_once(f"the compiled kernel {folder} is damaged and is not used: {error}")
            if not self.read_only:
                with contextlib.suppress(OSError):  # a read-only folder
                    self.remove(folder)
            return None
        return entry

    def entries(self, *, check: bool = False) -> Iterator[Entry | Damaged]:
        """All entries; ``check`` also compares their checksums."""
        for folder in self._folders():
            try:
                yield Entry.read(folder, check=check)
            except FileNotFoundError:
                continue
            except Damaged as error:
                yield error

    def _folders(self) -> list[Path]:
        return [path for path in self._glob("*/*") if path.parent.name not in ("work", "locks")]

    # -- writing ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def lock(self, key: KernelKey) -> Iterator[None]:
        """Holds a key's lock between threads and processes; the lock of a process that dies is released."""
        import filelock

        with contextlib.ExitStack() as held:
            try:
                path = make_private(self.root / "locks") / f"{key.digest}.lock"
                held.enter_context(filelock.FileLock(path, LOCK_TIMEOUT_S, mode=0o600).acquire(poll_interval=0.02))
                os.utime(path)  # the file stays after a release: its age is the time since it was last taken
            except filelock.Timeout:
                warn_once(f"waited {LOCK_TIMEOUT_S:.0f} s for another process to compile kernel {key.digest}")
            except (OSError, NotImplementedError) as error:
                warn_once(f"no locks in the compile cache {self.root}: {getattr(error, 'strerror', None) or error}")
            yield

    def publish(self, key: KernelKey, data: bytes, *, linked: bool, seconds: float) -> Entry | None:
        """Writes an object unless the key has an entry; None, with one warning, if it cannot be written."""
        try:
            self._write(key, data, OBJECTS[0] if linked else OBJECTS[1], seconds)
            entry = self.find(key)
            self.sweep()
            if self.max_bytes:
                self.evict(self.max_bytes, keep=key.digest)
        except OSError as error:
            warn_once(
                f"compiled kernels cannot be stored in {self.root}: {error.strerror or error}. They are kept for this "
                "process only; FORGE_CACHE_DIR names another folder, FORGE_CACHE=0 switches the cache off."
            )
            return None
        return entry

    def _write(self, key: KernelKey, data: bytes, file: str, seconds: float) -> None:
        make_private(self.root)
        root = self.folder()
        digest = hashlib.sha256(data).hexdigest()
        described = {
            "format": FORMAT,
            "digest": key.digest,
            "key": key.describe(),
            "object": {"file": file, "bytes": len(data), "sha256": digest, "symbol": key.symbol},
            "compiled": {"seconds": round(seconds, 4), "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds")},
        }
        with _folder_in(root / "work") as work:
            write_new(work / file, data)
            write_new(work / DESCRIPTION, (json.dumps(described, indent=1) + "\n").encode())
            try:
                work.rename(make_private(root / key.arch) / key.digest)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise

    def remove(self, folder: Path) -> bool:
        """Removes an entry by one rename, so that no reader finds half of it; False if there was none."""
        with _folder_in(self.root / "work") as trash, contextlib.suppress(FileNotFoundError):
            folder.rename(trash / folder.name)
            return True
        return False

    def evict(self, max_bytes: int, *, keep: str = "") -> list[Path]:
        """Removes the least recently used entries but ``keep``, a digest; returns the removed paths.

        What remains takes at most ``max_bytes``, with what other processes are writing.
        """
        removed, found = list[Path](), []
        for folder in self._folders():
            with contextlib.suppress(FileNotFoundError):
                found.append((folder.stat().st_mtime, folder, tree_bytes(folder)))
        total = sum(size for *_, size in found) + sum(map(tree_bytes, self._glob("work/*")))
        for _, folder, size in sorted(found):
            if total <= max_bytes:
                break
            if folder.name != keep and self.remove(folder):
                total -= size
                removed.append(folder)
        return removed

    def sweep(self) -> list[Path]:
        """Removes what is older than LEFTOVER_S in work/ and locks/; returns the removed paths."""
        removed = []
        for path in self._glob("work/*", "locks/*"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.lstat().st_mtime >= LEFTOVER_S:
                    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
                    removed.append(path)
        return removed

    def prune(
        self, *, max_bytes: int = 0, older_than_days: float | None = None, stale: bool = False
    ) -> dict[str, list[Path]]:
        """Removes leftovers, damaged entries and those that the arguments select; returns the removed paths by reason.

        Args:
            max_bytes: the size to remain, by removing the least recently used entries; 0 is no limit.
            older_than_days: remove entries whose last use is longer ago.
            stale: remove entries that this installation cannot use.
        """
        removed: dict[str, list[Path]] = {"leftovers": self.sweep(), "damaged": [], "stale": [], "old": []}
        for found in list(self.entries()):
            if isinstance(found, Damaged):
                reason = "damaged"
            elif older_than_days is not None and time.time() - found.used > older_than_days * 86400:
                reason = "old"
            elif stale and _is_stale(found.key):
                reason = "stale"
            else:
                continue
            if self.remove(found.folder):
                removed[reason].append(found.folder)
        removed["over the limit"] = self.evict(max_bytes) if max_bytes else []
        return removed


@contextlib.contextmanager
def _folder_in(parent: Path) -> Iterator[Path]:
    """A new private folder, which is removed unless it has been renamed."""
    with tempfile.TemporaryDirectory(dir=make_private(parent), ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _is_stale(key: KernelKey) -> bool:
    """Whether the current installation can never request a key: another toolchain, processor or source."""
    if key.toolchain != toolchain() or key.host not in host_levels():
        return True
    sources = fingerprint(modules_of(key.name, key.config))
    return sources is None or sources.pairs != key.sources


def user_store() -> Store | None:
    """The user's cache under the current settings; None if it is disabled."""
    return Store.of_user() if settings.current().cache else None
