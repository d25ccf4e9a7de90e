"""Where the threads of week 1's kernels read: index maps as plain functions of the configuration.

A map gives the accesses of one block to one row, or to one tile of columns, in bytes from its first element.  They
repeat the kernels' address arithmetic, over integers instead of registers; tests prove on them that every element is
read once, in whole sectors, and which accesses to shared memory meet in a bank.  ``layouts`` draws them.
"""

from __future__ import annotations

from forge_core.profiling.layouts import Access
from forge_week1_reduce.configs import (
    ColumnConfig,
    FinishConfig,
    NaiveConfig,
    SharedConfig,
    ShortConfig,
    ShuffleConfig,
    VectorizedConfig,
)

__all__ = [
    "WARP",
    "column_reads",
    "column_slots",
    "element_reads",
    "finish_reads",
    "halving",
    "naive_reads",
    "row_reads",
    "short_reads",
]

CHUNK = 16
WARP = 32

#: Parts of a row begin at multiples of this many chunks; that of ``kernels/sweep.py``, which imports the DSL.
LINE_CHUNKS = 8

#: Threads of a block of ``finish`` where each has a result; that of ``kernels/finish.py``.
FINISH_THREADS = 128


def naive_reads(config: NaiveConfig, length: int, rows: int, *, row_step: int, step: int) -> list[Access]:
    """What one block of ``naive`` reads, a thread a row, one element after the other.

    Args:
        config: the kernel's.
        length: elements of a row.
        rows: rows of the block.
        row_step: bytes from one row to the next.
        step: bytes from one element of a row to the next.
    """
    size = config.arithmetic.src.itemsize
    own = [thread * row_step if thread < rows else None for thread in range(config.threads)]
    return [
        Access(f"element {i}", tuple(None if start is None else start + i * step for start in own), size)
        for i in range(length)
    ]


def element_reads(config: SharedConfig | ShuffleConfig, length: int, *, step: int | None = None) -> list[Access]:
    """What one block of ``shared`` or ``shuffle`` reads of its row.

    Args:
        config: the kernel's.
        length: elements of the row.
        step: bytes from one element to the next; by default they are neighbours.
    """
    size = config.arithmetic.src.itemsize
    return _in_turns("elements", length, config.threads, step or size, size)


def _in_turns(what: str, count: int, threads: int, step: int, size: int) -> list[Access]:
    """Threads that take one of ``count`` things each, ``step`` bytes apart, and then the next ones."""
    return [
        Access(
            f"{what} from {first}",
            tuple((first + t) * step if first + t < count else None for t in range(threads)),
            size,
        )
        for first in range(0, count, threads)
    ]


def halving(config: SharedConfig) -> list[Access]:
    """The accesses of ``shared`` to shared memory: the accumulators' writes, then for each half the pairs' reads."""
    size, threads = config.arithmetic.acc.itemsize, config.threads
    found = [Access("accumulators", tuple(thread * size for thread in range(threads)), size, "shared")]
    half = threads // 2
    while half:
        for name, by in (("own", 0), ("other", half)):
            places = tuple((thread + by) * size if thread < half else None for thread in range(threads))
            found.append(Access(f"half {half}: {name}", places, size, "shared"))
        half //= 2
    return found


def finish_reads(config: FinishConfig, parts: int, rows: int, *, part_step: int, row_step: int) -> list[Access]:
    """What the first block of ``finish`` reads of the accumulators of ``rows`` results.

    Args:
        config: the kernel's.
        parts: accumulators of a result.
        rows: results.
        part_step: bytes from one accumulator of a result to the next.
        row_step: bytes from one result's first accumulator to the next one's.
    """
    size, threads = config.arithmetic.src.itemsize, config.threads
    if threads > 1:
        return _in_turns("parts", parts, threads, part_step, size)
    return [
        Access(
            f"part {part}",
            tuple(t * row_step + part * part_step if t < rows else None for t in range(FINISH_THREADS)),
            size,
        )
        for part in range(parts)
    ]


