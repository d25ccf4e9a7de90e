"""Many blocks a row, and a second pass: for rows that are too few, or too long, for one cluster each.

    part[k, p] = reduce(part p of row k)
    out[k...]  = map(row, combine(part[k, 0:P]))

How the data moves.  The row is cut into P parts of whole chunks.  In the first pass a block reduces a part to one
accumulator; in the second a block combines the row's P accumulators, in an order that does not depend on which block
was ready first, and maps the same part:

    row          [ part 0 | part 1 | ... | part P-1 ]
    first pass      0        1             P-1          -> accumulators in the workspace, which stay in the L2 cache
    second pass     0        1             P-1          reads all P, and its part again

On sm_90 and newer the second pass starts while the first one runs, and reads its first chunks before it waits for the
accumulators: what a short row needs of the second pass is then the wait, not the launch and the load.

Bytes moved: 3 times the tensor for rows beyond the L2 cache; 2 times where it holds them, as at 1 x 2^20.

Limits: 65535 rows; 1024 parts.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from forge_core.cache import Traceable, compile_cached
from forge_core.cute.block import SLOTS_BYTES, reduce_block
from forge_core.cute.memory import (
    Int32,
    Int64,
    Uint32,
    entry_offsets,
    example_arguments,
    load_element,
    name_kernel,
    store_element,
)
from forge_core.cute.room import room_for
from forge_week2_softmax.configs import SplitConfig, SweepConfig
from forge_week2_softmax.kernels import chunks as chunk
from forge_week2_softmax.kernels.program import Program
from forge_week2_softmax.kernels.sweep import load_turn, map_turns, reduce_turns, write_turn

__all__ = ["Split", "build", "part_of", "span_of"]

#: Parts of a row begin at multiples of this many chunks, so that two blocks do not share a line of memory.
LINE_CHUNKS = 8


def span_of(row: SweepConfig, length: Any, parts: Any) -> Any:
    """Chunks of a part, by the most that a row can touch; before the launch, as a thread would divide for long."""
    step = parts * LINE_CHUNKS
    chunks = chunk.count(row, length, row.vector - 1 if row.edges else 0)
    return Int32((chunks + (step - 1)) // step * LINE_CHUNKS)


@cute.jit
def part_of(
    program: cutlass.Constexpr,
    config: cutlass.Constexpr,
    addresses: tuple,
    length: Any,
    kept: tuple,
    part: Any,
    span: Any,
    row: Any,
):
    """Where a part of a row lies: the row's addresses, its place in a chunk, the part's first and last chunk."""
    offsets = entry_offsets(Uint32(row), kept, program.sides)
    starts, shift = chunk.row_start(program, config, addresses, offsets)
    chunks = chunk.count(config, length, shift)
    begin = cutlass.min(part * span, chunks)
    return starts, shift, begin, cutlass.min(begin + span, chunks)


class Split:
    """The two kernels for one configuration."""

    def __init__(self, config: SplitConfig) -> None:
        self.config = config
        self.program = Program(config.arithmetic)
        #: Bytes of an accumulator in the workspace.
        self.pair = len(self.program.monoid.types) * self.program.acc.width // 8 if self.program.monoid else 0

    @cute.jit
    def __call__(self, *args: Any):
        """Launches two passes of ``parts`` blocks a row.

        The arguments are the tensors' pointers and the workspace's; the elements of a row; the parts; the number of
        rows, then size and step in bytes for each tensor of each dimension, innermost first; the stream.
        """
        config, program = self.config, self.program
        addresses, (length, parts), (kept,) = chunk.split_arguments(args, program.sides + 1, config)
        tensors, workspace = addresses[:-1], addresses[-1]
        span = span_of(config.row, length, parts)
        name_kernel(self.first, f"{config.kernel_name}_reduce")
        self.first(tensors, workspace, length, span, kept).launch(
            grid=(Int32(parts), Int32(kept[0]), 1),
            block=(config.row.threads, 1, 1),
            smem=2 * SLOTS_BYTES,
            stream=args[-1],
            **room_for(config.resident),
        )
        name_kernel(self.second, f"{config.kernel_name}_write")
        self.second(tensors, workspace, length, Int32(parts), span, kept).launch(
            grid=(1 if cutlass.const_expr(program.one_result) else Int32(parts), Int32(kept[0]), 1),
            block=(config.row.threads, 1, 1),
            smem=2 * SLOTS_BYTES,
            use_pdl=config.dependent,
            stream=args[-1],
            **room_for(config.resident),
        )

    @cute.kernel
    def first(self, addresses: tuple, workspace: Int64, length: Int64, span: Int32, kept: tuple):
        program, row_config = self.program, self.config.row
        if cutlass.const_expr(self.config.dependent):
            cute.arch.griddepcontrol_launch_dependents()
        thread, _, _ = cute.arch.thread_idx()
        part, row, _ = cute.arch.block_idx()
        parts, _, _ = cute.arch.grid_dim()
        starts, shift, begin, end = part_of(program, row_config, addresses, length, kept, part, span, row)
        rAcc = program.new_accumulator()
        reduce_turns(program, row_config, starts, begin, end, shift, length, (length,), thread, rAcc)
        shared = cute.arch.get_dyn_smem(Uint32, alignment=16).toint()
        acc = reduce_block(program.get(rAcc), program.monoid, row_config.threads, shared, thread)
        if thread == 0:
            address = workspace + (Int64(row) * parts + part) * self.pair
            for i in cutlass.range_constexpr(len(acc)):
                store_element(acc[i], address + i * (program.acc.width // 8), program.acc)

    @cute.kernel
    def second(self, addresses: tuple, workspace: Int64, length: Int64, parts: Int32, span: Int32, kept: tuple):
        program, row_config, monoid = self.program, self.config.row, self.program.monoid
        thread, _, _ = cute.arch.thread_idx()
        part, row, _ = cute.arch.block_idx()
        starts, shift, begin, end = part_of(program, row_config, addresses, length, kept, part, span, row)
        held = chunk.new_chunks(program, row_config, row_config.unroll)
        if cutlass.const_expr(not program.one_result):
            load_turn(program, row_config, starts, begin + thread, end, shift, length, (length,), held)
        if cutlass.const_expr(self.config.dependent):
            cute.arch.griddepcontrol_wait()

        rAcc = program.new_accumulator()
        for p in cutlass.range(thread, parts, row_config.threads, unroll=1):
            address = workspace + (Int64(row) * parts + p) * self.pair
            other = tuple(
                load_element(address + i * (program.acc.width // 8), program.acc) for i in range(len(monoid.types))
            )
            program.put(rAcc, monoid.combine(program.get(rAcc), other))
        shared = cute.arch.get_dyn_smem(Uint32, alignment=16).toint()
        total = reduce_block(program.get(rAcc), monoid, row_config.threads, shared, thread)
        if cutlass.const_expr(program.one_result):
            if thread == 0:
                program.store_result(total, starts[-1])
        else:
            constants = program.constants(total, ())
            write_turn(program, row_config, starts, begin + thread, end, shift, length, (length,), held, constants)
            rest = cutlass.min(begin + row_config.threads * row_config.unroll, end)
            map_turns(program, row_config, starts, rest, end, shift, length, (length,), thread, constants)


@compile_cached
def build(config: SplitConfig) -> Traceable:
    """What to compile for a configuration."""
    split = Split(config)
    sides = split.program.sides
    arguments = example_arguments(pointers=sides + 1, wide=config.integers + sum(config.lengths))
    return Traceable(split, arguments, name=config.kernel_name)
