"""Shuffles of the bytes of 16-byte chunks, each four 32-bit words, in as few byte permutations as they take.

Pure functions of words and of the permutation of two words: a kernel passes GPU values and ``prmt``, a test integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

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
        (column, line), part = divmod(byte // itemsize, count), byte % itemsize
        place = column * itemsize + part
        return lines[line][place // 4], place % 4

    found = [_word([source(4 * i + byte) for byte in range(4)], permute) for i in range(count * words)]
    return [found[i : i + 4] for i in range(0, len(found), 4)]


def _word(sources: Sequence[tuple[Any, int]], permute: Permute) -> Any:
    """One word from four bytes, lowest first."""
    words, at = list({id(word): word for word, _ in sources}.values()), [byte for _, byte in sources]
    result = words[0]
    if len(words) == 1 and at == [0, 1, 2, 3]:
        return result
    for word in words[1:] or words:
        select = [4 + byte if source is word else at[i] for i, (source, byte) in enumerate(sources)]
        result, at = permute(result, word, sum(place << 4 * i for i, place in enumerate(select))), [0, 1, 2, 3]
    return result
