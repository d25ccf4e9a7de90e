"""Index maps of the exchanges in shared memory that ``forge_core.cute`` offers: a slot for each warp."""

from __future__ import annotations

from forge_core.profiling.layouts import Access

__all__ = ["block_slots", "mailbox_slots"]

WARP = 32


def block_slots(threads: int, size: int) -> tuple[Access, Access]:
    """Of ``block.reduce_block``: each warp's first lane writes, and every lane of every warp reads.

    Args:
        threads: threads of the block: 32 times a power of two, 64 or more; a warp alone needs no slots.
        size: bytes of a part of an accumulator.
    """
    warps = threads // WARP
    writes = tuple(thread // WARP * size if thread % WARP == 0 else None for thread in range(threads))
    reads = tuple(thread % warps * size for thread in range(threads))
    return Access("a warp's slot", writes, size, "shared"), Access("all slots", reads, size, "shared")


def mailbox_slots(threads: int, blocks: int, size: int) -> tuple[list[Access], list[Access]]:
    """Of ``exchange.reduce_row`` in a cluster: what the warps of all blocks write into one of them, and what it reads.

    Args:
        threads: threads of a block.
        blocks: blocks of the cluster.
        size: bytes of a part of an accumulator.

    Returns:
        For each block the access by which its warps, one after the other, write; and the reads, 32 slots at a time.
    """
    warps = threads // WARP
    slots = warps * blocks
    lanes = min(slots, WARP)
    # Peer p of a warp writes to block p; here the block of rank 0, so the first lane of each.
    writes = [
        Access(
            f"slots of block {rank}",
            tuple((rank * warps + thread // WARP) * size if thread % WARP == 0 else None for thread in range(threads)),
            size,
            "shared",
        )
        for rank in range(blocks)
    ]
    reads = [
        Access(
            f"slots from {first}", tuple((thread % lanes + first) * size for thread in range(threads)), size, "shared"
        )
        for first in range(0, slots, lanes)
    ]
    return writes, reads
