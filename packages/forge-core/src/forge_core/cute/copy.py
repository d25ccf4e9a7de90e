"""Vector copies between global memory, shared memory and registers.

    row      | a b|c d e f g h i j|k l m n o p q r|s t|        16-byte boundaries of memory: |
             head   vector 0         vector 1      tail

Vectors of a row are assigned to threads round-robin.  Predicates are per vector: head and tail are copied by element.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, Uint8, Uint16, Uint32, Uint64
from cutlass.cute.nvgpu import CopyG2ROp, CopyUniversalOp
from cutlass.memory import SmemAllocator

from forge_core.cute.memory import elements_at
from forge_core.cute.warp import WARP

#: The L2 cache policies that ``createpolicy.fractional`` makes of a fraction of 1, as CUTLASS has them, too.
_EVICT_FIRST, _EVICT_LAST = 0x12F0000000000000, 0x14F0000000000000


def load_policy(once: Boolean | None = None) -> Int64:
    """The L2 cache policy of loads, for ``cache_policy`` of a copy: evict_last, or evict_first where ``once`` holds.

    evict_last gains up to 4 % of a copy's bandwidth on an H200, in 43 of 48 cases of rows read and written once;
    evict_first loses 2 to 9 %, and loads that bypass the L1 up to a fifth (docs/week2.md).  Presumably the L2 otherwise
    evicts lines that have been read in part only.  :data:`forge_core.rows.pieces.READ_ONCE` has what ``once`` gains.

    Args:
        once: None: evict_last.  On the host it costs the kernel nothing.
    """
    return Int64(_EVICT_LAST) if once is None else Int64(_EVICT_LAST) - Int64(once) * (_EVICT_LAST - _EVICT_FIRST)


def head_elements(row: cute.Tensor, vec: int) -> Int32:
    """Elements of a row before the first address that is a multiple of ``vec`` elements."""
    size = row.element_type.width // 8
    start = row.iterator.align(vec * size)
    return Int32(Uint32(start.toint() - row.iterator.toint()) // size)


def partition(
    row: cute.Tensor, first: Int32, vec: int, threads: int | Int32, chunks: int, thread: Int32, *, load: bool
) -> tuple[cute.CopyAtom, cute.Tensor]:
    """Partitions a row by vectors, thread by thread, and returns one thread's.

    Args:
        row: (length,), stride 1.
        first: first element of the partition, aligned to ``vec`` elements or 16 bytes, whichever is less.
        vec: elements of a vector.
        threads: number of threads; a multiple of a warp if dynamic.
        chunks: vectors of each thread.
        thread: index of the thread.
        load: copy from global memory to registers; otherwise from registers.

    Returns:
        The copy atom, and the thread's vectors ((access, accesses), chunks).
    """
    dtype = row.element_type
    width = min(vec, 128 // dtype.width)
    start = cute.make_ptr(dtype, (row.iterator + first).toint(), row.memspace, assumed_align=width * dtype.width // 8)
    atom = cute.make_copy_atom(CopyG2ROp() if load else CopyUniversalOp(), dtype, num_bits_per_copy=width * dtype.width)
    turn = threads * vec if isinstance(threads, int) else cute.assume(threads * vec, divby=WARP * vec)
    layout = cute.make_layout(((width, vec // width), threads, chunks), stride=((1, width), vec, turn))
    return atom, cute.make_tensor(start, layout)[None, thread, None]


def registers(shape: Any, dtype: Any, value: Any) -> cute.Tensor:
    """A tensor in registers, each element of which has this value."""
    rX = cute.make_rmem_tensor(shape, dtype)
    rX.fill(dtype(value))
    return rX


def behind(smem: SmemAllocator) -> Int32:
    """Address of the dynamic shared memory that follows all allocations, a multiple of 16."""
    used = (smem.calculate_total_usage() + 15) & ~15
    return Int32(cute.arch.get_dyn_smem(Uint8, alignment=1024).toint() + used)


def stage(start: Int32, parts: dict[str, cute.Tensor], chunks: int) -> dict[str, cute.Tensor]:
    """Lays out shared memory for a thread's vectors of a row, which are private to the thread.

    Args:
        start: shared memory address, a multiple of 16.
        parts: for each operand ((access, accesses), ...), the vectors in global memory; an access is 16 bytes.
        chunks: vectors of each operand.

    Returns:
        For each operand ((access, accesses), chunks) in shared memory.
    """
    found, thread = {}, cute.arch.thread_idx()[0]
    for name, tXgX in parts.items():
        dtype, (width, accesses) = tXgX.element_type, tXgX.shape[0]
        turn = width * cute.arch.block_dim()[0]
        pointer = cute.make_ptr(dtype, start, cute.AddressSpace.smem, assumed_align=16)
        layout = cute.make_layout(((width, accesses), chunks), stride=((1, turn), turn * accesses))
        found[name] = cute.make_tensor(pointer + thread * width, layout)
        start = start + turn * accesses * chunks * dtype.width // 8
    return found


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
    bits: Int32 | None = None,
    once: cutlass.Constexpr = True,
    chunk: cutlass.Constexpr = None,
):
    """Copies a thread's vectors to shared memory with ``cp.async``; fills those outside the row.

    The loop is not unrolled: the compiler would move its copies in front of the other loads of the row, and those
    behind the wait.

    Args:
        sources: for each operand, its vectors ((access, accesses), chunks) in global memory.
        slots: for each operand, the result of :func:`stage`.
        kept: the first chunk that is copied; earlier ones are in registers.
        nothing: for each operand, the value of elements outside the row.
        step: first element of the first vector.
        turn: elements between consecutive vectors.
        count: elements of the row in whole vectors.
        policy: see :func:`load_policy`.
        bits: a bit for each element; vectors that have one are copied, instead of those before ``count``.
        once: whether that is computed once for all operands, which takes a register, instead of for each.
        chunk: the only chunk that is copied; None: all.
    """
    begin, end = cutlass.const_expr((0, slots[0].shape[1]) if chunk is None else (chunk, chunk + 1))
    for c in cutlass.range(begin, end, unroll=1):
        if cutlass.const_expr(once):
            inside = step + c * turn < count
        if cutlass.const_expr(bits is not None):
            vec = cutlass.const_expr(cute.size(slots[0].shape[0]))
            inside = (bits >> (c * vec)) & (2**vec - 1) != 0
        for i in cutlass.range_constexpr(len(sources)):
            (width, accesses), dtype = sources[i].shape[0], sources[i].element_type
            rX = registers(width, dtype, nothing[i])
            for a in cutlass.range_constexpr(accesses):
                gX = sources[i][(None, a), kept + c].iterator.toint()
                sX = slots[i][(None, a), c].iterator.toint()
                own = inside if cutlass.const_expr(once) else step + c * turn < count
                _stage_if(own, gX, sX, cute.recast_tensor(rX, Uint32), Uint64(policy))


def _stage_if(inside: Boolean, source: Int64, slot: Int32, rWords: cute.Tensor, policy: Uint64) -> None:
    """Copies 16 bytes to shared memory by ``cp.async`` if ``inside``, otherwise stores four words.

    Inline PTX, since CuTe's copy ignores the cache policy, and fills with zeros where the predicate is false.  The copy
    allocates in the L1: bypassing it (``.cg``) lost up to a fifth of the bandwidth.
    """
    cute.arch.inline_ptx(
        "{\n\t.reg .pred inside;\n\tsetp.ne.b32 inside, {$r0}, 0;\n\t"
        "@inside cp.async.ca.shared.global.L2::cache_hint [{$r2}], [{$r1}], 16, {$r3};\n\t"
        "@!inside st.shared.v4.b32 [{$r2}], { {$r4}, {$r5}, {$r6}, {$r7} };\n\t}",
        read_only_args=[Int32(inside), Int64(source), Int32(slot), policy, *(rWords[i] for i in range(4))],
    )


def load_vector(
    atom: cute.CopyAtom, tXgX: cute.Tensor, c: int, rX: cute.Tensor, inside: Boolean, policy: Int64 | None = None
) -> None:
    """Loads vector ``c`` of ((access, accesses), chunks) in global memory into registers, if ``inside``."""
    pred = vector_predicate(tXgX, inside)
    cute.copy(atom, tXgX[None, c], rX, pred=pred, cache_policy=policy)


def store_vector(atom: cute.CopyAtom, y: Any, tYgY: cute.Tensor, c: int, inside: Boolean) -> None:
    """Stores vector ``c`` of ((access, accesses), chunks) in global memory, if ``inside``."""
    rY = cute.make_rmem_tensor(tYgY[None, c].shape, tYgY.element_type)
    rY.store(y.to(rY.element_type).reshape(rY.shape))
    cute.copy(atom, rY, tYgY[None, c], pred=vector_predicate(tYgY, inside))


def vector_predicate(tXgX: cute.Tensor, inside: Boolean) -> cute.Tensor:
    """The predicate of a vector ((access, accesses), ...), broadcast over its accesses."""
    pred = cute.make_rmem_tensor(1, Boolean)
    pred[0] = inside
    return cute.make_tensor(pred.iterator, cute.make_layout(tXgX.shape[0][1], stride=0))


def neighbors(row: cute.Tensor, n: Int32, vec: int) -> cute.Tensor:
    """Element ``n`` of ``vec`` adjacent rows, contiguous; aligned to 16 bytes, or to the vector's size if less."""
    address = (row.iterator + cute.crd2idx(n, row.layout)).toint()
    return elements_at(address, row.element_type, vec, row.memspace)


