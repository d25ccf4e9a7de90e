"""The configurations of a program: all of them are compiled in CI and covered by GPU validation."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeVar

from forge_core.choice import max_cluster
from forge_core.device import Device
from forge_core.rows.binding import Binding
from forge_core.rows.config import (
    ALL_DIMS,
    COLUMN_THREADS,
    MANY_DIMS,
    ColumnConfig,
    HeldConfig,
    RowConfig,
    StreamConfig,
)
from forge_core.rows.teams import RESERVED_SHARED, keeps_columns, persistent_configurations, spare_registers

Config = TypeVar("Config", bound=RowConfig)

# Maximum registers per thread: beyond, the compiler spills converted vectors.
_MOST_REGISTERS = 160

# 32-bit words of a row per thread: few allow full occupancy, many the most bytes in flight.  Fewer for shifted rows,
# which have head and tail elements besides, and for programs that only reduce, which keep several running totals.
_FEW, _SOME, _HALF, _MANY, _MOST = 8, 16, 32, 40, 56
_MANY_SHIFTED = 32

# Rows that a cluster holds in registers and shared memory together, with two resident blocks: threads per block; words
# in shared memory; words in registers and maximum vectors before it spills, the second pair for converted elements, the
# third for programs with column operands.
_STAGED_THREADS, _STAGED, _STAGED_KEPT, _STAGED_CONVERTED, _STAGED_COLUMNS = 448, 48, (32, 16), (24, 12), (20, 10)
# The same for rows of one fp32 operand with column operands, with four resident blocks, of moments two: threads per
# block, vectors, and how many of them are in shared memory.
_STAGED_SHORT, _STAGED_MOMENTS = (512, 9, 6), (384, 11, 7)

# Many long rows of moments, with column operands: threads per block, vectors, how many of them are in shared memory,
# registers.  16-bit rows in a block; those in a cluster, and rows with realigned column operands; whole rows of fp32.
_DEEP_BLOCK, _DEEP_CLUSTER, _DEEP_FP32 = (512, 8, 0, 64), (384, 11, 6, 56), (256, 16, 11, 64)

# Rows of up to 128 vectors: threads per block, lanes per row, chunks.
_WARP_ROWS = ((128, 1, 2), (128, 4, 2), (128, 8, 2), (128, 16, 2), (128, 32, 2), (128, 32, 4))
# Rows that are read by element, shorter than ``Problem.least``: threads per block, lanes per row, elements per lane,
# rows per lane group; of programs that only reduce, that also write, and with column operands.  Rows of one thread may
# be strided, but not with column operands.
_LONG_ROWS = ((128, 1, 16, 1), (128, 1, 32, 1))
_REDUCED_ROWS = ((128, 1, 4, 4), (128, 1, 8, 4), *_LONG_ROWS, (128, 16, 8, 1), (512, 0, 8, 1))
_WRITTEN_ROWS = ((128, 1, 4, 2), (128, 1, 8, 1), *_LONG_ROWS, (128, 2, 4, 2), (128, 4, 6, 1), (128, 8, 8, 1))
_COLUMN_ROWS = (
    *((128, 1, 4, 2), (128, 2, 4, 2), (128, 4, 4, 1), (128, 4, 8, 1), (128, 8, 6, 1), (128, 8, 8, 1)),
    *((128, 16, 6, 1), (128, 16, 8, 1), (128, 32, 6, 1), (128, 32, 8, 1), (128, 32, 12, 1), (128, 32, 16, 1)),
)
# Rows of any stride that are farther apart than their elements: lanes per row, elements per lane.
_STRIDED_ROWS = ((4, 6), (8, 8), (32, 8), (32, 16))
# Rows of pairs of elements with column operands: threads per block, lanes per row, pairs per lane.
_PAIRED_ROWS = (
    *((128, 2, 2), (128, 4, 2), (128, 4, 4), (128, 8, 3), (128, 8, 4), (128, 16, 3)),
    *((128, 16, 4), (128, 32, 3), (128, 32, 4), (128, 32, 6), (128, 32, 8)),
)

# Longer rows: maximum threads per block, blocks per row, words per thread.
_BLOCK_ROWS = (
    (512, 1, _FEW),
    (512, 1, _SOME),
    (256, 1, _MANY),
    (256, 2, _MANY),
    (256, 4, _MANY),
    (256, 8, _MANY),
    (448, 16, _SOME),
    (256, 16, _MANY),
)
# Longer unaligned rows, whose vectors have registers for what surrounds them, too.  Larger clusters are slower where
# fewer blocks hold a row, most of all those of few warps.
_UNALIGNED_ROWS = ((512, 1, _SOME), (256, 4, _SOME), (512, 8, _SOME), (512, 16, _SOME))
# Few rows over the whole GPU: words per thread, of which the most are taken that fit in this many registers; fewer from
# sm_100 on, where the compiler allocates more besides.
_GRID_WORDS, _GRID_REGISTERS, _GRID_REGISTERS_NEWER = (80, 64, 48), 116, 100


@functools.lru_cache(maxsize=1024)
def configurations(binding: Binding, device: Device) -> tuple[RowConfig, ...]:
    """All configurations that ``auto`` picks from for a program on a device; equal ones are the same object.

    Of teams those of programs without sums are among them, which an operator has to declare.
    """
    if binding.operands.accumulates:
        return persistent_configurations(binding, device)
    held = (c for c in _held_configurations(binding, device) if c.registers <= min(_MOST_REGISTERS, 65536 // c.threads))
    teams = (c for c in persistent_configurations(binding, device) if c.long) if keeps_columns(binding) else ()
    found = (*held, *_streams(binding, device), *_columns(binding, device), *teams)
    # Rows that a thread or a tile holds may take too little time to step over code for several kept dims.
    threads = (c for c in found if isinstance(c, HeldConfig) and c.lanes == 1)
    kept = (*threads, *(c for c in found if isinstance(c, ColumnConfig) and c.held))
    one = (replace(c, rank=1) for c in kept if c.reduced)
    return tuple(map(_interned, dict.fromkeys((*one, *found))))


@functools.lru_cache(maxsize=4096)
def listed(binding: Binding, device: Device, kernel: type[Config], *aligns: str) -> tuple[Config, ...]:
    """The listed configurations of a kernel for these alignments."""
    return tuple(c for c in configurations(binding, device) if isinstance(c, kernel) and c.align in aligns)


@functools.cache
def _interned(config: RowConfig) -> RowConfig:
    """The first of equal configurations, so that a look-up by configuration compares by identity."""
    return config


def _held_configurations(binding: Binding, device: Device) -> Iterator[HeldConfig]:
    words = max(1, binding.words(binding.widest_vec))
    # Below sm_90 the compiler allocates more registers for moments.
    moments = binding.program.merge == "moments"
    older = moments and device.capability < (9, 0)

    def held(align: str, threads: int, lanes: int, chunks: int, blocks: int = 1, **more: Any) -> HeldConfig:
        dims = (1, 0) if align == "whole" else (MANY_DIMS, int(align == "element" and lanes == 1 and not columns))
        spare, most = spare_registers(device) + 8 * older, device.sm_threads
        # Aligned vectors of several column operands need fewer registers than estimated, most of all of one fp32 row.
        less = (16 if threads == 512 else 24 * short) if "columns_realigned" in more else 0
        less = 32 if align == "whole" and wide and short and threads == 256 else less
        config = HeldConfig(binding, align, threads, chunks, spare - less, *dims, most, lanes, blocks, **more)
        return replace(config, columns_staged=_stages_columns(config, device))

    def deep(align: str, blocks: int, **more: Any) -> HeldConfig:
        shared = align == "shifted" or (converted and blocks > 1)
        threads, chunks, staged, registers = _DEEP_CLUSTER if shared else _DEEP_BLOCK if converted else _DEEP_FP32
        config = held(align, threads, 0, chunks, blocks, staged=staged, deep=True, **more)
        return replace(config, spare=config.spare - config.registers + registers)

    clusters, floats = max_cluster(device), all(binding.dtype(name).is_floating_point for name in binding.loaded)
    stages, columns = bool(binding.program.folds) and floats, binding.operands.columns
    writes, wide = binding.operands.writes, binding.wide_columns
    converted = min(binding.sizes(binding.loaded), default=4) < 4
    short = bool(columns) and not converted and binding.wide == len(binding.loaded) == 1
    longer = [(threads, min(blocks, clusters), room) for threads, blocks, room in _BLOCK_ROWS]
    longer += [(512, 1, _MOST - 8 * older)] if clusters == 1 else []
    # Half of a multiprocessor's threads are enough where there is little arithmetic to overlap with loads.
    longer += [(512, clusters, _HALF)] if clusters > 1 and len(binding.loaded) > 1 and not columns else []
    in_grid = bool(binding.fits_slot and device.capability >= (9, 0) and binding.program.folds)
    unaligned = [(threads, min(blocks, clusters), room) for threads, blocks, room in _UNALIGNED_ROWS]
    if not binding.program.folds:  # a row of a map has any number of blocks; a vector a thread takes the least time
        longer = unaligned = [(256, 0, 1), (256, 0, _SOME)]
    widest, narrowest = max(binding.sizes(columns), default=0), min(binding.sizes(binding.moving), default=0)
    realigns = wide and clusters > 1 and stages and widest <= narrowest
    # From sm_100 on the compiler needs more registers than ``deep`` blocks have.
    deepens = moments and realigns and len(binding.loaded) == binding.wide == 1 and device.capability < (10, 0)
    lane_rows = () if columns else _WARP_ROWS[1:]  # windows of column operands take a warp longer than a block
    for align in ("whole", "shifted"):
        for threads, lanes, chunks in _WARP_ROWS if align == "whole" else lane_rows:
            # A thread that holds a row and writes nothing has registers for another row, and bytes in flight.
            yield held(align, threads, lanes, chunks, rows=2 if lanes == 1 and not writes else 1)
        for threads, blocks, room in longer:
            fits = _MANY_SHIFTED if room == _MANY and (align == "shifted" or not writes or wide) else room
            block, here = (512, _SOME) if room != _FEW and _packed(binding, blocks) else (threads, fits)
            if align == "whole":
                yield held(align, block, 0, max(1, here // words), blocks)
            elif room != _HALF and (columns or room != _FEW):
                yield held(align, threads, 0, max(1, fits // words), blocks)
                if realigns and room != _FEW:
                    # Clusters of more blocks are waited for longer, which more bytes in flight hide.
                    long = blocks > 1 + converted
                    block, here = (threads, room) if long else (block, here)
                    if not (long and deepens):
                        yield held(align, block, 0, max(1, here // words), blocks, columns_realigned=True)
        # Teams hold the longest whole rows of fp32, and two blocks of few vectors short unaligned rows of 16 bits.
        for blocks in (1, 2, 4, 8, clusters) if deepens else ():
            if align == "whole" and (converted or blocks < clusters):
                yield deep(align, blocks)
            elif align == "shifted" and blocks > converted:
                yield deep(align, blocks, columns_realigned=True)
        if in_grid:
            if align == "shifted" or not columns:  # shifted ones take whole rows, too
                yield held(align, 512, 0, max(1, _SOME // words), 0)
            most = (held(align, 512, 0, max(1, room // words), 0) for room in _GRID_WORDS)
            limit = _GRID_REGISTERS if device.capability < (10, 0) else _GRID_REGISTERS_NEWER
            yield from itertools.islice((config for config in most if config.registers <= limit), 1)
    if _mixes(binding):
        for threads, lanes, chunks in lane_rows[1:]:
            yield held("unaligned", threads, lanes, chunks)
        for threads, blocks, room in unaligned:
            yield held("unaligned", threads, 0, max(1, room // words), blocks)
    if clusters > 1 and binding.program.folds and not stages:
        most = (held("shifted", 512, 0, max(1, room // words), clusters) for room in (_MOST, _MANY))
        # 512 threads have at most 128 registers each, those of the folds included.
        yield from itertools.islice((c for c in most if c.registers + c.fold_registers <= 128), 1)
    room, vectors = _STAGED_CONVERTED if converted else _STAGED_COLUMNS if columns and not moments else _STAGED_KEPT
    # Several row operands beside column operands need registers for a vector of each.
    less = 8 * (len(binding.moving) > 1 and bool(columns)) + 8 * (device.capability >= (10, 0) and not converted)
    kept = (room - less) // words
    staged = min(_STAGED // words, vectors - kept)
    if clusters > 1 and short and stages:
        threads, chunks, here = _STAGED_MOMENTS if moments else _STAGED_SHORT
        config = held("whole", threads, 0, chunks, clusters, staged=here)
        yield replace(config, spare=config.spare - 16)
    if clusters > 1 and stages and kept and staged > 0 and (moments or not short) and not (deepens and converted):
        yield held("whole" if columns else "shifted", _STAGED_THREADS, 0, kept + staged, clusters, staged=staged)
    for threads, lanes, chunks in _PAIRED_ROWS if columns else ():
        yield held("paired", threads, lanes, chunks)
    for threads, lanes, chunks, rows in _COLUMN_ROWS if columns else _WRITTEN_ROWS if writes else _REDUCED_ROWS:
        yield held("element", threads, lanes, chunks, rows=rows)
    for lanes, chunks in _STRIDED_ROWS if writes else _STRIDED_ROWS[1:]:
        yield replace(held("element", 128, lanes, chunks), reduced=1)


def _stages_columns(config: HeldConfig, device: Device) -> bool:
    """Whether column operands are staged in shared memory: if blocks hold rows of vectors and as many stay resident.

    Not operands wider than the row: staged, each block loads them from the L2, where whole rows hit some in the L1.
    """
    binding, columns = config.binding, config.binding.operands.columns
    sizes, row = binding.sizes(columns), binding.sizes(binding.moving)
    wide = config.columns_whole and (max(sizes, default=0) > min(row, default=8) or binding.wide_columns)
    wide = wide and not (_packed(binding, config.blocks) and config.chunks * binding.words(config.vec) >= _SOME)
    # Copies to shared memory are 16 bytes wide, and the first lanes of a warp copy the last vectors of each chunk.
    apart = config.chunks > 32 or any(size * config.vec % 16 for size in sizes)
    if not columns or not config.sized or not config.blocks or config.align == "element":
        return False
    if wide or apart or config.staged or config.deep:
        return False
    most = replace(config, columns_staged=True).shared(config.threads) + RESERVED_SHARED
    return bool(most <= device.smem_per_block and config.resident * most <= device.smem_per_sm)


def _packed(binding: Binding, blocks: int) -> bool:
    """Whether rows of ``blocks`` get more threads and staged columns: elements of 16 bits, most of them of columns."""
    narrow = all(size < 4 for size in binding.sizes(binding.loaded + binding.operands.columns))
    return bool(binding.wide_columns) and narrow and 0 < blocks < 16


def _mixes(binding: Binding) -> bool:
    """Whether a row may be at another distance from a boundary than the output."""
    return bool(binding.loaded and binding.operands.writes)


def _streams(binding: Binding, device: Device) -> Iterator[StreamConfig]:
    def stream(align: str, threads: int, chunks: int, reduced: int = 0, parted: bool = False) -> StreamConfig:
        spare, most, overlap = spare_registers(device), device.sm_threads, parted and device.capability >= (9, 0)
        dims = (reduced or MANY_DIMS, reduced)
        return StreamConfig(binding, align, threads, chunks, spare, *dims, most, parted, overlap)

    few = max(1, _SOME // max(1, binding.words(binding.widest_vec)))
    for parted in (False, True) if binding.program.folds else (False,):
        # Smaller blocks leave fewer threads idle in a short part.
        yield stream("shifted", 256 if parted else 512, few, parted=parted)
        if _mixes(binding):
            yield stream("unaligned", 256 if parted else 512, few, parted=parted)
        else:
            yield stream("element", 512, 8, parted=parted)
        yield stream("element", 256, 2, MANY_DIMS, parted)
    yield stream("element", 256, 2, ALL_DIMS)


def _columns(binding: Binding, device: Device) -> Iterator[ColumnConfig]:
    names, columns, merge = binding.operands, binding.operands.columns, binding.program.merge
    words, spare, most = max(1, binding.words(binding.widest_vec)), spare_registers(device), device.sm_threads
    # Each iteration ends with a merge into the totals, twice as many for 16-bit rows; more vectors hide it.
    folds, adds = bool(binding.program.folds), len(binding.program.folds) == 1 and not names.writes
    merged = merge == "max_sum" or bool(names.writes)
    # A vector of shifted rows has elements of several reduced indices, each with its own element of a column operand.
    chunks = {"whole": max(1, 16 // words), "shifted": max(1, 16 // words // max(1, len(columns)))}
    for align, each in {**chunks, "skewed": chunks["whole"], "element": 8}.items():
        # By element, rows with column operands take the kernels for two reduced dims.
        dims = (1,) if align != "element" else (2,) if columns else (1, 2)
        kinds = [(True, reduced) for reduced in dims if align != "skewed" or not columns]
        kinds += [(False, reduced) for reduced in dims]
        kinds += [(False, MANY_DIMS)] if align == "element" else []
        for held, reduced in kinds:
            longer = folds and not held and not columns
            if align == "element":
                more = 2 if reduced <= 2 and (adds or longer) else 1
            else:
                more = (max(1, binding.widest_vec // 4) if merged else 2 if adds else 1) if longer else 1
            overlap = not held and device.capability >= (9, 0)
            sizes = (COLUMN_THREADS, each * more, spare, MANY_DIMS, reduced, most)
            yield ColumnConfig(binding, align, *sizes, held, overlap)
        if folds and not columns and not names.writes and align in ("whole", "skewed") and max_cluster(device) > 1:
            yield ColumnConfig(binding, align, COLUMN_THREADS, each, spare, MANY_DIMS, 1, most, held=True, blocks=8)
        if folds and not columns and align == "element" and max_cluster(device) > 1:
            sizes = (COLUMN_THREADS, each * (2 if adds else 1), spare, MANY_DIMS, 1, most)
            yield ColumnConfig(binding, align, *sizes, held=True, blocks=max_cluster(device))
    for each, held in (((8, True), (16, True), (8, False)) if folds else ((8, False),)) if names.writes else ():
        blocks, overlap = min(8, max_cluster(device)) if held else 1, not held and device.capability >= (9, 0)
        sizes = (COLUMN_THREADS, each, spare, MANY_DIMS, 1, most)
        yield ColumnConfig(binding, "element", *sizes, held, overlap, blocks, transposes=True)
