"""Reductions among the threads that share a row: of a warp, a block, a cluster or the grid.

    warp       shuffles                               each lane holds the total of its warp
    block      lane 0 of warp w -> sAcc[:, w]         one barrier
    cluster    every warp -> sAcc[:, slot] of every block (st.async), counted by an mbarrier of each block
    then       lane l <- sAcc[:, l % slots]           shuffles: each thread holds the total, in a fixed order
    grid       block total -> slot in global memory (see ``grid``), then a second reduction in the block
    columns    partial results of adjacent rows in shared memory, eight combined at a time
    parts      partial results of adjacent rows in global memory, then as columns

Clusters and mbarriers require sm_90; a reduction within a block runs on every architecture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64
from cutlass.memory import SmemAllocator

from forge_core.cute import SLOT_BYTES
from forge_core.cute.copy import store_if
from forge_core.cute.grid import Slots
from forge_core.cute.monoid import Monoid, combine_all, get, kept, put, select
from forge_core.cute.warp import WARP, reduce_lanes

# Partial results that a thread loads before it combines them: from shared memory, and from global memory.
PLACES_AT_ONCE, PARTS_AT_ONCE = 8, 16
FINISHED = 8  #: rows of a block that combines partial results in global memory


@dataclass(frozen=True)
class Sharers:
    """The threads that share a row."""

    threads: int | Int32  # of a block; a multiple of a warp if dynamic
    most: int  # maximum of ``threads``
    blocks: int = 1  # of the cluster; 1: no cluster
    rank: Any = 0  # index of this block in the cluster
    slots: Slots | None = None  # grid-wide only: the row's slots of the first reduction; those of the others follow


@dataclass(frozen=True)
class Exchange:
    """Shared memory of a reduction."""

    sharers: Sharers
    #: (words, slots), 32-bit words; an accumulator for each warp that may share the row.
    sAcc: cute.Tensor  # noqa: N815 - CuTe's grammar of names
    arrived: cute.Pointer | None = None  # mbarrier: counts the bytes sent by the blocks of a cluster
    first: bool = True  # whether this is the kernel's first reduction
    phase: Any = 0  # of the mbarrier
    slots: Slots | None = None  # grid-wide only
    second: Exchange | None = None  # grid-wide only: the reduction in the block that follows the slots
    turns: int = 1  # buffers of an exchange in a loop


def open_exchange(
    smem: SmemAllocator, monoids: Sequence[Monoid], sharers: Sharers, *, turns: int = 1
) -> list[Exchange]:
    """Allocates shared memory for reductions and initializes their mbarriers; called by all threads of a cluster.

    ``turns``: buffers of each, for use in a loop by :func:`at_turn`.
    """
    arrived = smem.allocate_array(Int64, turns * len(monoids)) if sharers.blocks > 1 and monoids else None
    if arrived is not None:
        _init(arrived, turns * len(monoids))
    places = sharers.most // WARP * sharers.blocks
    found = []
    for i, monoid in enumerate(monoids):
        words = 1 << (sum(dtype.width // 32 for dtype in monoid.types) - 1).bit_length()
        shape, slots, second = (words, places), sharers.slots, None
        sAcc = smem.allocate_tensor(Int32, cute.make_layout((*shape, turns)), byte_alignment=16)[None, None, 0]
        counter = None if arrived is None else arrived + turns * i
        if slots is not None:
            slots = replace(slots, start=slots.start + i * (Int64(slots.blocks) * SLOT_BYTES))
            second = Exchange(sharers, smem.allocate_tensor(Int32, cute.make_layout(shape), byte_alignment=16))
        found.append(Exchange(sharers, sAcc, counter, first=i == 0, slots=slots, second=second, turns=turns))
    return found


def at_turn(at: Exchange, turn: Int32) -> Exchange:
    """The buffer of an exchange for iteration ``turn`` of a loop; a cluster must have synchronized before.

    No thread waits before it writes.  With two buffers: one that writes n + 2 has read what all threads wrote in n + 1,
    and each had finished reading n before.  With four, n + 1 is written before n is read: one that writes n + 4 has
    read n + 2, and each had finished reading n before it wrote that.
    """
    own = cute.make_tensor(at.sAcc.iterator + turn % at.turns * cute.cosize(at.sAcc.layout), at.sAcc.layout)
    arrived = at.arrived if at.arrived is None else at.arrived + turn % at.turns
    return replace(at, sAcc=own, arrived=arrived, first=False, phase=turn // at.turns % 2)


@cute.jit
def _init(arrived: cute.Pointer, count: cutlass.Constexpr):
    if cute.arch.thread_idx()[0] == 0:
        for i in cutlass.range_constexpr(count):
            cute.arch.mbarrier_init(arrived + i, 1)
        cute.arch.mbarrier_init_fence()
    cute.arch.cluster_arrive_relaxed()


def _pack(acc: tuple[Any, ...], words: int) -> list[Any]:
    """Converts an accumulator to 32-bit words, padded with zeros."""
    found: list[Any] = []
    for part in acc:
        # The tensor has the narrower type: recasting one element to a narrower type leaves one.
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


@cute.jit
def _send(
    words: list,
    sAcc: cute.Tensor,
    arrived: cute.Pointer,
    blocks: cutlass.Constexpr,
    slot: Int32,
    slots: int | Int32,
):
    """Sends the accumulator to all blocks of the cluster, lane l to block l."""
    # After the cluster barrier: racecheck reports an arrival concurrent with mbarrier_init.
    if cute.arch.thread_idx()[0] == 0:
        cute.arch.mbarrier_arrive_and_expect_tx(arrived, 4 * len(words) * slots)
    if cute.arch.lane_idx() < blocks:
        for i in cutlass.range_constexpr(0, len(words), 4):
            some = words[i : i + 4]
            start = (sAcc.iterator + slot * len(words) + i).align(4 * len(some))
            cute.arch.store_async_dsmem(start, tuple(some), arrived, cute.arch.lane_idx())


def reduce_row(acc: tuple[Any, ...], monoid: Monoid, at: Exchange) -> tuple[Any, ...]:
    """Reduces the accumulators of all threads that share a row, and returns the total to each.

    The exchange is not used again.
    """
    acc = _reduce(acc, monoid, at)
    if at.slots is not None and at.second is not None:
        acc = _reduce(at.slots.gather(acc, monoid), monoid, at.second)
        at.slots.sign()
    return acc


def _reduce(acc: tuple[Any, ...], monoid: Monoid, at: Exchange) -> tuple[Any, ...]:
    """Reduces among the threads of a block or a cluster."""
    acc, place = send(acc, monoid, at)
    return receive(monoid, at, place) if place else acc


def send(acc: tuple[Any, ...], monoid: Monoid, at: Exchange) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The first half of :func:`reduce_row`, which does not wait: the total of the warp, and its place."""
    sharers = at.sharers
    warps = sharers.threads // WARP
    slots = warps * sharers.blocks
    acc = reduce_lanes(acc, monoid)
    if at.sAcc.shape[1] == 1:
        return acc, ()
    warp, lane, words = cute.arch.thread_idx()[0] // WARP, cute.arch.lane_idx(), _pack(acc, at.sAcc.shape[0])
    if at.arrived is None:
        _put(words, at.sAcc, warp)
        return acc, (lane, slots)
    if at.first:
        cute.arch.cluster_wait()
    _send(words, at.sAcc, at.arrived, sharers.blocks, sharers.rank * warps + warp, slots)
    return acc, (lane, slots)


