"""What a block can hold of a row, and how: the configuration of ``kernels/held.py`` for a given shape of blocks."""

from __future__ import annotations

from forge_week2_softmax.arithmetic import Arithmetic
from forge_week2_softmax.configs import HeldConfig
from forge_week2_softmax.problem import Problem

__all__ = ["LIMIT", "NOT_ROWS", "held", "independent", "inputs_of", "row_chunks", "spread_of"]

NOT_ROWS = "reads rows, and no reduced dimension is contiguous in every tensor here"

#: Rows and blocks are numbered by 32-bit integers below this.
LIMIT = 2**31

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


def _bucket(chunks: int) -> int | None:
    return next((c for c in CHUNKS if c >= chunks), None)


def held(
    problem: Problem, arithmetic: Arithmetic, lanes: int, threads: int, blocks: int = 1, *, spare: int = 24
) -> HeldConfig | str:
    """A row held by ``lanes`` threads of each of ``blocks`` blocks, or why not.

    Args:
        problem: the canonical problem.
        arithmetic: what is computed.
        lanes: threads of a block that share a row.
        threads: threads of a block.
        blocks: blocks that share a row.
        spare: registers of a thread beside what it holds.
    """
    if problem.kind != "inner":
        return NOT_ROWS
    vector, edges = problem.vector()
    most = 16 // inputs_of(arithmetic) if threads <= 512 else 8 // inputs_of(arithmetic)
    chunks = _bucket(-(-row_chunks(problem) // (lanes * blocks)))
    if chunks is None or chunks > most:
        limit = most * lanes * blocks * vector
        return f"holds at most {limit} elements of a row here, and there are {problem.length}"
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
        resident=_resident(chunks, vector, arithmetic, threads, blocks, spare) if lanes > 32 else 0,
    )


def _resident(chunks: int, vector: int, arithmetic: Arithmetic, threads: int, blocks: int, spare: int) -> int:
    """Blocks that can have their registers on a multiprocessor at once.

    Left alone, the compiler takes more registers than it needs to hold the chunks, and half as many blocks fit.  But
    more of them are not always better (docs/week2.md has the figures): three large blocks of little to hold lose to
    two (32768 x 8192: 0.979 to 0.997 of the copy in fp32, 0.948 to 0.995 in bf16), and beside more than 32 words, three
    blocks with 40 registers more win over four with 24, in which the compiler spills.  Two blocks with 24 are kept
    where one with 40 would be left.
    """
    if arithmetic.acc.itemsize == 8:
        return 0  # exponentials of fp64 are long, and take what they need
    itemsize = max(d.itemsize for d in arithmetic.sources)
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
