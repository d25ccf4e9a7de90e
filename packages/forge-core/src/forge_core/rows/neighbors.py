"""Selects the configuration of ``column``, and whether it is faster than a thread or a warp for each row."""

from __future__ import annotations

from forge_core.choice import Refusal
from forge_core.device import Device
from forge_core.rows.arguments import LINE, Tiling, target_blocks, tiling
from forge_core.rows.binding import Binding
from forge_core.rows.config import COLUMN_THREADS, LIMIT, MANY_DIMS, ColumnConfig, HeldConfig
from forge_core.rows.listing import listed
from forge_core.rows.problem import Problem

#: Vectors per thread whose loads hide each other.
FEW_CHUNKS = 4
#: Most elements of all unaligned rows that are read by element: of programs that merge without writing, of others.
#: Rows of up to ``SHORT`` 16-bit elements are read by element in any number, except by sums and maps.
MERGED, FEW, SHORT = 2**24, 2**22, 512
#: Steps up to which aligned 16-bit rows are, too.
FEW_MERGED = 16
#: Iterations by element up to which a block has a whole tile, and iterations for each tile that a multiprocessor has.
HELD_ITERATIONS, TILE_ITERATIONS = 6, 8
#: Bytes up to which a block reads a tile by vectors for so many iterations where a cluster would share it.
SMALL, FEW_ITERATIONS = 2**24, 3
#: Permuted rows of fewer elements are read by a thread each: in any number; at most a block for each multiprocessor.
ALONE, FEW_ALONE = 8, 16
#: Elements from which lanes read or write a row, farther from others than its elements, faster than a thread or a tile.
APART = 9
#: Vectors of 16 bytes per tile, and tiles for each multiprocessor, from which a block per tile is faster than a cluster
#: or parts, for ``SHORT`` rows where they are written; beyond so many bytes, whose loads take longer than another
#: launch, a tile has a cache line.
WIDE, MANY_TILES, LONG = 4, 1.5, 2**27
#: Most elements, and elements per row, of a permuted tensor whose rows are written without a transposition.
DIRECT = 2**17, 2**11
# Bytes from which sums of aligned elements are limited by DRAM, where vectors load up to 7 % faster.
_STREAMED = 2**25


def choose_column(binding: Binding, problem: Problem, device: Device) -> ColumnConfig | Refusal:
    """Selects the configuration for neighboring rows; or a Refusal."""
    if problem.kind in ("inner", "empty"):
        return Refusal("rows whose elements are strided", "contiguous rows")
    if max(len(problem.kept), len(problem.reduced)) > MANY_DIMS:
        return Refusal(f"at most {MANY_DIMS} dims that cannot be merged", "more")
    kind = problem.column_alignment(binding.widest_vec, COLUMN_THREADS)
    if kind in ("shifted", "skewed") and _few(binding, problem):
        kind = "element"
    transposes = problem.transposes and (problem.rows * problem.length > DIRECT[0] or problem.length > DIRECT[1])
    one_kept = len(problem.kept) == 1  # for which tiles that a block holds have kernels of their own
    found = [
        c
        for c in listed(binding, device, ColumnConfig, kind, "element")
        if c.transposes == transposes and (c.rank == 1) == (c.held and one_kept)
    ]
    dims = {align: _reduced(found, align, problem) for align in (kind, "element")}
    found = [c for c in found if c.reduced == dims[c.align]]
    able = [c for c in found if c.align == kind]
    if transposes:
        return _transposed(able, problem, device)
    for single in found if kind in ("whole", "element") else ():
        if single.align == "element" and single.held:
            tiles = tiling(single, problem, device)
            if tiles.parts > (2 if kind == "whole" else 1) or (
                single.blocks == 1 and _by_element(binding, problem, kind, tiles, single.chunks, device)
            ):
                return _checked(single, problem, tiles)
    fits = [config for config in able if config.blocks == 1]
    first, last = fits[0], fits[-1]  # the first has a block per tile
    tiles = tiling(first, problem, device)
    least = WIDE if problem.read_bytes <= LONG else LINE
    wide = tiles.rows >= least * binding.widest_vec and tiles.tiles >= MANY_TILES * device.sm_count
    wide &= not binding.operands.writes or problem.length <= SHORT
    config = first if wide or tiling(last, problem, device).parts == 1 else last
    tiles = tiling(config, problem, device)
    # A cluster instead of parts, or of a block per tile if the blocks of all clusters are resident.
    short = problem.read_bytes <= SMALL and problem.length <= FEW_ITERATIONS * tiles.groups * config.chunks
    for cluster in (c for c in able if c.blocks > 1 and not (wide or (config is first and short))):
        shared = tiling(cluster, problem, device)
        few = config is first and shared.tiles * shared.parts < 2 * cluster.resident * device.sm_count
        if shared.parts > 1 and (tiles.parts > 1 or few):
            config, tiles = cluster, shared
    return _checked(config, problem, tiles)


