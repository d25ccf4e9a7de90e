"""Launch bounds: minimum blocks per multiprocessor, which limit the registers of a thread.

Without them ptxas may limit the registers so that one more block fits, and spill to local memory.  With a minimum of B
blocks of T threads, a thread has up to 65536 / (T * B) registers.
"""

from __future__ import annotations

from typing import Any

#: The shared memory carveout that leaves the choice to the driver.
DRIVERS_CHOICE = -1


def room_for(blocks: int) -> dict[str, Any]:
    """Keyword arguments of a kernel's ``launch`` for a minimum of blocks per multiprocessor; 0: no launch bounds."""
    if not blocks:
        return {}
    # With an explicit carveout the compiler queries no device, so kernels compile on a machine without a GPU.
    return {"min_blocks_per_mp": blocks, "preferred_smem_carveout": DRIVERS_CHOICE}
