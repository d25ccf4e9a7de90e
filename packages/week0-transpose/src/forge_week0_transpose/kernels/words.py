"""Shuffles of the bytes of 16-byte chunks, each four 32-bit words, in as few byte permutations as they take.

Pure functions of words and of the permutation of two words: a kernel passes GPU values and ``prmt``, a test integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from forge_week0_transpose.configs import CHUNK

__all__ = ["deinterleave", "gather_bytes", "interleave"]

#: permute(a, b, selector): nibble i of the selector names the byte of b:a that becomes byte i (PTX prmt.b32).
Permute = Callable[[Any, Any, int], Any]


def interleave(lines: Sequence[Sequence[Any]], itemsize: int, permute: Permute) -> list[list[Any]]:
    """The run that N lines make: element 0 of each line, element 1 of each, ...  Of V lines it is the transpose.

    Nothing is permuted where elements are words; two-byte elements take one permutation a word; bytes of lines by fours
    take two, since two columns share the first ones.

    Args:
        lines: N lines of some words each.
        itemsize: bytes of an element: 1, 2, 4, 8 or 16.
        permute: the byte permutation of two words.

    Returns:
        Chunks of four words, neighbors in the run: where N elements are a chunk, one for each column.
    """
    count, words = len(lines), len(lines[0])
    if itemsize == 1 and count % 4 == 0:
        run: list[Any] = [None] * (count * words)
        for m, i in product(range(words), range(count // 4)):
            a, b, c, d = (lines[4 * i + k][m] for k in range(4))
            for half, selector in enumerate((0x5140, 0x7362)):
                # (a0, b0, a1, b1) and (c0, d0, c1, d1); then the same of bytes 2 and 3.
                upper, lower = permute(a, b, selector), permute(c, d, selector)
                for odd, both in enumerate((0x5410, 0x7632)):
                    run[(4 * m + 2 * half + odd) * (count // 4) + i] = permute(upper, lower, both)
        return [run[i : i + 4] for i in range(0, len(run), 4)]

    def source(byte: int) -> tuple[Any, int]:
        element, part = divmod(byte, itemsize)
        column, line = divmod(element, count)
        place = column * itemsize + part
        return lines[line][place // 4], place % 4

    return _words(count * words // 4, source, permute)


def deinterleave(run: Sequence[Sequence[Any]], itemsize: int, permute: Permute) -> list[list[Any]]:
    """The inverse of :func:`interleave`: N neighboring chunks of a run as one chunk of each of N lines."""
    count = len(run)
    items = CHUNK // itemsize

    def source(byte: int) -> tuple[Any, int]:
        element, part = divmod(byte, itemsize)
        line, column = divmod(element, items)
        place = (column * count + line) * itemsize + part
        return run[place // CHUNK][place % CHUNK // 4], place % 4

    return _words(count, source, permute)


def _words(chunks: int, source: Callable[[int], tuple[Any, int]], permute: Permute) -> list[list[Any]]:
    return [
        [gather_bytes([source(CHUNK * chunk + 4 * word + byte) for byte in range(4)], permute) for word in range(4)]
        for chunk in range(chunks)
    ]


def gather_bytes(sources: Sequence[tuple[Any, int]], permute: Permute) -> Any:
    """One word from four bytes.

    Args:
        sources: for each byte of the result, lowest first, the word that holds it and its place there (0 to 3).
        permute: the byte permutation of two words.
    """
    distinct: list[Any] = []
    for word, _ in sources:
        if not any(word is other for other in distinct):
            distinct.append(word)

    def place(word: Any) -> int:
        return next(i for i, other in enumerate(distinct) if other is word)

    if len(distinct) == 1:
        if all(byte == i for i, (_, byte) in enumerate(sources)):
            return distinct[0]
        return permute(distinct[0], distinct[0], _selector([byte for _, byte in sources]))
    result = permute(
        distinct[0],
        distinct[1],
        _selector([byte + 4 * place(word) if place(word) < 2 else 0 for word, byte in sources]),
    )
    for index in range(2, len(distinct)):
        taken = [byte + 4 if place(word) == index else i for i, (word, byte) in enumerate(sources)]
        result = permute(result, distinct[index], _selector(taken))
    return result


def _selector(places: Sequence[int]) -> int:
    return sum(place << (4 * i) for i, place in enumerate(places))
