"""The choice for rows that are cut into parts, each of them a block's: ``grid`` and ``split``.

Which of a problem's rows come here is decided in ``rows.py``; what was measured stands in docs/week2.md.
"""

from __future__ import annotations

from dataclasses import replace

from forge_core.choice import power_of_two
from forge_core.device import Device
from forge_week2_softmax.arithmetic import Arithmetic
from forge_week2_softmax.configs import Config, GridConfig, HeldConfig, SplitConfig, SweepConfig
from forge_week2_softmax.holding import (
    CHUNK,
    LIMIT,
    LINE,
    ROUNDING,
    chunk_widths,
    inputs_of,
    row_chunks,
    spread_of,
    unshared,
)
from forge_week2_softmax.problem import Problem

__all__ = ["grid", "parts", "split"]


def grid(problem: Problem, arithmetic: Arithmetic, device: Device) -> GridConfig | str:
    """All rows at once by the blocks of the whole GPU, one for each multiprocessor; or why not."""
    apart = unshared(problem, arithmetic)
    if apart:
        return apart
    if problem.rows > device.sm_count:
        return f"has a block for each multiprocessor, of which there are {device.sm_count}, and {problem.rows} rows"
    vector, edges = problem.vector()
    if edges:
        return "holds whole chunks, and rows begin or end inside one here"
    span = -(-row_chunks(problem) // (_grid_parts(problem, device) * LINE)) * LINE
    # A block of 512 has 128 registers a thread, in which 16 chunks wait, of two tensors 8 each.
    threads = min(512, max(64, power_of_two(span)))
    chunks, most = -(-span // threads), 16 // inputs_of(arithmetic)
    if chunks > most:
        limit = most * threads * (device.sm_count // problem.rows) * vector
        return f"holds at most {limit} elements of each of {problem.rows} rows here, and there are {problem.length}"
    if arithmetic.rounds_first and chunks * vector + ROUNDING > 65536 // threads:
        return f"rounds elements to {arithmetic.via} first, and has no registers for {chunks} chunks a thread of that"
    row = SweepConfig(
        arithmetic,
        vector,
        edges,
        len(problem.kept),
        spread_of(problem, arithmetic),
        threads=threads,
        unroll=chunks,
        hold=chunk_widths(problem, arithmetic) <= {4, 8, CHUNK} and arithmetic.acc.itemsize == 4,
    )
    return GridConfig(row)


def _grid_parts(problem: Problem, device: Device) -> int:
    return max(1, min(device.sm_count // problem.rows, -(-row_chunks(problem) // LINE)))


def split(problem: Problem, arithmetic: Arithmetic, device: Device) -> SplitConfig | str:
    """Many blocks a row, and a second pass; or why not."""
    apart = unshared(problem, arithmetic)
    if apart:
        return apart
    if problem.rows >= 2**16:
        return "numbers rows along the grid's second axis, which has 65535 places"
    if row_chunks(problem) >= LIMIT // 2:
        return f"numbers the chunks of a row by 32 bits, and there are {row_chunks(problem)}"
    vector, edges = problem.vector()
    threads, blocks = _split_shape(problem, arithmetic, device)
    share = -(-row_chunks(problem) // (max(1, blocks * device.sm_count // problem.rows) * threads))
    row = SweepConfig(
        arithmetic,
        vector,
        edges,
        len(problem.kept),
        spread_of(problem, arithmetic),
        threads=threads,
        # The second pass holds its first turn before it waits: all of a part, where that is short.
        unroll=min(8 if threads <= 256 else 4, power_of_two(share)),
    )
    row = replace(row, hold=_hold_parts(problem, arithmetic, row))
    return SplitConfig(row, dependent=device.capability >= (9, 0))


def _hold_parts(problem: Problem, arithmetic: Arithmetic, row: SweepConfig) -> bool:
    """Whether the L2 is asked to keep what the first pass reads, for the second.

    On an H200 that gains 4 to 24 % backward from 2^20 to 2^22 elements, and 1 to 6 % forward, but not where 16-bit
    elements are converted eight chunks at a time: there 2 to 3 % are lost.
    """
    fits = problem.rows * row_chunks(problem) <= LONG_SPLIT
    many = inputs_of(arithmetic) == 1 and problem.itemsizes[0] < 4 and row.unroll > 4
    whole = chunk_widths(problem, arithmetic) <= {4, 8, CHUNK} and arithmetic.acc.itemsize == 4
    return fits and not many and not row.edges and whole


def _split_shape(problem: Problem, arithmetic: Arithmetic, device: Device) -> tuple[int, int]:
    """Threads of a block, and blocks for each multiprocessor."""
    chunks = row_chunks(problem) * problem.rows
    if chunks > LONG_SPLIT:
        return 512, 4
    # A chunk a thread while the threads last: of two tensors 8.96 us at 1 x 2^20 bf16 against 10.10 with four, of one
    # 8.37 against 8.69.  Then, of two tensors, as few partial results as there are multiprocessors: 10.56 us at
    # 1 x 2^20 fp32 against 10.96 with twice as many.
    if chunks <= device.sm_count * 2 * 512:
        return 512, 2
    if inputs_of(arithmetic) == 1:
        return (512, 1) if problem.itemsizes[0] >= 4 else (128, 2)
    return (256, 1) if chunks <= device.sm_count * 256 * 8 else (128, 2)


#: Chunks of all rows from which a split is bound by memory, and no longer by latency.
LONG_SPLIT = 2**20


def parts(config: Config, problem: Problem, device: Device) -> int:
    """Blocks of a row, for a kernel that takes any number of them; 1 for the others."""
    if isinstance(config, HeldConfig) and config.blocks == 0:
        return -(-row_chunks(problem) // (config.lanes * config.chunks))
    if isinstance(config, GridConfig):
        return _grid_parts(problem, device)
    if not isinstance(config, SplitConfig):
        return 1
    row = config.row
    _, blocks = _split_shape(problem, config.arithmetic, device)
    fill = max(1, blocks * device.sm_count // problem.rows)
    return max(1, min(fill, -(-row_chunks(problem) // row.threads), 1024))
