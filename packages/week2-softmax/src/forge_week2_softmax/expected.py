"""What the compiled code of week 2's kernels must look like: one declaration a configuration, for every architecture.

A row that is held has its elements in registers, and ``resident`` blocks of it must fit a multiprocessor of 65536: the
compiler is told so, and the declaration asks that it obeyed without spilling.  The other kernels have what is in
flight, and room to work.  What is in flight waits as it is stored; for architectures other than sm_90, which the
kernels are tuned for, and where it is converted, the compiler may keep it as it is computed with.  Exponentials of
float64 are long: 512 threads of them are to be resident, of a split as many as it states.

Widths follow from the arithmetic: a tensor is read by chunks of ``vector`` elements, and by element where a row ends
inside a chunk or has one element of it.  No kernel may use an atomic.  ``forge_core.testing.expectations`` checks it.
"""

from __future__ import annotations

from forge_core.testing.expectations import Declarations, Expect, registers_of
from forge_week2_softmax.arithmetic import Arithmetic
from forge_week2_softmax.configs import ColumnConfig, GridConfig, HeldConfig, SplitConfig, SweepConfig
from forge_week2_softmax.holding import CHUNK

__all__ = ["EXPECTED"]

#: The architecture that registers were counted for.
TUNED = "sm_90a"

#: Shared memory of a block's reduction, for each part of an accumulator: 32 slots of 8 bytes.
SLOTS = 256


def _parts(arithmetic: Arithmetic) -> int:
    """Parts of an accumulator: (max, sum), a sum, or nothing to reduce."""
    if arithmetic.backward:
        return 0 if arithmetic.op == "logsumexp" else 1
    return 2


def _words(arithmetic: Arithmetic, vector: int, chunks: int, *, computed: bool = False) -> int:
    """Registers that hold a thread's chunks of all tensors: as they are stored, or as they are computed with."""
    held = [dtype for dtype, on_row in zip(arithmetic.sources, arithmetic.on_rows, strict=False) if not on_row]
    least = arithmetic.acc.itemsize if computed else 0
    return -(-chunks * vector * sum(max(dtype.itemsize, least) for dtype in held) // 4)


def _registers(arithmetic: Arithmetic, room: int, words: int, *, float64: int = 512) -> int:
    return registers_of(float64) if arithmetic.acc.itemsize == 8 else min(room + words, 255)


def _widths(
    arithmetic: Arithmetic, vector: int, *, edges: bool, spread: tuple[bool, ...] = (), first: int | None = None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The widths of loads, of all tensors or the first ones, and of stores."""
    sides = []
    for side, dtype in enumerate((*arithmetic.sources, arithmetic.dst)):
        single = arithmetic.on_rows[side] or any(spread[side : side + 1])
        chunk = set() if single else {vector * dtype.itemsize}
        sides.append(chunk | ({dtype.itemsize} if edges or single else set()))
    return tuple(set().union(*sides[:-1][:first])), tuple(sides[-1])


def _held(config: HeldConfig, arch: str) -> Expect:
    own, parts = config.arithmetic, _parts(config.arithmetic)
    loads, stores = _widths(own, config.vector, edges=config.edges, spread=config.spread)
    cluster, block = config.blocks > 1, config.blocks < 2 and config.lanes > 32
    warps = config.threads // 32
    mailbox = 16 + parts * own.acc.itemsize * warps * config.blocks
    # A slot for each chunk that waits there.
    tensors = len(own.sources) - sum(own.on_rows[:-1])
    slots = CHUNK * config.threads * config.staged * tensors
    kept = config.chunks - config.staged
    room = registers_of(config.threads * config.resident) if config.resident else 0
    return Expect(
        room
        or _registers(own, 40 if arch == TUNED else 48, _words(own, config.vector, kept, computed=own.rounds_first)),
        (-(-mailbox // 16) * 16 if slots else mailbox) + slots if cluster else parts * SLOTS if block else 0,
        loads=loads,
        stores=stores,
        barriers=int(block and parts > 0),
        cluster_barriers=2 if cluster else 0,
    )


def _sweep(config: SweepConfig, arch: str) -> Expect:
    own, parts = config.arithmetic, _parts(config.arithmetic)
    loads, stores = _widths(own, config.vector, edges=config.edges, spread=config.spread)
    return Expect(
        # Neighbours in a row may be anywhere, each at an address of its own.
        _registers(own, 56 if config.reduced_rank else 48, _words(own, config.vector, config.unroll)),
        4 * SLOTS,
        loads=loads,
        stores=stores,
        # The naive kernel reduces maximum and sum one after the other.
        barriers=parts if config.idea == "naive" else min(parts, 1),
    )


def _split(config: SplitConfig, arch: str) -> tuple[Expect, ...]:
    own, row = config.arithmetic, config.row
    converted = any(dtype != own.dst for dtype in own.sources)
    # With edges the compiler converts all of a thread's elements before it uses the first, and has more addresses.
    words = _words(own, row.vector, row.unroll, computed=converted or row.edges or arch != TUNED)
    registers = _registers(own, 56 if row.edges else 48, words, float64=row.threads * max(config.resident, 1))
    loads, stores = _widths(own, row.vector, edges=row.edges, spread=row.spread)
    acc = own.acc.itemsize
    # The gradient of log_softmax sums its first tensor alone.
    summed = 1 if own.backward and own.op == "log_softmax" else len(own.sources)
    read, _ = _widths(own, row.vector, edges=row.edges, spread=row.spread, first=summed)
    first = Expect(registers, 2 * SLOTS, loads=read, stores=(acc,), barriers=1)
    # A row with one result needs the accumulators alone.
    again = (acc,) if own.on_rows[-1] else (acc, *loads)
    return first, Expect(registers, 2 * SLOTS, loads=again, stores=stores, barriers=1)


def _grid(config: GridConfig, arch: str) -> Expect:
    own, row, parts = config.arithmetic, config.row, _parts(config.arithmetic)
    loads, stores = _widths(own, row.vector, edges=False, spread=row.spread)
    computed = any(dtype != own.dst for dtype in own.sources) or arch != TUNED
    # A slot is 16 bytes, which are read and written at once; its end, and what empties it, are 8.
    return Expect(
        _registers(own, 48, _words(own, row.vector, row.unroll, computed=computed)),
        2 * parts * SLOTS,
        loads=tuple({*loads, 16, 8}),
        stores=tuple({*stores, 16, 8}),
        barriers=3,
    )


def _column(config: ColumnConfig, arch: str) -> Expect:
    own, parts = config.arithmetic, _parts(config.arithmetic)
    loads, stores = _widths(own, config.vector, edges=False)
    warps = config.threads // 32
    # Each of a thread's rows has an accumulator and the constants of its map; what is held is addressed once more.
    room = (72 if config.held else 48) + 4 * config.vector
    return Expect(
        _registers(own, room, _words(own, config.vector, config.chunks, computed=own.rounds_first)),
        warps * config.vector * config.lanes * parts * own.acc.itemsize,
        loads=loads,
        stores=stores,
        barriers=int(parts > 0 and warps > 1),
    )


#: The declaration of each configuration.
EXPECTED: Declarations = {
    HeldConfig: _held,
    SweepConfig: _sweep,
    SplitConfig: _split,
    GridConfig: _grid,
    ColumnConfig: _column,
}
