"""What a block can hold of a row, and how: the configuration of ``kernels/held.py`` for a given shape of blocks."""

from __future__ import annotations

from forge_week2_softmax.arithmetic import Arithmetic
from forge_week2_softmax.configs import HeldConfig
from forge_week2_softmax.problem import Problem

__all__ = [
    "CHUNK",
    "LIMIT",
    "LINE",
    "NOT_ROWS",
    "ROUNDING",
    "can_find_top",
    "chunk_widths",
    "held",
    "independent",
    "inputs_of",
    "row_chunks",
    "spread_of",
    "unshared",
]

NOT_ROWS = "reads rows, and no reduced dimension is contiguous in every tensor here"

#: Rows and blocks are numbered by 32-bit integers below this.
LIMIT = 2**31

#: Bytes of a whole chunk.
CHUNK = 16

#: Parts of a row begin at multiples of so many chunks; that of ``kernels/split.py``, which imports the DSL.
LINE = 8

#: Registers of a thread beside what it holds, where that is rounded first.
ROUNDING = 56

#: Chunks of a thread that there are kernels for; a row takes the next larger number.
CHUNKS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16)


def row_chunks(problem: Problem) -> int:
    """Chunks that a row of an ``inner`` problem touches, wherever it begins."""
    vector, edges = problem.vector()
    return -(-(problem.length + (vector - 1 if edges else 0)) // vector)


def spread_of(problem: Problem, arithmetic: Arithmetic) -> tuple[bool, ...]:
    """For each tensor that is read, whether it is expanded along rows in which it ought to have elements."""
    on_rows = arithmetic.on_rows
    return tuple(not on_rows[i] and bool(problem.reduced) and i not in problem.whole for i in range(problem.sides - 1))


def chunk_widths(problem: Problem, arithmetic: Arithmetic) -> set[int]:
    """The bytes of a chunk of each tensor that has elements; 0 for one that does not wait as it is stored."""
    vector, _ = problem.vector()
    spread = spread_of(problem, arithmetic)
    return {
        vector * dtype.itemsize if dtype.is_floating_point and not repeated else 0
        for dtype, repeated, on_row in zip(arithmetic.sources, spread, arithmetic.on_rows, strict=False)
        if not on_row
    }


def _bucket(chunks: int) -> int | None:
    return next((c for c in CHUNKS if c >= chunks), None)


def held(
    problem: Problem,
    arithmetic: Arithmetic,
    lanes: int,
    threads: int,
    blocks: int = 1,
    *,
    sm_threads: int = 1536,
    spare: int = 24,
    stage: bool = False,
    top_first: bool = False,
) -> HeldConfig | str:
    """A row held by ``lanes`` threads of each of ``blocks`` blocks, or why not.

    Args:
        problem: the canonical problem.
        arithmetic: what is computed.
        lanes: threads of a block that share a row.
        threads: threads of a block.
        blocks: blocks that share a row.
        sm_threads: threads that a multiprocessor can have.
        spare: registers of a thread beside what it holds.
        stage: a part may wait in shared memory.
        top_first: the lanes of a row find its maximum before they sum, as rows that begin anywhere always do, where
            :func:`can_find_top` says that they can.
    """
    if problem.kind != "inner":
        return NOT_ROWS
    vector, edges = problem.vector()
    most = 16 // inputs_of(arithmetic) if threads <= 512 else 8 // inputs_of(arithmetic)
    chunks = _bucket(-(-row_chunks(problem) // (lanes * blocks)))
    if chunks is None or chunks > most:
        limit = most * lanes * blocks * vector
        return f"holds at most {limit} elements of a row here, and there are {problem.length}"
    if chunk_widths(problem, arithmetic) != {CHUNK}:
        spare = max(spare, 40)  # what is converted on its way takes registers of its own
    if arithmetic.rounds_first and chunks * vector + ROUNDING > 65536 // threads:
        return f"rounds elements to {arithmetic.via} first, and has no registers for {chunks} chunks a thread of that"
    staged = _staged(chunks, problem, arithmetic, threads) if stage and blocks > 1 else 0
    if problem.rows * blocks >= LIMIT * (threads // lanes):
        return "has at most 2^31 blocks"
    return HeldConfig(
        arithmetic,
        vector,
        edges,
        len(problem.kept),
        spread_of(problem, arithmetic),
        problem.rows >= LIMIT,
        lanes=lanes,
        threads=threads,
        chunks=chunks,
        blocks=blocks,
        staged=staged,
        resident=_resident(chunks - staged, vector, arithmetic, threads, blocks, sm_threads, spare)
        if lanes > 32
        else 0,
        top_first=(top_first or edges) and blocks == 1 and can_find_top(arithmetic, lanes),
    )


def can_find_top(arithmetic: Arithmetic, lanes: int) -> bool:
    """Whether the lanes of a row can find its maximum before they sum, so that an element has one exponential.

    On an H200 rows that begin anywhere gain by it, whose elements outside whole chunks have code of their own: 8 to
    12 % at 32768 x 129, 255 and 301 bf16, 1 to 4 % at 77 to 509 fp32, level at 767 bf16.  Where there are many, whole
    chunks of 16 and 32 bits are within 1.1 % either way.  Rows of float64, whose exponentials are long, lose 3 % at 255
    and 7 % at 256.
    """
    return lanes <= 32 and not arithmetic.backward and arithmetic.acc.itemsize == 4


def _staged(chunks: int, problem: Problem, arithmetic: Arithmetic, threads: int) -> int:
    """Chunks of a thread, of each tensor, that are better held in shared memory, beside clusters on sm_90.

    A block that fills the registers of a multiprocessor leaves nobody to move anything while it exchanges.  With a part
    of its chunks in shared memory another block finds room: on an H200 4096 x 262144 fp32 has 1.017 of the copy instead
    of 0.956 backward and 1.008 instead of 0.990 forward, 8192 x 50257 bf16 0.992 instead of 0.969.  Where the blocks
    find room without, they are better off without (8192 x 65536 bf16: 1.019, and 0.948 with half).
    """
    if chunk_widths(problem, arithmetic) != {CHUNK} or arithmetic.acc.itemsize == 8 or arithmetic.rounds_first:
        return 0
    if inputs_of(arithmetic) == 2:
        # What lies outside whole chunks takes registers of its own.
        return chunks - (3 if problem.vector()[1] else 4) if chunks > 5 and threads == 512 else 0
    if threads == 256 and chunks > 10:
        return chunks - 7 if chunks <= 14 else chunks - 10
    if threads == 512 and (chunks > 10 or 4 < chunks < 8):
        return chunks - 7 if chunks > 10 else chunks - 3
    return 0


def _resident(
    chunks: int, vector: int, arithmetic: Arithmetic, threads: int, blocks: int, sm_threads: int, spare: int
) -> int:
    """Blocks that can have their registers on a multiprocessor at once.

    Left alone, the compiler takes more registers than it needs to hold the chunks, and half as many blocks fit.  But
    more of them are not always better (docs/week2.md has the figures).  Where a block has one tensor and little of it,
    all of a multiprocessor's threads are better than three quarters: 32768 x 8192 bf16 forward has 1.028 of the copy
    with four blocks of 512 and 0.952 with three, 32768 x 4096 1.014 with eight of 256 and 0.992 with six.  Two large
    blocks are better than three elsewhere, and beside more than 32 words, three blocks with 40 registers more than four
    with 24, in which the compiler spills.  Two blocks with 24 are kept where one with 40 would be left.
    """
    if arithmetic.acc.itemsize == 8:
        # Exponentials of fp64 are long.  Left alone, the compiler gives 512 threads 64 registers, and 256 what makes a
        # third block fit, and spills.  Little of one tensor fits the 40 that 1536 threads have: 16384 x 1024 takes 85
        # us with six blocks of 256, and 93 with four.
        if threads < 256:
            return 0
        return 1536 // threads if inputs_of(arithmetic) == 1 and chunks <= 2 and blocks == 1 else max(512 // threads, 1)
    if arithmetic.rounds_first:
        return min(65536 // (threads * (chunks * vector + ROUNDING)), 16)
    if inputs_of(arithmetic) == 1 and chunks <= 2 and blocks == 1:
        return min(sm_threads // threads, 16)
    # Integers wait as what they become.
    itemsize = max((d if d.is_floating_point else arithmetic.via).itemsize for d in arithmetic.sources)
    words = inputs_of(arithmetic) * chunks * vector * itemsize // 4
    little = chunks <= 2 or (chunks <= 4 and itemsize >= 4 and blocks == 1)
    least = 64 if little and threads >= 512 else 40
    tight, roomy = (min(65536 // (threads * max(words + more, least)), 16) for more in (spare, 40))
    return roomy if words > 40 or (words > 32 and roomy > 1) else tight


def inputs_of(arithmetic: Arithmetic) -> int:
    """Tensors of which a thread holds chunks."""
    return sum(not on_row for on_row in arithmetic.on_rows[:-1])


def independent(arithmetic: Arithmetic) -> bool:
    """Whether no element of a row depends on the others, so that its blocks need not meet."""
    return arithmetic.backward and arithmetic.op == "logsumexp"


def unshared(problem: Problem, arithmetic: Arithmetic) -> str:
    """Why blocks cannot share a row, as the end of "it ..."; empty where they can."""
    if problem.kind != "inner":
        return NOT_ROWS
    return "has nothing to exchange between the blocks of a row" if independent(arithmetic) else ""
