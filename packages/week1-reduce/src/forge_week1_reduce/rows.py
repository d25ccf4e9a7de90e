"""The choice among the kernels for rows: the reduced dimension is contiguous.

The thresholds were chosen on an H200 (2026-11-21, sums of fp32 and bf16 matrices of 2 MB to 2 GB over their columns);
what was measured stands in docs/records/h200/week1-designs-2026-11-21.txt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from forge_core.choice import Refusal, max_cluster, power_of_two
from forge_core.device import Device
from forge_week1_reduce.arithmetic import Arithmetic
from forge_week1_reduce.configs import (
    ClusterConfig,
    Config,
    FinishConfig,
    ShortConfig,
    SplitConfig,
    VectorizedConfig,
)
from forge_week1_reduce.problem import MAX_ALIGN, Problem
from forge_week1_reduce.thresholds import THRESHOLDS

__all__ = ["automatic", "cluster", "hold", "read_once", "short", "split", "split_parts", "vectorized"]

_NOT_ROWS = Refusal("a contiguous reduced dim", "none")
_LIMIT = 2**31

#: Loads of a row that the lanes of a warp have in flight at once: longer rows get a block.
SHORT_LOADS = 256

#: Loads of a short row that a block of its own reads in one unguarded turn, and by how many threads.  Against a warp
#: for each row among several in a block, 256 win 2 to 3 % at 32768 x 1024 fp32 and 5 % at 1024 x 1024; a guarded block,
#: whose code is three times as long, is 3 to 5 % slower there.  Where loads are marked, 128 x 2 lead by 1 %.
EXACT_THREADS: Mapping[int, int] = {128: 64, 256: 32}
EXACT_THREADS_ONCE = 128

#: Blocks of a multiprocessor.  Of rows of 128 loads more than fit at once go by warps: 12 % at 32768 x 1024 bf16, where
#: a block each is 2 % faster at 4096 x 1024.
RESIDENT_BLOCKS = 32

#: Blocks that fill an H200's multiprocessors, each with 512 threads.
BLOCKS_PER_SM = 4

#: Bytes of an input up to which, from the L2 cache's size on, its loads are marked as read once.  They then take less
#: of the L2 from what a producer left there, and less of that is written back meanwhile (13 instead of 26 MB): 13 % at
#: 32768 x 1024 bf16, 7 % in fp32, 3 % at 32768 x 4096 bf16.  Of more bytes, marked loads have the lower rate: 1 % at
#: 512 MB, 2 to 8 % from 1 GB on.  An input that fits the L2 is left there for its next reader, who gains more by it
#: than this one loses: 3.4 us against 1.1 us at 32768 x 256 fp32.
ONCE_UP_TO = 2**28

#: Bytes of an input from which, up to the L2 cache's size, the L2 is asked to evict its lines last: the rate is 2 to
#: 5 % higher (16 to 33 MB, by groups of lanes, blocks and clusters; level at 4 MB).  Marked loads gain as much or more
#: there, at the cost of the next reader (``ONCE_UP_TO``).  Only loads of floating-point numbers without guards: others
#: cost registers, as they keep their order.  Beyond the L2's size the wish gains nothing for rows, and loses up to 8 %
#: to marked loads: docs/records/h200/week1-hints-2026-11-21.json.
HELD_FROM = 2**24


def read_once(problem: Problem, width: int, device: Device, *, at_least: int | None = None) -> bool:
    """Whether loads of ``width`` bytes are to be marked; only where no element is read twice.

    ``at_least`` is the bytes from which they are, where that is not the L2's size.
    """
    whole = problem.rows * problem.count * problem.itemsize
    least = device.l2_bytes if at_least is None else min(at_least, device.l2_bytes)
    return width == MAX_ALIGN and problem.read_bytes == whole and least < whole <= ONCE_UP_TO


def hold(problem: Problem, arithmetic: Arithmetic, width: int, device: Device) -> bool:
    """Whether the L2 is asked to evict last what loads of ``width`` bytes read; only where no element is read twice."""
    whole = problem.rows * problem.count * problem.itemsize
    once = width == MAX_ALIGN and problem.read_bytes == whole
    return once and arithmetic.src.is_floating_point and HELD_FROM <= whole <= device.l2_bytes


def automatic(problem: Problem, arithmetic: Arithmetic, device: Device) -> tuple[Config, str] | None:
    """The configuration for a problem of kind ``inner``, and why; None where no kernel for rows can do it."""
    brief = short(problem, arithmetic, device)
    block = vectorized(problem, arithmetic, device)
    if (
        isinstance(brief, ShortConfig)
        and not _one_turn(block, problem, device)
        and problem.rows * brief.lanes >= _threads_worth(brief, device)
    ):
        many = f"{brief.lanes} lanes a row, {brief.rows_per_block} rows a block"
        return brief, f"rows of {problem.count} elements: {many}"
    alone = f"{problem.rows} rows of {problem.count * problem.itemsize} bytes: a block a row"
    blocks = _wanted_blocks(problem, device)
    if blocks <= 1 and isinstance(block, VectorizedConfig):
        return block, alone
    if blocks <= max_cluster(device):
        several = cluster(problem, arithmetic, device)
        if isinstance(several, ClusterConfig):
            return several, f"only {problem.rows} rows: a cluster of {several.blocks} blocks a row"
    parts = split(problem, arithmetic, device)
    if isinstance(parts, SplitConfig):
        return parts, f"only {problem.rows} rows: {split_parts(problem, device)} blocks a row, and a second pass"
    return (block, alone) if isinstance(block, VectorizedConfig) else None


def _one_turn(block: VectorizedConfig | Refusal, problem: Problem, device: Device) -> bool:
    """Whether a block for each of some short rows is worth it."""
    if isinstance(block, Refusal) or not block.exact:
        return False
    loads = block.threads * block.unroll
    return loads == SHORT_LOADS or (loads in EXACT_THREADS and problem.rows <= RESIDENT_BLOCKS * device.sm_count)


def _threads_worth(brief: ShortConfig, device: Device) -> int:
    """Threads from which many rows a block are worth it: a warp on each multiprocessor, or a wave for long rows.

    Of few rows of more than 128 loads, a block each has more of them on their way: 2 % at 1024 x 1024 fp32.
    """
    return (32 if brief.unroll <= 4 else 1024) * device.sm_count


def _wanted_blocks(problem: Problem, device: Device) -> int:
    """Blocks for each row that fill the GPU: a power of two, and 1 where a row is too short to share."""
    row_bytes = problem.count * problem.itemsize
    least = THRESHOLDS.value("min_part_bytes", device)
    blocks = 1
    while problem.rows * blocks * 2 <= BLOCKS_PER_SM * device.sm_count and row_bytes // (2 * blocks) >= least:
        blocks *= 2
    return blocks


def vectorized(problem: Problem, arithmetic: Arithmetic, device: Device) -> VectorizedConfig | Refusal:
    """A block a row; or why not."""
    row = _row(problem, arithmetic, device)
    if isinstance(row, Refusal):
        return row
    loads = _loads(problem, row)
    return row if loads < _LIMIT else _too_many(loads, row.width)


def _loads(problem: Problem, row: VectorizedConfig) -> int:
    """Loads of a row."""
    return problem.count * problem.itemsize // row.width


def _too_many(loads: int, width: int) -> Refusal:
    return Refusal("fewer than 2^31 loads a row", f"{loads} of {width} bytes")


def _row(problem: Problem, arithmetic: Arithmetic, device: Device) -> VectorizedConfig | Refusal:
    """How blocks read rows, of any length where they are shared; or why they cannot."""
    if problem.kind != "inner":
        return _NOT_ROWS
    if problem.rows >= _LIMIT:
        return Refusal("fewer than 2^31 rows, a block each", str(problem.rows))
    length, around = problem.reduced[-1].size, [d.src for d in (*problem.kept, *problem.reduced[:-1])]
    outer_rank = len(problem.reduced) - 1
    width, peel = problem.src_vector([*around, length]), False
    if outer_rank == 0 and width < MAX_ALIGN:
        width, peel = MAX_ALIGN, True
    loads = problem.count * problem.itemsize // width
    if outer_rank and loads >= _LIMIT:
        return _too_many(loads, width)  # parts number them through all runs
    once = read_once(problem, width, device)
    threads, unroll = _threads(loads, once=once)
    plain = not peel and outer_rank == 0
    if plain and loads in EXACT_THREADS:
        threads = EXACT_THREADS_ONCE if once else EXACT_THREADS[loads]
        unroll = loads // threads
    exact = plain and loads == threads * unroll
    held = exact and hold(problem, arithmetic, width, device)
    ranks = (len(problem.kept), outer_rank)
    row = VectorizedConfig(arithmetic, width, peel, threads, unroll, *ranks, once, exact, held=held)
    return replace(row, resident=_resident(row, device))


def _resident(row: VectorizedConfig, device: Device) -> int:
    """Blocks of 512 threads that fill a multiprocessor, with the 32 registers a thread that this leaves.

    Beside elements of 2 bytes the compiler takes two to four more, and another block finds no room.  But for some rows
    32 are too few, and it would spill: those of fp16 whose loads are marked, of which it keeps 32 by itself; one that
    begins anywhere and is marked; and means of rows that begin anywhere, whose count has to wait for the end.
    """
    own = row.arithmetic
    narrow = own.src.is_floating_point and own.src.itemsize == 2 and own.acc.itemsize == 4
    if not narrow or (row.threads, row.unroll) != (512, 4) or row.exact or row.outer_rank or device.sm_threads != 2048:
        return 0
    fits = not (row.once and own.src is torch.float16)
    if row.peel:
        fits = fits and own.op != "mean" and not (row.once and row.kept_rank == 0)
    return 4 if fits else 0


def _threads(loads: int, *, once: bool = False) -> tuple[int, int]:
    """Threads of a block and loads in flight, for a row (or a part of one) of so many loads."""
    if 768 <= loads < 1536:
        return (512, 2) if once else (256, 4)  # less than 1 % either way at 1024 loads
    if loads >= 768:
        return 512, 4
    return (256, 2) if loads >= 384 else (64, 4)  # 256 x 2 wins 3 % from 128 x 4 at 32768 x 4096 bf16


def short(problem: Problem, arithmetic: Arithmetic, device: Device) -> ShortConfig | Refusal:
    """Up to 32 lanes a row; or why not."""
    if problem.kind != "inner" or len(problem.reduced) != 1:
        return Refusal("one contiguous reduced dim", "another layout")
    length = problem.reduced[0].size
    width = problem.src_vector([*(d.src for d in problem.kept), length])
    loads = length * problem.itemsize // width
    if loads > SHORT_LOADS:
        return Refusal(f"at most {SHORT_LOADS} loads a row", f"{loads} of {width} bytes")
    # Two loads a thread, more only where 32 lanes are not enough.
    lanes = min(32, power_of_two(-(-loads // 2)))
    unroll = power_of_two(-(-loads // lanes))
    # Marked loads want two in flight, others four: 1 % at 16777216 x 8 bf16.
    once, exact = read_once(problem, width, device), loads == lanes * unroll
    rows = max(1, (2 if once else 4) // unroll)
    return ShortConfig(
        arithmetic,
        width,
        lanes,
        unroll,
        rows,
        exact=exact,
        kept_rank=len(problem.kept),
        wide=problem.rows >= _LIMIT,
        once=once,
        held=exact and hold(problem, arithmetic, width, device),
    )


def cluster(problem: Problem, arithmetic: Arithmetic, device: Device) -> ClusterConfig | Refusal:
    """A cluster of blocks a row; or why not."""
    most = max_cluster(device)
    if most == 1:
        return Refusal("thread-block clusters (sm_90 or newer)", device.arch)
    row = _row(problem, arithmetic, device)
    if isinstance(row, Refusal):
        return row
    if problem.rows >= 2**16:
        return Refusal("at most 65535 rows, the grid's second dim", str(problem.rows))
    blocks = min(max(_wanted_blocks(problem, device), 2), most)
    # At most 256 threads: 512 lose 3 % at 64 x 131072 fp32, 16 % for bf16; 8 loads in flight lose 5 % to 4 for bf16.
    loads = _loads(problem, row)
    threads, unroll = _threads(loads // blocks)
    threads = min(threads, 256)
    # Without guards 1 % less at 64 x 131072 bf16, up to 1 % in fp32.
    whole = not row.peel and row.outer_rank == 0 and loads % (blocks * threads * unroll) == 0
    held = whole and hold(problem, arithmetic, row.width, device)
    return ClusterConfig(
        replace(row, threads=threads, unroll=unroll, exact=False, whole=whole, held=held, resident=0), blocks
    )


def _part_of(row: VectorizedConfig, problem: Problem, parts: int, device: Device) -> VectorizedConfig:
    """How a block reads one of ``parts`` parts of a row."""
    threads, unroll = _threads(_loads(problem, row) // parts)
    own = replace(row, threads=threads, unroll=unroll, exact=False, held=False, resident=0)
    return replace(own, resident=_resident(own, device))


def split_parts(problem: Problem, device: Device) -> int:
    """Parts of a row in two passes: as many as fill the GPU once, a power of two (33 lose 1 to 2 % to 32)."""
    if _wanted_blocks(problem, device) == 1:
        return 2
    row_bytes = problem.count * problem.itemsize
    most = min(BLOCKS_PER_SM * device.sm_count // problem.rows, row_bytes // THRESHOLDS.value("min_part_bytes", device))
    return max(2, 1 << (most.bit_length() - 1))


def split(problem: Problem, arithmetic: Arithmetic, device: Device) -> SplitConfig | Refusal:
    """Many blocks a row, and a second pass; or why not."""
    row = _row(problem, arithmetic.partial, device)
    if isinstance(row, Refusal):
        return row
    if problem.rows >= 2**16:
        return Refusal("at most 65535 rows, the grid's second dim", str(problem.rows))
    parts = split_parts(problem, device)
    finish = FinishConfig(
        arithmetic.final,
        threads=256 if parts > 64 else 32,
        kept_rank=len(problem.kept),
        dependent=device.capability >= (9, 0),
    )
    return SplitConfig(_part_of(row, problem, parts, device), finish)
