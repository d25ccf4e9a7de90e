"""Vector copies between global memory and registers, in CuTe's terms.

    row      | a b|c d e f g h i j|k l m n o p q r|s t|        16-byte boundaries of memory: |
             head   vector 0         vector 1      tail

A row is partitioned by a layout whose threads take turns along it, a vector each.  Predicates are per vector:
whatever is not a whole vector inside the row is copied by element.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, Uint8, Uint32, Uint64
from cutlass.cute.nvgpu import CopyG2ROp, CopyUniversalOp
from cutlass.memory import SmemAllocator

from forge_core.cute.hold import hold_policy, once_policy, stage_held_if
from forge_core.cute.warp import WARP

__all__ = [
    "behind",
    "copy_if",
    "head_elements",
    "load_if",
    "load_policy",
    "load_staged",
    "load_unaligned",
    "neighbors",
    "opaque",
    "partition",
    "shift_bytes",
    "stage",
    "stage_all",
    "stage_unaligned",
    "store_if",
    "vector_predicate",
]


def load_policy(once: Boolean | None = None) -> Int64:
    """The L2's policy for loads, as ``cache_policy`` of a copy: see ``forge_core.cute.hold`` for what it gains.

    Args:
        once: whether lines are to be evicted first; None where it is known that they are not, but last.
    """
    last = Int64(hold_policy())
    return last if once is None else Int64(cutlass.select_(once, Int64(once_policy()), last))


def head_elements(row: cute.Tensor, vec: int) -> Int32:
    """Elements of a row before its first multiple of ``vec`` elements in memory."""
    size = row.element_type.width // 8
    start = row.iterator.align(vec * size)
    return Int32(Uint32(start.toint() - row.iterator.toint()) // size)


def partition(
    row: cute.Tensor, first: Int32, vec: int, threads: int | Int32, chunks: int, thread: Int32, *, load: bool
) -> tuple[cute.CopyAtom, cute.Tensor]:
    """A thread's vectors of a row.

    Args:
        row: (length,), stride 1.
        first: the element where the partition begins; the caller knows that accesses of ``vec`` elements, or of 16
            bytes where that is less, are aligned there.
        vec: elements of a vector.
        threads: threads that take turns; a number of whole warps where it is known at the launch only.
        chunks: vectors of each thread.
        thread: which one.
        load: from global memory into registers, rather than the other way.

    Returns:
        The copy, and ((access, accesses), chunks): the thread's part of the row.
    """
    dtype = row.element_type
    width = min(vec, 128 // dtype.width)
    start = cute.make_ptr(dtype, (row.iterator + first).toint(), row.memspace, assumed_align=width * dtype.width // 8)
    atom = cute.make_copy_atom(CopyG2ROp() if load else CopyUniversalOp(), dtype, num_bits_per_copy=width * dtype.width)
    turn = threads * vec if isinstance(threads, int) else cute.assume(threads * vec, divby=WARP * vec)
    layout = cute.make_layout(((width, vec // width), threads, chunks), stride=((1, width), vec, turn))
    return atom, cute.make_tensor(start, layout)[None, thread, None]


def behind(smem: SmemAllocator) -> Int32:
    """Where shared memory begins behind all that was allocated, a multiple of 16; the launch says how much there is."""
    used = (smem.calculate_total_usage() + 15) & ~15
    return Int32(cute.arch.get_dyn_smem(Uint8, alignment=1024).toint() + used)


def stage(start: Int32, tXgX: cute.Tensor, thread: Int32) -> tuple[cute.Tensor, Int32]:
    """Shared memory for a thread's vectors of a row, which no other thread reads.

    Args:
        start: where it begins, a multiple of 16.
        tXgX: ((access, accesses), chunks): the vectors in global memory; an access is 16 bytes.
        thread: which one of the block.

    Returns:
        ((access, accesses), chunks) in shared memory, and where that of the block ends.
    """
    dtype, (width, accesses), chunks = tXgX.element_type, tXgX.shape[0], tXgX.shape[1]
    turn = width * cute.arch.block_dim()[0]
    pointer = cute.make_ptr(dtype, start, cute.AddressSpace.smem, assumed_align=16)
    layout = cute.make_layout(((width, accesses), chunks), stride=((1, turn), turn * accesses))
    return cute.make_tensor(pointer + thread * width, layout), start + turn * accesses * chunks * dtype.width // 8


@cute.jit
def stage_all(
    sources: tuple,
    slots: tuple,
    kept: cutlass.Constexpr,
    nothing: tuple,
    step: Int32,
    turn: Int32,
    count: Int32,
    policy: Int64,
):
    """Asks for a thread's vectors into shared memory; fills the places of those outside the row.

    A loop, because the compiler would move what it unrolls in front of the other loads of the row, and those behind
    the wait for it.

    Args:
        sources: for each operand ((access, accesses), chunks) in global memory.
        slots: for each operand those of ``stage``, in which chunks from ``kept`` on wait.
        kept: chunks before them.
        nothing: for each operand, an element outside the row.
        step: the element where the first of them begins.
        turn: elements from each to the next.
        count: elements in whole vectors.
        policy: that of :func:`load_policy`.
    """
    for c in cutlass.range(slots[0].shape[1], unroll=1):
        for i in cutlass.range_constexpr(len(sources)):
            (width, accesses), dtype = sources[i].shape[0], sources[i].element_type
            rX = cute.make_rmem_tensor(width, dtype)
            rX.fill(nothing[i])
            for a in cutlass.range_constexpr(accesses):
                gX = sources[i][(None, a), kept + c].iterator.toint()
                sX = slots[i][(None, a), c].iterator.toint()
                stage_held_if(step + c * turn < count, gX, sX, cute.recast_tensor(rX, Uint32), Uint64(policy))


def vector_predicate(tXgX: cute.Tensor, inside: Boolean) -> cute.Tensor:
    """The predicate of a vector, repeated for each of its accesses."""
    return _predicate(inside, tXgX.shape[0][1])


def _predicate(inside: Boolean, accesses: int) -> cute.Tensor:
    pred = cute.make_rmem_tensor(1, Boolean)
    pred[0] = inside
    return cute.make_tensor(pred.iterator, cute.make_layout(accesses, stride=0))


def neighbors(row: cute.Tensor, n: Int32, vec: int) -> cute.Tensor:
    """Element ``n`` of ``vec`` rows that lie side by side, an aligned vector of at most 16 bytes or some.

    Args:
        row: the first of them.
        n: an element; inside the row where it is read.
        vec: how many rows.
    """
    dtype = row.element_type
    at = row.iterator + cute.crd2idx(n, row.layout)
    pointer = cute.make_ptr(dtype, at.toint(), row.memspace, assumed_align=min(16, vec * dtype.width // 8))
    return cute.make_tensor(pointer, cute.make_layout(vec))


def load_if(row: cute.Tensor, n: Int32, rX: cute.Tensor, when: Boolean, policy: Int64) -> None:
    """Loads :func:`neighbors` where ``when`` holds, as many as the registers take, which stay as they are elsewhere."""
    dtype, vec = row.element_type, cute.size(rX)
    width = min(vec, 128 // dtype.width)
    atom = cute.make_copy_atom(CopyG2ROp(), dtype, num_bits_per_copy=width * dtype.width)
    layout = cute.make_layout(((width, vec // width),), stride=((1, width),))
    gX, rX = (cute.make_tensor(t.iterator, layout) for t in (neighbors(row, n, vec), rX))
    cute.copy(atom, gX, rX, pred=_predicate(when, vec // width), cache_policy=policy)


@cute.jit
def copy_if(rY: cute.Tensor, gY: cute.Tensor, when: Boolean):
    """Writes a vector where ``when`` holds."""
    if when:
        cute.autovec_copy(rY, gY)


@cute.jit
def store_if(tensor: cute.Tensor, i: Any, value: Any, when: Boolean):
    """Writes one element where ``when`` holds."""
    if when:
        tensor[i] = value.to(tensor.element_type)


def opaque(rX: cute.Tensor, zero: Uint32) -> None:
    """Keeps elements of 8 or 16 bits in packed registers from one use to the next.

    The compiler would otherwise keep their conversions to 32 bits, twice the registers or more.  It does not know that
    ``zero`` is 0.
    """
    rWords = cute.recast_tensor(rX, Uint32)
    for i in range(cute.size(rWords)):
        rWords[i] = rWords[i] ^ zero


@cute.jit
def load_unaligned(row: cute.Tensor, first: Int32, rX: cute.Tensor, inside: Boolean):
    """Loads neighboring elements that begin anywhere, by aligned 16-byte accesses and a shift of registers.

    Args:
        row: (length,), stride 1.
        first: the first element to load.
        rX: registers; they stay as they are unless ``inside``.
        inside: whether all elements are inside the row.
    """
    dtype, count = row.element_type, cute.size(rX)
    size = dtype.width // 8
    if inside:
        byte = (row.iterator + first).toint()
        begin, skip = byte & ~Int64(15), Int32(byte & 15)
        words = count * size // 4
        accesses = (words + 3) // 4 + 1
        rWindow = cute.make_rmem_tensor(4 * accesses, Uint32)
        # The last access may reach beyond the row, where memory may end: its elements are then loaded one by one.
        end = (row.iterator + cute.size(row)).toint()
        if (begin + 16 * accesses <= end) & (words > 0):
            for i in cutlass.range_constexpr(accesses):
                gWords = cute.make_tensor(
                    cute.make_ptr(Uint32, begin + 16 * i, row.memspace, assumed_align=16), cute.make_layout(4)
                )
                cute.autovec_copy(gWords, cute.make_tensor(rWindow.iterator + 4 * i, cute.make_layout(4)))
            shift_bytes(rWindow, skip, rX)
        else:
            for i in cutlass.range_constexpr(count):
                rX[i] = row[first + i]


def stage_unaligned(
    row: cute.Tensor,
    start: Int32,
    first: Int32,
    count: Int32,
    vec: int,
    threads: int | Int32,
    chunks: int,
    thread: Int32,
    width: Int32,
    *,
    aligned: bool,
) -> tuple[cute.Tensor, Int32]:
    """Asks for a block's vectors of a row that begin anywhere, into shared memory, by aligned 16-byte accesses.

        row        | . . . a|a a a b|b b b c|c c c . |     vectors a, b, c of threads 0, 1, 2; 16-byte boundaries: |
        accesses   |   0    |   1   |   2   |   3    |     thread t asks for t and reads t and t + 1

    Bytes behind the last whole vector are 0 in shared memory, and are not read from global memory.

    Args:
        row: (length,), stride 1; ``vec`` elements are a multiple of 16 bytes.
        start: the shared memory, a multiple of 16: for each chunk its accesses, and one place more unless ``aligned``.
        first: the element where the block's first vector begins.
        count: elements from there on that are in whole vectors of the row; maybe negative.
        vec: elements of a vector.
        threads: threads that take turns along the row.
        chunks: vectors of each thread, fewer than a warp has threads.
        thread: which one of the block.
        width: threads of the block.
        aligned: whether vectors begin at multiples of 16 bytes, so that a thread reads its own accesses only.

    Returns:
        ((word, access), place, chunk) in shared memory, and how many bytes of the first access precede the vector.
    """
    size = row.element_type.width // 8
    accesses = vec * size // 16
    places = width if aligned else width + 1
    skip = Int32(0) if aligned else Int32((row.iterator + first).toint() & 15)
    pointer = cute.make_ptr(Uint32, start, cute.AddressSpace.smem, assumed_align=16)
    shape = ((4, accesses), places, chunks)
    sX = cute.make_tensor(pointer, cute.make_layout(shape, stride=((1, 4 * places), 4, 4 * places * accesses)))
    if not aligned:
        # The last access of each chunk, of which nothing but what precedes the next vector is used.
        step = (width + thread * threads) * vec
        begin = (row.iterator + (first + step)).toint() - skip
        _copy_async_if(sX, width, thread, begin, Int32(cutlass.select_(step <= count, skip, 0)), thread < chunks)
    begin = (row.iterator + (first + thread * vec)).toint() - skip
    _copy_each(sX, thread, begin, Int64(threads * vec) * size, thread * vec, threads * vec, count, skip)
    return sX, skip


def load_staged(sX: cute.Tensor, skip: Int32, thread: Int32, c: int, rX: cute.Tensor, *, aligned: bool) -> None:
    """A thread's vector of :func:`stage_unaligned`, once all threads' copies have arrived.

    Args:
        sX: what it returned.
        skip: likewise.
        thread: which one of the block.
        c: which of its vectors.
        rX: (vec,) registers.
        aligned: as there.
    """
    accesses = sX.shape[0][1]
    rWindow = cute.make_rmem_tensor(4 * (accesses + (not aligned)), Uint32)
    for a in range(accesses + (not aligned)):
        place, access = (thread, a) if a < accesses else (thread + 1, 0)
        rAccess = cute.make_tensor(rWindow.iterator + 4 * a, cute.make_layout(4))
        cute.autovec_copy(sX[(None, access), place, c], rAccess)
    if aligned:
        rWords = cute.recast_tensor(rX, Uint32)
        for i in range(4 * accesses):
            rWords[i] = rWindow[i]
    else:
        shift_bytes(rWindow, skip, rX)


def _copy_async(sX: cute.Tensor, access: int, place: Any, c: Any, address: Int64, size: Any) -> None:
    """16 bytes of shared memory: ``size`` bytes of global memory, then zeros."""
    slot = sX[(None, access), place, c].iterator.toint()
    cute.arch.inline_ptx(
        "cp.async.ca.shared.global [{$r0}], [{$r1}], 16, {$r2};",
        read_only_args=[Int32(slot), Int64(address), Int32(size)],
    )


@cute.jit
def _copy_each(
    sX: cute.Tensor, thread: Int32, begin: Int64, stride: Int64, step: Int32, turn: Int32, count: Int32, skip: Int32
):
    # A loop: the compiler would move copies that it unrolls behind the arithmetic that awaits other loads.
    for c in cutlass.range(sX.shape[2], unroll=1):
        for a in cutlass.range_constexpr(sX.shape[0][1]):
            behind = skip if cutlass.const_expr(a == 0) else Int32(0)
            size = cutlass.select_(step < count, Int32(16), cutlass.select_(step == count, behind, Int32(0)))
            _copy_async(sX, a, thread, c, begin + 16 * a, size)
        begin += stride
        step += turn


@cute.jit
def _copy_async_if(sX: cute.Tensor, place: Int32, c: Int32, address: Int64, size: Int32, when: Boolean):
    if when:
        _copy_async(sX, 0, place, c, address, size)


def shift_bytes(rWindow: cute.Tensor, skip: Int32, rX: cute.Tensor) -> None:
    """The elements that begin ``skip`` bytes, 0 to 15, behind the start of a window, which is overwritten."""
    # A barrel shift: two words, one word unless elements are wider, and a part of one.
    for by in (2, 1)[: 1 + (rX.element_type.width <= 32)]:
        for i in range(cute.size(rWindow) - by):
            rWindow[i] = Uint32(cutlass.select_((skip & (4 * by)) != 0, rWindow[i + by], rWindow[i]))
    rWords = cute.recast_tensor(rX, Uint32)
    for i in range(cute.size(rWords)):
        rWords[i] = rWindow[i]
        if rX.element_type.width < 32:
            rWords[i] = _funnel(rWindow[i], rWindow[i + 1], (skip & 3) * 8)


def _funnel(low: Uint32, high: Uint32, bits: Int32) -> Uint32:
    """The 32 bits that begin ``bits`` (0 to 31) above the lowest of two words."""
    return cute.arch.inline_ptx(
        "shf.r.clamp.b32 {$w0}, {$r0}, {$r1}, {$r2};", write_only_types=[Uint32], read_only_args=[low, high, bits]
    )
