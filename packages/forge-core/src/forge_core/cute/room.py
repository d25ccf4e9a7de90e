"""Registers: how many blocks a multiprocessor is to have at once, and so how many registers each thread may take.

Left alone, ptxas sometimes gives a thread just too few, so that one more block fits, and spills what is missing to
local memory.  A launch that states the blocks gets 65536 / (threads * blocks) registers a thread.
"""

from __future__ import annotations

from typing import Any

__all__ = ["room_for"]

#: Lets the driver choose how much of a multiprocessor's memory is shared memory.
DRIVERS_CHOICE = -1


def room_for(blocks: int) -> dict[str, Any]:
    """What a kernel's ``launch`` is told, so that the compiler leaves registers for so many blocks.

    Args:
        blocks: of a multiprocessor; 0 leaves the compiler to choose.

    Returns:
        Its keyword arguments.
    """
    if not blocks:
        return {}
    # With a carveout stated, the compiler asks no device: a kernel compiles where there is none.
    return {"min_blocks_per_mp": blocks, "preferred_smem_carveout": DRIVERS_CHOICE}
