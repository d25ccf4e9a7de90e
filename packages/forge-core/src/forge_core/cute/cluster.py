"""A reduction among the blocks of a cluster (sm_90 and newer), through distributed shared memory.

    block r      thread t < blocks writes r's accumulator into slot r of block t
    barrier      of the cluster
    every warp   <- its own block's slots, lane % blocks, and shuffles: every thread of every block holds the whole

    mailbox      the same without the barrier between: every warp of every block sends its accumulator to all blocks
                 (``st.async``), and a thread waits only until its own block's mailbox has counted all their bytes

A block touches the memory of its peers before the barrier only, so none can have ended by then.  That all have begun
is what :func:`announce` or :func:`open_mailbox`, at the kernel's start, and the wait in the reduction make sure of.
With a mailbox a block ends when it has received what all others sent, and none sends to it afterwards.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from forge_core.cute.block import PART_BYTES, load_slot
from forge_core.cute.memory import SHARED, load_element
from forge_core.cute.monoid import Monoid
from forge_core.cute.warp import WARP, reduce_lanes

__all__ = ["announce", "mailbox_bytes", "open_mailbox", "reduce_by_mail", "reduce_cluster", "store_remote"]


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


#: Bytes of a mailbox before its slots: the barrier that counts what has arrived.
_COUNTER = 16


def mailbox_bytes(monoid: Monoid, threads: int, blocks: int) -> int:
    """Shared memory of a mailbox: a slot for each warp of the cluster."""
    return _COUNTER + sum(dtype.width // 8 for dtype in monoid.types) * (threads // WARP) * blocks


def _counter(box: Any) -> Any:
    return cute.make_ptr(cutlass.Int64, box, SHARED, assumed_align=8)


@cute.jit
def open_mailbox(box: Any, thread: Any):
    """Makes a mailbox ready and tells the cluster; each thread calls it once, before :func:`reduce_by_mail`.

    Args:
        box: the address of :func:`mailbox_bytes` of shared memory, a multiple of 16.
        thread: this thread's number in the block.
    """
    if thread == 0:
        cute.arch.mbarrier_init(_counter(box), 1)
        cute.arch.mbarrier_init_fence()
    cute.arch.cluster_arrive_relaxed()


@cute.jit
def _expect(count: cutlass.Constexpr, box: Any, thread: Any):
    # Behind the barrier of the cluster, not where the counter is made: racecheck takes an arrival there for a race with
    # its initialisation.  Bytes that came first are a debt of the counter; its phase waits for this one arrival still.
    if thread == 0:
        cute.arch.mbarrier_arrive_and_expect_tx(_counter(box), count)


@cute.jit
def _send(
    acc: tuple, monoid: cutlass.Constexpr, slots: cutlass.Constexpr, blocks: cutlass.Constexpr, box: Any, slot: Any
):
    peer = cute.arch.lane_idx()
    if peer < blocks:
        counter = cute.arch.map_dsmem_ptr(_counter(box), peer)
        for part in cutlass.range_constexpr(len(monoid.types)):
            dtype = monoid.types[part]
            start = box + _offset(monoid, slots, part) + slot * (dtype.width // 8)
            remote = cute.arch.map_dsmem_ptr(cute.make_ptr(dtype, start, SHARED, assumed_align=dtype.width // 8), peer)
            cute.arch.inline_ptx(
                f"st.async.shared::cluster.mbarrier::complete_tx::bytes.f{dtype.width} [{{$r0}}], {{$r1}}, [{{$r2}}];",
                read_only_args=[Int32(remote.toint()), dtype(acc[part]), Int32(counter.toint())],
            )


def _offset(monoid: Monoid, slots: int, part: int) -> int:
    return _COUNTER + sum(dtype.width // 8 for dtype in monoid.types[:part]) * slots


def reduce_by_mail(
    acc: tuple[Any, ...], monoid: Monoid, threads: int, blocks: int, box: Any, thread: Any, rank: Any
) -> tuple[Any, ...]:
    """Combines the accumulators of all threads of a cluster; every thread of every block gets the whole.

    All threads of all blocks must arrive, and must have called :func:`open_mailbox`.  In place of a reduction in each
    block and then one among the blocks there is one step: every warp sends its accumulator to every block.

    Args:
        acc: this thread's; of floating-point parts.
        monoid: how to combine; where it has a method ``many(accs)``, that is used for several at once.
        threads: threads of a block: 32 times a power of two.
        blocks: blocks of the cluster: a power of two, up to 16.
        box: the mailbox.
        thread: this thread's number in the block.
        rank: this block's number in the cluster.
    """
    warps = threads // WARP
    slots = warps * blocks
    acc = reduce_lanes(acc, monoid)
    cute.arch.cluster_wait()
    _expect(mailbox_bytes(monoid, threads, blocks) - _COUNTER, box, thread)
    _send(acc, monoid, slots, blocks, box, rank * warps + thread // WARP)
    cute.arch.mbarrier_wait(_counter(box), 0)
    lanes = min(slots, WARP)
    found = [_receive(monoid, slots, box, thread % lanes + first) for first in range(0, slots, lanes)]
    many = getattr(monoid, "many", None)
    if len(found) > 1 and many is not None:
        found = [many(found)]
    acc = found[0]
    for other in found[1:]:
        acc = monoid.combine(acc, other)
    return reduce_lanes(acc, monoid, lanes, repeated=True)


def _receive(monoid: Monoid, slots: int, box: Any, slot: Any) -> tuple[Any, ...]:
    return tuple(
        load_element(box + _offset(monoid, slots, part) + slot * (dtype.width // 8), dtype, SHARED)
        for part, dtype in enumerate(monoid.types)
    )
