"""What a launch is passed: how many threads a block has or how many parts a row, sizes and strides, and a workspace."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from forge_core.device import Device
from forge_core.rows.config import ColumnConfig, HeldConfig, RowConfig
from forge_core.rows.problem import Dim, Problem

__all__ = ["Tiling", "arguments", "row_parts", "tiling", "workspace"]

#: Bytes of a block's slot; that of ``forge_core.cute.grid``, which imports the DSL.
GRID_SLOT_BYTES = 128
#: Turns of a block from which reading rows in parts takes less time than by one block for each tile; steps of one whose
#: tiles are narrow.
FEW_TURNS, FEW_STEPS = 4, 16
#: Share of the blocks of whole waves that there are at least, where a tile can have more parts.
FULL = 0.9
#: Vectors of 16 bytes that each element of neighboring rows has in a tile at least: a line of the caches; two of them
#: where rows are cut into parts; a sector of a line where that leaves no GPU idle.
LINE, LINES, SECTOR = 8, 16, 2


def arguments(
    config: RowConfig, problem: Problem, device: Device, chosen_for: Problem | None = None
) -> tuple[int, ...]:
    """The integers that a kernel is launched with: see ``RowKernel.split``; ``chosen_for`` decides the block's size."""
    kept = _padded(problem.kept, config.rank, behind=not isinstance(config, ColumnConfig))
    reduced = _padded(problem.reduced, config.reduced) if config.reduced else ()
    sizes = _sizes(config, chosen_for or problem, device)
    return (problem.length, *sizes, *[n for dim in (*kept, *reduced) for n in (dim.size, *dim.strides)])


def _padded(dims: tuple[Dim, ...], rank: int, *, behind: bool = False) -> tuple[Dim, ...]:
    """Pads to ``rank`` with dims of size 1; behind, a single dim stays outermost, which needs no division."""
    ones = (Dim(1, (0,) * len(dims[0].strides)),) * (rank - len(dims))
    return dims + ones if behind else ones + dims


def _sizes(config: RowConfig, problem: Problem, device: Device) -> tuple[int, ...]:
    """What a launch is passed beside sizes of dims: threads of a block, parts of a row, how a tile is read."""
    if isinstance(config, HeldConfig):
        return (_block(config, problem, device),) if config.sized else ()
    if isinstance(config, ColumnConfig):
        found = tiling(config, problem, device)
        return found.parts, found.width, found.rows, found.threads
    return (row_parts(config, problem, device),) if config.sized else ()


