"""A cluster of blocks a row, for long rows that are fewer than the multiprocessors (sm_90 and newer).

    dst[k...] = reduce(src[k..., r..., 0:N])        the last reduced dimension contiguous, at any address

How the data moves.  The row is cut into 2 to 16 parts; each block reads its own as in ``vectorized``, and the blocks
exchange one value each through distributed shared memory:

    row     [ part 0 | part 1 | part 2 | part 3 ]
    block       0        1        2        3
                |        `--------+--------'  st.shared::cluster
                `-> slots [0][1][2][3] -> cluster barrier -> shuffles -> block 0 stores

Bytes moved: each element once.  Nothing is written to global memory but the result, nothing has to be zeroed before,
no second launch follows; a captured graph replays it as it is.

Limits: sm_90 and newer; 16 blocks, which is beyond what every GPU guarantees, so a device that cannot place them
refuses the launch with an error.
"""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute

from forge_core.cache import Traceable, compile_cached
from forge_core.cute.block import SLOTS_BYTES, reduce_block
from forge_core.cute.cluster import announce, reduce_cluster
from forge_core.cute.memory import (
    Int32,
    Int64,
    Uint32,
    entry_offsets,
    flat_arguments,
    name_kernel,
    split_arguments,
)
from forge_week1_reduce.configs import ClusterConfig
from forge_week1_reduce.kernels.sweep import part_chunks, sweep
from forge_week1_reduce.kernels.values import Values

__all__ = ["Cluster", "build"]


class Cluster:
    """The kernel for one configuration."""

    def __init__(self, config: ClusterConfig) -> None:
        self.config = config
        self.values = Values(config.arithmetic)

    @cute.jit
    def __call__(self, *args: Any):
        """Launches one cluster a row; the arguments are those of ``vectorized``."""
        (src, dst), (length,), (kept, outer) = split_arguments(args, self.config)
        blocks = self.config.blocks
        name_kernel(self.kernel, self.config.kernel_name)
        span = part_chunks(self.values.vector(self.config.row.width), length, outer, blocks)
        self.kernel(src, dst, length, span, kept, outer).launch(
            grid=(blocks, Int32(kept[0]), 1),
            block=(self.config.row.threads, 1, 1),
            cluster=(blocks, 1, 1),
            smem=2 * SLOTS_BYTES,
            stream=args[-1],
        )

    @cute.kernel
    def kernel(self, src: cute.Pointer, dst: cute.Pointer, length: Int64, span: Int64, kept: tuple, outer: tuple):
        values, row, blocks = self.values, self.config.row, self.config.blocks
        announce()
        thread, _, _ = cute.arch.thread_idx()
        rank, block, _ = cute.arch.block_idx()
        src_offset, dst_offset = entry_offsets(Uint32(block), kept, 2)
        rAcc = values.new_lanes(row.width)
        sweep(values, row, src.toint() + src_offset, length, outer, Int64(rank), span, thread, rAcc)

        shared = cute.arch.get_dyn_smem(Uint32, alignment=16).toint()
        acc = reduce_block(values.collapse(rAcc), values.monoid, row.threads, shared, thread)
        acc = reduce_cluster(acc, values.monoid, blocks, shared + SLOTS_BYTES, thread, rank)
        if (thread == 0) & (rank == 0):
            values.store(acc, length * outer[0], dst.toint() + dst_offset)


@compile_cached
def build(config: ClusterConfig) -> Traceable:
    """What to compile for a configuration."""
    return Traceable(Cluster(config), flat_arguments(config), name=config.kernel_name)
