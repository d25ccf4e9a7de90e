"""The choice among the kernels that walk along rows."""

from __future__ import annotations

from forge_core.device import Device
from forge_week2_softmax.arithmetic import Arithmetic
from forge_week2_softmax.configs import Config, HeldConfig, SplitConfig, SweepConfig
from forge_week2_softmax.problem import Problem

__all__ = ["automatic", "cluster", "held", "max_cluster", "naive", "online", "parts", "single_pass", "split"]

_NOT_ROWS = "reads rows, and no reduced dimension is contiguous in every tensor here"
_LIMIT = 2**31

#: Chunks of a thread that there are kernels for; a row takes the next larger number.
CHUNKS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)


def automatic(problem: Problem, arithmetic: Arithmetic, device: Device) -> tuple[str, Config, str]:
    """The variant and configuration for a problem of kind ``inner``, and why."""
    n = row_chunks(problem)
    one = single_pass(problem, arithmetic, device)
    if isinstance(one, HeldConfig) and (n <= 2048 or max_cluster(device) == 1) and problem.rows * 4 > device.sm_count:
        many = f"{one.lanes} lanes a row" if one.lanes <= 32 else "a block a row"
        return "single_pass", one, f"rows of {problem.length} elements: {many}, {one.chunks} chunks a lane"
    several = cluster(problem, arithmetic, device)
    if isinstance(several, HeldConfig):
        return "cluster", several, f"rows of {problem.length} elements: {several.blocks} blocks a row"
    if isinstance(one, HeldConfig):
        return "single_pass", one, f"rows of {problem.length} elements: a block a row"
    many_blocks = split(problem, arithmetic, device)
    if isinstance(many_blocks, SplitConfig):
        return "split", many_blocks, f"rows of {problem.length} elements: many blocks a row, and a second pass"
    return "online", online(problem, arithmetic, device), f"rows of {problem.length} elements: a block a row, two reads"


