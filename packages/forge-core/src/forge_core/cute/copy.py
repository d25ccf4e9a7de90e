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
from cutlass import Boolean, Int32, Int64, Uint32, Uint64
from cutlass.cute.nvgpu import CopyG2ROp, CopyUniversalOp
from cutlass.memory import SmemAllocator

from forge_core.cute.hold import hold_policy, stage_held_if
from forge_core.cute.warp import WARP

__all__ = [
    "copy_if",
    "evict_last",
    "head_elements",
    "load_unaligned",
    "neighbors",
    "opaque",
    "partition",
    "stage",
    "stage_if",
    "store_if",
    "vector_predicate",
]


def evict_last() -> Int64:
    """The L2 policy evict_last, as ``cache_policy`` of a copy: see ``forge_core.cute.hold`` for what it gains."""
    return Int64(hold_policy())


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


def stage(smem: SmemAllocator, tXgX: cute.Tensor, threads: int, thread: Int32) -> cute.Tensor:
    """Shared memory for a thread's vectors of a row, which no other thread reads.

    Args:
        smem: allocates it.
        tXgX: ((access, accesses), chunks): the vectors in global memory; an access is 16 bytes.
        threads: of the block, at most.
        thread: which one.

    Returns:
        ((access, accesses), chunks) in shared memory.
    """
    dtype, (width, accesses), chunks = tXgX.element_type, tXgX.shape[0], tXgX.shape[1]
    layout = cute.make_layout(
        ((width, accesses), threads, chunks), stride=((1, threads * width), width, threads * width * accesses)
    )
    return smem.allocate_tensor(dtype, layout, byte_alignment=16)[None, thread, None]


def stage_if(tXgX: cute.Tensor, tXsX: cute.Tensor, inside: Boolean, nothing: Any, policy: Int64) -> None:
    """Asks for a vector into shared memory where it is inside the row; fills its place with ``nothing`` elsewhere.

    Args:
        tXgX: ((access, accesses),) in global memory.
        tXsX: the same in shared memory.
        inside: whether the vector is.
        nothing: an element.
        policy: that of :func:`evict_last`.
    """
    ((width, accesses),) = tXgX.shape
    rX = cute.make_rmem_tensor(width, tXgX.element_type)
    rX.fill(nothing)
    for i in range(accesses):
        gX, sX = (t[(None, i),].iterator.toint() for t in (tXgX, tXsX))
        stage_held_if(inside, gX, sX, cute.recast_tensor(rX, Uint32), Uint64(policy))


def vector_predicate(tXgX: cute.Tensor, inside: Boolean) -> cute.Tensor:
    """The predicate of a vector, repeated for each of its accesses."""
    pred = cute.make_rmem_tensor(1, Boolean)
    pred[0] = inside
    return cute.make_tensor(pred.iterator, cute.make_layout(tXgX.shape[0][1], stride=0))


def neighbors(row: cute.Tensor, n: Int32, vec: int) -> cute.Tensor:
    """Element ``n`` of ``vec`` rows that lie side by side, an aligned vector of at most 16 bytes or some.

    Args:
        row: the first of them.
        n: an element inside the row.
        vec: how many rows.
    """
    dtype = row.element_type
    at = row.iterator + cute.crd2idx(n, row.layout)
    pointer = cute.make_ptr(dtype, at.toint(), row.memspace, assumed_align=min(16, vec * dtype.width // 8))
    return cute.make_tensor(pointer, cute.make_layout(vec))


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
            # A barrel shift by 0 to 15 bytes: two words, one word, half a word.
            for step in cutlass.range_constexpr(2):
                by = 2 - step
                for i in cutlass.range_constexpr(4 * accesses - by):
                    shifted = cutlass.select_((skip & (4 * by)) != 0, rWindow[i + by], rWindow[i])
                    rWindow[i] = Uint32(shifted)
            rWords = cute.recast_tensor(rX, Uint32)
            for i in cutlass.range_constexpr(words):
                rWords[i] = rWindow[i]
                if cutlass.const_expr(size < 4):
                    rWords[i] = _funnel(rWindow[i], rWindow[i + 1], (skip & 3) * 8)
        else:
            for i in cutlass.range_constexpr(count):
                rX[i] = row[first + i]


def _funnel(low: Uint32, high: Uint32, bits: Int32) -> Uint32:
    """The 32 bits that begin ``bits`` (0 to 31) above the lowest of two words."""
    return cute.arch.inline_ptx(
        "shf.r.clamp.b32 {$w0}, {$r0}, {$r1}, {$r2};", write_only_types=[Uint32], read_only_args=[low, high, bits]
    )