def receive(monoid: Monoid, at: Exchange, place: tuple[Any, ...]) -> tuple[Any, ...]:
    """The second half: waits for the accumulators of all warps, and returns their total."""
    (lane, slots), room = place, at.sAcc.shape[1]
    if at.arrived is None:
        cute.arch.sync_threads()
    else:
        cute.arch.mbarrier_wait(at.arrived, at.phase)
    lanes = min(1 << (room - 1).bit_length(), WARP)  # shuffles are among a power of two
    beyond = room % lanes > 0  # some lanes have no slot
    found = []
    for i in range(0, room, lanes):
        slot = lane % lanes + i
        found.append(_unpack(at.sAcc, cutlass.min(slot, room - 1) if beyond else slot, monoid.types))
    if beyond or not isinstance(slots, int):
        found = [select(lane % lanes + i * lanes < slots, acc, monoid.identity()) for i, acc in enumerate(found)]
    return reduce_lanes(combine_all(found, monoid), monoid, lanes, repeated=True)


@dataclass(frozen=True)
class Places:
    """Assignment of a block's partial results to ``width`` adjacent rows: place p has row p % width."""

    width: Int32
    groups: Int32  # places of each row; threads whose places exceed ``width * groups`` are idle
    first: Int32  # first place of this thread
    rows: list[Int32]  # row of each of the thread's places; any row for an idle one
    has_row: list[Boolean]  # whether each place is in use; empty if all are


