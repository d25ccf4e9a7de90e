"""The row is read two or three times: ``online`` and ``naive``.

    out[k...] = map(row, reduce(row))        any layout; by chunk where the row is contiguous, else by element

How the data moves.  A block has a row and walks along it:

    naive       read: maximum       |  read: sum of exp(x - max)  |  read, write         three reads, one write
    online      read: (max, sum), merged as it goes               |  read, write         two reads, one write

    thread      0       1    ...  T-1   |   0       1    ...                  ``unroll`` chunks of a thread in flight
    chunk       [16 B]  [16 B]  ...         where the row is contiguous
                [x]     [x]     ...         one element, at the sum of its strides, where it is not

Bytes moved: 4 or 3 times the tensor, where ``single_pass`` moves 2; the L2 cache saves a reread of a short row only.
A backward pass has one sum, so there both ideas read twice.

Limits: none.  ``single_pass`` refers rows that it cannot hold to ``online``.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from forge_core.cache import Traceable, compile_cached
from forge_core.cute.block import SLOTS_BYTES, reduce_block
from forge_core.cute.hold import hold_policy, load_held_if
from forge_core.cute.memory import Int32, Int64, Uint32, Uint64, entry_offsets, example_arguments, name_kernel
from forge_core.cute.monoid import Maximum, Sum
from forge_core.cute.online import MaxSum
from forge_week2_softmax.configs import SweepConfig
from forge_week2_softmax.kernels import chunks as chunk
from forge_week2_softmax.kernels.program import Program

__all__ = ["Sweep", "build", "load_turn", "map_turns", "reduce_turns", "write_turn"]


@cute.jit
def load_turn(
    program: cutlass.Constexpr,
    config: cutlass.Constexpr,
    starts: Any,
    first: Any,
    end: Any,
    shift: Any,
    length: Any,
    reduced: tuple,
    held: Any,
):
    """Reads ``unroll`` chunks of a thread: ``first``, ``first + threads``, ..., those below ``end``."""
    chunk.clear(program, held)
    if cutlass.const_expr(config.hold):
        load_held_turn(program, config, starts, first, end, held)
    for u in cutlass.range_constexpr(0 if config.hold else config.unroll):
        c = first + u * config.threads
        if c < end:
            addresses = _addresses(program, config, starts, c, reduced)
            for i in cutlass.range_constexpr(len(program.elements)):
                side = program.elements[i]
                place = Int64(c) * config.vector - Int64(shift)
                if cutlass.const_expr(config.reduced_rank > 0):
                    chunk.read(program, config, side, addresses[side], Int64(0), Int64(1), held[i][(u, None)], True)
                else:
                    chunk.read(program, config, side, addresses[side], place, length, held[i][(u, None)], True)


def load_held_turn(program: Any, config: Any, starts: Any, first: Any, end: Any, held: Any) -> None:
    """Reads what :func:`load_turn` does of a contiguous row of whole chunks, and asks the L2 to evict it last."""
    words = [program.words(side, config.vector) for side in program.elements]
    if config.edges or config.reduced_rank or config.wide or any(config.spread) or not all(words):
        raise ValueError(f"expected contiguous rows of whole chunks that wait as they are stored: {config}")
    policy, addresses = hold_policy(), chunk.chunk_addresses(program, config, starts, first)
    for u in range(config.unroll):
        for i, side in enumerate(program.elements):
            ahead, rWords = u * config.threads, cute.recast_tensor(held[i][(u, None)], Uint32)
            offset = ahead * chunk.chunk_bytes(program, config, side)
            load_held_if(first, ahead, end, addresses[side], offset, rWords, policy)


@cute.jit
def write_turn(
    program: cutlass.Constexpr,
    config: cutlass.Constexpr,
    starts: Any,
    first: Any,
    end: Any,
    shift: Any,
    length: Any,
    reduced: tuple,
    held: Any,
    constants: tuple,
):
    """Writes the results of the chunks that :func:`load_turn` read."""
    rOut = cute.make_rmem_tensor(config.vector, program.dst)
    for u in cutlass.range_constexpr(config.unroll):
        c = first + u * config.threads
        program.map([rChunks[(u, None)] for rChunks in held], constants, rOut)
        if c < end:
            addresses = _addresses(program, config, starts, c, reduced)
            if cutlass.const_expr(config.reduced_rank > 0):
                chunk.write(program, config, addresses[-1], Int64(0), Int64(1), rOut, True)
            else:
                place = Int64(c) * config.vector - Int64(shift)
                chunk.write(program, config, addresses[-1], place, length, rOut, True)


def _addresses(program: Any, config: Any, starts: Any, c: Any, reduced: Any) -> list[Any]:
    if config.reduced_rank == 0:
        return chunk.chunk_addresses(program, config, starts, c)
    index = Int64(c) if config.wide else Uint32(c)
    return [s + o for s, o in zip(starts, entry_offsets(index, reduced, program.sides), strict=True)]


def _turns(config: Any, begin: Any, end: Any, step: int) -> Any:
    """Turns of ``step`` chunks from ``begin`` to ``end``, which is not before it: the division is a shift."""
    chunks = end - begin + (step - 1)
    return Int64(Uint64(chunks) // step) if config.wide else Int32(Uint32(chunks) // step)


@cute.jit
def reduce_turns(
    program: cutlass.Constexpr,
    config: cutlass.Constexpr,
    starts: Any,
    begin: Any,
    end: Any,
    shift: Any,
    length: Any,
    reduced: tuple,
    thread: Any,
    rAcc: Any,
):
    """Reduces the chunks from ``begin`` to ``end`` that are this thread's into its accumulator."""
    held = chunk.new_chunks(program, config, config.unroll)
    step = config.threads * config.unroll
    for turn in cutlass.range(_turns(config, begin, end, step)):
        load_turn(program, config, starts, begin + turn * step + thread, end, shift, length, reduced, held)
        program.absorb(rAcc, held)


