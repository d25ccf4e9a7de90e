"""How the accumulators of a tile of columns become one row; the second half of ``column``.

    lanes of a warp that share columns     shuffles
    warps of the block                     shared memory, one barrier; then a thread a column adds the warps' in order
    blocks of a cluster                    each finishes its share of the columns: it is sent the others' accumulators
                                           through distributed shared memory, and adds them in the order of the blocks

    warp 0   [c0 c1 c2 ... ]  --.                        block 0   [c0 c1 | c2 c3]     -> adds c0, c1 of all blocks
    warp 1   [c0 c1 c2 ... ]  ---+-> column by column    block 1   [c0 c1 | c2 c3]     -> adds c2, c3
    ...

Each order is fixed, so the bits repeat.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from forge_core.cute.cluster import store_remote
from forge_core.cute.memory import SHARED, Int64, load_element, store_element
from forge_core.cute.warp import WARP, reduce_lanes
from forge_week1_reduce.configs import ColumnConfig

__all__ = ["finish_tile", "gather", "tile_bytes"]


def _warps(config: ColumnConfig) -> int:
    return max(config.threads // WARP, 1)


def _share(config: ColumnConfig) -> int:
    """Columns that one block of a cluster finishes."""
    return -(-config.tile // config.blocks)


def tile_bytes(config: ColumnConfig, size: int) -> int:
    """Shared memory of a block: the warps' accumulators of ``size`` bytes, and what the cluster sends."""
    if config.groups == 1:
        return 0
    received = _share(config) * config.blocks if config.blocks > 1 else 0
    return (_warps(config) * config.tile + received) * size


@cute.jit
def gather(
    values: cutlass.Constexpr,
    config: cutlass.Constexpr,
    rAcc: Any,
    shared: Any,
    lane: Any,
    shift: Any,
    thread: Any,
):
    """Puts each warp's accumulators of the tile into shared memory, each column at its place; ends with a barrier.

    Args:
        values: the computation.
        config: a ``ColumnConfig``.
        rAcc: a thread's accumulators, one for each place of its load.
        shared: the address of ``tile_bytes`` of shared memory.
        lane: this thread's number across the columns.
        shift: columns by which this thread's loads begin before the tile.
        thread: its number in the block.
    """
    size = values.acc.width // 8
    for v in cutlass.range_constexpr(config.vector):
        acc = (rAcc[v],)
        if cutlass.const_expr(config.lanes < WARP):
            acc = reduce_lanes(acc, values.monoid, WARP // config.lanes, config.lanes)
        place = lane * config.vector + v - shift
        if (thread % WARP < config.lanes) & (place >= 0) & (place < config.tile):
            start = shared + (thread // WARP * config.tile + place) * size
            store_element(acc[0], start, values.acc, SHARED)
    cute.arch.sync_threads()


@cute.jit
def finish_tile(
    values: cutlass.Constexpr,
    config: cutlass.Constexpr,
    shared: Any,
    start: Any,
    step: Any,
    tile_start: Any,
    cols: Any,
    part: Any,
    count: Any,
    thread: Any,
):
    """Adds up the warps' accumulators, and passes them on: to memory or to the cluster.

    Args:
        values: the computation.
        config: a ``ColumnConfig``; where it has a second pass, accumulators are written instead of results.
        shared: what ``gather`` filled.
        start: the address of column 0's result.
        step: bytes between the results of two columns.
        tile_start: the tile's first column.
        cols: columns of the matrix.
        part: this block's part of the rows: its number in the cluster, if there is one.
        count: elements of a column.
        thread: this thread's number in the block.
    """
    warps, share, size = _warps(config), _share(config), values.acc.width // 8
    received = shared + warps * config.tile * size
    if cutlass.const_expr(config.blocks > 1):
        cute.arch.cluster_wait()
    for turn in cutlass.range_constexpr(-(-config.tile // config.threads)):
        place = turn * config.threads + thread
        if place < config.tile:
            acc = (load_element(shared + place * size, values.acc, SHARED),)
            for warp in cutlass.range_constexpr(1, warps):
                other = load_element(shared + (warp * config.tile + place) * size, values.acc, SHARED)
                acc = values.monoid.combine(acc, (other,))
            column = tile_start + Int64(place)
            if cutlass.const_expr(config.blocks > 1):
                slot = received + (part * share + place % share) * size
                store_remote(acc[0], slot, values.acc, place // share)
            else:
                if column < cols:
                    if cutlass.const_expr(config.finish is not None):
                        store_element(acc[0], start + column * step, values.acc)
                    else:
                        values.store(acc, count, start + column * step)
    if cutlass.const_expr(config.blocks > 1):
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        for turn in cutlass.range_constexpr(-(-share // config.threads)):
            own = turn * config.threads + thread
            place = part * share + own
            column = tile_start + Int64(place)
            if (own < share) & (place < config.tile) & (column < cols):
                acc = (load_element(received + own * size, values.acc, SHARED),)
                for rank in cutlass.range_constexpr(1, config.blocks):
                    other = load_element(received + (rank * share + own) * size, values.acc, SHARED)
                    acc = values.monoid.combine(acc, (other,))
                values.store(acc, count, start + column * step)
