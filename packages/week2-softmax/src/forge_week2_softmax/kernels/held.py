"""One read, one write: the row stays on chip.  ``single_pass`` and ``cluster``.

    out[k...] = map(row, reduce(row))        the row contiguous in every tensor, at any address

How the data moves.  A row is held by some lanes of a warp, by a block, or by a cluster of blocks (sm_90 and newer).
A thread asks for all of its chunks before it uses the first, reduces them, exchanges one accumulator with the others,
and computes the results from what it holds:

    lane        0       1     ...  T-1  |  0       1    ...           T = lanes * blocks
    chunk       [16 B]  [16 B]          |  [16 B]  ...                all in flight at once
                  |
                  v  (max, sum) of the thread's elements
    lanes        shuffles                  every lane has its warp's
    block        shared memory             a slot for each warp
    cluster      distributed shared memory a slot for each block, written by its peers
                  |
                  v  constants of the row: max, 1 / sum
    write       [16 B]  [16 B]  ...        the same chunks, from the same registers

Chunks wait in registers, or (``staged``) in shared memory, where ``cp.async`` puts them without passing registers;
each thread reads back its own, so that needs no barrier.

Bytes moved: each element is read once and written once, so the bound is DRAM bandwidth.  A block alternates between
loading, exchanging and storing; several resident on a multiprocessor overlap, which is why long rows are better held
by several small blocks than by one that fills the multiprocessor.

Limits: what fits: 16 chunks a thread; clusters of up to 16 blocks.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from forge_core.cache import Traceable, compile_cached
from forge_core.device_code.block import SLOTS_BYTES, reduce_block
from forge_core.device_code.cluster import announce, reduce_cluster
from forge_core.device_code.memory import (
    SHARED,
    Int32,
    Int64,
    Uint32,
    elements_at,
    entry_offsets,
    example_arguments,
    name_kernel,
)
from forge_core.device_code.warp import WARP, reduce_lanes
from forge_week2_softmax.configs import HeldConfig
from forge_week2_softmax.kernels import chunks as chunk
from forge_week2_softmax.kernels.program import Program

__all__ = ["Held", "build"]

#: Bytes of a chunk that waits in shared memory.
SLOT = 16


class Held:
    """The kernel for one configuration."""

    def __init__(self, config: HeldConfig) -> None:
        self.config = config
        self.program = Program(config.arithmetic)
        parts = len(self.program.monoid.types) if self.program.monoid else 0
        levels = (config.lanes > WARP) + (config.blocks > 1)
        #: Tensors of which chunks wait in shared memory.
        self.staged = self.program.elements[len(self.program.elements) - config.staged :]
        self.slots = levels * parts * SLOTS_BYTES
        self.smem_bytes = self.slots + config.staged * config.chunks * config.threads * SLOT

    @cute.jit
    def __call__(self, *args: Any):
        """Launches the blocks of all rows.

        The arguments are the tensors' pointers; the elements of a row; where any number of blocks may share a row, how
        many; the number of rows, then size and step in bytes for each tensor of each dimension, innermost first; the
        stream.
        """
        config, integers = self.config, 1 + (self.config.blocks == 0)
        addresses, given, (kept,) = chunk.split_arguments(args, self.program.sides, integers)
        blocks = config.blocks if cutlass.const_expr(config.blocks > 0) else given[-1]
        rows = (kept[0] + (config.rows_per_block - 1)) // config.rows_per_block
        name_kernel(self.kernel, config.kernel_name)
        self.kernel(addresses, Int32(given[0]), Uint32(blocks), kept).launch(
            grid=(Int32(rows * blocks), 1, 1),
            block=(config.threads, 1, 1),
            cluster=(config.blocks, 1, 1) if cutlass.const_expr(config.blocks > 1) else None,
            smem=self.smem_bytes,
            stream=args[-1],
        )

    @cute.kernel
    def kernel(self, addresses: tuple, length: Int32, blocks: Uint32, kept: tuple):
        config, program = self.config, self.program
        if cutlass.const_expr(config.blocks > 1):
            announce()
        thread, _, _ = cute.arch.thread_idx()
        number, _, _ = cute.arch.block_idx()
        shared = Int32(0)
        if cutlass.const_expr(self.smem_bytes > 0):
            shared = Int32(cute.arch.get_dyn_smem(Uint32, alignment=16).toint())
        rank, block = Int32(0), Uint32(number)
        if cutlass.const_expr(config.blocks != 1):
            rank, block = Int32(Uint32(number) % blocks), Uint32(number) // blocks
        row = Int64(block) * config.rows_per_block + Int64(thread // config.lanes)
        own = row
        if cutlass.const_expr(config.rows_per_block > 1):
            # Lanes beyond the last row take part in the shuffles: they stand in that row and hold nothing of it.
            own = cutlass.min(row, kept[0] - 1)
            length = Int32(cutlass.select_(row < kept[0], length, Int32(0)))
        offsets = entry_offsets(own if cutlass.const_expr(config.wide) else Uint32(own), kept, program.sides)
        starts, shift = chunk.row_start(program, config, addresses, offsets)
        first = rank * (config.lanes * config.chunks) + thread % config.lanes

        slots = shared + self.slots + thread * SLOT
        held = chunk.new_chunks(program, config, config.chunks)
        chunk.clear(program, held)
        for u in cutlass.range_constexpr(config.chunks):
            place = (first + u * config.lanes) * config.vector - shift
            for i in cutlass.range_constexpr(len(program.elements)):
                side = program.elements[i]
                if cutlass.const_expr(side in self.staged):
                    slot = slots + (self.staged.index(side) * config.chunks + u) * (config.threads * SLOT)
                    chunk.copy_async(program, config, side, starts[side], first + u * config.lanes, place, length, slot)
                else:
                    rChunk = held[i][(u, None)]
                    chunk.read(program, config, side, starts[side], first + u * config.lanes, place, length, rChunk)
        if cutlass.const_expr(config.staged > 0):
            cute.arch.cp_async_commit_group()
            cute.arch.cp_async_wait_group(0)

        total = self.reduce(held, slots, shared, thread, rank)
        if cutlass.const_expr(program.one_result):
            self.finish(total, starts[program.sides - 1], thread, rank, row, kept)
        else:
            if cutlass.const_expr(program.monoid is not None):
                program.forget(held, Uint32(length) >> 31)
            constants = program.constants(total, chunk.row_scalars(program, starts))
            rOut = cute.make_rmem_tensor(config.vector, program.dst)
            for u in cutlass.range_constexpr(config.chunks):
                place = (first + u * config.lanes) * config.vector - shift
                program.map(self.take(held, slots, u), constants, rOut)
                chunk.write(program, config, starts[program.sides - 1], first + u * config.lanes, place, length, rOut)

    def take(self, held: list[Any], slots: Any, u: int) -> list[Any]:
        """Chunk ``u`` of each tensor, in registers."""
        found = []
        for side, rChunks in zip(self.program.elements, held, strict=True):
            rChunk = rChunks[(u, None)]
            if side in self.staged:
                slot = slots + (self.staged.index(side) * self.config.chunks + u) * (self.config.threads * SLOT)
                rChunk = cute.make_rmem_tensor(self.config.vector, self.program.kept(side))
                cute.autovec_copy(elements_at(slot, self.program.src(side), self.config.vector, SHARED), rChunk)
            found.append(rChunk)
        return found

    def reduce(self, held: list[Any], slots: Any, shared: Any, thread: Any, rank: Any) -> tuple[Any, ...]:
        """The row's accumulator, for every thread."""
        config, program, monoid = self.config, self.program, self.program.monoid
        if monoid is None:
            return ()
        if config.staged:
            rAcc = program.new_accumulator()
            for u in range(config.chunks):
                program.absorb(rAcc, self.take(held, slots, u))
            acc = program.get(rAcc)
        else:
            acc = program.gather(held)
        if config.lanes <= WARP:
            acc = reduce_lanes(acc, monoid, config.lanes)
        else:
            acc = reduce_block(acc, monoid, config.threads, shared, thread)
        if config.blocks > 1:
            peers = shared + (config.lanes > WARP) * len(monoid.types) * SLOTS_BYTES
            acc = reduce_cluster(acc, monoid, config.blocks, peers, thread, rank)
        return acc

    @cute.jit
    def finish(self, total: tuple, address: Any, thread: Any, rank: Any, row: Any, kept: tuple):
        if (thread % self.config.lanes == 0) & (rank == 0) & (row < kept[0]):
            self.program.store_result(total, address)


@compile_cached
def build(config: HeldConfig) -> Traceable:
    """What to compile for a configuration."""
    held = Held(config)
    sides = held.program.sides
    arguments = example_arguments(
        pointers=sides, wide=1 + (config.blocks == 0), tuples=(1 + (1 + sides) * config.kept_rank,)
    )
    return Traceable(held, arguments, name=config.kernel_name)
