"""Which elements of a row each thread of a kernel has: the index maps of ``layouts``, as arrays for the models.

-1 stands where a thread has no element.  A test holds the arrays against the accesses of ``layouts``.  NumPy is needed.
"""

from __future__ import annotations

import numpy as np

from forge_core.testing.trees import Array
from forge_week2_softmax.configs import ColumnConfig, HeldConfig, SweepConfig
from forge_week2_softmax.layouts import first_chunk, part_of, step_of

__all__ = ["column_elements", "held_elements", "part_of", "sweep_elements"]


def _neighbours(first: Array, vector: int) -> Array:
    return first[..., None] + np.arange(vector)


def held_elements(config: HeldConfig, length: int, *, shift: int = 0, rank: int = 0) -> tuple[Array, Array]:
    """The elements of a block of ``single_pass`` or ``cluster``.

    Args:
        config: the kernel's.
        length: elements of the row.
        shift: elements by which the row begins after a chunk's first; not 0 only where ``config.edges``.
        rank: the block's number among those that share the row.

    Returns:
        Those in chunks, (chunks, lanes, vector), and those outside whole chunks, (turns, lanes).
    """
    vector, lanes = config.vector, config.lanes
    lane = np.arange(lanes)
    turn = np.arange(config.chunks)[:, None] * step_of(config)
    first = (first_chunk(config, rank) + lane + turn) * vector - shift
    inside = (first >= 0) & (first + vector <= length) if config.edges else first < length
    whole = np.where(inside[..., None], _neighbours(first, vector), -1)
    turns = max(1, 2 * vector // lanes)
    number = lane + np.arange(turns)[:, None] * lanes
    head = min(-shift % vector, length)
    tail = head + (length - head) // vector * vector
    place = np.where(number < vector, number, tail + number - vector)
    end = np.where(number < vector, head, length)
    taken = (number < 2 * vector) & (place < end) & (rank == 0) & config.edges
    return whole, np.where(taken, place, -1)


def sweep_elements(
    config: SweepConfig, length: int, *, shift: int = 0, begin: int = 0, end: int | None = None
) -> Array:
    """The elements of the block of ``naive`` or ``online`` in one pass, or of ``split`` or ``grid`` in one part.

    Args:
        config: the kernel's.
        length: elements of the row.
        shift: elements by which the row begins after a chunk's first; not 0 only where ``config.edges``.
        begin: the first chunk.
        end: the chunk after the last; None for the row's.

    Returns:
        (turns, unroll, threads, vector).
    """
    vector, threads, unroll = config.vector, config.threads, config.unroll
    end = -(-(length + shift) // vector) if end is None else end
    turns = -(-(end - begin) // (threads * unroll))
    chunk = begin + np.arange(turns * unroll * threads).reshape(turns, unroll, threads)
    element = _neighbours(chunk * vector - shift, vector)
    inside = (chunk < end)[..., None] & (element >= 0) & (element < length)
    return np.where(inside, element, -1)


def column_elements(config: ColumnConfig, length: int) -> Array:
    """The elements of each of the ``groups`` threads that share a row: (turns, chunks, groups)."""
    step = config.groups * config.chunks
    turns = -(-length // step)
    element = np.arange(turns * step).reshape(turns, config.chunks, config.groups)
    return np.where(element < length, element, -1)
