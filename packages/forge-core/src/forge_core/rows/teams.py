"""Host side of the persistent kernel: its configurations, which one a problem takes, and its grid.

A *team* is a block or a cluster that processes a row at a time, or, with ``lanes``, a block that processes several.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from forge_core.choice import Refusal, max_cluster
from forge_core.device import Device
from forge_core.rows.binding import Binding
from forge_core.rows.config import ALL_DIMS, LIMIT, MANY_DIMS, HeldConfig, SharedRowConfig
from forge_core.rows.problem import Problem

#: Registers of a multiprocessor, and shared memory that CUDA reserves per block.
REGISTERS, RESERVED_SHARED = 65536, 1024
#: Registers per thread for sums over rows and column operands, which stay for all rows.
_KEPT = 48
#: Maximum elements of a row per thread, of teams that are not long; of rows read by element; of those with several
#: reduced dims.
_MOST, _MOST_SINGLE, _MOST_STRIDED = 16, 8, 4
#: Registers per thread besides ``spare_registers``; all of them with lanes, whose row the compiler keeps from the folds
#: to the map.
_SPARE, _SPARE_LANES = 8, 64
#: Bytes in flight per multiprocessor.
_IN_FLIGHT = 64 * 1024
#: Minimum rows of each of these teams: without sums over rows, and with sums, which each team writes.
_ROWS_PER_TEAM = 8, 16
#: Minimum bytes of a row per block whose load time hides the exchange of the previous row.
_HIDES = 24 * 1024
#: Threads per block of a team; threads per block with lanes; lanes per row and chunks.
_TEAM_THREADS, _WARP_THREADS, _LANES = (256, 512), 128, ((4, 2), (8, 2), (16, 2), (32, 2), (32, 4))
#: Times as many resident threads, with which two blocks a row are faster than one.
_MORE = 1.25
#: Blocks of the largest cluster, and the most multiprocessors of a GPC, within which a cluster is placed.  An H200 with
#: 132 has seven GPCs of 16 or more; an eighth team would start when the others have ended.
_LARGEST, _GPC = 16, 18


def spare_registers(device: Device) -> int:
    """Registers per thread for addresses, predicates and a vector in conversion: more from sm_100 on, by ptxas."""
    return 32 if device.capability >= (10, 0) else 24


@dataclass(frozen=True)
class PersistentConfig(SharedRowConfig):
    """``persistent.py``: each team processes rows one after the other."""

    #: Rows in the shared-memory pipeline: one is computed while the others are loaded; 0: the next row is loaded into
    #: registers, by element.
    stages: int = 0
    overlap: bool = False  # programmatic dependent launch of the kernel that adds up the sums of teams
    #: Column operands are kept in shared memory instead of registers.
    columns_staged: bool = field(default=False, metadata={"added": True})

    @property
    def sizes(self) -> int:
        """Number of sizes that a launch is passed: threads per block and teams."""
        return 2

    @property
    def workspace(self) -> bool:
        """Whether a launch has a workspace, for the sums of teams."""
        return bool(self.binding.operands.accumulates)

    @property
    def exchange_partials(self) -> int:
        """Partial results of an exchange in shared memory, in all its buffers."""
        return self.turns * (self.threads // 32) * self.blocks if self.sized else 0

    @property
    def long(self) -> bool:
        """Whether a thread has more elements of a row than teams of few rows have."""
        return self.chunks * self.vec > _MOST

    @property
    def delayed(self) -> bool:
        """Whether a row is folded before the totals of the one before have arrived: in clusters, by one exchange."""
        return self.blocks > 1 and self.stages > 2 and self.merges and not self.binding.program.joint

    @property
    def turns(self) -> int:
        """Buffers of an exchange."""
        return 4 if self.delayed else 2

    @property
    def limit(self) -> int:
        """Rows have fewer elements than this; the first vector of ``shifted`` rows may have a single one."""
        return self.capacity * self.vec + 1 - self.has_edges * (self.vec - 1)

    @property
    def registers(self) -> int:
        """Estimated registers per thread: sums and column operands, a vector in conversion, and the next row."""
        operands, wide = self.binding.operands, self.binding.wide
        kept = operands.accumulates + (() if self.columns_staged else operands.columns)
        stay = self.chunks * self.vec * wide * len(kept)
        vector = self.vec * wide * (2 * len(operands.rows) + 1)
        arrive = 0 if self.stages else self.chunks * (2 * self.binding.words(1) + 3) + 12 * self.reduced
        # Without sums, ptxas spills at the edges of rows unless it has 8 registers more.
        edges = 4 * self.chunks + 8 * (not operands.accumulates) if self.has_edges else 0
        return stay + vector + arrive + self.spare * wide + edges

    @property
    def rows_at_once(self) -> int:
        """Rows per iteration of a team."""
        return self.threads // self.lanes if self.lanes else 1

    def shared(self, threads: Any) -> Any:
        """Bytes of shared memory per block: exchanges and staged rows, whose memory the sums of lanes reuse."""
        row = self.chunks * self.vec * self.binding.loaded_bytes
        sums = self.vec * self.binding.compute.itemsize if self.lanes and self.workspace else 0
        columns = self.binding.operands.columns if self.columns_staged else ()
        column = self.chunks * self.vec * sum(self.binding.sizes(columns))
        return super().shared(threads) + 32 + threads * (max(self.stages * row, sums) + column)

    @property
    def idea(self) -> str:
        """The kernel's name and the threads that share a row."""
        return f"persistent_{self.who}"

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        return f"{super().kernel_name}_s{self.stages}"

    def resident_blocks(self, threads: int, device: Device) -> int:
        """Resident blocks of ``threads`` threads per multiprocessor."""
        room = device.smem_per_sm // (self.shared(threads) + RESERVED_SHARED)
        return max(1, min(self.resident_by_registers(threads), int(room)))


