"""Index maps of the row kernels: which bytes of a row each thread reads, computed from the configuration.

    held      threads stride along the row, a vector each; with ``blocks == 0`` each block has a contiguous part
    stream    the same in each tile of a row; every part of a row is some of its tiles
    column    neighboring threads have neighboring places: of rows side by side, then of their next elements

Of shifted rows the first threads also have elements of head or tail, and so have those at the ends of a tile of skewed
ones.  Outputs are written at the same places.  Not in the maps: accesses whose result is unused, which kernels send to
a row's first element, and what vectors of skewed rows read of rows beside the tile; column operands.

For ``forge-cute layout`` and for tests: neither a kernel nor what plans a call imports this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from forge_core.profiling.layouts import WARP, Access, Drawing, Panel, block_slots, mailbox_slots
from forge_core.rows.arguments import LINE, Tiling
from forge_core.rows.config import ColumnConfig, HeldConfig, RowConfig, StreamConfig
from forge_core.rows.problem import ACCESS

__all__ = ["LAYOUTS", "column_accesses", "held_accesses", "stream_accesses"]


def _vectors(name: str, starts: Iterable[int | None], nbytes: int) -> list[Access]:
    """A vector of each thread, in accesses of at most 16 bytes."""
    width, begins = min(nbytes, ACCESS), tuple(starts)
    return [
        Access(f"{name}, byte {i}" if i else name, tuple(None if p is None else p + i for p in begins), width)
        for i in range(0, nbytes, width)
    ]


def _row(
    config: RowConfig, length: int, size: int, shift: int, own: range, steps: Iterable[int], edges: Iterable[range]
) -> list[Access]:
    """For each thread the vectors numbered ``own`` plus each step; of shifted rows, its ``edges`` of head and tail."""
    head = min(-shift % config.vec, length)
    body, found = (length - head) // config.vec * config.vec, list[Access]()
    for step in steps:
        elements = ((vector + step) * config.vec for vector in own)
        places = ((shift + head + i) * size if i < body else None for i in elements)
        found += _vectors(f"vectors from {own[0] + step}", places, config.vec * size)
    for edge in edges if config.align == "shifted" else ():
        elements = (i if i < head else i + body for i in edge)
        found += _vectors("head and tail", ((shift + i) * size if i < length else None for i in elements), size)
    return found


def held_accesses(
    config: HeldConfig, length: int, size: int, *, threads: int = 0, shift: int = 0, rank: int = 0
) -> list[Access]:
    """What one block reads of a row, of its first one where it has several: see ``Held.load``.

    Args:
        config: the kernel's.
        length: elements of the row.
        size: bytes of an element of the operand.
        threads: of the block, in a ``sized`` launch; 0 for the most.
        shift: elements by which a shifted row begins after a 16-byte boundary.
        rank: the block's number among those that share the row.

    Returns:
        The accesses in order; places are bytes from the boundary.
    """
    threads = config.lanes or threads or config.threads
    place = range(rank * threads, (rank + 1) * threads)
    # Blocks of a cluster take turns along the row; without one a block has a contiguous part.
    begin = place[0] if config.blocks else place[0] * config.chunks
    steps = (c * threads * max(config.blocks, 1) for c in range(config.chunks))
    edges = (range(place[0] + e * threads, place[0] + e * threads + threads) for e in range(config.edges))
    return _row(config, length, size, shift, range(begin, begin + threads), steps, edges)


def stream_accesses(
    config: StreamConfig, length: int, size: int, *, shift: int = 0, part: int = 0, parts: int = 1
) -> list[Access]:
    """What one block reads in a pass over its part of a row: see ``Stream.kernel``; other arguments as for ``held``."""
    threads, tile = config.threads, config.threads * config.chunks
    tiles = -(-((length - min(-shift % config.vec, length)) // config.vec) // tile)
    span = -(-tiles // parts)
    steps = range(min(part * span, tiles) * tile, min((part + 1) * span, tiles) * tile, threads)
    return _row(config, length, size, shift, range(threads), steps, [range(threads)] if part == 0 else [])


def column_accesses(
    config: ColumnConfig,
    length: int,
    rows: int,
    size: int,
    tiling: Tiling,
    *,
    shift: int = 0,
    tile: int = 0,
    part: int = 0,
) -> list[Access]:
    """What one block reads in a pass over its part of a tile of rows, whose element n is ``n * rows`` on: see ``Tile``.

    Args:
        config: the kernel's.
        length: elements of a row.
        rows: that lie side by side.
        size: bytes of an element of the operand.
        tiling: how they are read.
        shift: elements by which ``shifted`` or ``skewed`` rows begin after a 16-byte boundary.
        tile: which tile.
        part: which part of it.

    Returns:
        The accesses in order; places are bytes from the boundary.
    """
    width, threads, vec, found = tiling.width, tiling.threads, config.vec, list[Access]()
    turn, before = threads * vec, -(-shift // width) if config.align == "shifted" else 0
    steps = -(-(length + before) // (turn // width))
    span = math.ceil(math.ceil(steps / config.chunks) / tiling.parts) * config.chunks
    for i in range(part * span, min(part * span + span, steps)):
        first = [i * turn + thread * vec for thread in range(threads)]
        if config.align == "shifted":
            ends = shift, shift + length * rows
            whole = (place * size if ends[0] <= place <= ends[1] - vec else None for place in first)
            found += _vectors(f"vectors from {first[0]}", whole, vec * size)
            edges = [place for place in first if ends[0] - vec < place < ends[0] or ends[1] - vec < place < ends[1]]
            for r in range(vec) if edges else ():
                own = ((place + r) * size if ends[0] <= place + r < ends[1] else None for place in edges)
                found += _vectors("head and tail", own, size)
        elif config.align == "skewed":
            found += _skewed(first, tiling, size, vec, length, rows, shift=shift, tile=tile)
        else:
            places = [(place // width, tile * width + place % width) for place in first]
            inside = ((n * rows + row) * size if n < length and row < rows else None for n, row in places)
            found += _vectors(f"elements from {first[0] // width}", inside, vec * size)
    return found


def _skewed(
    first: list[int], tiling: Tiling, size: int, vec: int, length: int, rows: int, *, shift: int, tile: int
) -> list[Access]:
    """What threads have at a step of a tile of skewed rows, whose places of all elements are numbered through."""
    width, most = tiling.width, min(tiling.rows, rows - tile * tiling.rows)
    found, threads = list[Access](), list[tuple[int, int]]()
    for place in first:
        # The tile's first row, and the thread's, counted from it: at the boundary before it for the first thread.
        begin = shift + place // width * rows + tile * tiling.rows
        threads.append((begin, place % width - begin % vec if place // width < length else most))
    whole = ((begin + f) * size if 0 <= f <= most - vec else None for begin, f in threads)
    found += _vectors(f"vectors of {first[0] // width}", whole, vec * size)
    edges = [(begin, f) for begin, f in threads if -vec < f < 0 or most - vec < f < most]
    for r in range(vec) if edges else ():
        own = ((begin + f + r) * size if 0 <= f + r < most else None for begin, f in edges)
        found += _vectors("head and tail", own, size)
    return found


def _exchange(config: RowConfig, blocks: int) -> tuple[Panel, ...]:
    """The slots by which the warps of some blocks exchange an accumulator, where it is one access."""
    program = config.binding.program
    nbytes = len(program.folds if program.merge else program.folds[:1]) * config.binding.compute.itemsize
    if not blocks or not 0 < nbytes <= ACCESS:
        return ()
    size = 1 << (nbytes - 1).bit_length()
    one, many = block_slots(config.threads, size), mailbox_slots(config.threads, blocks, size)
    sides, what = many if blocks > 1 else [[x] for x in one], ("a slot for each warp", "all slots, by every warp")
    return tuple(Panel(f"shared memory: {t}", WARP * size, tuple(each)) for t, each in zip(what, sides, strict=True))


def _draw(config: Any) -> Drawing:
    """The operands of each element size, of the longest row that is held or of a tile; and the exchange."""
    binding, shift = config.binding, {"shift": 1} if config.align in ("shifted", "skewed") else {}
    accesses: Callable[..., list[Access]] = stream_accesses
    vectors, row, blocks = config.threads * config.chunks, WARP * config.vec, 1
    if isinstance(config, HeldConfig):
        vectors, blocks, accesses = config.capacity, max(config.blocks, 1) if config.sized else 0, held_accesses
    length, panels = (vectors + len(shift)) * config.vec, []
    if isinstance(config, ColumnConfig):
        # Of shifted and skewed rows an odd number, as many as half of a line.
        width = LINE * config.vec if config.align == "whole" else 16 * config.vec - len(shift)
        each = width // math.gcd(width, config.vec)
        threads = config.threads // each * each
        tiling = Tiling(1, width, width, threads, 1, threads * config.vec // width)
        if config.align == "skewed":
            tiling = Tiling(1, width + 1, width + 1 - config.vec, threads, 1, threads * config.vec // (width + 1))
            width = tiling.rows - 1
        length, row, blocks = tiling.groups * config.chunks, width, 0
        accesses = partial(column_accesses, rows=width, tiling=tiling)
    for size in sorted({binding.dtype(name).itemsize for name in binding.moving}):
        names = ", ".join(name for name in binding.moving if binding.dtype(name).itemsize == size)
        panels.append(Panel(f"global memory: {names}", row * size, tuple(accesses(config, length, size=size, **shift))))
    title = f"{config.kernel_name}: {config.threads} threads, {config.chunks} vectors each"
    return Drawing(title, (*panels, *_exchange(config, blocks)))


#: The drawing of each configuration.
LAYOUTS: Mapping[type, Callable[[Any], Drawing]] = dict.fromkeys((HeldConfig, StreamConfig, ColumnConfig), _draw)