def stepping(row: cute.Tensor, n: Int32, vec: int, step: Int32, count: int) -> cute.Tensor:
    """(vec, count): :func:`neighbors` of the elements ``n``, ``n + step``, and so on, of equal alignment."""
    stride = cute.assume(Int64(step) * row.stride[0], divby=vec)
    layout = cute.make_layout((vec, count), stride=(1, stride))
    return cute.make_tensor(neighbors(row, n, vec).iterator, layout)


def load_if(gX: cute.Tensor, rX: cute.Tensor, when: Boolean, policy: Int64, *, alone: bool = False) -> None:
    """Loads contiguous elements, aligned to 16 bytes or to all of them if less, into registers, if ``when``.

    ``alone``: no other load is to be in flight.
    """
    dtype, vec = gX.element_type, cute.size(rX)
    width = min(vec, 128 // dtype.width)
    atom = cute.make_copy_atom(CopyG2ROp(), dtype, num_bits_per_copy=width * dtype.width)
    layout = cute.make_layout(((width, vec // width),), stride=((1, width),))
    gX = cute.make_tensor(gX.iterator, layout)
    narrow = vec == 1 and dtype.width < 32 and not alone
    rTo = _unknown(rX[0], dtype) if narrow else rX
    cute.copy(atom, gX, cute.make_tensor(rTo.iterator, layout), pred=vector_predicate(gX, when), cache_policy=policy)
    if narrow:
        rX[0] = rTo[0]


def _unknown(x: Any, dtype: Any) -> cute.Tensor:
    """An element of 8 or 16 bits in registers, of a value that the compiler does not know.

    Otherwise it converts an element that is loaded under a predicate under the same predicate; and as there are seven
    predicates, loads wait for one another.
    """
    rX = cute.make_rmem_tensor(1, dtype)
    rX[0] = x
    rBits = cute.recast_tensor(rX, Uint8 if dtype.width == 8 else Uint16)
    bits = cute.arch.inline_ptx("mov.b32 {$w0}, {$r0};", write_only_types=[Uint32], read_only_args=[Uint32(rBits[0])])
    rBits[0] = rBits.element_type(bits)
    return rX


@cute.jit
def copy_if(rY: cute.Tensor, gY: cute.Tensor, when: Boolean):
    """Stores a vector if ``when``."""
    if when:
        cute.autovec_copy(rY, gY)


@cute.jit
def copy_bits(sources: tuple, targets: tuple, bits: Int32, when: Boolean):
    """Copies those of a thread's elements, of each operand, whose bit is set, one by one, if ``when``."""
    if when:
        for i in cutlass.range_constexpr(cute.size(targets[0].shape)):
            if (bits >> i) & 1 != 0:
                for k in cutlass.range_constexpr(len(sources)):
                    targets[k][i] = sources[k][i]


@cute.jit
def store_if(tensor: cute.Tensor, i: Any, value: Any, when: Boolean):
    """Stores one element if ``when``."""
    if when:
        tensor[i] = value.to(tensor.element_type)


def opaque(rX: cute.Tensor, zero: Uint32) -> None:
    """Keeps elements of 8 or 16 bits packed in registers between uses.

    Otherwise the compiler keeps their conversions to 32 bits, in at least twice the registers.  ``zero`` is 0 at run
    time, unknown to the compiler.
    """
    rWords = cute.recast_tensor(rX, Uint32)
    for i in range(cute.size(rWords)):
        rWords[i] = rWords[i] + zero


@cute.jit
def load_unaligned(row: cute.Tensor, first: Int32, rX: cute.Tensor, inside: Boolean):
    """Loads contiguous elements of any alignment by aligned 16-byte accesses and a shift in registers.

    All of them are ``inside`` the row, or none, which leaves ``rX`` as it is.
    """
    dtype, count = row.element_type, cute.size(rX)
    size = dtype.width // 8
    if inside:
        byte = (row.iterator + first).toint()
        begin, skip = byte & ~Int64(15), Int32(byte & 15)
        words = count * size // 4
        accesses = (words + 3) // 4 + 1
        rWindow = cute.make_rmem_tensor((4, accesses), Uint32)
        # The last access may exceed the row, and with it the allocation: then load by element.
        end = (row.iterator + cute.size(row)).toint()
        if (begin + 16 * accesses <= end) & (words > 0):
            for i in cutlass.range_constexpr(accesses):
                cute.autovec_copy(elements_at(begin + 16 * i, Uint32, 4), rWindow[None, i])
            shift_bytes(rWindow, skip, rX)
        else:
            for i in cutlass.range_constexpr(count):
                rX[i] = row[first + i]


class Window:
    """A vector of a row of stride 1 at any address, loaded by the aligned 16-byte accesses that contain it.

    Unless it is ``inside`` the row, its elements are ``fill``.
    """

    def __init__(self, row: cute.Tensor, first: Int32, vec: int, fill: Any, inside: Boolean, policy: Int64) -> None:
        dtype, size = row.element_type, vec * row.element_type.width // 8
        byte = (row.iterator + first).toint()
        begin, self.skip = byte & ~Int64(15), Int32(byte & 15)
        accesses = -(-size // 16) + 1
        self.words = cute.make_rmem_tensor((4, accesses), Uint32)
        cute.recast_tensor(self.words, dtype).fill(fill)
        gWords = elements_at(begin, Uint32, 4 * accesses)
        for a in range(accesses):  # each has elements of the vector
            load_if(neighbors(gWords, 4 * a, 4), self.words[None, a], inside & (self.skip + size > 16 * a), policy)

    def read(self, rX: cute.Tensor) -> None:
        """Waits for the loads, and copies the vector to ``rX``; once."""
        shift_bytes(self.words, self.skip, rX)


def shift_bytes(rWindow: cute.Tensor, skip: Int32, rX: cute.Tensor) -> None:
    """Extracts the elements at byte offset ``skip``, 0 to 15, of a window of words, which is overwritten."""
    # A barrel shift by two words, by one unless elements have 64 bits, and within a word.
    for by in (2, 1)[: 1 + (rX.element_type.width <= 32)]:
        for i in range(cute.size(rWindow) - by):
            rWindow[i] = Uint32(cutlass.select_((skip & (4 * by)) != 0, rWindow[i + by], rWindow[i]))
    rWords = cute.recast_tensor(rX, Uint32)
    for i in range(cute.size(rWords)):
        rWords[i] = rWindow[i]
        if rX.element_type.width < 32:
            rWords[i] = _funnel(rWindow[i], rWindow[i + 1], (skip & 3) * 8)


def _funnel(low: Uint32, high: Uint32, bits: Int32) -> Uint32:
    """The 32 bits at offset ``bits``, 0 to 31, of two words."""
    return cute.arch.inline_ptx(
        "shf.r.clamp.b32 {$w0}, {$r0}, {$r1}, {$r2};", write_only_types=[Uint32], read_only_args=[low, high, bits]
    )
