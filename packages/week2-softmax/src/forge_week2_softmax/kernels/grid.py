"""Few rows over the whole GPU in one launch: one read, one write.

    out[k...] = map(row, reduce(row))        the row contiguous in every tensor, in whole chunks

How the data moves.  A row is cut into parts of whole chunks, one for each of its blocks, and all blocks are resident at
once, one on a multiprocessor.  A thread asks for all of its chunks, reduces them, and keeps them while the blocks
exchange their accumulators through slots in global memory:

    row          [ part 0 | part 1 | ... | part P-1 ]        a part waits in the registers of its block
                      |        |              |
                      v        v              v     (max, sum) of each part
    slots        [   0    |   1    | ... |   P-1    ]        in the workspace, which stays in the L2 cache
                      |        |              |
                      v        v              v     every block reads all P, until they are there
    write        [ part 0 | part 1 | ... | part P-1 ]        from where it waits

Bytes moved: each element is read once and written once.  The bound of a short row is latency: the launch, one load, two
reductions in a block, a slot's way to the L2 cache and back, one store.  ``split`` does without the exchange, and has a
second launch and a second load for it: at 1 x 2^20 on an H200 it takes 10 to 16 % more time.

Limits: rows of whole chunks; as many rows as multiprocessors; 16 chunks a thread.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from forge_core.cache import Traceable, compile_cached
from forge_core.cute.block import SLOTS_BYTES, reduce_block
from forge_core.cute.grid import SLOT_BYTES, empty_slots, reduce_grid
from forge_core.cute.memory import Int32, Int64, Uint32, example_arguments, name_kernel
from forge_core.cute.room import room_for
from forge_week2_softmax.configs import GridConfig
from forge_week2_softmax.kernels import chunks as chunk
from forge_week2_softmax.kernels.program import Program
from forge_week2_softmax.kernels.split import part_of, span_of
from forge_week2_softmax.kernels.sweep import load_turn, write_turn

__all__ = ["Grid", "build"]


class Grid:
    """The kernel for one configuration."""

    def __init__(self, config: GridConfig) -> None:
        self.config = config
        self.program = Program(config.arithmetic)
        #: Bytes of shared memory of one reduction in a block.
        self.slots_bytes = len(self.program.monoid.types) * SLOTS_BYTES

    @cute.jit
    def __call__(self, *args: Any):
        """Launches ``parts`` blocks a row.

        The arguments are the tensors' pointers and the workspace's; the elements of a row; the parts; the number of
        rows, then size and step in bytes for each tensor of each dimension, innermost first; the launch's number; the
        stream.
        """
        config, program = self.config, self.program
        addresses, (length, parts), (kept,) = chunk.split_arguments(args, program.sides + 1, config)
        span = span_of(config.row, length, parts)
        name_kernel(self.kernel, config.kernel_name)
        self.kernel(addresses[:-1], addresses[-1], length, Int32(parts), span, kept, args[-2]).launch(
            grid=(Int32(parts), Int32(kept[0]), 1),
            block=(config.row.threads, 1, 1),
            smem=2 * self.slots_bytes,
            cooperative=True,
            stream=args[-1],
            **room_for(config.resident),
        )

    @cute.kernel
    def kernel(
        self, addresses: tuple, workspace: Int64, length: Int64, parts: Int32, span: Int32, kept: tuple, number: Int64
    ):
        program, config, monoid = self.program, self.config.row, self.program.monoid
        thread, _, _ = cute.arch.thread_idx()
        part, row, _ = cute.arch.block_idx()
        starts, shift, begin, end = part_of(program, config, addresses, length, kept, part, span, row)
        held = chunk.new_chunks(program, config, config.unroll)
        load_turn(program, config, starts, begin + thread, end, shift, length, (length,), held)
        rAcc = program.new_accumulator()
        program.absorb(rAcc, held)
        shared = cute.arch.get_dyn_smem(Uint32, alignment=16).toint()
        acc = reduce_block(program.get(rAcc), monoid, config.threads, shared, thread)
        slots, again = workspace + Int64(row) * parts * SLOT_BYTES, shared + self.slots_bytes
        total = reduce_grid(acc, monoid, config.threads, slots, number, part, parts, again, thread)
        if cutlass.const_expr(program.one_result):
            if (part == 0) & (thread == 0):
                program.store_result(total, starts[-1])
        else:
            program.forget(held, Uint32(length >> 63))
            constants = program.constants(total, ())
            write_turn(program, config, starts, begin + thread, end, shift, length, (length,), held, constants)
        empty_slots(monoid, config.threads, slots, number, part, parts, thread)


@compile_cached
def build(config: GridConfig) -> Traceable:
    """What to compile for a configuration."""
    grid = Grid(config)
    pointers, wide = grid.program.sides + 1, config.integers + sum(config.lengths) + 1
    return Traceable(grid, example_arguments(pointers=pointers, wide=wide), name=config.kernel_name)
