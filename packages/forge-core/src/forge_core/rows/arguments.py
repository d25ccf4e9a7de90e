"""What a launch is passed: how many threads a block has or how many parts a row, sizes and strides, and a workspace."""

from __future__ import annotations

from forge_core.device import Device
from forge_core.rows.config import ColumnConfig, HeldConfig, RowConfig
from forge_core.rows.problem import Dim, Problem

__all__ = ["arguments", "row_parts", "tiles_of", "workspace"]

#: Bytes of a block's slot; that of ``forge_core.cute.grid``, which imports the DSL.
GRID_SLOT_BYTES = 128


def arguments(config: RowConfig, problem: Problem, device: Device) -> tuple[int, ...]:
    """The integers that a kernel is launched with: see ``RowKernel.split``."""
    kept = _padded(problem.kept, config.rank, behind=not isinstance(config, ColumnConfig))
    reduced = _padded(problem.reduced, config.reduced) if config.reduced else ()
    size = (size_of(config, problem, device),) if config.sized else ()
    return (problem.length, *size, *[n for dim in (*kept, *reduced) for n in (dim.size, *dim.strides)])


def _padded(dims: tuple[Dim, ...], rank: int, *, behind: bool = False) -> tuple[Dim, ...]:
    """Pads to ``rank`` with dims of size 1; behind, a single dim stays outermost, which needs no division."""
    ones = (Dim(1, (0,) * len(dims[0].strides)),) * (rank - len(dims))
    return dims + ones if behind else ones + dims


def row_parts(config: RowConfig, problem: Problem, device: Device) -> int:
    """Blocks of a row, where they may be any number; what ``Held`` computes of the same."""
    if isinstance(config, HeldConfig):
        return max(1, -(-_vectors(config, problem) // (size_of(config, problem, device) * config.chunks)))
    groups = tiles_of(config, problem) if isinstance(config, ColumnConfig) else problem.rows
    parts = -(-1024 // config.threads * device.sm_count // max(groups, 1))  # half of the GPU's threads
    if isinstance(config, ColumnConfig):  # every block combines the totals of all parts, and has two turns at least
        return max(1, min(problem.length // (2 * config.capacity), parts, device.sm_count))
    return max(1, min(-(-problem.length // (config.threads * config.chunks * config.vec)), parts))


def tiles_of(config: ColumnConfig, problem: Problem) -> int:
    """Tiles of neighboring rows."""
    inner = problem.kept[-1].size
    return -(-inner // config.tile) * (problem.rows // inner)


def size_of(config: RowConfig, problem: Problem, device: Device) -> int:
    """What a ``sized`` launch is passed: the threads of a block, or the parts of a row."""
    if isinstance(config, HeldConfig):
        return config.block(_vectors(config, problem), max(1, device.sm_count // max(problem.rows, 1)))
    return row_parts(config, problem, device)


def workspace(config: RowConfig, problem: Problem, device: Device) -> int:
    """Bytes of the workspace: a slot for each block and exchange of a grid; 8 for each part's totals."""
    program, parts = config.binding.program, row_parts(config, problem, device)
    if isinstance(config, HeldConfig):
        return problem.rows * parts * GRID_SLOT_BYTES * (1 if program.merge else len(program.folds))
    return problem.rows * parts * 8 * len(program.folds)


def _vectors(config: HeldConfig, problem: Problem) -> int:
    """Whole vectors of a row at most; its first threads have an element each beside them."""
    return max(1, problem.length // config.vec)
