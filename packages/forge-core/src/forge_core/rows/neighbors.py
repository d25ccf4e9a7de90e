"""Selects the configuration of ``column``, and whether it is faster than a block or a thread for each row."""

from __future__ import annotations

from forge_core.choice import Refusal
from forge_core.device import Device
from forge_core.rows.arguments import LINE, SECTOR, Tiling, target_blocks, tiling
from forge_core.rows.binding import Binding
from forge_core.rows.config import COLUMN_THREADS, LIMIT, MANY_DIMS, ColumnConfig, HeldConfig
from forge_core.rows.listing import listed
from forge_core.rows.problem import Problem

#: Vectors per thread whose loads hide each other.
FEW_CHUNKS = 4
#: Bytes up to which a block reads a narrow tile by element for so many steps, if its program only adds up, and by
#: vectors for so many iterations where a cluster would share it.
SMALL, FEW_STEPS, FEW_ITERATIONS = 2**24, 48, 3
#: Elements up to which a row is read by element in other programs, and steps if 16-bit vectors are aligned.
MANY_ELEMENTS, FEW_MERGED = 1024, 16
#: Vectors of 16 bytes per tile, and tiles for each multiprocessor, from which a block per tile is faster than a cluster
#: or parts; beyond so many bytes, whose loads take longer than another launch, a tile has a cache line.
WIDE, MANY_TILES, LONG = 4, 1.5, 2**27
# Bytes from which sums of aligned elements are limited by DRAM, where vectors load up to 7 % faster.
_STREAMED = 2**25


def choose_column(binding: Binding, problem: Problem, device: Device) -> ColumnConfig | Refusal:
    """Selects the configuration for neighboring rows; or a Refusal."""
    if problem.kind in ("inner", "empty"):
        return Refusal("neighboring rows with neighboring elements", "contiguous rows")
    if max(len(problem.kept), len(problem.reduced)) > MANY_DIMS:
        return Refusal(f"at most {MANY_DIMS} dims that cannot be merged", "more")
    kind, one = problem.column_alignment(binding.widest_vec, COLUMN_THREADS), len(problem.reduced) == 1
    able = [config for config in listed(binding, device, ColumnConfig, kind) if one == (config.reduced == 1)]
    able = [config for config in able if config.transposes == problem.transposes]
    if problem.transposes:
        return _transposed(able, problem, device)
    for single in listed(binding, device, ColumnConfig, "element") if one else ():
        if single.held and not single.transposes:
            tiles = tiling(single, problem, device)
            if tiles.parts > (2 if kind == "whole" else 1) or (
                single.blocks == 1
                and _by_element(binding, problem, kind, tiles, problem.length <= tiles.groups * single.chunks)
            ):
                return _checked(single, problem, tiles)
    fits = [config for config in able if config.blocks == 1]
    first, last = fits[0], fits[-1]  # the first has a block per tile
    tiles = tiling(first, problem, device)
    least = WIDE if problem.read_bytes <= LONG else LINE
    wide = tiles.rows >= least * binding.widest_vec and tiles.tiles >= MANY_TILES * device.sm_count
    wide &= not binding.operands.writes
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


def _by_element(binding: Binding, problem: Problem, kind: str, tiles: Tiling, at_once: bool) -> bool:
    """Whether a block reads a narrow tile faster by element, with one row a thread, than by vectors.

    Vectors would take parts or reach across rows, and a thread would have as many rows to reduce one after the other.
    ``at_once``: whether all loads of a thread are in flight at once.
    """
    program, sector = binding.program, COLUMN_THREADS // (SECTOR * binding.widest_vec)
    if kind == "whole":  # rows of one element are no work but their loads
        merges = program.merge == "max_sum" and binding.widest_vec > FEW_CHUNKS
        return merges and 1 < problem.length <= FEW_MERGED * min(tiles.groups, FEW_MERGED)
    if kind == "element":
        return False
    if len(program.folds) > 1 or (program.folds and binding.operands.writes):
        return at_once or problem.length <= MANY_ELEMENTS
    return (at_once or problem.length <= FEW_STEPS * sector) and problem.read_bytes <= SMALL


def _transposed(able: list[ColumnConfig], problem: Problem, device: Device) -> ColumnConfig | Refusal:
    """Selects among the configurations of permuted tensors: a cluster per tile, or parts if tiles are few and long."""
    config, parted = able[0], able[-1]
    tiles = tiling(config, problem, device)
    # A cluster reads again what its registers do not hold.
    few = tiles.tiles * tiles.parts < target_blocks(config, device)
    if few and problem.length > 2 * tiles.parts * tiles.groups * config.chunks:
        config, tiles = parted, tiling(parted, problem, device)
    return _checked(config, problem, tiles)


def _checked(config: ColumnConfig, problem: Problem, tiles: Tiling) -> ColumnConfig | Refusal:
    """The configuration, if 32 bits are enough for what it counts."""
    counted = problem.rows if tiles.parts > 1 else 0  # rows are also indexed by the launch that combines parts
    if max(problem.length + tiles.groups * config.chunks, counted, tiles.tiles * tiles.parts) >= LIMIT:
        return Refusal("fewer than 2^31 blocks, and elements of a row", f"{problem.rows} rows of {problem.length}")
    return config


def beside(problem: Problem, device: Device) -> bool:
    """Whether tiles of neighboring rows are faster than a block for each row.

    They are if the stride between rows is at most that between the elements of a row in all operands; if so in one
    operand, for fewer rows than multiprocessors; and for rows of fewer elements than a block has threads.
    """
    kept, reduced = problem.kept[-1], problem.reduced[-1].strides
    closer = [abs(kept.strides[i]) <= abs(reduced[i]) for i in problem.stepping]
    few = problem.rows < device.sm_count and any(closer)
    return kept.size > 1 and (all(closer) or few or problem.transposes or problem.length < COLUMN_THREADS)


def by_threads(binding: Binding, problem: Problem, thread: HeldConfig, column: ColumnConfig, device: Device) -> bool:
    """Whether a short strided row is read faster by one thread than in a tile of neighboring rows."""
    aligned, folds = column.align == "whole", len(binding.program.folds)
    if column.transposes:
        return problem.length < column.chunks  # a thread reads and writes as many elements of a row there
    if not folds and problem.kind == "outer":  # a map: tiles spread few rows over more blocks
        return not aligned and problem.rows >= thread.threads * device.sm_count
    if folds == 1 and aligned and not binding.operands.writes and problem.read_bytes > _STREAMED:
        return False
    if problem.length == 1 and aligned and problem.rows > thread.rows * device.sm_threads * device.sm_count:
        return False  # beyond a wave of threads with an element or two each, vectors have more bytes in flight
    # Tiles load aligned 16-bit elements by far fewer instructions.
    return folds != 1 or not aligned or binding.widest_vec <= FEW_CHUNKS or thread.capacity <= 2 * FEW_CHUNKS
