"""The kernels on disk.

Inside the cache's folder:

    sm_90a/<digest>/{kernel.so, kernel.json}     the entries
    work/                                        what is being written, and what killed writers left
    damaged/                                     what was set aside
    locks/<digest>.lock                          one for each key that was compiled

How an entry is published, so that no reader ever sees half of one:

    lock(key) -> work/<name>/ made -> object written -> JSON written -> rename(work/<name>, <arch>/<digest>) -> unlock

Whatever ends a writer before the rename leaves a folder that no reader looks at.  A rename onto an entry fails, so an
entry is never replaced.  Locks only spare work: where the file system has none, two processes compile the same kernel
and the second one's is dropped.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

from forge_core.cache.entry import (
    DESCRIPTION,
    FORMAT,
    OBJECTS,
    Damaged,
    Entry,
    Image,
    check_object,
    describe,
    read_entry,
)
from forge_core.cache.files import (
    check_folder,
    check_inside,
    folders_in,
    is_left_by_the_dead,
    make_private,
    remove_tree,
    tell_once,
    tree_bytes,
    work_name,
    write_new,
)
from forge_core.cache.key import KernelKey

__all__ = ["LEFTOVER_S", "LOCK_TIMEOUT_S", "Store"]

#: A process that waits longer for another's compilation goes on without the lock.
LOCK_TIMEOUT_S = 600.0
#: What a process that is still writing has in work/ is younger than this.
LEFTOVER_S = 3600.0
# A use within this time of the last one is not written down again.
_USE_STEP_S = 60.0
_NOT_ENTRIES = frozenset({"work", "damaged", "locks"})


def _reached(step: str) -> None:
    """Called at each step of a publication; tests end the process here."""


class Store:
    """A folder of kernels: the cache, or a bundle.

    Args:
        root: the folder; made when something is written.
        max_bytes: above it the least recently used entries are removed; 0 is no limit.
        frozen: nothing is ever changed in it: a bundle that was made elsewhere.
        way_out: what to do when the folder is not safe, as a full sentence.
    """

    def __init__(self, root: Path, *, max_bytes: int = 0, frozen: bool = False, way_out: str = "") -> None:
        self.root = root
        self.frozen = frozen
        self.max_bytes = max_bytes
        self._way_out = way_out or "Choose another folder by FORGE_CACHE_DIR, or remove that one."

    @classmethod
    def of_user(cls, cache_dir: Path, *, max_bytes: int) -> Store:
        """The user's cache in a folder of Forge's files."""
        return cls(cache_dir / f"kernels-{FORMAT}", max_bytes=max_bytes)

    # -- reading ------------------------------------------------------------------------------------------------

    def folder(self) -> Path | None:
        """The folder without links, or None where there is none.

        Raises:
            CacheError: it is not safe to load native code from.
            OSError: it cannot be looked at.
        """
        try:
            return check_folder(self.root, what="the folder of compiled kernels", way_out=self._way_out)
        except FileNotFoundError:
            return None

    def find(self, key: KernelKey) -> Entry | None:
        """A complete and correct entry for a key, or None; a damaged one is set aside.

        Raises:
            CacheError: the folder is not safe.
        """
        try:
            root = self.folder()
        except OSError as error:
            tell_once(f"root {self.root}", "the compile cache %s cannot be read: %s", self.root, error)
            return None
        if root is None:
            return None
        folder = root / key.arch / key.digest
        try:
            entry = self._read(folder, key)
        except FileNotFoundError:
            return None
        except OSError as error:
            tell_once(f"entry {folder}", "the compiled kernel %s cannot be read: %s", folder, error)
            return None
        except Damaged as error:
            tell_once(f"damaged {folder}", "the compiled kernel %s is damaged and is not used: %s", folder, error)
            return None if self.frozen else self._set_aside(folder, key)
        now = time.time()
        if not self.frozen and now - entry.used > _USE_STEP_S:
            with contextlib.suppress(OSError):  # a folder that cannot be written is read all the same
                os.utime(entry.object, (now, now))
        return entry

    def _read(self, folder: Path, key: KernelKey) -> Entry:
        # Before the checksum, which whoever can write to an entry can make right.
        there = [path for path in (folder / DESCRIPTION, *(folder / name for name in OBJECTS)) if path.exists()]
        check_inside((folder.parent, folder, *there), what="the compiled kernel", way_out=self._way_out)
        entry = read_entry(folder, check=True, digest=key.digest)
        if entry.key != key:
            raise Damaged("it is of another kernel")
        return entry

    def _set_aside(self, folder: Path, key: KernelKey) -> Entry | None:
        """Moves a damaged entry away; returns a correct one that another process has put there meanwhile."""
        aside = self.root / "damaged" / f"{folder.name}.{time.time_ns()}"
        try:
            make_private(aside.parent)
            folder.rename(aside)
        except OSError:  # gone already, or a folder that cannot be written: a miss all the same
            return None
        try:
            self._read(aside, key)
        except (Damaged, OSError):
            return None
        # What was moved is correct: between the judgement and the move, somebody had repaired it.  It goes back, unless
        # there is one again.
        try:
            aside.rename(folder)
        except OSError:
            remove_tree(aside)
        try:
            return self._read(folder, key)
        except (Damaged, OSError):
            return None

    def entries(self) -> Iterator[Entry | tuple[Path, Damaged]]:
        """All entries, without their checksums; for a damaged one its folder and what is wrong with it.

        Raises:
            CacheError: the folder is not safe.
        """
        root = self.folder()
        for arch in sorted(root.iterdir()) if root is not None else ():
            if arch.name in _NOT_ENTRIES or not arch.is_dir():
                continue
            for folder in sorted(arch.iterdir()):
                try:
                    yield read_entry(folder, check=False)
                except FileNotFoundError:
                    continue
                except Damaged as error:
                    yield folder, error

    def verify(self, entry: Entry) -> str:
        """What is wrong with an entry's object; empty where nothing is."""
        try:
            check_object(entry)
        except (Damaged, OSError) as error:
            return str(error)
        return ""

    # -- writing ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def lock(self, key: KernelKey) -> Iterator[None]:
        """Holds a key's lock, if it can be had; a process that dies loses it."""
        import filelock

        with contextlib.ExitStack() as held:
            try:
                make_private(self.root / "locks")
                lock = filelock.FileLock(self.root / "locks" / f"{key.digest}.lock", LOCK_TIMEOUT_S, mode=0o600)
                held.enter_context(lock.acquire(poll_interval=0.02))
            except filelock.Timeout:
                tell_once(f"lock {key.digest}", "waited %.0f s for another process to compile a kernel", LOCK_TIMEOUT_S)
            except (OSError, NotImplementedError) as error:
                tell_once(f"locks {self.root}", "no locks in the compile cache %s: %s", self.root, error)
            yield

    def publish(self, key: KernelKey, image: Image) -> Entry | None:
        """Writes an entry; one that is already there stays.

        Returns:
            The entry, or None where it could not be written: the reason is logged once.

        Raises:
            CacheError: the folder is not safe.
        """
        try:
            return self._publish(key, image)
        except OSError as error:
            hint = " (disk full)" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else ""
            tell_once(
                f"write {self.root} {error.errno}",
                "compiled kernels cannot be stored in %s%s: %s. They are kept for this process only; "
                "FORGE_CACHE_DIR names another folder, FORGE_CACHE=0 switches the cache off.",
                self.root,
                hint,
                error,
            )
            return None

    def _publish(self, key: KernelKey, image: Image) -> Entry | None:
        make_private(self.root)
        root = self.folder()
        if root is None:  # removed in this very moment
            raise FileNotFoundError(errno.ENOENT, "the folder was removed", str(self.root))
        work = root / "work" / work_name(key.digest[:16])
        make_private(work)
        try:
            _reached("folder made")
            write_new(work / image.file, image.data)
            _reached("object written")
            made = dt.datetime.now(dt.UTC).replace(microsecond=0).isoformat()
            write_new(work / DESCRIPTION, describe(key, image, made))
            _reached("description written")
            target = root / key.arch / key.digest
            make_private(target.parent)
            try:
                work.rename(target)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            _reached("published")
        finally:
            remove_tree(work)
        entry = self.find(key)
        if self.max_bytes:
            self.evict(self.max_bytes, keep=key.digest)
        return entry

    def evict(self, max_bytes: int, *, keep: str = "") -> list[Path]:
        """Removes what killed processes left, then what was set aside and the least recently used entries.

        What processes are writing counts, and stays.

        Args:
            max_bytes: what may stay of the rest, in bytes.
            keep: the digest of an entry that stays in any case.

        Returns:
            What was removed.
        """
        root = self.folder()
        if root is None:
            return []
        removed = self.sweep()
        # What was set aside goes first.
        order = {folder: (False, _last_used(folder)) for folder in folders_in(root / "damaged")}
        for arch in folders_in(root):
            if arch.name not in _NOT_ENTRIES:
                order |= {folder: (True, _last_used(folder)) for folder in folders_in(arch)}
        sizes = {folder: tree_bytes(folder) for folder in order}
        total = sum(sizes.values()) + sum(map(tree_bytes, folders_in(root / "work")))
        for folder in sorted(order, key=order.__getitem__):
            if total <= max_bytes:
                break
            if folder.name != keep and self.remove(folder):
                total -= sizes[folder]
                removed.append(folder)
        return removed

    def sweep(self) -> list[Path]:
        """Removes what killed processes left in work/; gives what that was.

        Raises:
            CacheError: the folder is not safe.
        """
        root = self.folder()
        removed = []
        for path in sorted((root / "work").glob("*")) if root is not None else ():
            with contextlib.suppress(FileNotFoundError):  # its process has just finished
                if is_left_by_the_dead(path.name) or time.time() - path.lstat().st_mtime >= LEFTOVER_S:
                    remove_tree(path)
                    removed.append(path)
        return removed

    def remove(self, folder: Path) -> bool:
        """Removes an entry in one step, so that no reader finds half of it; False where it was gone already."""
        trash = self.root / "work" / work_name("removed")
        try:
            make_private(trash.parent)
            folder.rename(trash)
        except FileNotFoundError:
            return False
        remove_tree(trash)
        return True


def _last_used(folder: Path) -> float:
    """When an entry was last used: the object carries the time."""
    for name in OBJECTS:
        with contextlib.suppress(OSError):
            return (folder / name).stat().st_mtime
    return 0.0
