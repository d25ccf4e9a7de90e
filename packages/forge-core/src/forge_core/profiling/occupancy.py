"""The theoretical occupancy of a kernel.

A block is resident when all it needs is free: warp slots, a block slot, registers, shared memory.  The figures are
those of the CUDA programming guide's table of compute capabilities.
"""

from __future__ import annotations

from dataclasses import dataclass

from forge_core.device import KIB
from forge_core.errors import UnsupportedError
from forge_core.profiling.cubin import RESERVED_SMEM
from forge_core.profiling.layouts import WARP

#: The register file has four parts, each of which holds whole warps; registers are allocated 256 to a warp at a time.
REGISTERS, PARTS, REGISTER_UNIT = 65536, 4, 256
#: Registers that a thread is allocated at least (seen on the H200: docs/records/h200/profiling).
LEAST_REGISTERS = 16
#: Allocation unit of shared memory in bytes.
SMEM_UNIT = 128

#: Limits of an SM by compute capability: resident warps, resident blocks, bytes of shared memory.
LIMITS = {
    (8, 0): (64, 32, 164 * KIB),
    (8, 6): (48, 16, 100 * KIB),
    (8, 7): (48, 16, 164 * KIB),
    (8, 9): (48, 24, 100 * KIB),
    (9, 0): (64, 32, 228 * KIB),
    (10, 0): (64, 32, 228 * KIB),
    (10, 3): (64, 32, 228 * KIB),
    (12, 0): (48, 24, 100 * KIB),
    (12, 1): (48, 24, 100 * KIB),
}


@dataclass(frozen=True)
class Occupancy:
    """The resident blocks of an SM, and the resources that limit them."""

    blocks: int
    warps: int
    percent: float  # resident warps as a share of all warp slots
    limiters: tuple[str, ...]  # the keys of ``allowed`` with the fewest blocks
    allowed: dict[str, int]  # blocks that "warps", "blocks", "registers" and "shared memory" allow, each alone


def occupancy(capability: tuple[int, int], *, threads: int, registers: int, smem: int) -> Occupancy:
    """The theoretical occupancy of blocks of some ``threads``, each with its ``registers``, on a compute capability.

    ``smem`` is bytes of a block's shared memory, static and dynamic, without the driver's share.

    Raises:
        UnsupportedError: the limits of this compute capability are not known.
        ValueError: threads are not 1 to 1024.
    """
    if not 1 <= threads <= 1024:
        raise ValueError(f"expected a block of 1 to 1024 threads, got {threads}")
    if capability not in LIMITS:
        known = ", ".join(f"{major}.{minor}" for major, minor in LIMITS)
        raise UnsupportedError(
            f"the occupancy rules of compute capability {capability[0]}.{capability[1]} are not known; known: {known}.",
            requirement="a known compute capability",
        )
    most_warps, most_blocks, most_smem = LIMITS[capability]
    warps = -(-threads // WARP)
    per_warp = _round_up(max(registers, LEAST_REGISTERS) * WARP, REGISTER_UNIT)
    allowed = {
        "warps": most_warps // warps,
        "blocks": most_blocks,
        "registers": REGISTERS // PARTS // per_warp * PARTS // warps,
        "shared memory": most_smem // _round_up(smem + RESERVED_SMEM, SMEM_UNIT),
    }
    blocks = min(allowed.values())
    limiters = tuple(name for name, count in allowed.items() if count == blocks)
    return Occupancy(blocks, blocks * warps, 100.0 * blocks * warps / most_warps, limiters, allowed)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
