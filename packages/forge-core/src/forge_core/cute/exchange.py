"""Exchanges among the threads that share a row: of a warp, a block or a cluster.

    warp       shuffles                               every lane holds its warp's total
    block      lane 0 of warp w -> sAcc[:, w]         one barrier
    cluster    every warp -> sAcc[:, slot] of every block (st.async), counted by an mbarrier of each block
    then       lane l <- sAcc[:, l % slots]           shuffles: every thread holds the row's total, in a fixed order

A block's exchange needs no cluster and no mbarrier, so kernels without clusters run on every architecture.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass.memory import SmemAllocator

from forge_core.cute.monoid import Monoid
from forge_core.cute.warp import WARP, reduce_lanes

__all__ = ["Exchange", "open_exchange", "reduce_row"]


@dataclass(frozen=True)
class Exchange:
    """Shared memory of one exchange.

    Attributes:
        sAcc: (words, slots), 32-bit words: an accumulator for each warp that may share the row.
        arrived: the mbarrier that counts the bytes sent by a cluster's blocks; None within a block.
        first: whether no exchange of the kernel comes before it.
    """

    sAcc: cute.Tensor  # noqa: N815 - CuTe's grammar of names
    arrived: cute.Pointer | None
    first: bool


def _words(types: tuple[Any, ...]) -> int:
    return 1 << (sum(dtype.width // 32 for dtype in types) - 1).bit_length()


def open_exchange(smem: SmemAllocator, types: tuple[tuple[Any, ...], ...], warps: int, blocks: int) -> list[Exchange]:
    """Shared memory for some exchanges; all threads of a cluster call it before anything else.

    Args:
        smem: allocates it.
        types: the types of the accumulator, for each exchange.
        warps: of a block at most, all of which share a row.
        blocks: of the cluster; 1 for none.
    """
    arrived = smem.allocate_array(Int64, len(types)) if blocks > 1 and types else None
    if arrived is not None:
        _init(arrived, len(types))
    slots = warps * max(blocks, 1)
    sAccs = [smem.allocate_tensor(Int32, cute.make_layout((_words(each), slots)), byte_alignment=16) for each in types]
    return [Exchange(s, None if arrived is None else arrived + i, i == 0) for i, s in enumerate(sAccs)]


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
    words: list, sAcc: cute.Tensor, arrived: cute.Pointer, blocks: cutlass.Constexpr, slot: Int32, slots: int | Int32
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
    cute.arch.mbarrier_wait(arrived, 0)


def reduce_row(
    acc: tuple[Any, ...], monoid: Monoid, at: Exchange, warps: int | Int32, blocks: int, rank: Int32
) -> tuple[Any, ...]:
    """Combines the accumulators of all threads that share a row, a block's or a cluster's; every thread gets it.

    Args:
        acc: this thread's.
        monoid: how to combine.
        at: the exchange, used for nothing else.
        warps: of a block.
        blocks: of the cluster; 1 for none.
        rank: this block's number in the cluster.
    """
    room, slots = at.sAcc.shape[1], warps * max(blocks, 1)
    acc = reduce_lanes(acc, monoid)
    if room == 1:
        return acc
    warp, lane, words = cute.arch.thread_idx()[0] // WARP, cute.arch.lane_idx(), _pack(acc, at.sAcc.shape[0])
    if at.arrived is None:
        _put(words, at.sAcc, warp)
    else:
        if at.first:
            cute.arch.cluster_wait()
        _send(words, at.sAcc, at.arrived, blocks, rank * warps + warp, slots)
    lanes = min(room, WARP)
    found = [_unpack(at.sAcc, lane % lanes + i, monoid.types) for i in range(0, room, lanes)]
    if not isinstance(slots, int):
        found = [_select(lane % lanes + i * lanes < slots, acc, monoid.identity()) for i, acc in enumerate(found)]
    many = getattr(monoid, "many", None)
    acc = many(found) if many is not None and len(found) > 1 else reduce(monoid.combine, found)
    return reduce_lanes(acc, monoid, lanes, repeated=True)


def _select(condition: Any, a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(type(y)(cutlass.select_(condition, x, y)) for x, y in zip(a, b, strict=True))
