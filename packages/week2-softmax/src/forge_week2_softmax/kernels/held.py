"""One read, one write: the row stays on chip.  ``single_pass`` and ``cluster``.

    out[k...] = map(row, reduce(row))        the row contiguous in every tensor, at any address

How the data moves.  A row is held by some lanes of a warp, by a block, or by a cluster of blocks (sm_90 and newer).
A thread asks for all of its chunks before it uses the first, reduces them, exchanges one accumulator with the others,
and computes the results from what it holds:

    lane        0       1     ...  T-1  |  0       1    ...           T = lanes * blocks: blocks take turns
    chunk       [16 B]  [16 B]          |  [16 B]  ...                all in flight at once
                  |
                  v  (max, sum) of the thread's elements
    lanes        shuffles                  every lane has its warp's
    block        shared memory             a slot for each warp
    cluster      distributed shared memory each warp writes to all blocks: a slot for every warp of the cluster
                  |
                  v  constants of the row: max, 1 / sum
    write       [16 B]  [16 B]  ...        the same chunks, from where they wait

    waiting     c - s chunks of a thread in registers, s in slots of shared memory that no other thread touches

Bytes moved: each element is read once and written once, so the bound is DRAM bandwidth.  A block alternates between
loading, exchanging and storing; several resident on a multiprocessor overlap, which is why long rows are better held
by several small blocks than by one that fills the multiprocessor, and why what fills the registers of one is better
held half in shared memory, by two.  The L2 is asked to evict last what is read: ``forge_core.cute.hold``.

Limits: what fits: 16 chunks a thread; clusters of up to 16 blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import cutlass
import cutlass.cute as cute

from forge_core.cache import Traceable, compile_cached
from forge_core.cute.block import SLOTS_BYTES, reduce_block
from forge_core.cute.cluster import mailbox_bytes, open_mailbox, reduce_by_mail
from forge_core.cute.hold import await_stage, hold_policy, stage_held_if
from forge_core.cute.memory import (
    CHUNK,
    SHARED,
    Int32,
    Int64,
    Uint32,
    elements_at,
    entry_offsets,
    example_arguments,
    name_kernel,
    store_element,
)
from forge_core.cute.room import room_for
from forge_core.cute.warp import WARP, reduce_lanes
from forge_week2_softmax.configs import HeldConfig
from forge_week2_softmax.kernels import chunks as chunk
from forge_week2_softmax.kernels.program import Program

__all__ = ["Held", "build"]


class Held:
    """The kernel for one configuration."""

    def __init__(self, config: HeldConfig) -> None:
        self.config = config
        self.program = Program(config.arithmetic)
        monoid = self.program.monoid
        #: Bytes of shared memory that the exchange needs.
        self.smem_bytes = 0
        if monoid is not None and config.blocks > 1:
            self.smem_bytes = mailbox_bytes(monoid, config.threads, config.blocks)
        elif monoid is not None and config.lanes > WARP:
            self.smem_bytes = len(monoid.types) * SLOTS_BYTES
        waits = all(self.program.words(side, config.vector) == 4 for side in self.program.elements)
        if config.staged and not (waits and monoid is not None and config.staged < config.chunks):
            raise ValueError(f"expected whole chunks of 16 bytes, some of them in registers, and a reduction: {config}")
        row = config.blocks == 1 and config.lanes <= WARP and not config.arithmetic.backward
        if config.top_first and not row:
            raise ValueError(f"expected the lanes of a warp to find a row's maximum, forward: {config}")
        #: Chunks of a thread that wait in registers, and where the slots of the others begin.
        self.kept = config.chunks - config.staged
        self.slots_at = -(-self.smem_bytes // CHUNK) * CHUNK
        if config.staged:
            self.smem_bytes = self.slots_at + CHUNK * config.threads * config.staged * len(self.program.elements)
        #: Chunks from one of a thread to its next: blocks of a cluster take turns along the row.
        self.step = config.lanes * max(config.blocks, 1)
        #: Elements of a lane outside whole chunks.
        self.turns = max(1, 2 * config.vector // config.lanes)

    @cute.jit
    def __call__(self, *args: Any):
        """Launches the blocks of all rows.

        The arguments are the tensors' pointers; the elements of a row; where any number of blocks may share a row, how
        many; the number of rows, then size and step in bytes for each tensor of each dimension, innermost first; the
        stream.
        """
        config = self.config
        addresses, given, (kept,) = chunk.split_arguments(args, self.program.sides, config)
        blocks = config.blocks if cutlass.const_expr(config.blocks > 0) else given[-1]
        rows = (kept[0] + (config.rows_per_block - 1)) // config.rows_per_block
        name_kernel(self.kernel, config.kernel_name)
        self.kernel(addresses, Int32(given[0]), Uint32(blocks), kept).launch(
            grid=(Int32(rows * blocks), 1, 1),
            block=(config.threads, 1, 1),
            cluster=(config.blocks, 1, 1) if cutlass.const_expr(config.blocks > 1) else None,
            smem=self.smem_bytes,
            stream=args[-1],
            **room_for(config.resident),
        )

    @cute.kernel
    def kernel(self, addresses: tuple, length: Int32, blocks: Uint32, kept: tuple):
        config, program = self.config, self.program
        thread, _, _ = cute.arch.thread_idx()
        number, _, _ = cute.arch.block_idx()
        shared = Int32(0)
        if cutlass.const_expr(self.smem_bytes > 0):
            shared = Int32(cute.arch.get_dyn_smem(Uint32, alignment=16).toint())
        if cutlass.const_expr(config.blocks > 1):
            open_mailbox(shared, thread)
        rank, block = Int32(0), Uint32(number)
        if cutlass.const_expr(config.blocks > 1):
            # Known when the kernel is compiled, so that a shift divides.
            rank, block = Int32(Uint32(number) % config.blocks), Uint32(number) // config.blocks
        elif cutlass.const_expr(config.blocks == 0):
            rank, block = Int32(Uint32(number) % blocks), Uint32(number) // blocks
        numbers = Int64 if cutlass.const_expr(config.wide) else Int32
        rows = numbers(kept[0])
        row = numbers(block) * config.rows_per_block + numbers(thread // config.lanes)
        own = row
        if cutlass.const_expr(config.rows_per_block > 1):
            # Lanes beyond the last row take part in the shuffles: they stand in that row and hold nothing of it.
            own = cutlass.min(row, rows - 1)
            length = Int32(cutlass.select_(row < rows, length, Int32(0)))
        offsets = entry_offsets(own if cutlass.const_expr(config.wide) else Uint32(own), kept, program.sides)
        starts, shift = chunk.row_start(program, config, addresses, offsets)
        # Of any number of blocks each has what its lanes hold; blocks of a cluster take turns.
        first = thread % config.lanes + rank * (config.lanes * (config.chunks if config.blocks == 0 else 1))
        places = chunk.chunk_addresses(program, config, starts, first)
        place = first * config.vector - shift
        held = chunk.new_chunks(program, config, self.kept)
        chunk.clear(program, held)
        policy, end = hold_policy(), chunk.places_end(config, length)
        for u in cutlass.range_constexpr(config.chunks):
            turn = u * self.step
            for i in cutlass.range_constexpr(len(program.elements)):
                side = program.elements[i]
                if cutlass.const_expr(u < self.kept):
                    rChunk = held[i][(u, None)]
                    chunk.read_held(program, config, side, places[side], turn, place, end, length, rChunk, policy)
                else:
                    self.stage(i, places[side], turn, self.slot(shared, thread, i, u), place, end, policy)
        edge = self.read_edges(starts, thread, rank, length, shift)

        total = self.reduce(held, edge, shared, thread, rank)
        if cutlass.const_expr(program.one_result):
            self.finish(total, starts[program.sides - 1], thread, rank, row < rows)
        else:
            if cutlass.const_expr(program.monoid is not None and not config.top_first):
                program.forget(held, Uint32(length) >> 31)
            constants = program.constants(total, chunk.row_scalars(program, starts))
            rOut = cute.make_rmem_tensor(config.vector, program.dst)
            for u in cutlass.range_constexpr(config.chunks):
                program.map(self.waiting(held, shared, thread, u), constants, rOut)
                address = places[-1] + u * (self.step * chunk.chunk_bytes(program, config, program.sides - 1))
                chunk.write(program, config, address, place + u * (self.step * config.vector), length, rOut, False)
            self.write_edges(starts, thread, rank, length, shift, edge, constants)

    def slot(self, shared: Any, thread: Any, i: int, u: int) -> Any:
        """Where chunk ``u`` of the thread waits, of the tensor that is number ``i`` of those with elements."""
        number = i * self.config.staged + u - self.kept
        return shared + (self.slots_at + number * (self.config.threads * CHUNK)) + thread * CHUNK

    def stage(self, i: int, address: Any, turn: int, slot: Any, place: Any, end: Any, policy: Any) -> None:
        """Asks for a chunk that is to wait in shared memory.

        Args:
            i: the tensor's number among those with elements.
            address: as of ``chunks.read_held``, with ``turn``, ``place``, ``end`` and ``policy``.
            turn: as there.
            slot: where the chunk is to wait.
            place: as there.
            end: as there.
            policy: as there.
        """
        nothing = chunk.new_chunks(self.program, self.config, 1)
        chunk.clear(self.program, nothing)
        ahead = turn * self.config.vector
        offset = turn * chunk.chunk_bytes(self.program, self.config, self.program.elements[i])
        stage_held_if(place, ahead, end, address, offset, slot, cute.recast_tensor(nothing[i], Uint32), policy)

    def waiting(self, held: list[Any], shared: Any, thread: Any, u: int) -> list[Any]:
        """Chunk ``u`` of the thread of each tensor, from where it waits."""
        if u < self.kept:
            return [rChunks[(u, None)] for rChunks in held]
        # What is read here again must not stay in registers in between, where the compiler would keep it.
        cute.arch.sync_warp()
        chunks = chunk.new_chunks(self.program, self.config, 1)
        for i, side in enumerate(self.program.elements):
            source = elements_at(self.slot(shared, thread, i, u), self.program.src(side), self.config.vector, SHARED)
            cute.autovec_copy(source, chunks[i][(0, None)])
        return [rChunk[(0, None)] for rChunk in chunks]

    @cute.jit
    def read_edges(self, starts: Any, thread: Any, rank: Any, length: Any, shift: Any):
        """For each tensor that is read by element, this lane's share of those outside whole chunks, in registers."""
        config, program = self.config, self.program
        edge = []
        if cutlass.const_expr(config.edges):
            edge = [cute.make_rmem_tensor(self.turns, program.kept(side)) for side in program.elements]
            chunk.clear(program, edge)
            for turn in cutlass.range_constexpr(self.turns):
                place, inside = chunk.edge_place(config, thread % config.lanes, length, shift, turn)
                for i in cutlass.range_constexpr(len(program.elements)):
                    side = program.elements[i]
                    start = starts[side] + Int64(shift) * chunk.element_bytes(program, config, side)
                    chunk.read_element(program, config, side, start, place, inside & (rank == 0), edge[i], turn)
        return edge

    @cute.jit
    def write_edges(self, starts: Any, thread: Any, rank: Any, length: Any, shift: Any, edge: Any, constants: tuple):
        """Writes the results of what :meth:`read_edges` read."""
        config, program = self.config, self.program
        if cutlass.const_expr(config.edges):
            for turn in cutlass.range_constexpr(self.turns):
                place, inside = chunk.edge_place(config, thread % config.lanes, length, shift, turn)
                y = program.outcome([rEdge[turn] for rEdge in edge], constants)
                if inside & (rank == 0):
                    store_element(y, starts[-1] + Int64(place + shift) * program.sizes[-1], program.dst)

    def from_slots(self, held: list[Any], shared: Any, thread: Any) -> Iterator[list[Any]]:
        """The chunks that wait in shared memory, one after the other."""
        return (self.waiting(held, shared, thread, u) for u in range(self.kept, self.config.chunks))

    def reduce(self, held: list[Any], edge: list[Any], shared: Any, thread: Any, rank: Any) -> tuple[Any, ...]:
        """The row's accumulator, for every thread."""
        config, program, monoid = self.config, self.program, self.program.monoid
        if monoid is None:
            return ()
        groups: list[Callable[[], Iterable[list[Any]]]] = [lambda: [held]]
        if config.staged:
            await_stage()
            groups.append(lambda: self.from_slots(held, shared, thread))
        if config.edges:
            groups.append(lambda: [edge])
        if config.top_first:
            return program.gather_row(groups, config.lanes)
        acc = program.gather_all(groups)
        if config.blocks > 1:
            return reduce_by_mail(acc, monoid, config.threads, config.blocks, shared, thread, rank)
        if config.lanes > WARP:
            return reduce_block(acc, monoid, config.threads, shared, thread)
        return reduce_lanes(acc, monoid, config.lanes)

    @cute.jit
    def finish(self, total: tuple, address: Any, thread: Any, rank: Any, inside: Any):
        if (thread % self.config.lanes == 0) & (rank == 0) & inside:
            self.program.store_result(total, address)


@compile_cached
def build(config: HeldConfig) -> Traceable:
    """What to compile for a configuration."""
    held = Held(config)
    sides = held.program.sides
    arguments = example_arguments(pointers=sides, wide=config.integers + sum(config.lengths))
    return Traceable(held, arguments, name=config.kernel_name)
