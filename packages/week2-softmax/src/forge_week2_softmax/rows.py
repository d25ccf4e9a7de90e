"""The choice among the kernels that walk along rows.

The thresholds were chosen on an H200 (2026-11-21, softmax of fp32 and bf16 matrices of 64 KB to 4 GB over their
columns); what was measured stands in docs/records/h200/week2-designs-2026-11-21.txt.  Where one variant ends and the
next begins is measured anew on each GPU: ``thresholds.py``.  Lengths are counted in chunks of 16 bytes, so that one
rule serves all dtypes.
"""

from __future__ import annotations

from typing import Any

from forge_core.choice import max_cluster, power_of_two
from forge_core.device import Device
from forge_week2_softmax.arithmetic import Arithmetic
from forge_week2_softmax.configs import Config, GridConfig, HeldConfig, SplitConfig, SweepConfig
from forge_week2_softmax.holding import (
    CHUNK,
    LIMIT,
    NOT_ROWS,
    can_find_top,
    chunk_widths,
    held,
    independent,
    inputs_of,
    row_chunks,
    spread_of,
    unshared,
)
from forge_week2_softmax.parting import grid, split
from forge_week2_softmax.problem import Problem
from forge_week2_softmax.thresholds import THRESHOLDS

__all__ = ["automatic", "cluster", "naive", "online", "single_pass"]


def automatic(problem: Problem, arithmetic: Arithmetic, device: Device) -> tuple[str, Config, str]:
    """The variant and configuration for a problem of kind ``inner``, and why."""
    what = f"{problem.rows} rows of {problem.length} elements"
    few = problem.rows * 16 * 2 <= device.sm_count
    # The cluster of one row leaves more of the GPU idle than those of several: at 4 x 131072 fp32 clusters are 2 to 4 %
    # ahead of grid, at 4 x 262144 bf16 from 1 % behind to 2 % ahead; at 4 x 200001 fp32 7 to 9 % ahead of split.
    chunks, times = row_chunks(problem), 1 if problem.rows == 1 else 2
    if few and chunks > times * THRESHOLDS.value("few_rows_grid_from", device):
        whole = grid(problem, arithmetic, device)
        if isinstance(whole, GridConfig):
            return "grid", whole, f"{what}: the blocks of the whole GPU hold them"
    if few and chunks > times * THRESHOLDS.value("few_rows_split_from", device):
        several = split(problem, arithmetic, device)
        if isinstance(several, SplitConfig):
            return "split", several, f"{what}: many blocks a row, and a second pass"
    one = single_pass(problem, arithmetic, device)
    if isinstance(one, HeldConfig) and (_fits_a_block(problem, arithmetic, device) or max_cluster(device) == 1):
        many = f"{one.lanes} lanes a row" if one.lanes <= 32 else "a block a row"
        return "single_pass", one, f"{what}: {many}, {one.chunks} chunks a lane"
    together = cluster(problem, arithmetic, device)
    if isinstance(together, HeldConfig):
        return "cluster", together, f"{what}: {together.blocks} blocks a row"
    if isinstance(one, HeldConfig):
        return "single_pass", one, f"{what}: a block a row"
    several = split(problem, arithmetic, device)
    if isinstance(several, SplitConfig) and problem.rows < THRESHOLDS.value("split_rows", device) * device.sm_count:
        return "split", several, f"{what}: many blocks a row, and a second pass"
    return "online", online(problem, arithmetic, device), f"{what}: a block a row, two reads"


def _fits_a_block(problem: Problem, arithmetic: Arithmetic, device: Device) -> bool:
    """Whether a block for each row does, and a cluster would not do better."""
    n = row_chunks(problem)
    if n <= 64 or independent(arithmetic):
        return True
    name = "block_chunks" if inputs_of(arithmetic) == 1 else "block_chunks_backward"
    return n <= THRESHOLDS.value(name, device) and problem.rows * 2 > device.sm_count


def naive(problem: Problem, arithmetic: Arithmetic, device: Device) -> SweepConfig:
    """Three passes, element by element; does every problem."""
    return _elements("naive", problem, arithmetic)