class Cluster:
    """A cluster of ``blocks`` blocks that share adjacent rows, of which this is ``rank``; all threads start with it."""

    def __init__(self, rank: Int32, blocks: Int32) -> None:
        self.rank, self.blocks, self._started = rank, blocks, False
        cute.arch.cluster_arrive_relaxed()

    def wait(self) -> None:
        """Waits until all blocks have started, so that their shared memory can be written."""
        if not self._started:
            cute.arch.cluster_wait()
        self._started = True


def reduce_columns(
    smem: SmemAllocator,
    rAcc: list[cute.Tensor],
    monoid: Monoid,
    places: Places,
    threads: int,
    *,
    spread: bool = False,
    cluster: Cluster | None = None,
) -> list[cute.Tensor]:
    """Reduces the accumulators of adjacent rows over a block of at most ``threads`` threads, or over a cluster.

    The accumulators of a thread's places (see :func:`put`) are overwritten by the totals of their rows.  With
    ``spread`` they are left as they are, and the totals in shared memory, for any thread.

    Returns:
        Shared memory, for each part of an accumulator: with ``spread`` (rows,), the totals.
    """
    layout = cute.make_layout(threads * cute.size(rAcc[0]))
    if places.has_row:  # stored by element, strided by the places of a thread: the swizzle avoids bank conflicts
        layout = cute.make_composed_layout(cute.make_swizzle(3, 0, 5), 0, layout)
    sAcc = [smem.allocate_tensor(dtype, layout, byte_alignment=16) for dtype in monoid.types]
    if cluster is None:
        combine_places(rAcc, sAcc, monoid, places, spread)
        return sAcc
    sAll = [smem.allocate_tensor(dtype, layout, byte_alignment=16) for dtype in monoid.types]
    combine_places(rAcc, sAcc, monoid, places, True)
    cluster.wait()
    _combine_blocks(sAcc, sAll, monoid, places.width, cluster.rank, cluster.blocks)
    for r, row in enumerate(() if spread else places.rows):
        for k, sAll_k in enumerate(sAll):
            rAcc[k][r] = sAll_k[row]
    return sAll


@cute.jit
def combine_places(
    rAcc: list, sAcc: list, monoid: cutlass.Constexpr, places: Places, spread: cutlass.Constexpr = False
):
    """:func:`reduce_columns` through given shared memory: combines eight places at a time until a row has one left.

    ``sAcc``: for each part of an accumulator, (places,) of all threads of the block.
    """
    width, rows = places.width, places.rows
    if (places.groups > 1) | spread:
        for k in cutlass.range_constexpr(len(sAcc)):
            for r in cutlass.range_constexpr(len(rows)):
                if cutlass.const_expr(len(places.has_row) == 0):
                    sAcc[k][places.first + r] = rAcc[k][r]
                else:
                    store_if(sAcc[k], places.first + r, rAcc[k][r], places.has_row[r])
        cute.arch.sync_threads()
        _combine_groups(sAcc, monoid, width, places.groups)
        for r in cutlass.range_constexpr(0 if spread else len(rows)):
            for k in cutlass.range_constexpr(len(sAcc)):
                rAcc[k][r] = sAcc[k][rows[r]]


