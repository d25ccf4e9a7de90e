"""The choice for columns: a kept dimension is contiguous.

The thresholds were chosen on an H200 (2026-11-21, sums of fp32 and bf16 matrices of 2 MB to 2 GB over their rows); the
figures beside them are what the other choice costs there: docs/records/h200/week1-designs-2026-11-21.txt.
"""

from __future__ import annotations

from dataclasses import replace

from forge_core.choice import Refusal, max_cluster, power_of_two
from forge_core.device import Device
from forge_week1_reduce.arithmetic import Arithmetic
from forge_week1_reduce.configs import ColumnConfig, Config, FinishConfig
from forge_week1_reduce.problem import MAX_ALIGN, Problem, alignment_of
from forge_week1_reduce.rows import ONCE_UP_TO, read_once

__all__ = ["automatic", "column", "split_parts"]

_LIMIT = 2**31

#: Threads of one wave: the whole grid resident at once, with 1024 threads on each multiprocessor of an H200; half of
#: one loses 3 to 10 %, several lose up to 16 %.
THREADS_PER_SM = 1024

#: Loads in flight that a thread sees at least, in turns of ``unroll``, before the rows are cut further: 6 % at
#: 32768 x 256 bf16.  A matrix that the launch dominates is cut as far as it goes.
MIN_TURNS = 4
SMALL_BYTES = 2**23

#: Parts up to which a cluster shares the rows of a matrix that fills the GPU; above, a second pass adds them up.  Where
#: the grid is a whole wave, larger clusters find no room beside each other, the less the more of a group's
#: multiprocessors are switched off: 2178 against 2715 GB/s at 32768 x 1024 bf16 on one H200.  A grid of half as many
#: blocks as multiprocessors has room: 1469 against 1351 GB/s at 32768 x 256 bf16.
CLUSTER_UP_TO = 4

#: Waves that a number of tiles which fills none evenly is cut into: 20 % at 4096 x 50257 from one to eight, and 2 to
#: 3 % more from there to sixteen.
UNEVEN_WAVES = 16

# Columns are marked as read once from SMALL_BYTES on, rows from the L2's size on (``rows.ONCE_UP_TO`` tells what that
# costs the next reader): 6 % at 32768 x 256 fp32, where torch.compile would win by 2 % without.

#: Bytes of a matrix of 4-byte elements up to which loads go without guards where the tiles are whole: 1 to 3 % at
#: 32768 x 256 and 32768 x 1024, 2 % at 64 x 131072 (all fp32), and a loss of 1 % at 32768 x 4096.  Of 2-byte elements
#: the compiler keeps fewer loads on their way where it is free to move them, 27 % lost at 32768 x 4096 bf16; but not of
#: a single turn (``exact``), which gains 0.5 % at 1024 x 1024 fp32.
WHOLE_UP_TO = ONCE_UP_TO

#: Parts up to which the second pass is compiled for their number: 2 % at 32768 x 1024 bf16.
FIXED_PARTS = 32

#: Bytes of a row from which reading it by aligned chunks wins over narrower loads.
SHIFT_FROM_BYTES = 1024

#: Bytes of a matrix below which a batch of them is done by a thread a column.
SMALL_MATRIX_BYTES = 4096


def automatic(problem: Problem, arithmetic: Arithmetic, device: Device) -> tuple[Config, str] | None:
    """The configuration for a problem of kind ``outer``, and why; None where no column kernel fits."""
    found = column(problem, arithmetic, device)
    if isinstance(found, Refusal):
        return None
    cols = problem.kept[-1].size
    if problem.rows > cols and cols * problem.count * problem.itemsize < SMALL_MATRIX_BYTES:
        return None  # A block for each of many tiny matrices leaves most of its threads idle.
    how = f"{found.lanes}x{found.groups} threads a tile of {found.tile} columns"
    if found.finish is not None:
        how += f", {split_parts(found, problem, device)} parts and a second pass"
    elif found.blocks > 1:
        how += f", a cluster of {found.blocks} blocks"
    return found, f"{cols} contiguous columns of {problem.count} rows: {how}"


def column(problem: Problem, arithmetic: Arithmetic, device: Device) -> ColumnConfig | Refusal:
    """Neighbouring threads have neighbouring columns; or why not."""
    if not problem.kept or problem.kept[-1].src != 1:
        return Refusal("a contiguous kept dim", "none")
    if problem.count >= _LIMIT:
        return Refusal("fewer than 2^31 rows", str(problem.count))
    config = _tile(problem, arithmetic, device)
    tiles = _tiles(config, problem)
    if tiles >= _LIMIT:
        return Refusal("fewer than 2^31 tiles, a block each", str(tiles))
    parts = _parts(config, problem, device)
    exact = _even_rows(config, problem, parts) and problem.count == parts * config.groups * config.unroll
    exact = exact and problem.itemsize in (2, 4)
    config = replace(config, whole=exact or _whole(config, problem, parts), exact=exact)
    if parts == 1:
        return config
    most = max_cluster(device)
    small = problem.count * problem.kept[-1].size * problem.itemsize <= SMALL_BYTES
    if not small and tiles * parts > device.sm_count // 2:
        most = min(most, CLUSTER_UP_TO)
    if parts <= most and _even(tiles):
        return replace(config, blocks=parts)
    finish = FinishConfig(
        arithmetic.final,
        threads=1,
        kept_rank=len(problem.kept),
        dependent=device.capability >= (9, 0),
        parts=parts if parts <= FIXED_PARTS else 0,
    )
    return replace(config, arithmetic=arithmetic.partial, finish=finish)


