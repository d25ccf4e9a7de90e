"""Where the threads of week 2's kernels read and write: index maps as plain functions of the configuration.

A row is written where it was read, so one map serves both.  The maps repeat the kernels' address arithmetic over
integers; tests prove on them that every element is read and written once, in whole sectors, and which accesses to
shared memory meet in a bank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from forge_core.profiling.exchange import block_slots, mailbox_slots
from forge_core.profiling.layouts import Access, Drawing, Panel
from forge_week2_softmax.configs import ColumnConfig, GridConfig, HeldConfig, SplitConfig, SweepConfig
from forge_week2_softmax.holding import CHUNK, LINE, independent

__all__ = [
    "LAYOUTS",
    "column_accesses",
    "column_slots",
    "first_chunk",
    "held_accesses",
    "held_slots",
    "part_of",
    "step_of",
    "sweep_accesses",
]

WARP = 32


def _size(config: HeldConfig | SweepConfig | ColumnConfig) -> int:
    """Bytes of an element of the first tensor whose rows have elements."""
    sources = zip(config.arithmetic.sources, config.arithmetic.on_rows, strict=False)
    return next(dtype.itemsize for dtype, on_row in sources if not on_row)


def first_chunk(config: HeldConfig, rank: int) -> int:
    """The first chunk of a block among those that share a row."""
    return rank * config.lanes * (config.chunks if config.blocks == 0 else 1)


def step_of(config: HeldConfig) -> int:
    """Chunks from one of a lane to its next: blocks of a cluster take turns along the row."""
    return config.lanes * max(config.blocks, 1)


def held_accesses(config: HeldConfig, length: int, *, shift: int = 0, rank: int = 0) -> list[Access]:
    """What one block of ``single_pass`` or ``cluster`` reads of one row; of its first row, where it has several.

    Args:
        config: the kernel's.
        length: elements of the row.
        shift: elements by which the row begins after a chunk's first; not 0 only where ``config.edges``.
        rank: the block's number among those that share the row.

    Returns:
        The accesses in order; places are bytes from the row's first chunk.
    """
    vector, lanes, size = config.vector, config.lanes, _size(config)
    found = []
    for u in range(config.chunks):
        places: list[int | None] = []
        for lane in range(lanes):
            place = (first_chunk(config, rank) + lane + u * step_of(config)) * vector - shift
            inside = place >= 0 and place + vector <= length if config.edges else place < length
            places.append((place + shift) * size if inside else None)
        found.append(Access(f"chunk {u}", tuple(places), vector * size))
    if config.edges and rank == 0:
        head = min(-shift % vector, length)
        tail = head + (length - head) // vector * vector
        for turn in range(max(1, 2 * vector // lanes)):
            ends: list[int | None] = []
            for lane in range(lanes):
                number = lane + turn * lanes
                place, end = (number, head) if number < vector else (tail + number - vector, length)
                ends.append((place + shift) * size if number < 2 * vector and place < end else None)
            found.append(Access(f"ends {turn}", tuple(ends), size))
    return found


def held_slots(config: HeldConfig) -> list[Access]:
    """Where a thread's chunks wait that are in shared memory, tensor by tensor, from the first slot on."""
    tensors = len(config.arithmetic.on_rows) - 1 - sum(config.arithmetic.on_rows[:-1])
    found = []
    for number in range(tensors * config.staged):
        tensor, chunk = divmod(number, config.staged)
        places = tuple((number * config.threads + thread) * CHUNK for thread in range(config.threads))
        name = f"tensor {tensor}, chunk {config.chunks - config.staged + chunk}"
        found.append(Access(name, places, CHUNK, "shared"))
    return found