@functools.lru_cache(maxsize=1024)
def persistent_configurations(binding: Binding, device: Device) -> tuple[PersistentConfig, ...]:
    """All configurations of a program, those that hold the shortest rows first."""
    vectors = (_vectors(binding, device, align) for align in ("whole", "shifted"))
    found = dict.fromkeys(itertools.chain(*vectors, _single(binding, device)))
    return tuple(config for config in found if config.registers * config.threads <= REGISTERS)


def _config(binding: Binding, device: Device, align: str, threads: int, chunks: int, **more: Any) -> PersistentConfig:
    spare = _SPARE_LANES if "lanes" in more else spare_registers(device) + _SPARE
    if chunks * binding.widest_vec > _MOST and {binding.dtype(name) for name in binding.loaded} == {torch.bfloat16}:
        spare -= _SPARE  # converted by a shift
    overlap = bool(binding.operands.accumulates) and device.capability >= (9, 0)
    return PersistentConfig(
        binding, align, threads, chunks, spare, sm_threads=device.sm_threads, overlap=overlap, **more
    )


def _clusters(device: Device) -> list[int]:
    return [blocks for blocks in (1, 2, 4, 8, 16) if blocks <= max_cluster(device)]


def _elements(binding: Binding) -> int:
    """Maximum elements of a row per thread."""
    operands = binding.operands
    return min(_MOST, _KEPT // max(1, binding.wide * (len(operands.accumulates) + len(operands.columns))))


def _vectors(binding: Binding, device: Device, align: str) -> Iterator[PersistentConfig]:
    """Configurations for rows of vectors, pipelined in shared memory."""
    vec, sums = binding.widest_vec, bool(binding.operands.accumulates)
    most = max(1, _elements(binding) // vec)
    # Lanes would add up sums of rows that are not equally far from a boundary.
    lane_rows = _LANES if align == "whole" else ()
    teams = [(_WARP_THREADS, min(chunks, most), {"lanes": lanes}) for lanes, chunks in lane_rows]
    # Longer rows take all blocks of a cluster, small ones, so that others are resident beside them.
    for blocks in dict.fromkeys((*_clusters(device)[:2], max_cluster(device))):
        sizes = (_WARP_THREADS, *_TEAM_THREADS) if blocks > 2 else _TEAM_THREADS
        teams += [(threads, most, {"blocks": blocks}) for threads in sizes]
    # Sums leave no registers for column operands, which are then kept in shared memory.
    for blocks, threads, elements in _long(binding, device, align):
        teams.append((threads, elements // vec, {"blocks": blocks, "columns_staged": sums}))
    yield from filter(None, (_pipelined(binding, device, align, threads, n, **more) for threads, n, more in teams))


def _long(binding: Binding, device: Device, align: str) -> list[tuple[int, int, int]]:
    """Teams of many long rows, the fewest blocks that hold one: blocks, threads per block, elements per thread."""
    sums, narrow = bool(binding.operands.accumulates), binding.widest_vec == 8
    blocks, sizes = _clusters(device), [24, 32]
    if align == "shifted":  # masks of more elements, or of more blocks, take the time that is gained
        if sums and narrow:
            return [(n, 512 if n <= 2 else 256, 24) for n in (1, 2, 8) if n in blocks]
        return [(2, 512, 24)] if 2 in blocks and not sums and not narrow else []
    if sums and not narrow:  # fewer blocks have 192 KB of rows in flight, which are slower than 128
        blocks = blocks[-1:]
    elif not sums and device.capability >= (10, 0):  # ptxas allocates more: 32 elements exceed 128 registers
        sizes = [24]
    # A block by itself has 8 or 16 elements a thread as well.
    return [(n, 512, size) for n in blocks for size in sizes if n > 1 or (sums and narrow and size == 24)]


def _pipelined(
    binding: Binding, device: Device, align: str, threads: int, chunks: int, **more: Any
) -> PersistentConfig | None:
    """A configuration whose rows arrive in shared memory; None if that has no room for two, or registers for one.

    A single row is enough for the longest: each of its chunks is loaded again as soon as it is computed.
    """
    config = _config(binding, device, align, threads, chunks, stages=1, **more)
    # cp.async needs 16 bytes of each operand.
    names = binding.loaded + (binding.operands.columns if config.columns_staged else ())
    row, resident = threads * chunks * config.vec * binding.loaded_bytes, config.resident
    narrow = any(size * config.vec % 16 for size in binding.sizes(names))
    if not binding.loaded or narrow or config.registers * threads > REGISTERS:
        return None
    beside = replace(config, stages=3).shared(threads) - 3 * row  # at most
    most_here, most_shared = (
        (each - beside) // row for each in (device.smem_per_block, device.smem_per_sm // resident - RESERVED_SHARED)
    )
    ahead = _IN_FLIGHT // row if config.long else -(-_IN_FLIGHT // (row * resident))
    # At least two, even where shared memory then limits the resident blocks.
    stages = min(1 + max(1, ahead), max(2, most_shared), most_here)
    least = 1 if config.long and 1 < config.blocks == max_cluster(device) else 2
    return replace(config, stages=stages) if stages >= least else None


def _single(binding: Binding, device: Device) -> Iterator[PersistentConfig]:
    """Configurations for all other rows, by element."""
    most = min(_MOST_SINGLE, _elements(binding))
    for lanes, chunks in ((8, 2), (32, most)):
        yield _config(binding, device, "element", _WARP_THREADS, chunks, rank=MANY_DIMS, lanes=lanes)
    for blocks, threads in itertools.product(_clusters(device), _TEAM_THREADS):
        yield _config(binding, device, "element", threads, most, rank=MANY_DIMS, blocks=blocks)
    for dims, blocks in itertools.product((MANY_DIMS, ALL_DIMS), _clusters(device)):
        chunks = min(_MOST_STRIDED, most)
        yield _config(binding, device, "element", 256, chunks, rank=dims, reduced=dims, blocks=blocks)


def choose_team(binding: Binding, problem: Problem, device: Device) -> PersistentConfig | Refusal:
    """The configuration for a problem, with the fewest blocks whose threads hold a row; or a Refusal.

    Two blocks share a row where one would leave so many of its threads idle that fewer threads are resident.  Few long
    rows are shared by more blocks, each of which holds less.
    """
    contiguous, kept = problem.kind in ("inner", "empty"), len(problem.kept)
    dims = max(kept, len(problem.reduced))
    if dims > ALL_DIMS:
        return Refusal(f"at most {ALL_DIMS} dims that cannot be merged", f"{dims}; pass a contiguous() tensor")
    reduced = 0 if contiguous and kept <= MANY_DIMS else MANY_DIMS if dims <= MANY_DIMS else ALL_DIMS
    kind = problem.alignment.kind if not reduced and kept == 1 else "element"
    if max(problem.rows, problem.length + 2**20) >= LIMIT:
        return Refusal("fewer than 2^31 rows and elements of a row", f"{problem.rows} rows of {problem.length}")
    aligns = (kind, "element") if kind in ("whole", "shifted") else ("element",)
    listed = persistent_configurations(binding, device)
    able = [c for align in aligns for c in listed if (c.align, c.reduced) == (align, reduced)]
    fits = [c for c in able if problem.length < c.limit and _teams(c, problem, device)]
    if not fits:
        most = max((c.limit - 1 for c in able if _teams(c, problem, device)), default=0)
        return Refusal(f"rows of at most {most} such elements", f"{problem.length} elements")
    first, two = fits[0], next((c for c in fits if c.blocks == 2), fits[0])
    more = _resident_threads(two, problem, device) > _MORE * _resident_threads(first, problem, device)
    if first.blocks == 1:
        return two if not first.lanes and more else first
    long = next((c for c in fits if c.long), first)
    # Without sums as many blocks, too, if they are all of a cluster: the alternative is no shorter team.
    fewer = long.blocks < first.blocks or (first.blocks == max_cluster(device) and not binding.operands.accumulates)
    return long if fewer and _is_many(long, problem, device) else first


def keeps_columns(binding: Binding) -> bool:
    """Whether long teams of a program without sums are faster than blocks that hold a row each, for some rows."""
    able = bool(binding.operands.columns and binding.operands.writes)
    return able and (_many_columns(binding) or len(binding.loaded) > 1)


def _many_columns(binding: Binding) -> bool:
    return binding.wide_columns or len(binding.operands.columns) > 1


def choose_long_team(
    binding: Binding, problem: Problem, device: Device, held: HeldConfig | Refusal
) -> PersistentConfig | None:
    """The long team of a program without sums, if it is faster than ``held``: instead of clusters.

    With a single narrow column operand only instead of clusters whose registers do not hold a row; of ``deep`` clusters
    instead of the largest.
    """
    if isinstance(held, HeldConfig):
        long = held.blocks > 1 and (held.staged or _many_columns(binding))
        if not long or (held.deep and held.blocks < max_cluster(device)):
            return None
    if not keeps_columns(binding):
        return None
    team = choose_team(binding, problem, device)
    if isinstance(team, Refusal) or not team.long or not _is_many(team, problem, device):
        return None
    return team if problem.length * binding.loaded_bytes >= _HIDES * team.blocks else None


def _is_many(config: PersistentConfig, problem: Problem, device: Device) -> bool:
    """Whether each team has rows enough."""
    iterations = -(-problem.rows // _teams(config, problem, device))
    return iterations >= _ROWS_PER_TEAM[bool(config.binding.operands.accumulates)]


def _resident_threads(config: PersistentConfig, problem: Problem, device: Device) -> int:
    threads = _threads(config, problem)
    return threads * config.resident_blocks(threads, device)


def _teams(config: PersistentConfig, problem: Problem, device: Device) -> int:
    """Teams: as many as are resident at once, fewer if rows then have the same iterations; 0 if no number will do.

    Clusters of more than two blocks are counted by 16 multiprocessors of each GPC, within which they are placed.
    """
    threads, groups = _threads(config, problem), -(-problem.rows // config.rows_at_once)
    sms = device.sm_count if config.blocks <= 2 else max(1, device.sm_count // _GPC) * _LARGEST
    most = max(1, sms * config.resident_blocks(threads, device) // config.blocks)
    if groups <= most:
        return max(1, groups)
    # A team's rows are so many rows apart, and that many elements a multiple of a vector.
    apart = [problem.kept[0].strides[i] for i in problem.moving] if config.has_edges else [0]
    step = config.vec // math.gcd(config.vec, *apart)
    iterations = -(-groups // (most // step * step)) if most >= step else 0
    return -(-groups // iterations // step) * step if iterations else 0


def team_sizes(config: PersistentConfig, problem: Problem, device: Device) -> tuple[int, int]:
    """Threads per block, and teams."""
    return _threads(config, problem), _teams(config, problem, device)


def _threads(config: PersistentConfig, problem: Problem) -> int:
    return config.threads_for(-(-(problem.length + config.has_edges * (config.vec - 1)) // config.vec))
