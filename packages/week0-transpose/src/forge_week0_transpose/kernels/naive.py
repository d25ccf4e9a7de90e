"""One thread an element: the kernel to start from, and the one that can do every problem.

    dst[i...] = src[i...]              any rank, any strides on either side, elements of 1, 2, 4, 8 or 16 bytes

How the data moves.  Threads are numbered in the order of the output, whose largest stride comes first:

    thread   0   1   2   3 ... 31                    a transposition, rows x cols:
    write   [d0][d1][d2][d3]...      contiguous      lane l writes dst[c, r + l]     one line of memory a warp
    read     |   |   |                               lane l reads  src[r + l, c]     32 lines of memory a warp
            src at any distance

Each lane finds its place by dividing its number by the sizes, innermost first.

Bytes moved: the useful ones are 2 * numel * itemsize, but a strided read drags 32 bytes for each element; what the
caches do not keep until the neighbours come is fetched again.  The bound is therefore the number of 32-byte sectors
touched, not bandwidth over useful bytes.

Limits: none; with 2^32 elements and more the thread's number is 64-bit, which makes the divisions slow.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from forge_core.cache import Traceable, compile_cached
from forge_week0_transpose.configs import NaiveConfig
from forge_week0_transpose.kernels.memory import (
    Int32,
    Int64,
    Uint32,
    access_unit,
    batch_offsets,
    check,
    example_arguments,
    name_kernel,
    view,
)

__all__ = ["Naive", "build"]


class Naive:
    """The kernel for one configuration."""

    def __init__(self, config: NaiveConfig) -> None:
        self.config = config

    @cute.jit
    def __call__(self, src: cute.Pointer, dst: cute.Pointer, dims: tuple, stream: Any):
        """Launches one thread an element, or for ``items`` of them.

        ``dims`` holds the number of elements, then size, source step and destination step in bytes for each dimension,
        innermost first.
        """
        config = self.config
        name_kernel(self.kernel, config.kernel_name)
        self.kernel(src, dst, dims).launch(
            grid=(Int32((dims[0] + (config.threads * config.items - 1)) // (config.threads * config.items)), 1, 1),
            block=(config.threads, 1, 1),
            stream=stream,
        )

    @cute.kernel
    def kernel(self, src: cute.Pointer, dst: cute.Pointer, dims: tuple):
        config = self.config
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        unit, count = access_unit(config.itemsize)
        rElement = cute.make_rmem_tensor(cute.make_layout((config.items, count), stride=(count, 1)), unit)
        first = Int64(block) * (config.items * config.threads) + Int64(thread)
        check(((src.toint() | dst.toint()) & (config.itemsize - 1)) == 0, "both tensors begin at whole elements")
        targets = []
        for i in cutlass.range_constexpr(config.items):
            # Past the end the last element is read again instead of branching, so that all reads are in flight.
            index = cutlass.min(first + i * config.threads, dims[0] - 1)
            # Below 2^32 elements 32-bit divisions do, and cost a fifth.
            number = index if cutlass.const_expr(config.wide_index) else Uint32(index)
            check((index >= 0) & (index < dims[0]), "an element's number is below their count")
            src_offset, dst_offset = batch_offsets(number, dims)
            cute.autovec_copy(view(src.toint() + src_offset, config.itemsize), rElement[i, None])
            targets.append(dst.toint() + dst_offset)
        for i in cutlass.range_constexpr(config.items):
            if first + i * config.threads < dims[0]:
                cute.autovec_copy(rElement[i, None], view(targets[i], config.itemsize))


@compile_cached
def build(config: NaiveConfig) -> Traceable:
    """What to compile for a configuration."""
    return Traceable(Naive(config), example_arguments(batch_rank=config.rank), name=config.kernel_name)
