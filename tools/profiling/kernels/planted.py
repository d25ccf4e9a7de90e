"""Five kernels with one fault each, and the same five without it: what the diagnosis has to tell apart.

    uncoalesced       y = x              lane l begins at element 32 l: a warp's access touches 32 sectors, one a lane
    bank_conflicts    y = x, through a 32 x 32 tile of shared memory that is read down its columns, 32 lanes in a bank
    spills            y = x * sum of a thread's 64 elements, all 64 alive at once in 32 registers
    too_little_work   y = x              by 4 blocks, whatever the GPU has
    reread            y = x - mean of a block's slab, read again when it has long left the L2

The sound twin of each differs in nothing but the fault: neighbouring lanes, a column of padding, a register file large
enough, blocks enough, slabs small enough to stay in the caches.

Bytes moved: 4 * n read and written, each once, for all but ``reread``, which reads twice.
Limits: n is a multiple of what a block takes; these kernels are for profilers, not for use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from forge_core.cute.memory import Int32, Int64, builder, elements_at, name_kernel

__all__ = ["Planted", "PlantedConfig", "build"]

#: Threads of a block.
THREADS = 256
#: Elements of a thread that are alive at once in the kernel that spills.
ALIVE = 64
#: How often a tile is read from shared memory, so that its bank conflicts are what takes the time.
REPEATS = 16
TILE = 32


@dataclass(frozen=True)
class PlantedConfig:
    """Which fault, and whether it is there."""

    fault: str  # as the module's docstring names them
    sound: bool = False  # the twin without the fault

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        return f"planted_{self.fault}{'_sound' if self.sound else ''}"

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 1024 if self.fault == "spills" and not self.sound else THREADS


class Planted(PlantedConfig):
    """The kernel; ``slab`` is the elements of a block."""

    @cute.jit
    def __call__(self, src: cute.Pointer, dst: cute.Pointer, n: Int64, slab: Int64, stream: Any):
        """Launches one block a slab of ``slab`` elements."""
        name_kernel(self.kernel, self.kernel_name)
        # Two blocks of 1024 threads leave a thread 32 registers.
        crowded = 2 if cutlass.const_expr(self.threads == 1024) else 1
        self.kernel(src, dst, slab).launch(
            grid=(Int32(n // slab), 1, 1),
            block=(self.threads, 1, 1),
            smem=(TILE * (TILE + 1) * 4) if cutlass.const_expr(self.fault == "bank_conflicts") else 128,
            min_blocks_per_mp=crowded,
            # Stated, since the compiler would ask the driver for a default, and there may be none.
            preferred_smem_carveout=50,
            stream=stream,
        )

    @cute.kernel
    def kernel(self, src: cute.Pointer, dst: cute.Pointer, slab: Int64):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        read = src.toint() + Int64(block) * slab * 4
        write = dst.toint() + Int64(block) * slab * 4
        if cutlass.const_expr(self.fault == "bank_conflicts"):
            self.through_shared(read, write, Int32(slab), thread)
        elif cutlass.const_expr(self.fault == "spills"):
            self.many_alive(read, write, thread)
        elif cutlass.const_expr(self.fault == "reread"):
            self.twice(read, write, Int32(slab), thread)
        else:
            self.copy(read, write, Int32(slab), thread)

    @cute.jit
    def copy(self, read: Int64, write: Int64, slab: Int32, thread: Int32):
        """A block's slab, one element a thread and step."""
        strided = self.fault == "uncoalesced" and not self.sound
        for step in cutlass.range(slab // THREADS, unroll=4):
            at = (step * THREADS + thread) * 4
            if cutlass.const_expr(strided):
                # 32 neighbouring elements belong to one lane, which takes one of them at each step.
                at = ((step // 32) * THREADS * 32 + thread * 32 + step % 32) * 4
            _one(write, at)[0] = _one(read, at)[0]

    @cute.jit
    def through_shared(self, read: Int64, write: Int64, slab: Int32, thread: Int32):
        """Tile after tile, each written along its rows and read down its columns."""
        pitch = TILE + 1 if self.sound else TILE
        shared = cute.arch.get_dyn_smem(cutlass.Float32, alignment=16).toint()
        x, y = thread % TILE, thread // TILE
        for tile in cutlass.range(slab // (TILE * TILE)):
            base = tile * TILE * TILE
            for row in cutlass.range_constexpr(TILE * TILE // THREADS):
                line = y + row * (THREADS // TILE)
                value = _one(read, (base + line * TILE + x) * 4)[0]
                _one(shared, (line * pitch + x) * 4, cute.AddressSpace.smem)[0] = value
            cute.arch.sync_threads()
            for row in cutlass.range_constexpr(TILE * TILE // THREADS):
                line = y + row * (THREADS // TILE)
                acc = cutlass.Float32(0.0)
                for i in cutlass.range_constexpr(REPEATS):
                    # Another column each time, or the compiler would read it once.
                    column = (line + i) % TILE
                    acc += _one(shared, (x * pitch + column) * 4, cute.AddressSpace.smem)[0]
                _one(write, (base + line * TILE + x) * 4)[0] = acc
            cute.arch.sync_threads()

    @cute.jit
    def many_alive(self, read: Int64, write: Int64, thread: Int32):
        """64 elements a thread, all needed until the last has been added."""
        rX = cute.make_rmem_tensor(cute.make_layout(ALIVE), cutlass.Float32)
        acc = cutlass.Float32(0.0)
        for i in cutlass.range_constexpr(ALIVE):
            rX[i] = _one(read, (i * self.threads + thread) * 4)[0]
            acc += rX[i]
        for i in cutlass.range_constexpr(ALIVE):
            _one(write, (i * self.threads + thread) * 4)[0] = rX[i] * acc

    @cute.jit
    def twice(self, read: Int64, write: Int64, slab: Int32, thread: Int32):
        """A thread's mean over its part of the slab, then the slab again."""
        acc = cutlass.Float32(0.0)
        for step in cutlass.range(slab // THREADS, unroll=8):
            acc += _one(read, (step * THREADS + thread) * 4)[0]
        mean = acc / cutlass.Float32(slab // THREADS)
        for step in cutlass.range(slab // THREADS, unroll=8):
            at = (step * THREADS + thread) * 4
            _one(write, at)[0] = _one(read, at)[0] - mean


def _one(base: Any, offset: Any, space: Any = cute.AddressSpace.gmem) -> Any:
    """The element at a byte offset, as a tensor of one."""
    at = base + Int64(offset) if space == cute.AddressSpace.gmem else base + offset
    return elements_at(at, cutlass.Float32, 1, space)


def _arguments(_: PlantedConfig) -> tuple[Any, ...]:
    """What a kernel is traced with: as the recorded ones, whose pointers have torch's alignment."""
    pointers = [cute.runtime.make_ptr(cutlass.Float32, 0, cute.AddressSpace.gmem, assumed_align=16) for _ in range(2)]
    return *pointers, Int64(1), Int64(1), cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=False)


build = builder(Planted, arguments=_arguments)
