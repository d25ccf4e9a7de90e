"""A block a row, 16 bytes a load, several loads in flight.

    dst[k...] = reduce(src[k..., r..., 0:N])        the last reduced dimension contiguous, at any address

How the data moves.  A block walks along its row; a thread loads 16 bytes (4 fp32, 8 bf16) and has ``unroll`` such
loads on their way before it adds the first:

    thread      0       1       2    ...   T-1   |   0       1    ...   T-1   |  ...
    load u = 0  [16 B]  [16 B]  [16 B] ... [16 B]|   u = 1 [16 B] ...         |  u = 2, 3
    rAcc        each place of the 16 bytes has an accumulator of its own; then lanes, warps, block, as in ``shuffle``

Bytes moved: each element once, in the fewest instructions; the bound is DRAM bandwidth.  To fill it, some 25 KB must
be in flight on each multiprocessor of an H200: 512 threads with 4 loads of 16 bytes have 32 KB.

Rows that begin anywhere (N odd, say) are read by whole aligned chunks all the same: what lies before the first
16-byte boundary and after the last is read by element, by other threads at the same time.

Limits: a contiguous reduced dimension; with reduced dimensions around it, its rows must be multiples of the load.
"""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute

from forge_core.cache import Traceable, compile_cached
from forge_core.cute.block import SLOTS_BYTES, reduce_block
from forge_core.cute.memory import (
    Int32,
    Int64,
    Uint32,
    entry_offsets,
    flat_arguments,
    name_kernel,
    split_arguments,
)
from forge_core.cute.room import room_for
from forge_week1_reduce.configs import VectorizedConfig
from forge_week1_reduce.kernels.sweep import sweep
from forge_week1_reduce.kernels.values import Values

__all__ = ["Vectorized", "build"]


class Vectorized:
    """The kernel for one configuration."""

    def __init__(self, config: VectorizedConfig) -> None:
        self.config = config
        self.values = Values(config.arithmetic)

    @cute.jit
    def __call__(self, *args: Any):
        """Launches one block a row.

        The arguments are ``src`` and ``dst``; ``length``; ``kept`` and ``outer``, laid flat; the stream.  ``length``
        is the elements of a contiguous run; ``kept`` holds the number of rows, then size, source step and destination
        step in bytes for each dimension, innermost first; ``outer`` the number of runs of a row, then size and source
        step of each dimension around them.
        """
        (src, dst), (length,), (kept, outer) = split_arguments(args, self.config)
        name_kernel(self.kernel, self.config.kernel_name)
        self.kernel(src, dst, length, kept, outer).launch(
            grid=(Int32(kept[0]), 1, 1),
            block=(self.config.threads, 1, 1),
            smem=SLOTS_BYTES,
            stream=args[-1],
            **room_for(self.config.resident),
        )

    @cute.kernel
    def kernel(self, src: cute.Pointer, dst: cute.Pointer, length: Int64, kept: tuple, outer: tuple):
        values = self.values
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        src_offset, dst_offset = entry_offsets(Uint32(block), kept, 2)
        rAcc = values.new_lanes(self.config.width)
        sweep(values, self.config, src.toint() + src_offset, length, outer, Int64(0), None, thread, rAcc)

        shared = cute.arch.get_dyn_smem(Uint32, alignment=16).toint()
        acc = reduce_block(values.collapse(rAcc), values.monoid, self.config.threads, shared, thread)
        if thread == 0:
            values.store(acc, length * outer[0], dst.toint() + dst_offset)


@compile_cached
def build(config: VectorizedConfig) -> Traceable:
    """What to compile for a configuration."""
    return Traceable(Vectorized(config), flat_arguments(config), name=config.kernel_name)