def row_reads(
    config: VectorizedConfig, length: int, *, misaligned: int = 0, part: int = 0, parts: int = 1
) -> list[Access]:
    """What one block of ``vectorized``, ``cluster`` or ``split`` reads of one contiguous row.

    Args:
        config: the kernel's.
        length: elements of the row.
        misaligned: elements by which the row begins after a 16-byte boundary; not 0 only where ``config.peel``.
        part: which part of the row.
        parts: how many the row is cut into.

    Returns:
        The accesses in order; places are bytes from the boundary before the row.
    """
    size = config.arithmetic.src.itemsize
    vector, threads = config.width // size, config.threads
    found: list[Access] = []
    head = min(-misaligned % (CHUNK // size), length) if config.peel else 0
    chunks = (length - head) // vector
    tail = length - head - chunks * vector
    if config.peel and part == 0:
        begin = misaligned * size
        ends: list[int | None] = [None] * threads
        ends[:head] = [begin + thread * size for thread in range(head)]
        found.append(Access("head", tuple(ends), size))
        ends = [None] * threads
        ends[CHUNK : CHUNK + tail] = [begin + (length - tail + i) * size for i in range(tail)]
        found.append(Access("tail", tuple(ends), size))
    start = (misaligned + head) * size
    # Parts are as long as those of a row that begins at a boundary.
    span = -(-(length // vector) // (LINE_CHUNKS * parts)) * LINE_CHUNKS
    first = part * span
    count = max(min(chunks - first, span), 0)
    for turn in range(0, count, threads):
        places = (turn + thread for thread in range(threads))
        found.append(
            Access(
                f"chunks from {first + turn}",
                tuple(start + (first + place) * config.width if place < count else None for place in places),
                config.width,
            )
        )
    return found


def short_reads(config: ShortConfig, length: int, rows: int) -> list[Access]:
    """What one block of ``short`` reads of ``rows`` rows that follow one another, its first one at byte 0."""
    row_bytes = length * config.arithmetic.src.itemsize
    chunks = row_bytes // config.width
    found = []
    for k in range(config.rows):
        for u in range(config.unroll):
            places: list[int | None] = []
            for thread in range(config.threads):
                row = thread // config.lanes + k * (config.threads // config.lanes)
                chunk = u * config.lanes + thread % config.lanes
                inside = row < rows and (config.exact or chunk < chunks)
                places.append(row * row_bytes + chunk * config.width if inside else None)
            found.append(Access(f"row {k} of a group, load {u}", tuple(places), config.width))
    return found


def column_reads(
    config: ColumnConfig, rows: int, cols: int, tile: int, *, part: int = 0, parts: int = 1
) -> list[Access]:
    """What one block of ``column`` reads of a contiguous matrix that begins at a multiple of the load's width.

    Its rows do so too, or begin at as many distances from one as ``config.shifts`` says; then a thread's loads begin as
    far before the tile as its first row does after a multiple of 16 bytes.

    Args:
        config: the kernel's.
        rows: rows of the matrix.
        cols: its columns.
        tile: which tile of columns.
        part: which part of the rows.
        parts: how many the rows are cut into.
    """
    size, vector = config.arithmetic.src.itemsize, config.vector
    span = -(-rows // parts) if config.groups > 1 else rows
    end = min(rows, part * span + span)
    found = []
    for step in range(part * span, end, config.groups):
        wide: list[int | None] = []
        edge: list[list[int | None]] = [[] for _ in range(vector)]
        for thread in range(config.threads):
            row, start = step + thread // config.lanes, tile * config.tile
            shift = (start + row * cols) * size % CHUNK // size if config.shifts > 1 else 0
            column = start + thread % config.lanes * vector - shift
            whole = row < end and column >= 0 and column + vector <= cols
            wide.append((row * cols + column) * size if whole else None)
            for v in range(vector):
                inside = row < end and not whole and 0 <= column + v < cols
                edge[v].append((row * cols + column + v) * size if inside else None)
        found.append(Access(f"rows from {step}", tuple(wide), config.width))
        found += [Access(f"rows from {step}, column {v} of a load", tuple(edge[v]), size) for v in range(vector)]
    return [access for access in found if any(place is not None for place in access.places)]


def column_slots(config: ColumnConfig, *, shift: int = 0) -> tuple[list[Access], list[Access]]:
    """The writes of a tile's accumulators to shared memory by each warp, and the reads of those that finish it.

    Args:
        config: the kernel's.
        shift: columns by which the warps' loads begin before the tile; not 0 only where ``config.shifts`` is not 1.
    """
    size, warps = config.arithmetic.acc.itemsize, max(config.threads // WARP, 1)
    writes = []
    for v in range(config.vector):
        places: list[int | None] = []
        for thread in range(config.threads):
            place = thread % config.lanes * config.vector + v - shift
            takes_part = thread % WARP < config.lanes and 0 <= place < config.tile
            places.append((thread // WARP * config.tile + place) * size if takes_part else None)
        writes.append(Access(f"place {v} of a load", tuple(places), size, "shared"))
    reads = []
    for turn in range(0, config.tile, config.threads):
        own = [turn + thread for thread in range(config.threads)]
        for warp in range(warps):
            slots = tuple((warp * config.tile + place) * size if place < config.tile else None for place in own)
            reads.append(Access(f"accumulators of warp {warp}", slots, size, "shared"))
    return writes, reads
