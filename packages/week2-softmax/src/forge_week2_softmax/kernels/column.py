"""Neighbouring threads have neighbouring rows: for rows that are not contiguous, as in softmax(x, 0).

    out[k..., c] = map(row, reduce(row))        rows numbered by (k..., c), neighbours in c close together

How the data moves.  A block has a tile of ``lanes * vector`` neighbouring rows, and its threads walk down them:

               c ->  lane 0    lane 1   ...           a thread reads ``vector`` rows at once, 16 bytes where it can
    group 0    n = 0 [16 B]    [16 B]
    group 1    n = 1 [16 B]    [16 B]                 each place of the 16 bytes is a row of its own, with an
      ...                                             accumulator of its own
    group 0    n = G [16 B]    [16 B]   ...           chunk 2 of the same threads

    lanes of a warp that have the same rows           shuffles
    warps                                             shared memory: a slot for each warp and row

Bytes moved: where a row is at most ``groups * chunks`` elements, the chunks stay in registers: one read, one write.
Longer rows are read twice.

Limits: none, except that few and very long rows leave most of the GPU idle: a tile of rows has one block.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from forge_core.cache import Traceable, compile_cached
from forge_core.cute.memory import (
    SHARED,
    Int32,
    Int64,
    Uint32,
    elements_at,
    entry_offsets,
    example_arguments,
    load_element,
    name_kernel,
    store_element,
)
from forge_core.cute.room import room_for
from forge_core.cute.warp import WARP, reduce_lanes
from forge_week2_softmax.configs import ColumnConfig
from forge_week2_softmax.kernels import chunks as chunk
from forge_week2_softmax.kernels.program import Program

__all__ = ["Column", "build"]


class Column:
    """The kernel for one configuration."""

    def __init__(self, config: ColumnConfig) -> None:
        self.config = config
        self.program = Program(config.arithmetic)
        self.parts = len(self.program.monoid.types) if self.program.monoid else 0
        self.warps = config.threads // WARP
        #: Bytes of a part of an accumulator.
        self.size = self.program.acc.width // 8

    @cute.jit
    def __call__(self, *args: Any):
        """Launches one block for each tile of rows.

        The arguments are the tensors' pointers; of the neighbouring rows the number and the step in bytes for each
        tensor; of the dimensions around them the number of entries, then size and step in bytes for each tensor of
        each, innermost first; the same of a row's elements; the stream.
        """
        config = self.config
        addresses, _, (inner, kept, reduced) = chunk.split_arguments(args, self.program.sides, config)
        tiles = (inner[0] + (config.tile - 1)) // config.tile
        name_kernel(self.kernel, config.kernel_name)
        self.kernel(addresses, Uint32(tiles), inner, kept, reduced).launch(
            grid=(Int32(tiles * kept[0]), 1, 1),
            block=(config.threads, 1, 1),
            smem=self.warps * config.tile * self.parts * self.size,
            stream=args[-1],
            **room_for(config.resident),
        )

    @cute.kernel
    def kernel(self, addresses: tuple, tiles: Uint32, inner: tuple, kept: tuple, reduced: tuple):
        config, program = self.config, self.program
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        lane, group = thread % config.lanes, thread // config.lanes
        column = Int64(Uint32(block) % tiles) * config.tile + Int64(lane * config.vector)
        inside = column < inner[0]
        offsets = entry_offsets(Uint32(block) // tiles, kept, program.sides)
        # Threads beyond the last row take part in the exchange: they stand in the first row and write nothing.
        own = cutlass.select_(inside, column, Int64(0))
        starts = tuple(a + o + own * step for a, o, step in zip(addresses, offsets, inner[1:], strict=True))
        length = Int32(reduced[0])
        step = config.groups * config.chunks
        turns = (length + (step - 1)) // step
        held = chunk.new_chunks(program, config, config.chunks)
        total = cute.make_rmem_tensor(
            cute.make_layout((config.vector, max(self.parts, 1)), stride=(max(self.parts, 1), 1)), program.acc
        )
        if cutlass.const_expr(program.monoid is not None):
            for v in cutlass.range_constexpr(config.vector):
                program.put(total[(v, None)], program.monoid.identity())
            if cutlass.const_expr(config.held):
                self.load(starts, group, length, reduced, held)
                self.absorb(total, held)
            else:
                for turn in cutlass.range(turns):
                    self.load(starts, turn * step + group, length, reduced, held)
                    self.absorb(total, held)
            self.exchange(total, thread, lane)
        elif cutlass.const_expr(config.held):
            self.load(starts, group, length, reduced, held)

        if cutlass.const_expr(program.one_result):
            if (group == 0) & inside:
                for v in cutlass.range_constexpr(config.vector):
                    program.store_result(program.get(total[(v, None)]), starts[-1] + v * inner[program.sides])
        else:
            if cutlass.const_expr(config.held):
                self.write(starts, group, length, inside, inner, reduced, held, total)
            else:
                for turn in cutlass.range(turns):
                    self.load(starts, turn * step + group, length, reduced, held)
                    self.write(starts, turn * step + group, length, inside, inner, reduced, held, total)

    @cute.jit
    def load(self, starts: tuple, first: Any, length: Any, reduced: tuple, held: Any):
        """Reads ``chunks`` elements of a thread's rows: ``first``, ``first + groups``, ..."""
        config, program = self.config, self.program
        chunk.clear(program, held)
        for u in cutlass.range_constexpr(config.chunks):
            n = first + u * config.groups
            if n < length:
                offsets = entry_offsets(Uint32(n), reduced, program.sides)
                for i in cutlass.range_constexpr(len(program.elements)):
                    side = program.elements[i]
                    program.fetch(side, starts[side] + offsets[side], held[i][(u, None)])

    def absorb(self, total: Any, held: Any) -> None:
        """Reduces what a thread holds: each place of the chunks into the accumulator of its row."""
        for v in range(self.config.vector):
            self.program.absorb(total[(v, None)], [rChunks[(None, v)] for rChunks in held])

    @cute.jit
    def exchange(self, total: Any, thread: Any, lane: Any):
        """Every thread gets the accumulators of its rows, over the whole block."""
        config, program, monoid = self.config, self.program, self.program.monoid
        for v in cutlass.range_constexpr(config.vector):
            acc = reduce_lanes(program.get(total[(v, None)]), monoid, WARP // config.lanes, config.lanes)
            program.put(total[(v, None)], acc)
        if cutlass.const_expr(self.warps > 1):
            shared = Int32(cute.arch.get_dyn_smem(Uint32, alignment=16).toint())
            part_bytes = self.warps * config.tile * self.size
            if thread % WARP < config.lanes:
                for v in cutlass.range_constexpr(config.vector):
                    slot = shared + (thread // WARP * config.tile + lane * config.vector + v) * self.size
                    for i in cutlass.range_constexpr(self.parts):
                        store_element(total[v, i], slot + i * part_bytes, program.acc, SHARED)
            cute.arch.sync_threads()
            for v in cutlass.range_constexpr(config.vector):
                program.put(total[(v, None)], monoid.identity())
                for warp in cutlass.range_constexpr(self.warps):
                    slot = shared + (warp * config.tile + lane * config.vector + v) * self.size
                    other = tuple(load_element(slot + i * part_bytes, program.acc, SHARED) for i in range(self.parts))
                    program.put(total[(v, None)], monoid.combine(program.get(total[(v, None)]), other))

    def constants(self, starts: Any, inner: Any, total: Any) -> list[tuple[Any, ...]]:
        """What the map needs to know of each of a thread's rows."""
        program, found = self.program, []
        for v in range(self.config.vector):
            scalars = tuple(
                load_element(starts[i] + v * inner[1 + i], program.src(i)).to(program.acc) for i in program.scalars
            )
            found.append(program.constants(program.get(total[(v, None)]), scalars))
        return found

    @cute.jit
    def write(
        self,
        starts: tuple,
        first: Any,
        length: Any,
        inside: Any,
        inner: tuple,
        reduced: tuple,
        held: Any,
        total: Any,
    ):
        """Writes the results of what :meth:`load` read."""
        config, program = self.config, self.program
        rOut = cute.make_rmem_tensor(config.vector, program.dst)
        constants = self.constants(starts, inner, total)
        for u in cutlass.range_constexpr(config.chunks):
            n = first + u * config.groups
            for v in cutlass.range_constexpr(config.vector):
                rOut[v] = program.outcome([rChunks[u, v] for rChunks in held], constants[v])
            if inside & (n < length):
                offsets = entry_offsets(Uint32(n), reduced, program.sides)
                cute.autovec_copy(rOut, elements_at(starts[-1] + offsets[-1], program.dst, config.vector))


@compile_cached
def build(config: ColumnConfig) -> Traceable:
    """What to compile for a configuration."""
    column = Column(config)
    sides = column.program.sides
    arguments = example_arguments(pointers=sides, wide=config.integers + sum(config.lengths))
    return Traceable(column, arguments, name=config.kernel_name)
