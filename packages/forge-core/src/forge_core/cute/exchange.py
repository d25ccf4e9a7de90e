"""Exchanges among the threads that share a row: of a warp, a block, a cluster or the grid.

    warp       shuffles                               every lane holds its warp's total
    block      lane 0 of warp w -> sAcc[:, w]         one barrier
    cluster    every warp -> sAcc[:, slot] of every block (st.async), counted by an mbarrier of each block
    then       lane l <- sAcc[:, l % slots]           shuffles: every thread holds the total, in a fixed order
    grid       a block's total -> its slot in global memory (see ``grid``); a second exchange in the block
    columns    places of the same row, of all threads of a block, through shared memory: eight become one, and again

A block's exchange needs no cluster and no mbarrier, so kernels without clusters run on every architecture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64
from cutlass.memory import SmemAllocator

from forge_core.cute.copy import store_if
from forge_core.cute.grid import SLOT_BYTES, empty_slots, gather_grid, sign_slot
from forge_core.cute.monoid import Monoid
from forge_core.cute.warp import WARP, reduce_lanes

__all__ = [
    "Exchange",
    "Places",
    "Sharers",
    "at_turn",
    "close_exchange",
    "combine_parts",
    "combine_places",
    "get",
    "open_exchange",
    "put",
    "reduce_columns",
    "reduce_row",
]


# What a thread combines at once: places in shared memory, and totals of parts, whose loads are in flight together.
PLACES_AT_ONCE, PARTS_AT_ONCE = 8, 16


@dataclass(frozen=True)
class Sharers:
    """Who shares a row.

    Attributes:
        threads: of a block; a number of whole warps where it is known at the launch only.
        most: of a block at most.
        blocks: of the cluster; 1 for none.
        rank: this block's number in the cluster, or in the grid among those that share the row.
        parts: of a grid, the blocks that share the row; None for none.
        slots: of a grid, the address of the row's slots.
        number: of a grid, the launch's.
    """

    threads: int | Int32
    most: int
    blocks: int = 1
    rank: Any = 0
    parts: Any = None
    slots: Any = None
    number: Any = None


@dataclass(frozen=True)
class Exchange:
    """Shared memory of one exchange.

    Attributes:
        sharers: who takes part.
        sAcc: (words, slots), 32-bit words: an accumulator for each warp that may share the row.
        arrived: the mbarrier that counts the bytes sent by a cluster's blocks; None within a block.
        first: whether no exchange of the kernel comes before it.
        phase: of the mbarrier.
        second: of a grid, the exchange in the block behind the slots.
    """

    sharers: Sharers
    sAcc: cute.Tensor  # noqa: N815 - CuTe's grammar of names
    arrived: cute.Pointer | None = None
    first: bool = True
    phase: Any = 0
    second: Exchange | None = None


def _words(types: tuple[Any, ...]) -> int:
    return 1 << (sum(dtype.width // 32 for dtype in types) - 1).bit_length()


def open_exchange(
    smem: SmemAllocator, monoids: Sequence[Monoid], sharers: Sharers, *, by_turns: bool = False
) -> list[Exchange]:
    """Shared memory for some exchanges; all threads of a cluster call it before they exchange.

    Args:
        smem: allocates it.
        monoids: of each exchange.
        sharers: who takes part in them.
        by_turns: each is used any number of times, by :func:`at_turn`.
    """
    turns = 2 if by_turns else 1
    arrived = smem.allocate_array(Int64, turns * len(monoids)) if sharers.blocks > 1 and monoids else None
    if arrived is not None:
        _init(arrived, turns * len(monoids))
    slots = sharers.most // WARP * sharers.blocks
    found = []
    for i, monoid in enumerate(monoids):
        layout = cute.make_layout((_words(monoid.types), slots))
        each = sharers
        if sharers.parts is not None:
            row = Int64(sharers.parts) * SLOT_BYTES
            each = replace(sharers, slots=sharers.slots + i * row)
        sAcc = smem.allocate_tensor(Int32, cute.make_layout((*layout.shape, turns)), byte_alignment=16)
        made = Exchange(each, sAcc[None, None, 0], first=i == 0)
        if arrived is not None:
            made = replace(made, arrived=arrived + turns * i)
        if sharers.parts is not None:
            again = Exchange(each, smem.allocate_tensor(Int32, layout, byte_alignment=16))
            made = replace(made, second=again)
        found.append(made)
    return found


def at_turn(at: Exchange, turn: Int32) -> Exchange:
    """An exchange opened to be used again, for its use number ``turn``, 0 first; a cluster waits for its blocks before.

    Two take turns, so that no thread waits before it writes: when it does for use n + 2, it has read what all wrote for
    use n + 1, and each of them had read what it needed of use n before it wrote that.
    """
    own = cute.make_tensor(at.sAcc.iterator + turn % 2 * cute.cosize(at.sAcc.layout), at.sAcc.layout)
    arrived = at.arrived if at.arrived is None else at.arrived + turn % 2
    return replace(at, sAcc=own, arrived=arrived, first=False, phase=turn // 2 % 2)


@cute.jit
def _init(arrived: cute.Pointer, count: cutlass.Constexpr):
    if cute.arch.thread_idx()[0] == 0:
        for i in cutlass.range_constexpr(count):
            cute.arch.mbarrier_init(arrived + i, 1)
        cute.arch.mbarrier_init_fence()
    cute.arch.cluster_arrive_relaxed()


def _pack(acc: tuple[Any, ...], words: int) -> list[Any]:
    """An accumulator as 32-bit words, with zeros behind."""
    found: list[Any] = []
    for part in acc:
        # The words are made first: one element recast to smaller ones stays one.
        rWords = cute.make_rmem_tensor(type(part).width // 32, Int32)
        cute.recast_tensor(rWords, type(part))[0] = part
        found += [rWords[i] for i in range(cute.size(rWords))]
    return found + [Int32(0)] * (words - len(found))


def _unpack(sAcc: cute.Tensor, slot: Any, types: tuple[Any, ...]) -> tuple[Any, ...]:
    found, word = [], 0
    for dtype in types:
        rWords = cute.make_rmem_tensor(dtype.width // 32, Int32)
        for i in range(cute.size(rWords)):
            rWords[i] = sAcc[word + i, slot]
        word += cute.size(rWords)
        found.append(cute.recast_tensor(rWords, dtype)[0])
    return tuple(found)


@cute.jit
def _put(words: list, sAcc: cute.Tensor, slot: Int32):
    if cute.arch.lane_idx() == 0:
        for i in cutlass.range_constexpr(len(words)):
            sAcc[i, slot] = words[i]
    cute.arch.sync_threads()


@cute.jit
def _send(
    words: list,
    sAcc: cute.Tensor,
    arrived: cute.Pointer,
    phase: int | Int32,
    blocks: cutlass.Constexpr,
    slot: Int32,
    slots: int | Int32,
):
    """To every block of the cluster, each lane to one."""
    # Behind the cluster's barrier: racecheck takes an arrival beside mbarrier_init for a race.
    if cute.arch.thread_idx()[0] == 0:
        cute.arch.mbarrier_arrive_and_expect_tx(arrived, 4 * len(words) * slots)
    if cute.arch.lane_idx() < blocks:
        for i in cutlass.range_constexpr(0, len(words), 4):
            some = words[i : i + 4]
            start = (sAcc.iterator + slot * len(words) + i).align(4 * len(some))
            cute.arch.store_async_dsmem(start, tuple(some), arrived, cute.arch.lane_idx())
    cute.arch.mbarrier_wait(arrived, phase)


def reduce_row(acc: tuple[Any, ...], monoid: Monoid, at: Exchange) -> tuple[Any, ...]:
    """Combines the accumulators of all threads that share a row; every thread gets it.

    Args:
        acc: this thread's.
        monoid: how to combine.
        at: the exchange, used for nothing else.
    """
    acc, s = _reduce(acc, monoid, at), at.sharers
    if at.second is not None:
        thread = cute.arch.thread_idx()[0]
        acc = gather_grid(acc, monoid, s.threads, s.slots, s.number, s.rank, s.parts, thread)
        acc = _reduce(acc, monoid, at.second)
        sign_slot(s.slots, s.number, s.rank, thread)
    return acc


def close_exchange(monoid: Monoid, at: Exchange) -> None:
    """Leaves no slot of a grid with a number that comes again; called when the block's results are written."""
    if at.second is not None:
        s = at.sharers
        empty_slots(monoid, s.threads, s.slots, s.number, s.rank, s.parts, cute.arch.thread_idx()[0])


