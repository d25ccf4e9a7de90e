"""The numbers of launches that need one of their own: see ``Launch.numbered``.

They begin anywhere from 1 to 2^62, so that what lies in memory is none of them, and are counted up from there; in the
child of a fork they begin anew.
"""

from __future__ import annotations

import itertools
import os
import secrets

__all__ = ["next_number"]


def _begin() -> itertools.count[int]:
    return itertools.count(1 + secrets.randbelow(2**62))


_numbers = _begin()


def next_number() -> int:
    """A number from 1 to 2^63 that no launch was passed before."""
    return next(_numbers)


def _begin_anew_after_fork() -> None:
    global _numbers
    _numbers = _begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew_after_fork)
