"""One thread an element: the kernel to start from, and the one that can do every problem.

    Y[i...] = X[i...]              any rank, any strides on either side, elements of 1, 2, 4, 8 or 16 bytes

    mX, mY  (d0, d1, ...)     innermost first, any strides; threads are numbered in the order of the output

    thread   0   1   2   3 ... 31                    a transposition, M x N:
    write   [d0][d1][d2][d3]...      contiguous      lane l writes Y[n, m + l]       one line of memory a warp
    read     |   |   |                               lane l reads  X[m + l, n]       32 lines of memory a warp
            X at any distance

Bytes moved: a strided read fetches 32 bytes for each element, so the bound is the number of 32-byte sectors touched.
Limits: none; with 2^31 elements and more the thread's number is 64-bit, which makes the divisions slow.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32
from cutlass.cute.testing import assert_ as check

from forge_core.cute.math import divisor
from forge_core.cute.memory import builder, name_kernel
from forge_core.cute.strided import operands, place
from forge_week0_transpose.config import NaiveConfig
from forge_week0_transpose.kernels.tensors import UNSIGNED


class Naive(NaiveConfig):
    """The kernel of a configuration."""

    @cute.jit
    def __call__(self, pX: Any, pY: Any, dims: tuple, stream: Any):
        """Launches one thread an element, or for ``items`` of them; ``dims`` as of ``operands``."""
        each = self.threads * self.items
        name_kernel(self.kernel, self.kernel_name)
        # Reciprocals gain at the first read; of several elements in flight they would take a quarter more registers.
        plain = cutlass.const_expr(self.wide or self.items > 1)
        sizes = dims[1::3] if plain else tuple(divisor(Int32(n)) for n in dims[1::3])
        self.kernel(pX, pY, dims, sizes).launch(
            grid=(Int32((dims[0] + (each - 1)) // each), 1, 1), block=(self.threads, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, pX: cute.Pointer, pY: cute.Pointer, dims: tuple, sizes: tuple):
        count, number = dims[0], Int64 if self.wide else Uint32 if self.items > 1 else Int32
        mX, mY = operands((pX, pY), UNSIGNED[self.itemsize], dims)
        first = Int64(cute.arch.block_idx()[0]) * (self.items * self.threads) + cute.arch.thread_idx()[0]
        rX, places = cute.make_rmem_tensor(self.items, mX.element_type), []
        for i in cutlass.range_constexpr(self.items):
            # Past the end the last element is read again instead of branching, so that all reads are in flight.
            index = cutlass.min(first + i * self.threads, count - 1)
            check((index >= 0) & (index < count), "an element's number is below their count")
            places.append(place(number(index), sizes))
            rX[i] = mX[places[i]]
        for i in cutlass.range_constexpr(self.items):
            if first + i * self.threads < count:
                mY[places[i]] = rX[i]


build = builder(Naive, wide=0, dims="rank")
