"""Widths, and layouts as configurations hold them."""

from __future__ import annotations

from typing import Any

__all__ = ["CHUNK", "LINE", "MAX_LINES", "Layout"]

#: Bytes of the widest access of a thread.
CHUNK = 16

#: Bytes of a line of memory, and of all banks of shared memory.
LINE = 128

#: Lines of a tile of ``lines``, at most.
MAX_LINES = 64

#: Shape and stride.
Layout = tuple[tuple[Any, ...], tuple[Any, ...]]
