"""How many warps of a kernel a multiprocessor can hold: the occupancy rules.

A block is resident when all it needs is free: warp slots, a block slot, registers, shared memory.  Registers are given
out by the warp in units of 256, shared memory in units of 128 bytes with 1 KiB of CUDA's own on top of each block, and
the multiprocessor's register file lies in four parts, each of which holds whole warps.  The figures are those of the
CUDA programming guide's table of compute capabilities.
"""

from __future__ import annotations

from dataclasses import dataclass

from forge_core.errors import UnsupportedError
from forge_core.profiling.cubin import RESERVED_SMEM

__all__ = ["LIMITS", "Limits", "Occupancy", "occupancy"]

WARP = 32
KIB = 1024


@dataclass(frozen=True)
class Limits:
    """What a multiprocessor of one compute capability holds.

    Attributes:
        warps: resident warps.
        blocks: resident blocks.
        smem: bytes of shared memory.
        smem_block: bytes of shared memory that one block can have, opt-in included.
        registers: 32-bit registers.
        register_unit: registers are given to a warp in multiples of this.
        parts: parts of the register file.
        smem_unit: shared memory is given to a block in multiples of this, in bytes.
        least_registers: a thread is given at least so many, however few its code names
            (seen on the H200: docs/records/h200/profiling).
    """

    warps: int
    blocks: int
    smem: int
    smem_block: int
    registers: int = 65536
    register_unit: int = 256
    parts: int = 4
    smem_unit: int = 128
    least_registers: int = 16


#: By compute capability.
LIMITS: dict[tuple[int, int], Limits] = {
    (8, 0): Limits(64, 32, 164 * KIB, 163 * KIB),
    (8, 6): Limits(48, 16, 100 * KIB, 99 * KIB),
    (8, 7): Limits(48, 16, 164 * KIB, 163 * KIB),
    (8, 9): Limits(48, 24, 100 * KIB, 99 * KIB),
    (9, 0): Limits(64, 32, 228 * KIB, 227 * KIB),
    (10, 0): Limits(64, 32, 228 * KIB, 227 * KIB),
    (10, 3): Limits(64, 32, 228 * KIB, 227 * KIB),
    (12, 0): Limits(48, 24, 100 * KIB, 99 * KIB),
    (12, 1): Limits(48, 24, 100 * KIB, 99 * KIB),
}


@dataclass(frozen=True)
class Occupancy:
    """How many blocks a multiprocessor holds, and what keeps it from holding more.

    Attributes:
        blocks: resident blocks of a multiprocessor.
        warps: resident warps.
        percent: warps as a share of all warp slots, in percent: the theoretical occupancy.
        limiters: what allows no more: some of "warps", "blocks", "registers", "shared memory".
        allowed: blocks that each of them would allow.
    """

    blocks: int
    warps: int
    percent: float
    limiters: tuple[str, ...]
    allowed: dict[str, int]


def occupancy(capability: tuple[int, int], *, threads: int, registers: int, smem: int) -> Occupancy:
    """The theoretical occupancy of a kernel.

    Args:
        capability: the GPU's compute capability.
        threads: threads of a block.
        registers: registers of a thread.
        smem: bytes of a block's shared memory, static and dynamic, without CUDA's own share.

    Raises:
        UnsupportedError: the limits of this GPU's compute capability are not known.
        ValueError: a count that no kernel has.
    """
    if threads < 1 or threads > 1024 or registers < 0 or smem < 0:
        raise ValueError(
            f"expected a block of 1 to 1024 threads, got {threads} threads, {registers} registers, {smem} B"
        )
    limits = LIMITS.get(capability)
    if limits is None:
        known = ", ".join(f"{major}.{minor}" for major, minor in LIMITS)
        raise UnsupportedError(
            f"the occupancy rules of compute capability {capability[0]}.{capability[1]} are not known; known: {known}.",
            requirement="a known compute capability",
        )
    warps = -(-threads // WARP)
    per_warp = _round_up(max(registers, limits.least_registers) * WARP, limits.register_unit)
    # A part of the register file holds whole warps, so what is left of each part is lost.
    by_registers = limits.registers // limits.parts // per_warp * limits.parts // warps
    per_block = _round_up(smem + RESERVED_SMEM, limits.smem_unit)
    allowed = {
        "warps": limits.warps // warps,
        "blocks": limits.blocks,
        "registers": by_registers,
        "shared memory": limits.smem // per_block if smem <= limits.smem_block else 0,
    }
    blocks = min(allowed.values())
    return Occupancy(
        blocks=blocks,
        warps=blocks * warps,
        percent=100.0 * blocks * warps / limits.warps,
        limiters=tuple(name for name, count in allowed.items() if count == blocks),
        allowed=allowed,
    )


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