def row_chunks(problem: Problem) -> int:
    """Chunks that a row of an ``inner`` problem touches, wherever it begins."""
    vector, edges = problem.vector()
    return -(-(problem.length + (vector - 1 if edges else 0)) // vector)


def _spread(problem: Problem, arithmetic: Arithmetic) -> tuple[bool, ...]:
    """For each tensor that is read, whether it is expanded along rows in which it ought to have elements."""
    on_rows = arithmetic.on_rows
    return tuple(not on_rows[i] and bool(problem.reduced) and i not in problem.whole for i in range(problem.sides - 1))


def naive(problem: Problem, arithmetic: Arithmetic, device: Device) -> SweepConfig:
    """Three passes, element by element; does every problem."""
    return _elements("naive", problem, arithmetic)


def online(problem: Problem, arithmetic: Arithmetic, device: Device) -> SweepConfig:
    """Two passes, by chunk where the row is contiguous, else element by element."""
    if problem.kind != "inner":
        return _elements("online", problem, arithmetic)
    vector, edges = problem.vector()
    return SweepConfig(
        arithmetic,
        vector,
        edges,
        len(problem.kept),
        _spread(problem, arithmetic),
        problem.rows >= _LIMIT,
        idea="online",
        threads=512 if row_chunks(problem) >= 2048 else 128,
        unroll=4 if len(arithmetic.sources) == 1 else 2,
    )


def _elements(idea: str, problem: Problem, arithmetic: Arithmetic) -> SweepConfig:
    threads = min(256, max(32, _power_of_two(problem.length // 4)))
    return SweepConfig(
        arithmetic,
        vector=1,
        edges=False,
        kept_rank=len(problem.kept),
        spread=(False,) * (problem.sides - 1),  # a stride of 0 is a stride as any other
        wide=problem.rows >= _LIMIT or problem.length >= _LIMIT,
        idea=idea,
        threads=threads,
        unroll=4 if len(arithmetic.sources) == 1 else 2,
        reduced_rank=len(problem.reduced),
    )


def _power_of_two(n: int) -> int:
    """The smallest power of two not below ``n``."""
    return 1 << max(n - 1, 0).bit_length()


def _bucket(chunks: int) -> int | None:
    return next((c for c in CHUNKS if c >= chunks), None)


def held(
    problem: Problem, arithmetic: Arithmetic, lanes: int, threads: int, blocks: int = 1, staged: int = 0
) -> HeldConfig | str:
    """A row held by ``lanes`` threads of each of ``blocks`` blocks; or why not."""
    if problem.kind != "inner":
        return _NOT_ROWS
    vector, edges = problem.vector()
    most = 16 // _inputs(arithmetic) if threads <= 512 else 8 // _inputs(arithmetic)
    chunks = _bucket(-(-row_chunks(problem) // (lanes * blocks)))
    if chunks is None or chunks > most:
        limit = most * lanes * blocks * vector
        return f"holds at most {limit} elements of a row here, and there are {problem.length}"
    if problem.rows * blocks >= _LIMIT * (threads // lanes):
        return "has at most 2^31 blocks"
    return HeldConfig(
        arithmetic,
        vector,
        edges,
        len(problem.kept),
        _spread(problem, arithmetic),
        problem.rows >= _LIMIT,
        lanes=lanes,
        threads=threads,
        chunks=chunks,
        blocks=blocks,
        staged=staged,
    )


def _inputs(arithmetic: Arithmetic) -> int:
    """Tensors of which a thread holds chunks."""
    return sum(not on_row for on_row in arithmetic.on_rows[:-1])


def single_pass(problem: Problem, arithmetic: Arithmetic, device: Device) -> HeldConfig | str:
    """A row by one block or by some of its lanes; or why not."""
    if problem.kind != "inner":
        return _NOT_ROWS
    n, per_thread = row_chunks(problem), 8 // _inputs(arithmetic)
    if n <= 128:
        return held(problem, arithmetic, _power_of_two(-(-n // 4)), 128)
    if n <= 32 * per_thread:
        return held(problem, arithmetic, 32, 128)
    lanes = min(512, max(64, _power_of_two(-(-n // (2 * per_thread)))))
    found = held(problem, arithmetic, lanes, lanes)
    return held(problem, arithmetic, 1024, 1024) if isinstance(found, str) else found


def max_cluster(device: Device) -> int:
    """The largest cluster: 16 blocks where a GPU takes more than the 8 that every one does."""
    if device.capability < (9, 0):
        return 1
    return 16 if device.capability[0] in (9, 10) else 8


def cluster(problem: Problem, arithmetic: Arithmetic, device: Device) -> HeldConfig | str:
    """A row by a cluster of blocks; or why not."""
    most = max_cluster(device)
    if most == 1:
        return f"needs thread-block clusters (sm_90 or newer), and this is {device.arch}"
    if problem.kind != "inner":
        return _NOT_ROWS
    n, per_thread = row_chunks(problem), 8 // _inputs(arithmetic)
    blocks = 2
    while blocks < most and (
        n > blocks * 256 * per_thread or (problem.rows * blocks < device.sm_count and n > 2 * blocks * 64)
    ):
        blocks *= 2
    threads = 256
    while threads > 64 and n <= blocks * threads * per_thread // 2:
        threads //= 2
    found: HeldConfig | str = "holds nothing"
    while threads <= 1024:
        found = held(problem, arithmetic, threads, threads, blocks)
        if isinstance(found, HeldConfig):
            return found
        threads *= 2
    return found


def split(problem: Problem, arithmetic: Arithmetic, device: Device) -> SplitConfig | str:
    """Many blocks a row, and a second pass; or why not."""
    if problem.kind != "inner":
        return _NOT_ROWS
    if arithmetic.backward and arithmetic.op == "logsumexp":
        return "has nothing to exchange between the blocks of a row"
    if problem.rows >= 2**16:
        return "numbers rows along the grid's second axis, which has 65535 places"
    vector, edges = problem.vector()
    row = SweepConfig(
        arithmetic,
        vector,
        edges,
        len(problem.kept),
        _spread(problem, arithmetic),
        threads=256,
        unroll=8 // _inputs(arithmetic),
    )
    return SplitConfig(row, dependent=device.capability >= (9, 0))


def parts(config: Config, problem: Problem, device: Device) -> int:
    """Blocks of a row, for a kernel that takes any number of them; 1 for the others."""
    if isinstance(config, HeldConfig) and config.blocks == 0:
        return -(-row_chunks(problem) // (config.lanes * config.chunks))
    if not isinstance(config, SplitConfig):
        return 1
    n = row_chunks(problem)
    fill = max(1, 4 * device.sm_count // problem.rows)
    return max(1, min(fill, -(-n // config.row.threads), 1024))
