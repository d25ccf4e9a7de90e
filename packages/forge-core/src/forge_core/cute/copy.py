"""Vector copies between global memory and registers, in CuTe's terms.

    row      | a b|c d e f g h i j|k l m n o p q r|s t|        16-byte boundaries of memory: |
             head   vector 0         vector 1      tail

A row is partitioned by a layout whose threads take turns along it, a vector each.  Predicates are per vector:
whatever is not a whole vector inside the row is copied by element.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, Uint32
from cutlass.cute.nvgpu import CopyG2ROp, CopyUniversalOp
from cutlass.cute.nvgpu.cpasync import CopyG2SOp
from cutlass.memory import SmemAllocator

from forge_core.cute.hold import hold_policy
from forge_core.cute.warp import WARP

__all__ = [
    "Window",
    "copy_if",
    "evict_last",
    "fill_if",
    "head_elements",
    "load_window",
    "neighbors",
    "opaque",
    "partition",
    "shift_window",
    "stage",
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


def stage(smem: SmemAllocator, tXgX: cute.Tensor, threads: int, thread: Int32) -> tuple[cute.CopyAtom, cute.Tensor]:
    """Shared memory for a thread's vectors of a row, which no other thread reads.

    Args:
        smem: allocates it.
        tXgX: ((access, accesses), chunks): the vectors in global memory; an access is 16 bytes.
        threads: of the block, at most.
        thread: which one.

    Returns:
        The asynchronous copy, and ((access, accesses), chunks) in shared memory.
    """
    dtype, (width, accesses), chunks = tXgX.element_type, tXgX.shape[0], tXgX.shape[1]
    atom = cute.make_copy_atom(CopyG2SOp(), dtype, num_bits_per_copy=width * dtype.width)
    layout = cute.make_layout(
        ((width, accesses), threads, chunks), stride=((1, threads * width), width, threads * width * accesses)
    )
    return atom, smem.allocate_tensor(dtype, layout, byte_alignment=16)[None, thread, None]


@cute.jit
def fill_if(tX: cute.Tensor, value: Any, when: Boolean):
    """Fills where ``when`` holds."""
    if when:
        tX.fill(value)


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


@dataclass(frozen=True)
class Window:
    """Aligned accesses around neighboring elements that begin anywhere, on their way.

    Attributes:
        row: (length,), stride 1.
        first: the first of the elements.
        count: how many.
        inside: whether all elements are inside the row.
        fits: whether the accesses are, too; otherwise the elements are loaded one by one.
        words: of the accesses.
    """

    row: cute.Tensor
    first: Int32
    count: int
    inside: Boolean
    fits: Boolean
    words: cute.Tensor


def load_window(row: cute.Tensor, first: Int32, count: int, inside: Boolean) -> Window:
    """Asks for neighboring elements that begin anywhere, by aligned 16-byte accesses, without a branch.

    Args:
        row: (length,), stride 1.
        first: the first element to load.
        count: how many elements.
        inside: whether all elements are inside the row.
    """
    words = count * row.element_type.width // 32
    accesses = (words + 3) // 4 + 1
    begin = (row.iterator + first).toint() & ~Int64(15)
    # The last access may reach beyond the row, where memory may end.
    fits = inside & (begin + 16 * accesses <= (row.iterator + cute.size(row)).toint()) & (words > 0)
    start = cute.make_ptr(Uint32, begin, row.memspace, assumed_align=16)
    gWords = cute.make_tensor(start, cute.make_layout(((4, accesses),)))
    rWords = cute.make_rmem_tensor(((4, accesses),), Uint32)
    rWords.fill(0)
    pred = cute.make_rmem_tensor(1, Boolean)
    pred[0] = fits
    every = cute.make_tensor(pred.iterator, cute.make_layout(accesses, stride=0))
    cute.copy(cute.make_copy_atom(CopyG2ROp(), Uint32, num_bits_per_copy=128), gWords, rWords, pred=every)
    return Window(row, first, count, inside, fits, rWords)


def shift_window(window: Window) -> cute.Tensor:
    """The elements of a window in registers; 0 where they are not inside the row."""
    row, words = window.row, window.count * window.row.element_type.width // 32
    skip = Int32((row.iterator + window.first).toint() & 15)
    rX = cute.make_rmem_tensor(window.count, row.element_type)
    rX.fill(row.element_type(0))
    if words:
        # A barrel shift by 0 to 15 bytes: two words, one word, half a word.
        found = [window.words[i] for i in range(cute.size(window.words))]
        for by in (2, 1):
            far = (skip & (4 * by)) != 0
            found = [Uint32(cutlass.select_(far, found[i + by], found[i])) for i in range(len(found) - by)]
        rWords = cute.recast_tensor(rX, Uint32)
        for i in range(words):
            narrow = row.element_type.width < 32
            rWords[i] = _funnel(found[i], found[i + 1], (skip & 3) * 8) if narrow else found[i]
    _load_each(row, window.first, rX, window.inside & ~window.fits)
    return rX


@cute.jit
def _load_each(row: cute.Tensor, first: Int32, rX: cute.Tensor, when: Boolean):
    if when:
        for i in cutlass.range_constexpr(cute.size(rX)):
            rX[i] = row[first + i]


def _funnel(low: Uint32, high: Uint32, bits: Int32) -> Uint32:
    """The 32 bits that begin ``bits`` (0 to 31) above the lowest of two words."""
    return cute.arch.inline_ptx(
        "shf.r.clamp.b32 {$w0}, {$r0}, {$r1}, {$r2};", write_only_types=[Uint32], read_only_args=[low, high, bits]
    )