def _reduced(found: list[ColumnConfig], align: str, problem: Problem) -> int:
    """The fewest reduced dims of configurations of an alignment that take all of a problem; 0 if none does."""
    dims = [c.reduced for c in found if c.align == align and c.reduced >= len(problem.reduced)]
    return min(dims, default=0)


def _few(binding: Binding, problem: Problem) -> bool:
    """Whether unaligned rows are read faster by element, with one row a thread, than by vectors.

    A vector belongs to as many rows, each with totals of its own to reduce, and a tile of them reaches across lines.
    Only of many elements does it cost more to load each by itself.
    """
    folds, writes = len(binding.program.folds), bool(binding.operands.writes)
    more_than_adds = folds > 1 or (folds == 1 and writes)
    if more_than_adds and binding.widest_vec > FEW_CHUNKS and problem.length <= SHORT:
        return True
    return problem.rows * problem.length <= (MERGED if folds > 1 and not writes else FEW)


def _by_element(binding: Binding, problem: Problem, kind: str, tiles: Tiling, chunks: int, device: Device) -> bool:
    """Whether a block reads a whole tile by element faster than a cluster, parts or, of aligned rows, vectors do."""
    if kind == "whole":  # rows of one element are no work but their loads
        merges = binding.program.merge == "max_sum" and binding.widest_vec > FEW_CHUNKS
        return merges and 1 < problem.length <= FEW_MERGED * min(tiles.groups, FEW_MERGED)
    iterations = -(-problem.length // (tiles.groups * chunks))
    few = iterations <= HELD_ITERATIONS and iterations * device.sm_count <= TILE_ITERATIONS * tiles.tiles
    return iterations <= 1 or few


def _transposed(able: list[ColumnConfig], problem: Problem, device: Device) -> ColumnConfig | Refusal:
    """Selects among the configurations of permuted tensors: a cluster per tile, or parts if tiles are few and long.

    Of clusters the one with the fewest registers that hold a row, or the first; of one input and many tiles that with
    the most, which loads more at once.
    """
    each = {c: tiling(c, problem, device) for c in able}
    holds = [c for c, tiles in each.items() if c.held and tiles.parts * tiles.groups * c.chunks >= problem.length]
    config, parted = (holds or able)[0], able[-1]
    one_input = holds and len(config.binding.loaded) == 1 and not config.binding.operands.columns
    if one_input and each[holds[-1]].tiles * each[holds[-1]].parts >= 2 * device.sm_count:
        config = holds[-1]
    tiles = each[config]
    # A cluster reads again what its registers do not hold.
    few = tiles.tiles * tiles.parts < target_blocks(config, device)
    if few and problem.length > 2 * tiles.parts * tiles.groups * config.chunks:
        config, tiles = parted, each[parted]
    return _checked(config, problem, tiles)


def _checked(config: ColumnConfig, problem: Problem, tiles: Tiling) -> ColumnConfig | Refusal:
    """The configuration, if 32 bits are enough for what it counts."""
    counted = problem.rows if tiles.parts > 1 else 0  # rows are also indexed by the launch that combines parts
    if max(problem.length + tiles.groups * config.chunks, counted, tiles.tiles * tiles.parts) >= LIMIT:
        return Refusal("fewer than 2^31 blocks, and elements of a row", f"{problem.rows} rows of {problem.length}")
    return config


def by_lanes(binding: Binding, problem: Problem, held: HeldConfig, column: ColumnConfig, device: Device) -> bool:
    """Whether a thread or the lanes of ``held`` read a short strided row faster than a tile of ``column``."""
    aligned, folds = column.align == "whole", len(binding.program.folds)
    if held.lanes > 1:
        return problem.length >= APART and not problem.neighboring(device.sm_count)
    if problem.transposes:
        few = problem.rows <= held.threads * device.sm_count
        return problem.length < (FEW_ALONE if few else ALONE)
    if not folds and problem.kind == "outer":  # a map: tiles spread few rows over more blocks
        return not aligned and problem.rows >= held.threads * device.sm_count
    if folds == 1 and aligned and not binding.operands.writes and problem.read_bytes > _STREAMED:
        return False
    if problem.length == 1 and aligned and problem.rows > 2 * device.sm_threads * device.sm_count:
        return False  # beyond two elements for each thread of a wave, vectors have more bytes in flight
    # Tiles load aligned 16-bit elements by far fewer instructions.
    return folds != 1 or not aligned or binding.widest_vec <= FEW_CHUNKS or held.capacity <= 2 * FEW_CHUNKS