def online(problem: Problem, arithmetic: Arithmetic, device: Device) -> SweepConfig:
    """Two passes, by chunk where the row is contiguous, else element by element."""
    if problem.kind != "inner":
        return _elements("online", problem, arithmetic)
    vector, edges = problem.vector()
    return SweepConfig(
        arithmetic,
        vector,
        edges,
        len(problem.kept),
        spread_of(problem, arithmetic),
        problem.rows >= LIMIT or row_chunks(problem) >= LIMIT // 2,
        idea="online",
        # Of 512 threads the compiler fits three on sm_120, and spills for it.
        threads=(256 if device.capability >= (12, 0) else 512) if row_chunks(problem) >= 2048 else 128,
        unroll=4 if len(arithmetic.sources) == 1 else 2,
    )


def _elements(idea: str, problem: Problem, arithmetic: Arithmetic) -> SweepConfig:
    threads = min(256, max(32, power_of_two(problem.length // 4)))
    return SweepConfig(
        arithmetic,
        vector=1,
        edges=False,
        kept_rank=len(problem.kept),
        spread=(False,) * (problem.sides - 1),  # a stride of 0 is a stride as any other
        wide=problem.rows >= LIMIT or problem.length >= LIMIT,
        idea=idea,
        threads=threads,
        unroll=4 if len(arithmetic.sources) == 1 else 2,
        reduced_rank=len(problem.reduced),
    )


def single_pass(problem: Problem, arithmetic: Arithmetic, device: Device) -> HeldConfig | str:
    """A row by one block or by some of its lanes; or why not."""
    if problem.kind != "inner":
        return NOT_ROWS
    n = row_chunks(problem)
    if n > 1024 and independent(arithmetic):
        return _any_blocks(problem, arithmetic)
    if n <= 128:
        resident = _all_resident(problem, arithmetic, device)
        if resident is not None:
            return resident
        # Two chunks a lane, more only where 32 lanes are not enough.
        return held(problem, arithmetic, min(32, power_of_two(-(-n // 2))), 128 if n <= 64 else 64)
    # Two chunks a thread as far as 512 threads go, then more; 1024 threads for what these cannot hold.
    threads = min(512, max(64, power_of_two(-(-n // (4 if n <= 256 else 2)))))
    if inputs_of(arithmetic) == 2 and 256 < n <= 512:
        threads = 512  # a chunk each: 32768 x 4096 bf16 backward has 1.048 of the copy, and 1.039 with two
    found = held(problem, arithmetic, threads, threads, sm_threads=device.sm_threads)
    return held(problem, arithmetic, 1024, 1024) if isinstance(found, str) else found


def _all_resident(problem: Problem, arithmetic: Arithmetic, device: Device) -> HeldConfig | str | None:
    """Short rows that have threads all at once; None where they have not, or no other configuration was better.

    Nothing is saved with few lanes then, and what counts is how long the code of a row is.  On an H200 a chunk a lane
    gains 2 % at 4096 x 256 bf16.  With whole chunks of 16 bytes, one exponential an element gains 8 % at 4096 x 1024
    bf16, 7 % at 1024 x 1024, 3 % at 4096 x 512, 1 % at 4096 x 512 fp32, and is level with fewer columns; blocks of 256
    threads are from 0.4 % behind those of 128 to 0.6 % ahead, and 1.4 % behind where they are fewer than the
    multiprocessors.
    """
    n = row_chunks(problem)
    lanes = min(32, power_of_two(n))
    if problem.rows * lanes > device.sm_count * device.sm_threads:
        return None
    whole = chunk_widths(problem, arithmetic) == {CHUNK} and not problem.vector()[1]
    if n > 8 and whole and can_find_top(arithmetic, lanes):
        threads = 256 if problem.rows * lanes >= device.sm_count * 256 else 128
        return held(problem, arithmetic, lanes, threads, top_first=True)
    return held(problem, arithmetic, 32, 128) if 16 < n <= 32 else None


def _any_blocks(problem: Problem, arithmetic: Arithmetic) -> HeldConfig | str:
    """A row by as many blocks of 256 threads and 4 chunks as it takes."""
    vector, edges = problem.vector()
    if problem.rows * -(-row_chunks(problem) // 1024) >= LIMIT:
        return "has at most 2^31 blocks"
    if problem.length + 1024 * vector >= LIMIT:
        return f"numbers the elements of a row by 32 bits, and there are {problem.length}"
    return HeldConfig(
        arithmetic,
        vector,
        edges,
        len(problem.kept),
        spread_of(problem, arithmetic),
        problem.rows >= LIMIT,
        lanes=256,
        threads=256,
        chunks=4,
        blocks=0,
    )


def cluster(problem: Problem, arithmetic: Arithmetic, device: Device) -> HeldConfig | str:
    """A row by a cluster of blocks; or why not."""
    most = max_cluster(device)
    if most == 1:
        return f"needs thread-block clusters (sm_90 or newer), and this is {device.arch}"
    apart = unshared(problem, arithmetic)
    if apart:
        return apart
    n, inputs = row_chunks(problem), inputs_of(arithmetic)
    if problem.rows * 16 <= device.sm_count or n <= 1024:
        # Few rows: as many blocks as there are, with little work each.
        blocks = 2
        while blocks < most and problem.rows * blocks * 2 <= device.sm_count:
            blocks *= 2
        largest = 128 if n <= 1024 * blocks else 512
        return _cluster_of(problem, arithmetic, blocks, min(largest, max(64, power_of_two(-(-n // (2 * blocks))))))
    # Forward, rows of 32-bit elements did better with small blocks; everything else with larger ones, and so do rows
    # that these hold without a rest: 0.981, 0.986 and 0.988 of the copy at 2, 4 and 8 blocks, where small ones have
    # 0.974 to 0.976.  With a rest (50257: 77 % of four chunks) they have 0.87.
    if inputs == 1 and problem.itemsizes[0] >= 4:
        for blocks in (2, 4, 8):
            if blocks <= most and n == blocks * 512 * 4:
                return _cluster_of(problem, arithmetic, blocks, 512)
    # From sm_100 on the compiler wants more registers for the same code, and spills where 512 threads leave it 64.
    newer = device.capability >= (10, 0)
    # Small ones are better too for long rows of 2 bytes that large ones hold with a rest: 0.970 of the copy instead of
    # 0.946 at 151936, 0.951 instead of 0.920 at 100000.  Without a rest (131072) they have 0.985, the large ones 0.993.
    rest = n > 8192 and n % (512 * 8) != 0
    small = inputs == 1 and (newer or rest or problem.itemsizes[0] >= 4)
    threads = 256 if small else 512
    # What waits in shared memory was measured on sm_90 alone.
    options = {"spare": 40 if newer and inputs == 1 else 24, "stage": not newer}
    # Only what waits as it is stored, in whole chunks, can wait there.
    several = rest and small and not newer and problem.itemsizes[0] < 4
    sizes = STAGED_CLUSTERS if several and chunk_widths(problem, arithmetic) == {CHUNK} else CLUSTERS[inputs]
    for blocks, chunks in sizes:
        if blocks <= most and n <= blocks * threads * chunks:
            return _cluster_of(problem, arithmetic, blocks, threads, **options)
    return _cluster_of(problem, arithmetic, most, 512, **options)


#: Blocks of a cluster and chunks of a thread, as far as one tensor (or each of two) is to be held so.
CLUSTERS = {
    1: ((2, 10), (4, 10), (8, 10), (16, 16)),
    2: ((2, 5), (4, 5), (8, 8), (16, 8)),
}

#: The same for long rows of 2 bytes with a rest, of which a part waits in shared memory: 4096 x 200000 has 1.005 of the
#: copy with 13 chunks in 8 blocks, and 0.880 with 7 in 16.
STAGED_CLUSTERS = ((4, 14), (8, 14), (16, 16))


def _cluster_of(
    problem: Problem, arithmetic: Arithmetic, blocks: int, threads: int, **options: Any
) -> HeldConfig | str:
    found = held(problem, arithmetic, threads, threads, blocks, **options)
    while isinstance(found, str) and threads < 1024:
        threads *= 2
        found = held(problem, arithmetic, threads, threads, blocks, **options)
    return found
