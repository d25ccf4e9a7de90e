"""Launch arguments of the row kernels: threads per block or parts per row, sizes and strides, and the workspace."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

from forge_core.choice import power_of_two
from forge_core.cute import SLOT_BYTES
from forge_core.device import Device
from forge_core.rows.config import COLUMN_THREADS, ColumnConfig, HeldConfig, RowConfig, realigned_bytes
from forge_core.rows.problem import Dim, Problem
from forge_core.rows.teams import PersistentConfig, team_sizes

#: Iterations per block from which splitting rows is faster than a block per tile; steps per block if tiles are narrow.
FEW_ITERATIONS, FEW_STEPS = 4, 16
#: Iterations of a block up to which a cluster is faster than parts: of kernels with one fold, and of others.
CLUSTER_ITERATIONS = 16, 4
#: Minimum occupancy of the last wave, below which tiles get more parts.
FULL = 0.9
#: Minimum width of a tile in vectors of 16 bytes: a cache line; two lines if rows are split; a sector if otherwise
#: multiprocessors would be idle.
LINE, LINES, SECTOR = 8, 16, 2
#: Rows of a narrow tile: at most; and those of a cluster by element, of which a tile has fewer only if tiles are few.
NARROW, EACH = 16, 8
#: Minimum rows of a tile that is transposed, which a warp reads at once, and resident blocks for which it is shared.
WARP, TRANSPOSED = 32, 2


def arguments(
    config: RowConfig, problem: Problem, device: Device, chosen_for: Problem | None = None
) -> tuple[int, ...]:
    """The integers that a kernel is launched with: see ``RowKernel.unpack``.  ``chosen_for`` decides the block size."""
    # Behind the outermost one, dims of size 1 cost no divisions; a tile's rows are along the innermost.
    behind = len(problem.kept) - isinstance(config, ColumnConfig)
    kept = _padded(problem.kept, config.rank, behind)
    reduced = _padded(problem.reduced, config.reduced, 0) if config.reduced else ()
    return (problem.length, *_sizes(config, chosen_for or problem, device), *kept, *reduced)


def _padded(dims: tuple[Dim, ...], rank: int, at: int) -> list[int]:
    """Sizes and strides of ``rank`` dims: dims of size 1 are inserted at index ``at``."""
    found, each = [n for dim in dims for n in (dim.size, *dim.strides)], 1 + len(dims[0].strides)
    ones = [1, *[0] * (each - 1)] * (rank - len(dims))
    return found[: at * each] + ones + found[at * each :]


def _sizes(config: RowConfig, problem: Problem, device: Device) -> tuple[int, ...]:
    """Runtime sizes of a kernel: threads per block, parts per row, the tiling."""
    if isinstance(config, HeldConfig):
        return (block_threads(config, problem, device),) if config.sized else ()
    if isinstance(config, PersistentConfig):
        return team_sizes(config, problem, device)
    if isinstance(config, ColumnConfig):
        found = tiling(config, problem, device)
        return found.parts, found.width, found.rows, found.threads
    return (row_parts(config, problem, device),) if config.sized else ()


def row_parts(config: RowConfig, problem: Problem, device: Device) -> int:
    """Blocks per row, where they are a launch argument; ``Held`` computes the same."""
    if isinstance(config, HeldConfig):
        return max(1, -(-_row_vectors(config, problem) // (block_threads(config, problem, device) * config.chunks)))
    if isinstance(config, ColumnConfig):
        return tiling(config, problem, device).parts
    parts = -(-target_blocks(config, device) // max(problem.rows, 1))
    return max(1, min(-(-problem.length // (config.threads * config.chunks * config.vec)), parts))


def target_blocks(config: RowConfig, device: Device) -> int:
    """Blocks of 1024 threads per multiprocessor."""
    return 1024 // config.threads * device.sm_count


def block_threads(config: HeldConfig, problem: Problem, device: Device) -> int:
    """Threads per block, where they are a launch argument."""
    return config.threads_for(_row_vectors(config, problem), max(1, device.sm_count // max(problem.rows, 1)))


def bytes_in_flight(config: HeldConfig, vectors: int, rows: int, device: Device) -> float:
    """Bytes in flight per multiprocessor, averaged over all waves, for rows of ``vectors`` vectors."""
    cluster = config.blocks or 1
    resident = config.resident_by_registers(config.threads_for(vectors))
    waves = rows * cluster / (resident * device.sm_count)
    return resident * vectors * config.vec * config.binding.loaded_bytes / cluster * waves / math.ceil(waves)


class Tiling(NamedTuple):
    """Tiles of neighboring rows."""

    parts: int  # blocks per tile
    width: int  # places per element index: rows of a tile, ``vec`` more if ``skewed``
    rows: int  # rows per tile
    threads: int  # threads per block that have elements
    tiles: int  # number of tiles
    groups: int  # elements of a row that a block reads per step


@functools.lru_cache(maxsize=16)  # planning asks several times for one problem
def tiling(config: ColumnConfig, problem: Problem, device: Device) -> Tiling:
    """The tiling of a problem for a configuration that supports it."""
    target, program = target_blocks(config, device), config.binding.program
    # Rows that are farther apart than their elements have a tile each, if they have work for all of its threads.
    if problem.length > COLUMN_THREADS and not problem.neighboring(device.sm_count):
        problem = problem.row_by_row()
    if config.transposes:
        return _transposed_tiling(config, problem, target, TRANSPOSED * device.sm_count)
    if config.blocks > 1:
        by_element = config.align == "element"
        most = device.sm_count * (len(program.folds) if by_element else config.resident)
        return (_small_cluster_tiling if by_element else _cluster_tiling)(config, problem, most)
    found = _tile(config, problem, LINE, target)
    if program.folds and found.tiles * 2 <= target:
        narrow = _narrow(config, problem, target, device.sm_count // 2)
        if config.held or problem.length < FEW_STEPS * narrow.groups:
            return narrow
    few = FEW_ITERATIONS * (2 if config.binding.operands.writes else 1) if program.folds else 0
    if config.held or problem.length < few * found.groups * config.chunks:
        return found
    found = _tile(config, problem, LINES, target)
    iterations = -(-problem.length // (found.groups * config.chunks))
    return found._replace(parts=_parts(found.tiles, iterations, target, config.resident * device.sm_count))


def _cluster_tiling(config: ColumnConfig, problem: Problem, resident: int) -> Tiling:
    """The tiling for a cluster per tile; with one part where a cluster is not faster.

    ``resident``: resident blocks of the GPU.
    """
    merges = len(config.binding.program.folds) > 1
    # A kernel with one fold needs fewer registers than estimated.
    longest, full = CLUSTER_ITERATIONS[merges], resident if merges else resident * 5 // 4
    for line, least in ((LINES, resident // 2), (LINE, resident // 5)):
        found = _tile(config, problem, line, resident)
        iterations, parts = -(-problem.length // (found.groups * config.chunks)), 1
        most = min(config.blocks, iterations, config.threads * config.vec // found.width)
        while 2 * parts <= most and (iterations > longest * parts or 2 * parts * found.tiles <= full):
            parts *= 2
        if iterations <= longest * parts and found.tiles * parts >= least:
            return found._replace(parts=parts)
    return found._replace(parts=1)


def _small_cluster_tiling(config: ColumnConfig, problem: Problem, most: int) -> Tiling:
    """The tiling for a cluster per tile of few rows, by element; with one part if more than ``most`` blocks."""
    tiles = _tiled(config, problem, min(EACH, problem.kept[-1].size))
    iterations = -(-problem.length // (tiles.groups * config.chunks))
    parts = power_of_two(min(config.blocks, iterations) + 1) // 2  # rounded down
    few = tiles.tiles * parts <= most and iterations <= 2 * parts
    return tiles._replace(parts=parts if few else 1)


def _transposed_tiling(config: ColumnConfig, problem: Problem, target: int, resident: int) -> Tiling:
    """The tiling of rows that are transposed: a warp of neighboring rows, or as many as one iteration holds.

    ``target`` and ``resident``: see :func:`_parts`.
    """
    inner, parts = problem.kept[-1].size, 1
    width = max(WARP, config.threads * config.chunks // power_of_two(problem.length))
    width = min(width, config.threads, inner)
    groups = min(config.threads // width, problem.length)
    tiles, iterations = -(-inner // width) * (problem.rows // inner), -(-problem.length // (groups * config.chunks))
    while 2 * parts <= min(config.blocks, iterations) and 2 * parts * tiles <= resident:
        parts *= 2
    if not config.held:
        parts = _parts(tiles, iterations, target, resident)
    return Tiling(parts, width, width, groups * width, tiles, groups)


def _parts(tiles: int, iterations: int, target: int, resident: int) -> int:
    """Parts per tile: for the target number of blocks, or up to twice as many if they then fill whole waves.

    ``iterations`` are those of a block for a whole tile, ``target`` and ``resident`` blocks of the GPU.
    """
    least = max(1, min(iterations, round(target / max(tiles, 1))))
    for parts in range(least, min(iterations - 1, 2 * least) + 1):
        # The last part may be shorter.
        blocks = tiles * iterations / -(-iterations // parts)
        if blocks <= resident or blocks >= FULL * math.ceil(blocks / resident) * resident:
            break
    else:
        parts = least
    return -(-iterations // -(-iterations // parts))  # no part is empty


def _tile(config: ColumnConfig, problem: Problem, line: int, target: int) -> Tiling:
    """Tiles at least ``line`` vectors wide, a block each."""
    inner, rows, length, vec = problem.kept[-1].size, problem.rows, problem.length, config.vec
    places, iterations, line = config.threads * vec, -(-length // config.chunks), line * config.binding.widest_vec
    width, shared = inner, LINE * config.binding.widest_vec
    # A tile has all rows if they are few, if only all of them are contiguous, or if elements are not aligned to cache
    # lines and there is work for all blocks.  Wider tiles also for vectors, as long as each of the target blocks has a
    # tile, and if rows are too short for all threads.
    moving = [problem.reduced[0].strides[i] for i in problem.stepping if i in problem.operands.other_indices]
    ragged = inner <= places and rows * length >= target * places * config.chunks and any(n % shared for n in moving)
    wide = max(places // iterations, -(-rows // target) if vec > 1 else 1)
    if config.align == "skewed":
        # A step advances by a multiple of ``vec`` elements of rows, or is the only one.
        across, wide = config.threads // min(vec, power_of_two(length)), min(wide, inner)
        while (across // 2 - 1) * vec >= (wide if across * vec > 2 * line else inner):
            across //= 2
        width, groups = across * vec, config.threads // across
        step = width - vec
        return Tiling(1, width, step, config.threads, -(-inner // step) * (rows // max(inner, 1)), groups)
    if config.align != "shifted" and not ragged and inner > min(2 * shared if line >= shared else line, places):
        width = min(-(-wide // line) * line, places, inner)
    return _tiled(config, problem, width)


def _narrow(config: ColumnConfig, problem: Problem, target: int, few: int) -> Tiling:
    """Tiles of few rows, so that all elements of each are in flight at once, for at most ``target`` tiles.

    They have fewer than ``EACH`` rows, which share a sector, only for that, and if there are then at most ``few``.
    """
    if config.align not in ("whole", "element"):
        return _tile(config, problem, SECTOR, target)
    inner, vec = problem.kept[-1].size, config.vec
    fits = config.threads * vec // -(-problem.length // config.chunks)
    width = max(-(-problem.rows // target), min(fits, NARROW), vec)
    width = width // EACH * EACH or power_of_two(width + 1) // 2
    if width < EACH and (fits < vec or -(-inner // width) * (problem.rows // inner) > few):
        width = EACH
    return _tiled(config, problem, min(width, inner))


def _tiled(config: ColumnConfig, problem: Problem, width: int) -> Tiling:
    """Tiles of so many rows, a block each."""
    inner, vec, iterations = problem.kept[-1].size, config.vec, -(-problem.length // config.chunks)
    each = width // math.gcd(width, vec)  # threads whose vectors are whole element indices of all rows
    rounds = each * vec // width
    threads = each * max(1, min(config.threads // each, -(-iterations // rounds)))
    return Tiling(
        1, width, width, threads, -(-inner // width) * (problem.rows // max(inner, 1)), threads * vec // width
    )


def workspace(config: RowConfig, problem: Problem, device: Device) -> int:
    """Bytes of the workspace: slots of a grid, 8 per total of parts, sums of teams, or copies of column operands."""
    program, operands = config.binding.program, config.binding.operands
    if isinstance(config, PersistentConfig):
        each = max(1, problem.length) * config.binding.compute.itemsize
        return len(operands.accumulates) * each * team_sizes(config, problem, device)[1]
    parts = row_parts(config, problem, device)
    if isinstance(config, HeldConfig) and config.columns_realigned:
        sizes = config.binding.sizes(operands.columns)
        return config.vec * int(sum(realigned_bytes(problem.length, size) for size in sizes))
    if isinstance(config, HeldConfig):
        return problem.rows * parts * SLOT_BYTES * (1 if program.merge else len(program.folds))
    return problem.rows * (parts + 1) * 8 * len(program.folds)  # and those of all parts


def _row_vectors(config: HeldConfig, problem: Problem) -> int:
    """Maximum aligned vectors of a row."""
    return max(1, problem.length // config.vec)