def split_parts(config: ColumnConfig, problem: Problem, device: Device) -> int:
    """Parts of the rows in two passes."""
    return _parts(config, problem, device)


def _tile(problem: Problem, arithmetic: Arithmetic, device: Device) -> ColumnConfig:
    """The threads of a block, before the rows are cut."""
    cols, around = problem.kept[-1], problem.kept[:-1]
    size, rows = problem.itemsize, problem.count
    width = problem.src_vector([d.src for d in (*around, *problem.reduced)])
    shifts = 1
    if width < MAX_ALIGN and cols.size * size >= SHIFT_FROM_BYTES and len(problem.reduced) == 1:
        # Rows begin at several distances from a boundary, but each at one of few.
        shifts, width = max(MAX_ALIGN // alignment_of(problem.reduced[0].src * size), 2), MAX_ALIGN
    loads = -(-cols.size * size // width)
    matrices = problem.rows // cols.size
    wave = THREADS_PER_SM * device.sm_count
    unroll = 4 if size >= 4 or shifts > 1 else 8
    if shifts == 1 and (rows <= 4 or (rows <= 32 and loads * matrices >= wave)):
        lanes, groups, unroll = 128, 1, min(8, power_of_two(max(rows, 1)))
    else:
        small = rows * cols.size * matrices * size <= SMALL_BYTES
        lanes = 8
        # Of 2-byte elements in a small matrix too: 1.5 % at 1024 x 1024 bf16.
        threads = 256 if (small and size != 2) or shifts > 1 else 512
        unroll = 4 if small else unroll  # fewer rows a thread leave more parts: 5 % at 1024 x 1024 bf16
        # The widest tiles that leave a wave: of 512 threads up to 16 lanes, 1 % at 32768 x 16384 fp32.
        for most, block in ((16, threads), (32, 256)):
            while lanes < most and -(-loads // lanes) * matrices * block > wave:
                lanes *= 2
        if -(-loads // lanes) * matrices * threads > wave:
            threads = 256
        lanes = 32 if shifts > 1 else min(lanes, power_of_two(loads))
        groups = max(threads // lanes, shifts)
        while groups > max(-(-rows // 4), 32 // lanes, shifts):
            groups //= 2
        unroll = min(unroll, power_of_two(-(-rows // groups)))
    vector_bytes = min(MAX_ALIGN, width // size * problem.out_itemsize)
    packed = (
        groups == 1
        and cols.dst == 1
        and problem.dst_align >= vector_bytes
        and all(d.dst * problem.out_itemsize % vector_bytes == 0 for d in around)
    )
    # Where rows are shifted, neighbouring blocks share some loads.
    once = shifts == 1 and read_once(problem, width, device, at_least=SMALL_BYTES)
    ranks = (len(around), len(problem.reduced))
    return ColumnConfig(arithmetic, width, lanes, groups, unroll, 1, shifts, packed, *ranks, once=once)


def _tiles(config: ColumnConfig, problem: Problem) -> int:
    cols = problem.kept[-1].size
    return -(-cols // config.tile) * (problem.rows // cols)


def _even_rows(config: ColumnConfig, problem: Problem, parts: int) -> bool:
    """Whether every tile is whole, and every thread's rows are whole turns."""
    tiles = config.shifts == 1 and problem.kept[-1].size % config.tile == 0
    return tiles and problem.count % (parts * config.groups * config.unroll) == 0


def _whole(config: ColumnConfig, problem: Problem, parts: int) -> bool:
    """Whether no load needs a guard, and the matrix is one that gains without."""
    small = problem.rows * problem.count * problem.itemsize <= WHOLE_UP_TO
    return problem.itemsize == 4 and small and _even_rows(config, problem, parts)


def _even(tiles: int) -> bool:
    """Whether powers of two of these tiles fill a wave evenly."""
    return tiles & (tiles - 1) == 0


def _parts(config: ColumnConfig, problem: Problem, device: Device) -> int:
    """Parts of the rows that fill the GPU: a power of two."""
    if config.groups == 1:
        return 1
    tiles = _tiles(config, problem)
    wave = THREADS_PER_SM * device.sm_count
    small = problem.rows * problem.count * problem.itemsize <= SMALL_BYTES
    if problem.itemsize <= 2 and config.shifts == 1:
        wave //= 2  # Half the threads, with twice the loads in flight.
    if not _even(tiles):
        wave *= UNEVEN_WAVES
    turns = 1 if small else MIN_TURNS
    parts = 1
    while (
        tiles * config.threads * parts * 2 <= wave
        and problem.count >= parts * 2 * config.groups * config.unroll * turns
        and parts < 2**15
    ):
        parts *= 2
    return parts
