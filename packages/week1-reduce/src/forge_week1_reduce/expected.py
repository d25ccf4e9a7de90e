"""What the compiled code of week 1's kernels must look like: one declaration a configuration, for every architecture.

Registers are bounded by the threads that are to be resident on a multiprocessor:

    2048  a thread a row
    1536  rows on sm_90, 1152 with 8 loads of a thread in flight, which are 32 registers
    1280  columns on sm_90, which have an accumulator for each place of a load
    1024  rows on other architectures; of one-byte elements, of which a load of 16 bytes becomes 16 registers, and of
          two-byte elements where loads are marked, which keep their order
     768  columns on other architectures, of one-byte elements, with 8 loads in flight, and by a single warp
     704  extremes of columns of bf16 with 8 marked loads in flight: 82 registers, which leave one block of 512 as 80 do
    half  accumulators of 8 bytes, but no less than 512

A short row holds all of its loads, a register for each 4 bytes, and that is what bounds it.  Shared memory and widths
follow from the configuration.  No kernel may use an atomic: the order of a sum's additions is part of its result.
``forge_core.testing.expectations`` checks it.
"""

from __future__ import annotations

import torch

from forge_core.testing.expectations import Declarations, Expect, registers_of
from forge_week1_reduce.arithmetic import Arithmetic
from forge_week1_reduce.configs import (
    ClusterConfig,
    ColumnConfig,
    FinishConfig,
    NaiveConfig,
    SharedConfig,
    ShortConfig,
    ShuffleConfig,
    SplitConfig,
    VectorizedConfig,
)

__all__ = ["EXPECTED"]

#: The architecture that registers were counted for.
TUNED = "sm_90a"

#: Shared memory of a block's reduction: 32 slots of 8 bytes.
SLOTS = 256

#: Bytes of the widest access of a thread.
CHUNK = 16


def _registers(arithmetic: Arithmetic, resident: int) -> int:
    """Registers of a thread where so many threads are to be resident, or half of them."""
    return registers_of(resident if arithmetic.acc.itemsize <= 4 else max(resident // 2, 512))


def _rows(config: VectorizedConfig, arch: str) -> int:
    """The same for blocks that read rows."""
    own = config.arithmetic
    counted = arch == TUNED and own.src.itemsize >= (4 if config.once else 2)
    if counted and config.unroll > 4:
        return _registers(own, 1152)
    return _registers(own, 1536 if counted else 1024)


def _source(arithmetic: Arithmetic, width: int, *, elements: bool) -> tuple[int, ...]:
    return (width, arithmetic.src.itemsize) if elements else (width,)


def _result(arithmetic: Arithmetic) -> tuple[int, ...]:
    return (arithmetic.dst.itemsize,)


def _naive(config: NaiveConfig, arch: str) -> Expect:
    own = config.arithmetic
    return Expect(_registers(own, 2048), loads=(own.src.itemsize,), stores=_result(own))


def _shared(config: SharedConfig, arch: str) -> Expect:
    own = config.arithmetic
    return Expect(
        _registers(own, 1536),
        config.threads * own.acc.itemsize,
        loads=(own.src.itemsize,),
        stores=_result(own),
        barriers=config.threads.bit_length() - 1,  # one for each level of the tree
    )


def _shuffle(config: ShuffleConfig, arch: str) -> Expect:
    own = config.arithmetic
    return Expect(_registers(own, 1536), SLOTS, loads=(own.src.itemsize,), stores=_result(own), barriers=1)


def _vectorized(config: VectorizedConfig, arch: str) -> Expect:
    own = config.arithmetic
    loads = _source(own, config.width, elements=config.peel)
    return Expect(_rows(config, arch), SLOTS, loads=loads, stores=_result(own), barriers=int(config.threads > 32))


def _short(config: ShortConfig, arch: str) -> Expect:
    own = config.arithmetic
    # All loads of a thread are in flight, a word of 4 bytes a register.
    held = config.rows * config.unroll * config.width // 4
    return Expect(_registers(own, 2048) + held, loads=(config.width,), stores=_result(own))


def _cluster(config: ClusterConfig, arch: str) -> Expect:
    row = config.row
    own = row.arithmetic
    # The cluster says that it runs, and that it has written: two arrivals, two waits.
    return Expect(
        _rows(row, arch),
        2 * SLOTS,
        loads=_source(own, row.width, elements=row.peel),
        stores=_result(own),
        barriers=1,
        cluster_barriers=4,
    )


def _finish(config: FinishConfig, arch: str) -> Expect:
    own = config.arithmetic
    several = config.threads > 1
    # A thread that has a result has 32 partials on their way.
    registers = _registers(own, 2048 if several else 1280)
    return Expect(registers, SLOTS, loads=(own.src.itemsize,), stores=_result(own), barriers=int(several))


def _split(config: SplitConfig, arch: str) -> tuple[Expect, ...]:
    return _vectorized(config.row, arch), _finish(config.finish, arch)


def _column(config: ColumnConfig, arch: str) -> Expect | tuple[Expect, ...]:
    own = config.arithmetic
    groups = config.groups > 1
    warps = max(config.threads // 32, 1)
    received = -(-config.tile // config.blocks) * config.blocks if config.blocks > 1 else 0
    four = own.src.itemsize > 1 and own.acc.itemsize <= 4
    counted = arch == TUNED and four and config.unroll < 8 and config.threads > 32
    # Two blocks of 512 threads are to be resident; without guards, or where rows are shifted, there is room for more.
    resident = (1280 if config.whole or config.shifts > 1 else 1024) if counted else 768
    if own.op in ("amax", "amin") and own.src is torch.bfloat16 and config.unroll == 8 and config.once:
        resident = 704
    # Beside 8 loads of two-byte elements ptxas makes one more block fit there, by one value in local memory.
    spilled = 8 if arch in ("sm_89", "sm_120a") and config.unroll == 8 and not config.once else 0
    tile = Expect(
        _registers(own, resident),
        (warps * config.tile + received) * own.acc.itemsize if groups else 0,
        # What reaches over the last column goes by element, where the tiles are not whole.
        loads=_source(own, config.width, elements=not config.whole),
        stores=(min(CHUNK, config.vector * own.dst.itemsize), *_result(own)) if config.packed else _result(own),
        barriers=int(groups),
        cluster_barriers=4 if config.blocks > 1 else 0,
        spills=spilled,
    )
    return tile if config.finish is None else (tile, _finish(config.finish, arch))


#: The declaration of each configuration.
EXPECTED: Declarations = {
    NaiveConfig: _naive,
    SharedConfig: _shared,
    ShuffleConfig: _shuffle,
    VectorizedConfig: _vectorized,
    ShortConfig: _short,
    ClusterConfig: _cluster,
    SplitConfig: _split,
    ColumnConfig: _column,
}