@cute.jit
def map_turns(
    program: cutlass.Constexpr,
    config: cutlass.Constexpr,
    starts: Any,
    begin: Any,
    end: Any,
    shift: Any,
    length: Any,
    reduced: tuple,
    thread: Any,
    constants: tuple,
):
    """Reads the chunks from ``begin`` to ``end`` that are this thread's, and writes their results."""
    held = chunk.new_chunks(program, config, config.unroll)
    step = config.threads * config.unroll
    for turn in cutlass.range(_turns(config, begin, end, step)):
        first = begin + turn * step + thread
        load_turn(program, config, starts, first, end, shift, length, reduced, held)
        write_turn(program, config, starts, first, end, shift, length, reduced, held, constants)


class Sweep:
    """The kernel for one configuration."""

    def __init__(self, config: SweepConfig) -> None:
        self.config = config
        self.program = Program(config.arithmetic)

    @cute.jit
    def __call__(self, *args: Any):
        """Launches one block a row.

        The arguments are the tensors' pointers; the elements of a row; the number of rows, then size and step in bytes
        for each tensor of each dimension, innermost first; where a row is not contiguous the same of its elements; the
        stream.
        """
        addresses, (length,), dims = chunk.split_arguments(args, self.program.sides, self.config)
        reduced = dims[1] if cutlass.const_expr(self.config.reduced_rank > 0) else (length,)
        name_kernel(self.kernel, self.config.kernel_name)
        self.kernel(addresses, length, dims[0], reduced).launch(
            grid=(Int32(dims[0][0]), 1, 1),
            block=(self.config.threads, 1, 1),
            smem=4 * SLOTS_BYTES,
            stream=args[-1],
        )

    @cute.kernel
    def kernel(self, addresses: tuple, length: Int64, kept: tuple, reduced: tuple):
        config, program = self.config, self.program
        thread, _, _ = cute.arch.thread_idx()
        row, _, _ = cute.arch.block_idx()
        shared = cute.arch.get_dyn_smem(Uint32, alignment=16).toint()
        offsets = entry_offsets(Uint32(row), kept, program.sides)
        starts, shift = chunk.row_start(program, config, addresses, offsets)
        end = chunk.count(config, length, shift)
        begin = end * 0
        total = ()
        if cutlass.const_expr(program.monoid is not None):
            if cutlass.const_expr(config.idea == "naive" and not config.arithmetic.backward):
                total = self.two_passes(starts, begin, end, shift, length, reduced, thread, shared)
            else:
                rAcc = program.new_accumulator()
                reduce_turns(program, config, starts, begin, end, shift, length, reduced, thread, rAcc)
                total = reduce_block(program.get(rAcc), program.monoid, config.threads, shared, thread)
        if cutlass.const_expr(program.one_result):
            if thread == 0:
                program.store_result(total, starts[-1])
        else:
            constants = program.constants(total, chunk.row_scalars(program, starts))
            map_turns(program, config, starts, begin, end, shift, length, reduced, thread, constants)

    @cute.jit
    def two_passes(
        self,
        starts: Any,
        begin: Any,
        end: Any,
        shift: Any,
        length: Any,
        reduced: tuple,
        thread: Any,
        shared: Any,
    ):
        """The row's (max, sum) by a pass for each."""
        config, program = self.config, self.program
        held = chunk.new_chunks(program, config, config.unroll)
        step = config.threads * config.unroll
        turns = _turns(config, begin, end, step)
        rTop = cute.make_rmem_tensor(1, program.acc)
        rTop[0] = MaxSum(program.acc).identity()[0]
        for turn in cutlass.range(turns):
            load_turn(program, config, starts, begin + turn * step + thread, end, shift, length, reduced, held)
            rTop[0] = Maximum(program.acc).combine((rTop[0],), (program.top(held),))[0]
        (top,) = reduce_block((rTop[0],), Maximum(program.acc), config.threads, shared, thread)
        rSum = cute.make_rmem_tensor(1, program.acc)
        rSum[0] = program.acc(0)
        for turn in cutlass.range(turns):
            load_turn(program, config, starts, begin + turn * step + thread, end, shift, length, reduced, held)
            rSum[0] = rSum[0] + program.sum_below(held, top)
        (total,) = reduce_block((rSum[0],), Sum(program.acc), config.threads, shared + 2 * SLOTS_BYTES, thread)
        return top, total


@compile_cached
def build(config: SweepConfig) -> Traceable:
    """What to compile for a configuration."""
    sweep = Sweep(config)
    arguments = example_arguments(pointers=sweep.program.sides, wide=config.integers + sum(config.lengths))
    return Traceable(sweep, arguments, name=config.kernel_name)
