"""The lock around the compiler, in this process; ``store`` has one for each kernel, among processes."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager

__all__ = ["compile_lock"]

_compile_lock = threading.RLock()


def _renew_lock_after_fork() -> None:
    # A thread that compiled while the process forked does not exist in the child, and would hold the lock for ever.
    global _compile_lock
    _compile_lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock_after_fork)


def compile_lock() -> AbstractContextManager[bool]:
    """The lock to hold around ``cute.compile``, which is not thread-safe; a new one in a forked child."""
    return _compile_lock