@cute.jit
def _combine_groups(sAcc: list, monoid: cutlass.Constexpr, width: Int32, groups: Int32):
    left = groups
    while left > 1:
        some = (left + (PLACES_AT_ONCE - 1)) // PLACES_AT_ONCE
        for at in cutlass.range(cute.arch.thread_idx()[0], some * width, cute.arch.block_dim()[0], unroll=1):
            accs = [_acc_at(sAcc, at + k * some * width, left * width, at, monoid) for k in range(PLACES_AT_ONCE)]
            total = combine_all(accs, monoid)
            for k in cutlass.range_constexpr(len(sAcc)):
                sAcc[k][at] = total[k]
        cute.arch.sync_threads()
        left = some


@cute.jit
def _combine_blocks(sAcc: list, sAll: list, monoid: cutlass.Constexpr, width: Int32, rank: Int32, blocks: int | Int32):
    """Sends the totals of a block, ``width`` of ``sAcc``, to ``sAll`` of each block of its cluster, and combines."""
    for row in cutlass.range(cute.arch.thread_idx()[0], width, cute.arch.block_dim()[0], unroll=1):
        for k in cutlass.range_constexpr(len(sAcc)):
            place, total = sAll[k].iterator + cute.crd2idx(rank * width + row, sAll[k].layout), sAcc[k][row]
            for other in cutlass.range(blocks, unroll=1):
                cute.arch.inline_ptx(
                    "{\n\t.reg .b32 there;\n\tmapa.shared::cluster.u32 there, {$r0}, {$r1};\n\t"
                    f"st.shared::cluster.b{sAll[k].element_type.width} [there], {{$r2}};\n\t}}",
                    read_only_args=[Int32(place.toint()), Int32(other), total],
                )
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    _combine_groups(sAll, monoid, width, blocks)


def finish_parts(
    gAcc: list[cute.Tensor], monoid: Monoid, parts: Int32, threads: int, at_once: int = PARTS_AT_ONCE
) -> tuple[Any, ...]:
    """Combines the partial results of ``FINISHED`` adjacent rows, in a block of its own: the total of a thread's row.

    Args:
        gAcc: (parts,) of row ``t % FINISHED`` for thread t, in global memory; for each part of an accumulator.
        monoid: the reduction.
        parts: number of partial results.
        threads: threads of the block.
        at_once: loads in flight per thread.
    """
    thread, groups = cute.arch.thread_idx()[0], threads // FINISHED
    rAcc = kept(monoid, [_combine_parts(gAcc, monoid, thread // FINISHED, Int32(groups), parts, at_once)])
    places = Places(Int32(FINISHED), Int32(groups), thread, [thread % FINISHED], [])
    reduce_columns(SmemAllocator(), rAcc, monoid, places, threads)
    return get(rAcc, 0)


@cute.jit
def _combine_parts(
    gAcc: list, monoid: cutlass.Constexpr, turn: Int32, groups: Int32, parts: Int32, at_once: cutlass.Constexpr
) -> tuple:
    """Combines a thread's share of the partial results of a row: ``turn``, ``turn + groups``, ..."""
    rAcc = kept(monoid, [monoid.identity()])
    for part in cutlass.range(turn, parts, at_once * groups, unroll=1):
        accs = [_acc_at(gAcc, part + k * groups, parts, part, monoid) for k in range(at_once)]
        put(rAcc, [monoid.combine(get(rAcc, 0), combine_all(accs, monoid))])
    return get(rAcc, 0)


def _acc_at(sAcc: list[cute.Tensor], place: Any, end: Any, own: Any, monoid: Monoid) -> tuple[Any, ...]:
    """The accumulator at ``place`` if that is before the end, otherwise the identity."""
    inside = place < end
    return select(inside, tuple(s[cutlass.select_(inside, place, own)] for s in sAcc), monoid.identity())
