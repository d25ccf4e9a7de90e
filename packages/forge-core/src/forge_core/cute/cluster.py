"""A reduction among the blocks of a cluster (sm_90 and newer), through distributed shared memory.

    block r      thread t < blocks writes r's accumulator into slot r of block t
    barrier      of the cluster
    every warp   <- its own block's slots, lane % blocks, and shuffles: every thread of every block holds the whole

A block touches the memory of its peers before the barrier only, so none can have ended by then.  That all have begun
is what :func:`announce`, at the kernel's start, and the wait in the reduction make sure of.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from forge_core.cute.block import PART_BYTES, load_slot
from forge_core.cute.memory import SHARED
from forge_core.cute.monoid import Monoid
from forge_core.cute.warp import reduce_lanes

__all__ = ["announce", "reduce_cluster", "store_remote"]


def announce() -> None:
    """Tells the cluster that this block runs; each thread calls it once, before :func:`reduce_cluster`."""
    cute.arch.cluster_arrive_relaxed()


def store_remote(value: Any, address: Any, dtype: Any, block: Any) -> None:
    """Writes one element at an address of the shared memory of another block of the cluster."""
    local = cute.make_ptr(dtype, address, SHARED, assumed_align=dtype.width // 8)
    remote = cute.arch.map_dsmem_ptr(local, block)
    # The DSL has no plain store to a peer's memory, only one that signals a barrier.
    kind = ("f" if dtype.is_float else "b") + str(dtype.width)
    cute.arch.inline_ptx(
        f"st.shared::cluster.{kind} [{{$r0}}], {{$r1}};", read_only_args=[Int32(remote.toint()), dtype(value)]
    )


@cute.jit
def _publish(acc: tuple, monoid: cutlass.Constexpr, blocks: cutlass.Constexpr, shared: Any, thread: Any, rank: Any):
    if thread < blocks:
        for part in cutlass.range_constexpr(len(monoid.types)):
            dtype = monoid.types[part]
            store_remote(acc[part], shared + part * PART_BYTES + rank * (dtype.width // 8), dtype, thread)


def reduce_cluster(
    acc: tuple[Any, ...], monoid: Monoid, blocks: int, shared: Any, thread: Any, rank: Any
) -> tuple[Any, ...]:
    """Combines the accumulators of all blocks of a cluster; every thread of every block gets the whole.

    All threads of all blocks must arrive, and must have called :func:`announce`.

    Args:
        acc: this block's, held by its first ``blocks`` threads at least.
        monoid: how to combine.
        blocks: blocks of the cluster: a power of two, up to 16.
        shared: the address of slots of their own, not those of the block's reduction.
        thread: this thread's number in the block.
        rank: this block's number in the cluster.
    """
    cute.arch.cluster_wait()
    _publish(acc, monoid, blocks, shared, thread, rank)
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    return reduce_lanes(load_slot(monoid, shared, thread % blocks), monoid, blocks, repeated=True)
