"""Arithmetic on the 32-bit words of a 16-byte chunk, and on the places of chunks in shared memory.

Everything here is a pure function of its arguments, so that the kernels and the NumPy models of the tests share it:
a kernel passes GPU values and the GPU's ``prmt``, ``shf`` and select, a test passes integers and their models.

A *chunk* is 16 bytes, four words.  ``V = 16 // itemsize`` elements make a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = [
    "CHUNK",
    "deinterleave",
    "funnel_left",
    "funnel_right",
    "gather_bytes",
    "interleave",
    "run_place",
    "swizzle",
    "transpose_chunks",
]

#: Bytes of the widest access of a thread.
CHUNK = 16

#: permute(a, b, selector): nibble i of the selector names the byte of b:a that becomes byte i (PTX prmt.b32).
Permute = Callable[[Any, Any, int], Any]
#: select(condition, a, b): a where the condition holds, else b.
Select = Callable[[Any, Any, Any], Any]
#: shift(low, high, bits), bits below 32: for going right the word that begins ``bits`` above the start of high:low
#: (PTX shf.r.wrap), for going left the word that ends ``bits`` before its end (PTX shf.l.wrap).
Shift = Callable[[Any, Any, Any], Any]


def swizzle(chunk: Any, key: Any) -> Any:
    """Where a chunk lies in its shared-memory row: the index XORed with the row's key modulo 8.

    Eight chunks are all 32 banks.  Eight lanes that access one chunk column of rows with eight different keys, or
    eight neighbouring chunks of one row, touch each bank once.  The row must have a multiple of eight chunks.
    """
    return chunk ^ (key % 8)


def transpose_chunks(rows: Sequence[Sequence[Any]], itemsize: int, permute: Permute) -> list[list[Any]]:
    """Transposes a block of V rows in registers.

    Args:
        rows: V rows of n words each.
        itemsize: bytes of an element: 1, 2, 4, 8 or 16.
        permute: the byte permutation of two words.

    Returns:
        For each of the ``4 * n // itemsize`` columns, its V elements as the four words of a chunk.
    """
    count = len(rows[0])
    if itemsize >= 4:
        words = itemsize // 4
        return [
            [row[column * words + word] for row in rows for word in range(words)] for column in range(count // words)
        ]
    if itemsize == 2:
        # Word m holds columns 2m and 2m + 1; the low halves of two rows are one word of column 2m.
        return [
            [permute(rows[2 * i][m], rows[2 * i + 1][m], selector) for i in range(4)]
            for m in range(count)
            for selector in (0x5410, 0x7632)
        ]
    columns: list[list[Any]] = [[None] * 4 for _ in range(4 * count)]
    for m in range(count):
        for i in range(4):
            a, b, c, d = (rows[4 * i + k][m] for k in range(4))
            for half, selector in enumerate((0x5140, 0x7362)):
                # (a0, b0, a1, b1) and (c0, d0, c1, d1); then the same of bytes 2 and 3.
                upper, lower = permute(a, b, selector), permute(c, d, selector)
                columns[4 * m + 2 * half][i] = permute(upper, lower, 0x5410)
                columns[4 * m + 2 * half + 1][i] = permute(upper, lower, 0x7632)
    return columns


def run_place(chunk: Any, lines: int) -> Any:
    """Where a chunk of a run lies in shared memory, so that threads ``lines`` chunks apart do not share banks.

    An odd distance already visits all eight chunk columns.  An even one, 2^a times an odd number, comes back to its
    first column after 8 / 2^a threads; each return is moved on by one of 2^a columns.
    """
    even = lines & -lines
    return chunk if even == 1 else chunk ^ (chunk // (lines * 8 // even) % even)


def interleave(lines: Sequence[Sequence[Any]], itemsize: int, permute: Permute) -> list[list[Any]]:
    """The run that one chunk of each of N lines makes: element 0 of each line, element 1 of each, ...

    Args:
        lines: N chunks of four words.
        itemsize: bytes of an element: 1, 2, 4 or 8.
        permute: the byte permutation of two words.

    Returns:
        N chunks of four words, neighbours in the run.
    """
    count = len(lines)

    def source(byte: int) -> tuple[Any, int]:
        element, part = divmod(byte, itemsize)
        column, line = divmod(element, count)
        place = column * itemsize + part
        return lines[line][place // 4], place % 4

    return _words(count, source, permute)


def deinterleave(run: Sequence[Sequence[Any]], itemsize: int, permute: Permute) -> list[list[Any]]:
    """The inverse of :func:`interleave`: N neighbouring chunks of a run as one chunk of each of N lines."""
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


def funnel_right(
    low: Sequence[Any], high: Sequence[Any], offset: Any, itemsize: int, select: Select, shift: Shift
) -> list[Any]:
    """The chunk that begins ``offset`` bytes (0 to 15) into two neighbouring chunks.

    Args:
        low: the four words of the first chunk.
        high: the four words of the next.
        offset: a multiple of ``itemsize``.
        itemsize: bytes of an element; the wider it is, the fewer steps are needed.
        select: chooses by a condition.
        shift: the funnel shift of two words.
    """
    words = [*low, *high]
    if itemsize >= 16:
        return list(low)
    if itemsize <= 4:
        odd = (offset & 4) != 0
        words = [select(odd, words[i + 1], words[i]) for i in range(7)]
    words = [select((offset & 8) != 0, words[i + 2], words[i]) for i in range(5 if itemsize < 4 else 4)]
    if itemsize < 4:
        bits = (offset & 3) * 8
        words = [shift(words[i], words[i + 1], bits) for i in range(4)]
    return words


def funnel_left(
    low: Sequence[Any], high: Sequence[Any], offset: Any, itemsize: int, select: Select, shift: Shift
) -> list[Any]:
    """The chunk that ends ``offset`` bytes (0 to 15) before the end of two neighbouring chunks.

    The arguments are those of :func:`funnel_right`.  An offset of 0 gives ``high``.
    """
    words = [*low, *high]
    if itemsize >= 16:
        return list(high)
    if itemsize >= 4:
        # words[i] for i = 1 to 7 after the first step, then the last four.
        if itemsize == 4:
            odd = (offset & 4) != 0
            words = [words[0], *(select(odd, words[i - 1], words[i]) for i in range(1, 8))]
        return [select((offset & 8) != 0, words[i - 2], words[i]) for i in range(4, 8)]
    odd = (offset & 4) != 0
    words = [words[0], *(select(odd, words[i - 1], words[i]) for i in range(1, 8))]
    words = [select((offset & 8) != 0, words[i - 2], words[i]) for i in range(3, 8)]
    bits = (offset & 3) * 8
    return [shift(words[i], words[i + 1], bits) for i in range(4)]
