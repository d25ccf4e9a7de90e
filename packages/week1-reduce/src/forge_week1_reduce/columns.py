"""The choice for columns: a kept dimension is contiguous."""

from __future__ import annotations

from forge_core.device import Device
from forge_week1_reduce.arithmetic import Arithmetic
from forge_week1_reduce.configs import ColumnConfig, Config, FinishConfig
from forge_week1_reduce.problem import MAX_ALIGN, Problem, alignment_of

__all__ = ["automatic", "column", "split_parts"]

_LIMIT = 2**31

#: Threads that fill an H200's multiprocessors with loads in flight.
THREADS_PER_SM = 1024


def automatic(problem: Problem, arithmetic: Arithmetic, device: Device) -> tuple[Config, str] | None:
    """The configuration for a problem of kind ``outer``, and why; None where no column kernel fits."""
    found = column(problem, arithmetic, device)
    if isinstance(found, str):
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


#: Bytes of a matrix below which a batch of them is done by a thread a column.
SMALL_MATRIX_BYTES = 4096


def column(problem: Problem, arithmetic: Arithmetic, device: Device) -> ColumnConfig | str:
    """Neighbouring threads have neighbouring columns; or why not."""
    if not problem.kept or problem.kept[-1].src != 1:
        return "reads columns side by side, and no kept dimension is contiguous here"
    if problem.count >= _LIMIT:
        return "numbers rows with 32 bits, and there are more"
    cols, around = problem.kept[-1], problem.kept[:-1]
    size = problem.itemsize
    width = problem.src_vector([d.src for d in (*around, *problem.reduced)])
    shifts = 1
    if width < MAX_ALIGN and cols.size * size >= SHIFT_FROM_BYTES and len(problem.reduced) == 1:
        # Rows begin at several distances from a boundary, but each at one of few.
        shifts, width = max(MAX_ALIGN // alignment_of(problem.reduced[0].src * size), 2), MAX_ALIGN
    vector = width // size
    loads = -(-cols.size // vector)
    lanes, groups, unroll = _threads(problem, loads, shifts, device)
    packed = (
        groups == 1
        and cols.dst == 1
        and problem.dst_align >= min(MAX_ALIGN, vector * problem.out_itemsize)
        and all(d.dst * problem.out_itemsize % min(MAX_ALIGN, vector * problem.out_itemsize) == 0 for d in around)
    )
    config = ColumnConfig(
        arithmetic, width, lanes, groups, unroll, 1, shifts, packed, len(around), len(problem.reduced)
    )
    tiles = -(-cols.size // config.tile) * (problem.rows // cols.size)
    if tiles >= _LIMIT:
        return "has a block a tile, and a grid has less than 2^31 blocks"
    blocks = _wanted_blocks(config, problem, tiles, device)
    if blocks == 1:
        return config
    if 1 < blocks <= _max_cluster(device):
        return _with(config, blocks=blocks)
    finish = FinishConfig(
        arithmetic.final, threads=1, kept_rank=len(problem.kept), dependent=device.capability >= (9, 0)
    )
    return _with(config, arithmetic=arithmetic.partial, finish=finish)


#: Bytes of a row from which reading it by aligned chunks wins over narrower loads.
SHIFT_FROM_BYTES = 1024


def _with(config: ColumnConfig, **changes: object) -> ColumnConfig:
    from dataclasses import replace

    return replace(config, **changes)  # type: ignore[arg-type]  # the fields' own types


def _threads(problem: Problem, loads: int, shifts: int, device: Device) -> tuple[int, int, int]:
    """Lanes, groups and loads in flight."""
    rows = problem.count
    matrices = problem.rows // problem.kept[-1].size
    fill = THREADS_PER_SM * device.sm_count
    if shifts == 1 and (rows <= 4 or (rows <= 32 and loads * matrices >= fill)):
        return 128, 1, min(8, _power_of_two(max(rows, 1)))
    lanes = 32 if shifts > 1 else min(_power_of_two(loads), 32 if loads * matrices >= fill // 8 else 8)
    threads = 256 if loads * matrices * 8 >= fill else 512
    groups = max(threads // lanes, 1)
    while groups > max(-(-rows // 4), 32 // lanes, shifts):
        groups //= 2
    unroll = min(8, _power_of_two(-(-rows // groups)))
    return lanes, groups, unroll


def _power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def _max_cluster(device: Device) -> int:
    if device.capability < (9, 0):
        return 1
    return 16 if device.capability[0] in (9, 10) else 8


def _wanted_blocks(config: ColumnConfig, problem: Problem, tiles: int, device: Device) -> int:
    """Parts of the rows that fill the GPU: a power of two."""
    if config.groups == 1:
        return 1
    blocks = 1
    while (
        tiles * config.threads * blocks * 2 <= 2 * THREADS_PER_SM * device.sm_count
        and problem.count >= 2 * blocks * config.groups * MIN_ROWS
    ):
        blocks *= 2
    return blocks


#: Rows of a thread below which cutting them further costs more than it gains.
MIN_ROWS = 4


def split_parts(config: ColumnConfig, problem: Problem, device: Device) -> int:
    """Parts of the rows in two passes."""
    tiles = -(-problem.kept[-1].size // config.tile) * (problem.rows // problem.kept[-1].size)
    return min(_wanted_blocks(config, problem, tiles, device), 2**15)
