"""The kernel: one pass over the elements, a vector a thread.

    Y[i...] = factor * X[i...]            any shape and strides

    mX, mY  (count):(1)                   contiguous memory: thread i has vector i, one access of up to 16 bytes
            (d0, d1, ...):(s0, s1, ...)   otherwise, innermost dim first: an element a thread
    rX      (vec)                         in registers; the product is rounded once, from fp32 or fp64

Bytes moved: each input and output byte once; the bound is DRAM bandwidth.  Limits: fewer than 2^31 elements.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
import torch
from cutlass import Float32, Float64, Int32

from forge_core.cache import Traceable, compile_cached
from forge_core.cute.memory import example_arguments, name_kernel
from forge_core.cute.strided import operands, place
from forge_core.dtypes import cute_dtype
from forge_sample_kernel.config import SampleScaleConfig


class SampleScale(SampleScaleConfig):
    """The kernel of a configuration."""

    @cute.jit
    def __call__(self, pX: Any, pY: Any, factor: Any, dims: tuple, stream: Any):
        """Launches a thread a vector; ``dims``: the number of elements, then size and both strides of each dim."""
        name_kernel(self.kernel, self.kernel_name)
        vectors = dims[0] // self.vec
        self.kernel(pX, pY, factor, Int32(vectors), dims).launch(
            grid=(Int32((vectors + self.threads - 1) // self.threads), 1, 1),
            block=(self.threads, 1, 1),
            stream=stream,
        )

    @cute.kernel
    def kernel(self, pX: cute.Pointer, pY: cute.Pointer, factor: Float64, vectors: Int32, dims: tuple):
        thread, block = cute.arch.thread_idx()[0], cute.arch.block_idx()[0]
        index = block * self.threads + thread
        # Partition: a thread's vector of each side.
        dtype, wide = cute_dtype(self.dtype), Float64 if self.dtype == torch.float64 else Float32
        if cutlass.const_expr(self.rank == 0):
            dims = (dims[0], vectors, self.vec, self.vec)
        mX, mY = operands((pX, pY), dtype, dims, (self.vec,), ((1,), (1,)), self.vec * dtype.width // 8)
        if index < vectors:
            at = place(index, dims[1::3])
            tXgX, tYgY = mX[(None, *at)], mY[(None, *at)]
            # Copy in, compute, copy out.
            rX = cute.make_rmem_tensor(self.vec, dtype)
            cute.autovec_copy(tXgX, rX)
            rX.store((rX.load().to(wide) * wide(factor)).to(dtype))
            cute.autovec_copy(rX, tYgY)


@compile_cached
def build(config: SampleScaleConfig) -> Traceable:
    """What to compile for a configuration."""
    pX, pY, dims, stream = example_arguments(tuples=(1 + 3 * config.rank,))
    return Traceable(SampleScale(**vars(config)), (pX, pY, Float64(1), dims, stream), name=config.kernel_name)
