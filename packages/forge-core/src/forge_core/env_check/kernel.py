"""A minimal kernel, which shows whether this machine compiles, launches and computes.

    dst[i] = src[i] + 1                n unsigned integers of 32 bits, both contiguous

Thread t of block b has element b * threads + t; a warp reads and writes 128 contiguous bytes.  Bytes moved: 8 * n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from forge_core.cache import Traceable, compile_cached


@dataclass(frozen=True)
class AddOneConfig:
    """What the kernel is compiled for."""

    threads: int = 128


class AddOne:
    """The kernel for one configuration."""

    def __init__(self, config: AddOneConfig) -> None:
        self.threads = config.threads

    @cute.jit
    def __call__(self, src: cute.Pointer, dst: cute.Pointer, n: cutlass.Int32, stream: Any):
        """Launches one thread an element."""
        self.kernel.set_name_prefix("forge_env_check", remove_cutlass_symbol=True)
        mSrc = cute.make_tensor(src, cute.make_layout(n))
        mDst = cute.make_tensor(dst, cute.make_layout(n))
        self.kernel(mSrc, mDst, n).launch(
            grid=(cute.ceil_div(n, self.threads), 1, 1), block=(self.threads, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, mSrc: cute.Tensor, mDst: cute.Tensor, n: cutlass.Int32):
        """Adds one to one element, if there is one left for this thread."""
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        index = block * self.threads + thread
        if index < n:
            mDst[index] = mSrc[index] + 1


@compile_cached
def build(config: AddOneConfig) -> Traceable:
    """What to compile; the pointers are aligned as torch aligns its storage."""
    pointers = [cute.runtime.make_ptr(cutlass.Uint32, 0, cute.AddressSpace.gmem, assumed_align=16) for _ in range(2)]
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=False)
    return Traceable(AddOne(config), (*pointers, cutlass.Int32(1), stream), name="forge_env_check")