def _reduce(acc: tuple[Any, ...], monoid: Monoid, at: Exchange) -> tuple[Any, ...]:
    """Among the threads of a block or a cluster."""
    sharers, room = at.sharers, at.sAcc.shape[1]
    warps = sharers.threads // WARP
    slots = warps * sharers.blocks
    acc = reduce_lanes(acc, monoid)
    if room == 1:
        return acc
    warp, lane, words = cute.arch.thread_idx()[0] // WARP, cute.arch.lane_idx(), _pack(acc, at.sAcc.shape[0])
    if at.arrived is None:
        _put(words, at.sAcc, warp)
    else:
        if at.first:
            cute.arch.cluster_wait()
        _send(words, at.sAcc, at.arrived, at.phase, sharers.blocks, sharers.rank * warps + warp, slots)
    lanes = min(room, WARP)
    found = [_unpack(at.sAcc, lane % lanes + i, monoid.types) for i in range(0, room, lanes)]
    if not isinstance(slots, int):
        found = [_select(lane % lanes + i * lanes < slots, acc, monoid.identity()) for i, acc in enumerate(found)]
    return reduce_lanes(_combine_all(found, monoid), monoid, lanes, repeated=True)


def put(rAcc: list[cute.Tensor], accs: Sequence[tuple[Any, ...]]) -> None:
    """Keeps the accumulators of neighboring rows: (rows,) for each of their parts."""
    for r, acc in enumerate(accs):
        for part, value in enumerate(acc):
            rAcc[part][r] = value


