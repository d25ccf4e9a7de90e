"""What can be known of a compiled kernel without running it."""

from __future__ import annotations

import struct

__all__ = ["stack_bytes"]


def stack_bytes(cubin: bytes) -> int:
    """The largest stack frame that a cubin's .nv.info section declares: where spilled registers go.

    Args:
        cubin: a 64-bit ELF object, as the compiler keeps it with ``--keep-cubin``.

    Raises:
        ValueError: it holds no kernel.
    """
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    count, names = struct.unpack_from("<HH", cubin, 0x3C)
    sections = [struct.unpack_from("<IIQQQQIIQQ", cubin, table + 64 * i) for i in range(count)]
    strings = sections[names][4]
    frames: list[int] = []
    for name, _, _, _, begin, size, *_ in sections:
        label = cubin[strings + name : cubin.index(b"\0", strings + name)]
        at, end = (begin, begin + size) if label == b".nv.info" else (0, 0)
        while at < end:
            kind, attribute, length = struct.unpack_from("<BBH", cubin, at)
            if kind == 4 and attribute == 0x11:  # frame size: (symbol, bytes)
                frames.append(struct.unpack_from("<II", cubin, at + 4)[1])
            at += 4 + (length if kind == 4 else 0)
    if not frames:
        raise ValueError("the cubin declares no kernel")
    return max(frames)