def part_of(config: SweepConfig, length: int, part: int, parts: int, *, shift: int = 0) -> tuple[int, int]:
    """The first chunk of one of the parts that ``split`` or ``grid`` cuts a row into, and the one after its last.

    Args:
        config: that of its rows.
        length: elements of the row.
        part: which part.
        parts: how many the row is cut into.
        shift: elements by which the row begins after a chunk's first; not 0 only where ``config.edges``.
    """
    # Parts are as long as those of the row that touches the most chunks.
    most = -(-(length + (config.vector - 1 if config.edges else 0)) // config.vector)
    span, chunks = -(-most // (LINE * parts)) * LINE, -(-(length + shift) // config.vector)
    begin = min(part * span, chunks)
    return begin, min(begin + span, chunks)


def sweep_accesses(config: SweepConfig, length: int, *, shift: int = 0, part: int = 0, parts: int = 1) -> list[Access]:
    """What the block of ``naive`` or ``online`` reads in one pass over a contiguous row, or of ``split`` and ``grid``.

    Of a chunk at an edge its thread takes the elements inside, one by one.

    Args:
        config: the kernel's; of ``split`` and ``grid`` that of its rows.
        length: elements of the row.
        shift: elements by which the row begins after a chunk's first; not 0 only where ``config.edges``.
        part: which part of the row.
        parts: how many the row is cut into.
    """
    vector, threads, size = config.vector, config.threads, _size(config)
    chunks = -(-(length + shift) // vector)
    begin, end = part_of(config, length, part, parts, shift=shift) if parts > 1 else (0, chunks)
    found = []
    for first in range(begin, end, threads):
        places: list[int | None] = []
        pieces: list[list[int | None]] = [[] for _ in range(vector)]
        for thread in range(threads):
            place = (first + thread) * vector - shift
            whole = first + thread < end and place >= 0 and place + vector <= length
            places.append((place + shift) * size if whole else None)
            for v in range(vector):
                inside = first + thread < end and not whole and config.edges and 0 <= place + v < length
                pieces[v].append((place + v + shift) * size if inside else None)
        found.append(Access(f"chunks from {first}", tuple(places), vector * size))
        found += [Access(f"chunks from {first}, element {v}", tuple(pieces[v]), size) for v in range(vector)]
    return [access for access in found if any(place is not None for place in access.places)]


def column_accesses(config: ColumnConfig, length: int, rows: int, tile: int) -> list[Access]:
    """What one block of ``column`` reads, where element n of row c is at ``n * rows + c``; rows are whole loads."""
    size, found = _size(config), []
    for n in range(0, length, config.groups):
        places: list[int | None] = []
        for thread in range(config.threads):
            element, row = n + thread // config.lanes, tile * config.tile + thread % config.lanes * config.vector
            places.append((element * rows + row) * size if element < length and row < rows else None)
        found.append(Access(f"elements from {n}", tuple(places), config.vector * size))
    return found


def column_slots(config: ColumnConfig) -> tuple[list[Access], list[Access]]:
    """For one part of the accumulators, the writes of each warp's to shared memory and the reads of all warps'."""
    size, writes, reads = config.arithmetic.acc.itemsize, [], []
    own = [thread % config.lanes * config.vector for thread in range(config.threads)]
    for v in range(config.vector):
        slots = [
            (thread // WARP * config.tile + own[thread] + v) * size if thread % WARP < config.lanes else None
            for thread in range(config.threads)
        ]
        writes.append(Access(f"row {v} of a thread", tuple(slots), size, "shared"))
        for warp in range(config.threads // WARP):
            places = tuple((warp * config.tile + place + v) * size for place in own)
            reads.append(Access(f"row {v} of a thread, of warp {warp}", places, size, "shared"))
    return writes, reads


def _exchange(config: HeldConfig | SweepConfig) -> tuple[Panel, ...]:
    """How the warps that share a row pass their accumulators on, one part of them."""
    size = config.arithmetic.acc.itemsize
    blocks = config.blocks if isinstance(config, HeldConfig) else 1
    if independent(config.arithmetic):
        return ()
    if blocks > 1:
        writes, reads = mailbox_slots(config.threads, blocks, size)
        row = WARP * size
        return (
            Panel("shared memory: slots of the cluster's warps, written", row, tuple(writes)),
            Panel("shared memory: all of them, by every warp", row, tuple(reads)),
        )
    lanes = config.lanes if isinstance(config, HeldConfig) else config.threads
    if lanes <= WARP:
        return ()
    return (Panel("shared memory: a slot for each warp", WARP * size, block_slots(lanes, size)),)


def _held(config: HeldConfig) -> Drawing:
    length = config.lanes * max(config.blocks, 1) * config.chunks * config.vector
    accesses = tuple(access for access in held_accesses(config, length) if access.name.startswith("chunk"))
    title = f"{config.kernel_name}: {config.lanes} lanes a row, {config.chunks} chunks each"
    row = WARP * config.vector * _size(config)
    reads = Panel("global memory: a block's part of a row, read and written", row, accesses)
    waiting: tuple[Panel, ...] = ()
    if config.staged:
        slots = tuple(held_slots(config))
        waiting = (Panel("shared memory: the chunks that wait there, by the thread that reads them", row, slots),)
    return Drawing(title, (reads, *waiting, *_exchange(config)))


def _sweep(config: SweepConfig) -> Drawing:
    accesses = tuple(sweep_accesses(config, config.threads * config.unroll * config.vector))
    row = WARP * config.vector * _size(config)
    title = f"{config.kernel_name}: a turn of {config.threads} threads, {config.unroll} chunks each"
    return Drawing(title, (Panel("global memory: a row, in each pass", row, accesses), *_exchange(config)))


def _parts(config: SplitConfig | GridConfig) -> Drawing:
    title = f"{config.kernel_name}: a turn of a block on its part of a row"
    return Drawing(title, _sweep(config.row).panels)


def _column(config: ColumnConfig) -> Drawing:
    size, acc = _size(config), config.arithmetic.acc.itemsize
    accesses = column_accesses(config, config.groups * config.chunks, config.tile, 0)
    panels = [Panel("global memory: neighbouring rows, read and written", config.tile * size, tuple(accesses))]
    if config.threads > WARP:
        writes, reads = column_slots(config)
        panels.append(Panel("shared memory: the warps' accumulators", config.tile * acc, tuple(writes)))
        panels.append(Panel("shared memory: all of them, by every thread", config.tile * acc, tuple(reads)))
    return Drawing(f"{config.kernel_name}: {config.lanes} x {config.groups} threads", tuple(panels))


#: The drawing of each configuration that has one.
LAYOUTS: Mapping[type, Callable[[Any], Drawing]] = {
    HeldConfig: _held,
    SweepConfig: _sweep,
    SplitConfig: _parts,
    GridConfig: _parts,
    ColumnConfig: _column,
}
