"""The locks of this process around compiling; ``store`` has one for each kernel, among processes.

Order, from the outside: the kernel's lock in this process, its lock in the store, the compiler's lock.  Whoever waits
for another process to compile a kernel holds the first two of that kernel alone.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

__all__ = ["compile_lock", "holds_compile_lock", "key_lock"]

_compile_lock = threading.RLock()
_key_locks: dict[str, threading.RLock] = {}
_held = threading.local()


def _renew_locks_after_fork() -> None:
    # A thread that compiled while the process forked does not exist in the child, and would hold its locks for ever.
    global _compile_lock, _key_locks
    _compile_lock = threading.RLock()
    _key_locks = {}


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks_after_fork)


@contextlib.contextmanager
def compile_lock() -> Iterator[None]:
    """The lock to hold around ``cute.compile``, which is not thread-safe; a new one in a forked child."""
    with _compile_lock:
        before = holds_compile_lock()
        _held.compiling = True
        try:
            yield
        finally:
            _held.compiling = before


def holds_compile_lock() -> bool:
    """Whether this thread is inside :func:`compile_lock`; it must not wait for a kernel's lock then."""
    return getattr(_held, "compiling", False)


def key_lock(digest: str) -> threading.RLock:
    """The lock of one kernel; a new one in a forked child."""
    return _key_locks.setdefault(digest, threading.RLock())
