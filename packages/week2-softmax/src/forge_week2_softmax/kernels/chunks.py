"""How a thread reads and writes chunks of a row, and where a row begins.

A chunk is ``vector`` neighbouring elements, at most 16 bytes of every tensor.  Chunks are cut at multiples of their
size in memory, so a row that begins anywhere touches one that it shares with the row before it, and one with the row
after it:

    chunks      |. . . a b|c d e f g|h i j k l|m n . . .|        ``place`` of a chunk: the number of its first
    place       -3         2         7         12                element in the row, here -3, 2, 7, 12

A chunk inside the row is one access.  Of a chunk at an edge the elements inside are read and written one by one, so
that nothing outside the row is touched, be it another row's or nobody's: by the chunk's own thread, or, where that
would make the code of every chunk longer, by the first lanes of the row, an element each.  All tensors begin at the
same place of a chunk, so chunk c of one belongs to chunk c of the others.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from forge_core.cute.hold import load_held_if
from forge_core.cute.memory import Int32, Int64, Uint32, Uint64, elements_at, load_element, store_element

__all__ = [
    "chunk_addresses",
    "chunk_bytes",
    "clear",
    "count",
    "edge_place",
    "element_bytes",
    "new_chunks",
    "places_end",
    "read",
    "read_element",
    "read_held",
    "row_scalars",
    "row_start",
    "split_arguments",
    "write",
]


def split_arguments(args: tuple[Any, ...], pointers: int, config: Any) -> tuple[tuple[Any, ...], ...]:
    """The arguments of a launch: addresses, integers, and the groups of integers that they were laid flat from.

    Flat they cost the caller less: a tuple is an object that the compiled function takes apart.
    """
    addresses = tuple(p.toint() for p in args[:pointers])
    rest = args[pointers:-1]
    given, rest = rest[: config.integers], rest[config.integers :]
    groups = []
    for length in config.lengths:
        groups.append(rest[:length])
        rest = rest[length:]
    return addresses, given, tuple(groups)


def new_chunks(program: Any, config: Any, count: int) -> list[Any]:
    """For each tensor that is read by element, registers for ``count`` chunks; a row of the tensor is one."""
    layout = cute.make_layout((count, config.vector), stride=(config.vector, 1))
    return [cute.make_rmem_tensor(layout, program.kept(side)) for side in program.elements]


def clear(program: Any, chunks: list[Any]) -> None:
    """Fills registers with what changes no accumulator."""
    for side, rChunks in zip(program.elements, chunks, strict=True):
        for i in range(cute.size(rChunks)):
            rChunks[i] = program.neutral(side)


def row_start(program: Any, config: Any, addresses: Any, offsets: Any) -> tuple[list[Any], Any]:
    """For each tensor the address of the row's first chunk, and where in that chunk the row begins."""
    starts = [a + o for a, o in zip(addresses, offsets, strict=True)]
    if not config.edges:
        return starts, Int32(0)
    spread = (*config.spread, program.one_result)
    whole = [i for i in (*program.elements, program.sides - 1) if not spread[i]]
    size = program.sizes[whole[0]]
    shift = Int32((starts[whole[0]] & (config.vector * size - 1)) // size)
    for i in whole:
        starts[i] = starts[i] - Int64(shift) * program.sizes[i]
    return starts, shift


def row_scalars(program: Any, starts: Any) -> tuple[Any, ...]:
    """The row's element of each tensor that has one a row."""
    return tuple(load_element(starts[i], program.src(i)).to(program.acc) for i in program.scalars)


def chunk_addresses(program: Any, config: Any, starts: Any, chunk: Any) -> list[Any]:
    """For each tensor the address of a chunk; that of the row where the tensor is spread, or has one element a row.

    Further chunks of a thread lie at constant distances, :func:`chunk_bytes` each, which cost no registers.
    """
    return [s + Int64(chunk) * chunk_bytes(program, config, i) for i, s in enumerate(starts)]


def chunk_bytes(program: Any, config: Any, side: int) -> int:
    """The distance of two chunks of a tensor."""
    return config.vector * element_bytes(program, config, side)


def element_bytes(program: Any, config: Any, side: int) -> int:
    """The distance of two elements of a row: 0 where a tensor is spread, or has one element a row."""
    apart = side + 1 == program.sides or not config.spread[side]
    return int(program.sizes[side]) if apart and not program.arithmetic.on_rows[side] else 0


@cute.jit
def read(
    program: cutlass.Constexpr,
    config: cutlass.Constexpr,
    side: cutlass.Constexpr,
    address: Any,
    place: Any,
    length: Any,
    rChunk: Any,
    pieces: cutlass.Constexpr,
):
    """Reads one chunk of a tensor; elements outside the row stay as they are in registers.

    Args:
        program: the computation.
        config: the kernel's; of it ``vector``, ``edges`` and ``spread`` matter.
        side: which tensor.
        address: the chunk's; that of the row where the tensor is spread.
        place: the number of its first element in the row, negative where the row begins inside it.
        length: elements of the row.
        rChunk: registers.
        pieces: of a chunk at an edge, whether the elements inside are read, or none.
    """
    vector, size = config.vector, program.sizes[side]
    if cutlass.const_expr(config.edges and not pieces):
        if (place >= 0) & (place + vector <= length):
            if cutlass.const_expr(config.spread[side]):
                element = program.load(side, address)
                for v in cutlass.range_constexpr(vector):
                    rChunk[v] = element
            else:
                program.fetch(side, address, rChunk)
    elif cutlass.const_expr(config.spread[side]):
        if place < length:
            element = program.load(side, address)
            for v in cutlass.range_constexpr(vector):
                if (place + v >= 0) & (place + v < length):
                    rChunk[v] = element
    elif cutlass.const_expr(config.edges):
        if (place >= 0) & (place + vector <= length):
            program.fetch(side, address, rChunk)
        else:
            for v in cutlass.range_constexpr(vector):
                if (place + v >= 0) & (place + v < length):
                    rChunk[v] = program.load(side, address + v * size)
    else:
        if place < length:
            program.fetch(side, address, rChunk)


def places_end(config: Any, length: Any) -> Any:
    """A chunk is inside its row where its place, as an unsigned number, is below this; that of :func:`read`."""
    return cutlass.max(length - (config.vector - 1), 0) if config.edges else length


def read_held(
    program: Any,
    config: Any,
    side: int,
    address: Any,
    turn: int,
    place: Any,
    end: Any,
    length: Any,
    rChunk: Any,
    policy: Any,
) -> None:
    """Reads one chunk as :func:`read` does without pieces, and asks the L2 to evict its line last, where that can be.

    Args:
        program: the computation.
        config: the kernel's.
        side: which tensor.
        address: that of the thread's first chunk.
        turn: chunks from there to the one to read.
        place: the number of the first chunk's first element in the row.
        end: that of :func:`places_end`.
        length: elements of the row.
        rChunk: registers.
        policy: that of ``hold_policy``.
    """
    ahead, offset = turn * config.vector, turn * chunk_bytes(program, config, side)
    if not config.spread[side] and program.words(side, config.vector):
        load_held_if(place, ahead, end, address, offset, cute.recast_tensor(rChunk, Uint32), policy)
    else:
        read(program, config, side, address + offset, place + ahead, length, rChunk, False)


@cute.jit
def write(
    program: cutlass.Constexpr,
    config: cutlass.Constexpr,
    address: Any,
    place: Any,
    length: Any,
    rOut: Any,
    pieces: cutlass.Constexpr,
):
    """Writes one chunk of results; the arguments are those of :func:`read`."""
    vector, size = config.vector, program.sizes[-1]
    if cutlass.const_expr(config.edges):
        if (place >= 0) & (place + vector <= length):
            cute.autovec_copy(rOut, elements_at(address, program.dst, vector))
        elif cutlass.const_expr(pieces):
            for v in cutlass.range_constexpr(vector):
                if (place + v >= 0) & (place + v < length):
                    store_element(rOut[v], address + v * size, program.dst)
    else:
        if place < length:
            cute.autovec_copy(rOut, elements_at(address, program.dst, vector))


def edge_place(config: Any, lane: Any, length: Any, shift: Any, turn: int) -> tuple[Any, Any]:
    """Which element of those before the first whole chunk of a row, and after the last one, is a lane's.

    There are less than ``vector`` on each side: lanes 0, 1, ... have the first ones, lanes ``vector``, ... the last.

    Returns:
        Its number in the row, and whether there is such an element.
    """
    vector = config.vector
    head = cutlass.min((0 - shift) & (vector - 1), length)
    tail = head + (length - head) // vector * vector
    number = lane + turn * config.lanes
    place = Int32(cutlass.select_(number < vector, number, tail + number - vector))
    limit = Int32(cutlass.select_(number < vector, head, length))
    return place, (place < limit) & (number < 2 * vector)


@cute.jit
def read_element(
    program: cutlass.Constexpr,
    config: cutlass.Constexpr,
    side: cutlass.Constexpr,
    start: Any,
    place: Any,
    inside: Any,
    rEdge: Any,
    turn: cutlass.Constexpr,
):
    """Reads one element of a row that begins at ``start``."""
    if inside:
        size = 0 if cutlass.const_expr(config.spread[side]) else program.sizes[side]
        rEdge[turn] = program.load(side, start + Int64(place) * size)


def count(config: Any, length: Any, shift: Any) -> Any:
    """Chunks that a row touches; 64-bit where elements are numbered so."""
    # Not negative, so that a division by a power of two is a shift.
    chunks = Uint64(length + Int64(shift) + (config.vector - 1)) // config.vector
    return Int64(chunks) if config.wide else Int32(chunks)