def get(rAcc: list[cute.Tensor], r: int) -> tuple[Any, ...]:
    """The accumulator of one row."""
    return tuple(part[r] for part in rAcc)


@dataclass(frozen=True)
class Places:
    """Which rows side by side the accumulators of a thread are of: place p of all threads has row p % width.

    Attributes:
        width: rows.
        groups: places of each; threads beyond ``width * groups`` places take part in nothing.
        first: the thread's first place.
        rows: the row of each of its places, some row where it has none.
        has_row: of each of them whether it has one; others take part in nothing.  Empty where all have.
    """

    width: Int32
    groups: Int32
    first: Int32
    rows: list[Int32]
    has_row: list[Boolean]


def reduce_columns(smem: SmemAllocator, rAcc: list[cute.Tensor], monoid: Monoid, places: Places, threads: int) -> None:
    """Combines the accumulators of rows that lie side by side.

    Args:
        smem: allocates what they exchange through.
        rAcc: that of :func:`put`, of a thread's neighboring places; afterwards the totals of their rows.
        monoid: how to combine.
        places: which rows those are.
        threads: of the block at most.
    """
    layout = cute.make_layout(threads * cute.size(rAcc[0]))
    if places.has_row:  # written one by one, as many places apart as a thread has: without bank conflicts
        layout = cute.make_composed_layout(cute.make_swizzle(3, 0, 5), 0, layout)
    sAcc = [smem.allocate_tensor(dtype, layout, byte_alignment=16) for dtype in monoid.types]
    own = places.first, places.rows, places.has_row
    combine_places(rAcc, sAcc, monoid, places.width, places.groups, *own)