def row_parts(config: RowConfig, problem: Problem, device: Device) -> int:
    """Blocks of a row, where they may be any number; what ``Held`` computes of the same."""
    if isinstance(config, HeldConfig):
        return max(1, -(-_vectors(config, problem) // (_block(config, problem, device) * config.chunks)))
    if isinstance(config, ColumnConfig):
        return tiling(config, problem, device).parts
    parts = -(-_half(config, device) // max(problem.rows, 1))
    return max(1, min(-(-problem.length // (config.threads * config.chunks * config.vec)), parts))


def _half(config: RowConfig, device: Device) -> int:
    """Blocks that have half of the GPU's threads."""
    return 1024 // config.threads * device.sm_count


def _block(config: HeldConfig, problem: Problem, device: Device) -> int:
    """Threads of a block, where the launch says how many."""
    return config.block(_vectors(config, problem), max(1, device.sm_count // max(problem.rows, 1)))


@dataclass(frozen=True)
class Tiling:
    """How neighboring rows are read.

    Attributes:
        parts: blocks of a tile.
        width: places of an element: rows of a tile, or ``vec`` more of ``skewed`` ones.
        rows: of a tile.
        threads: of a block, that have elements.
        tiles: how many there are.
        groups: elements of a row that a block reads at each step.
    """

    parts: int
    width: int
    rows: int
    threads: int
    tiles: int
    groups: int


def tiling(config: ColumnConfig, problem: Problem, device: Device) -> Tiling:
    """How the rows of a problem are read by a configuration that can read them."""
    wave, program = _half(config, device), config.binding.program
    found = _tile(config, problem, LINE, wave)
    if program.folds and found.tiles * 2 <= wave:
        narrow = _tile(config, problem, SECTOR, wave)
        if config.held or problem.length < FEW_STEPS * narrow.groups:
            return narrow
    few = FEW_TURNS * (2 if program.operands.writes else 1) if program.folds else 0
    if config.held or problem.length < few * found.groups * config.chunks:
        return found
    found = _tile(config, problem, LINES, wave)
    turn = found.groups * config.chunks
    turns, most = -(-problem.length // turn), problem.length // turn
    return replace(found, parts=_parts(found.tiles, turns, most, wave, config.resident * device.sm_count))


def _parts(tiles: int, turns: int, most: int, wave: int, resident: int) -> int:
    """Parts of a tile: blocks for half of the GPU's threads; up to twice as many where they fill whole waves then.

    Args:
        tiles: how many there are.
        turns: of one block for a whole tile.
        most: parts of a tile at most.
        wave: blocks that have half of the GPU's threads.
        resident: blocks that the GPU holds at once.
    """
    least = max(1, min(most, round(wave / max(tiles, 1))))
    for parts in range(least, min(most, 2 * least) + 1):
        # The last part may have fewer turns than the others.
        blocks = tiles * turns / -(-turns // parts)
        if blocks <= resident or blocks >= FULL * math.ceil(blocks / resident) * resident:
            return parts
    return least


def _tile(config: ColumnConfig, problem: Problem, line: int, wave: int) -> Tiling:
    """Tiles of so many vectors of each element at least, of one block each."""
    inner, rows, length, vec = problem.kept[-1].size, problem.rows, problem.length, config.vec
    places, turns, line = config.threads * vec, -(-length // config.chunks), line * config.binding.widest_vec
    width, shared = inner, LINE * config.binding.widest_vec
    # All rows where they are few or only all of them are contiguous, or where their elements begin anywhere in a line
    # and are enough for all blocks.  Vectors keep enough bytes in flight that tiles may be as wide as leaves one for
    # each block of half of the GPU.  Wider tiles also where rows are too short for all threads.
    moving = [problem.reduced[0].strides[i] for i in problem.stepping if i in problem.operands.other_places]
    ragged = inner <= places and rows * length >= wave * places * config.chunks and any(n % shared for n in moving)
    wide = max(places // turns, -(-rows // wave) if vec > 1 else 1)
    if config.align == "skewed":
        # Between steps of a thread lies a multiple of ``vec`` elements of rows, or there is one step.
        across = config.threads // min(vec, 1 << (length - 1).bit_length())
        while across * vec > 2 * line and (across // 2 - 1) * vec >= wide:
            across //= 2
        width, groups = across * vec, config.threads // across
        step = width - vec
        return Tiling(1, width, step, config.threads, -(-inner // step) * (rows // max(inner, 1)), groups)
    if config.align != "shifted" and not ragged and inner > min(2 * shared if line >= shared else line, places):
        width = min(-(-wide // line) * line, places, inner)
    each = width // math.gcd(width, vec)  # threads that have whole elements of all rows together, and how many
    rounds = each * vec // width
    threads = each * max(1, min(config.threads // each, -(-turns // rounds)))
    return Tiling(1, width, width, threads, -(-inner // width) * (rows // max(inner, 1)), threads * vec // width)


def workspace(config: RowConfig, problem: Problem, device: Device) -> int:
    """Bytes of the workspace: a slot for each block and exchange of a grid; 8 for each part's totals."""
    program, parts = config.binding.program, row_parts(config, problem, device)
    if isinstance(config, HeldConfig):
        return problem.rows * parts * GRID_SLOT_BYTES * (1 if program.merge else len(program.folds))
    return problem.rows * (parts + 1) * 8 * len(program.folds)  # and those of all parts


def _vectors(config: HeldConfig, problem: Problem) -> int:
    """Whole vectors of a row at most; its first threads have an element each beside them."""
    return max(1, problem.length // config.vec)