@cute.jit
def combine_places(
    rAcc: list,
    sAcc: list,
    monoid: cutlass.Constexpr,
    width: Int32,
    groups: Int32,
    first: Int32,
    rows: list,
    has_row: list,
):
    """The same through given shared memory: eight places at a time become one, until each row has one left.

    Args:
        rAcc: that of :func:`reduce_columns`.
        sAcc: for each of its parts an element for each place of the block's threads.
        monoid: how to combine.
        width: that of :class:`Places`, as ``groups``, ``first``, ``rows`` and ``has_row``.
        groups: as there.
        first: as there.
        rows: as there.
        has_row: as there.
    """
    if groups > 1:
        for k in cutlass.range_constexpr(len(sAcc)):
            for r in cutlass.range_constexpr(len(rows)):
                if cutlass.const_expr(len(has_row) == 0):
                    sAcc[k][first + r] = rAcc[k][r]
                else:
                    store_if(sAcc[k], first + r, rAcc[k][r], has_row[r])
        cute.arch.sync_threads()
        left = groups
        while left > 1:
            some = (left + (PLACES_AT_ONCE - 1)) // PLACES_AT_ONCE
            for at in cutlass.range(cute.arch.thread_idx()[0], some * width, cute.arch.block_dim()[0], unroll=1):
                accs = [_acc_at(sAcc, at + k * some * width, left * width, at, monoid) for k in range(PLACES_AT_ONCE)]
                total = _combine_all(accs, monoid)
                for k in cutlass.range_constexpr(len(sAcc)):
                    sAcc[k][at] = total[k]
            cute.arch.sync_threads()
            left = some
        for r in cutlass.range_constexpr(len(rows)):
            for k in cutlass.range_constexpr(len(sAcc)):
                rAcc[k][r] = sAcc[k][rows[r]]


@cute.jit
def combine_parts(
    gAcc: list,
    monoid: cutlass.Constexpr,
    turn: Int32,
    groups: Int32,
    parts: Int32,
    at_once: cutlass.Constexpr = PARTS_AT_ONCE,
) -> tuple:
    """A thread's share of the totals that blocks have left of the parts of a row, some of them at a time.

    Args:
        gAcc: (parts,) for each part of an accumulator.
        monoid: how to combine.
        turn: which of the ``groups`` threads that take turns it is.
        groups: how many those are.
        parts: how many totals there are.
        at_once: how many are loaded at once.
    """
    rAcc = [cute.make_rmem_tensor(1, dtype) for dtype in monoid.types]
    put(rAcc, [monoid.identity()])
    for part in cutlass.range(turn, parts, at_once * groups, unroll=1):
        accs = [_acc_at(gAcc, part + k * groups, parts, part, monoid) for k in range(at_once)]
        put(rAcc, [monoid.combine(get(rAcc, 0), _combine_all(accs, monoid))])
    return get(rAcc, 0)


def _acc_at(sAcc: list[cute.Tensor], place: Any, end: Any, own: Any, monoid: Monoid) -> tuple[Any, ...]:
    """The accumulator of a place before the end; behind it the identity."""
    inside = place < end
    return _select(inside, tuple(s[cutlass.select_(inside, place, own)] for s in sAcc), monoid.identity())


def _combine_all(accs: list[tuple[Any, ...]], monoid: Monoid) -> tuple[Any, ...]:
    """Of some accumulators at once, where the monoid has a way for that."""
    many = getattr(monoid, "many", None)
    return many(accs) if many is not None and len(accs) > 1 else reduce(monoid.combine, accs)


def _select(condition: Any, a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(type(y)(cutlass.select_(condition, x, y)) for x, y in zip(a, b, strict=True))
