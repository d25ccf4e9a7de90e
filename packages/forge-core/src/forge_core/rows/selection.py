"""Selects the variant and the configuration of a launch.

    contiguous rows           held        lanes, a block or a cluster hold a row on chip; one read
    short strided rows        held        a thread holds a row of up to 32 elements, lanes of up to 512
    few long rows             grid        all blocks of the GPU hold them and exchange through global memory; one read
    longer rows               stream      a block per row; one read for all folds (each, without a merge), one to write
    few of them               split       parts of rows, a launch per pass; the same reads
    other strided rows        column      tiles of neighboring rows, or of one; a block, a cluster or parts per tile
    rows along many dims      stream      by element
    sums over rows            persistent  teams process rows one after the other

Programs with column operands run by ``persistent`` too, where the operator declares it: by name, and for many long rows
if they have several column operands or wide ones, or a row does not fit in the registers of a cluster.

:func:`select` is a pure function of a problem, a binding, a device and the ``thresholds`` in effect; it needs no GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from forge_core.choice import Refusal, refuse, require_known
from forge_core.device import Device
from forge_core.errors import UnsupportedError
from forge_core.op.plan import Variant
from forge_core.rows.arguments import block_threads, bytes_in_flight, row_parts, tiling
from forge_core.rows.binding import Binding
from forge_core.rows.config import ALL_DIMS, LIMIT, MANY_DIMS, ColumnConfig, HeldConfig, RowConfig, StreamConfig
from forge_core.rows.listing import listed
from forge_core.rows.neighbors import APART, FEW_CHUNKS, by_lanes, choose_column
from forge_core.rows.problem import Problem
from forge_core.rows.teams import PersistentConfig, choose_long_team, choose_team, team_sizes
from forge_core.rows.thresholds import thresholds

#: The kernels of programs that do not accumulate sums over rows.
VARIANTS: Mapping[str, Variant] = {
    "stream": Variant("forge_core.rows.stream:build", "a block streams a row: a read for the totals, one to write"),
    "column": Variant("forge_core.rows.column:build", "a block has a tile of neighboring rows, or one row"),
    "split": Variant("forge_core.rows.stream:build", "a row is cut into parts: launches for the totals, one to write"),
    "grid": Variant("forge_core.rows.held:build", "rows stay in the registers of all blocks of the GPU, in one launch"),
    "held": Variant("forge_core.rows.held:build", "rows stay in registers: one read, one write"),
}

#: The kernel of programs that accumulate sums over rows; where declared, also of others with column operands.
PERSISTENT: Mapping[str, Variant] = {
    "persistent": Variant(
        "forge_core.rows.persistent:build", "persistent blocks keep column operands and sums on chip"
    ),
}


@dataclass(frozen=True)
class Rung:
    """A kernel besides the engine's, such as a step of the course's ladder, which is taken by name only."""

    variant: Variant
    choose: Callable[[Binding, Problem, Device], Any]  # returns its configuration, or a Refusal
    #: Returns the integers of the launch of a configuration, between the pointers and the stream.
    arguments: Callable[[Any, Problem], tuple[int, ...]]


NO_LADDER: Mapping[str, Rung] = {}

#: All kernels of the engine.
KERNELS: Mapping[str, Variant] = {**VARIANTS, **PERSISTENT}

# Maximum elements of a contiguous row that one thread reads, and of one that it writes: lanes write more of each cache
# line at once.
_ALONE, _ALONE_WRITTEN = 16, 4
#: Bytes read from which copies of column operands are made for rows that are not aligned with them.
_REALIGNED = 2**25
# Elements per multiprocessor, and of a row, beyond which ``deep`` blocks are faster.
_DEEP, _DEEP_ROW = 2**19, 2**13
# Threads per multiprocessor up to which a map has fewer vectors a thread.
_MAP_THREADS = 1024
# Rows per multiprocessor up to which a block for each is faster than a warp with many loads.
_FEW_ROWS = 4
#: Additional bytes in flight on a multiprocessor that hide the exchange of a cluster with one more block.
_BYTES_PER_BLOCK = 3072


def select(
    op: str,
    binding: Binding,
    problem: Problem,
    device: Device,
    variant: str = "auto",
    ladder: Mapping[str, Rung] = NO_LADDER,
    kernels: Collection[str] = KERNELS,
) -> tuple[str, Any, str]:
    """The variant and configuration of a launch, and why: see :func:`plan_call`."""
    for name, offset, size in zip(problem.operands.tensors, problem.offsets, problem.itemsizes, strict=True):
        if offset % size:
            raise UnsupportedError(
                f"{op}: expected elements of {name!r} at multiples of their {size} bytes, got an offset of "
                f"{offset % size} bytes; pass a clone().",
                requirement="elements at multiples of their size",
            )
    if variant == "auto":
        chosen = _automatic(binding, problem, device, teams="persistent" in kernels)
        if isinstance(chosen, Refusal):
            refuse(op, variant, chosen, [])
        return (*chosen[:2], chosen[2] + thresholds().note(device))
    operands = binding.operands
    usable = PERSISTENT if operands.accumulates else KERNELS if operands.columns else VARIANTS
    chooses = {name: rung.choose for name, rung in ladder.items()}
    chooses |= {name: choose for name, choose in _CHOOSE.items() if name in usable and name in kernels}
    require_known(op, variant, chooses)
    found = chooses[variant](binding, problem, device)
    if isinstance(found, Refusal):
        able = [name for name, choose in chooses.items() if not isinstance(choose(binding, problem, device), Refusal)]
        refuse(op, variant, found, able)
    return variant, found, f"variant={variant!r} was asked for"


def _automatic(
    binding: Binding, problem: Problem, device: Device, *, teams: bool
) -> tuple[str, RowConfig, str] | Refusal:
    """The fastest kernel, and why; with ``teams``, ``persistent`` is among those of programs without sums over rows."""
    if binding.operands.accumulates:
        needed = choose_team(binding, problem, device)
        return needed if isinstance(needed, Refusal) else ("persistent", needed, _why_team(needed, problem, device))
    held = _choose_held(binding, problem, device)
    column = choose_column(binding, problem, device) if problem.kind in ("outer", "strided") else None
    if isinstance(column, ColumnConfig) and not (
        isinstance(held, HeldConfig) and by_lanes(binding, problem, held, column, device)
    ):
        tiles = tiling(column, problem, device)
        return "column", column, f"tiles of {tiles.rows} neighboring rows, in {tiles.parts} parts"
    # A team reads column operands once for all rows, and has the next row in flight during an exchange.
    team = choose_long_team(binding, problem, device, held) if teams else None
    if team is not None:
        return "persistent", team, _why_team(team, problem, device)
    few, vectors = problem.rows * 16 <= device.sm_count, problem.length // problem.alignment.vec
    spreads = isinstance(held, Refusal) or (few and vectors >= thresholds().value("grid_vectors", device))
    grid = _grid(binding, problem, device) if spreads else None
    if isinstance(grid, HeldConfig):
        return "grid", grid, f"{problem.rows} rows of {problem.length} elements over the whole GPU"
    if isinstance(held, HeldConfig):
        return "held", held, _why(held, problem, device)
    if problem.rows * 2 <= device.sm_count and problem.length >= thresholds().value("split_elements", device):
        split = _stream(binding, problem, device, parted=True)
        if isinstance(split, StreamConfig):
            return "split", split, f"{row_parts(split, problem, device)} parts a row, since `held` {held}"
    streamed = _stream(binding, problem, device)
    return streamed if isinstance(streamed, Refusal) else ("stream", streamed, f"a block a row, since `held` {held}")


@functools.lru_cache(maxsize=4096)
def _held_groups(
    binding: Binding, device: Device, realign: bool, many: bool, long: bool, *aligns: str
) -> list[list[HeldConfig]]:
    """Configurations that hold contiguous rows: whole; shifted; staged in shared memory.

    With ``realign``, those whose column operands are copied before the launch come before the others of each kind.
    ``deep`` ones hold ``long`` rows; ``many`` whole ones before all others.
    In each group lanes come first, by capacity; then blocks, then clusters by size.
    """
    groups: dict[tuple[int, bool], list[HeldConfig]] = {}
    alone = _ALONE_WRITTEN if binding.operands.writes else _ALONE
    able = (config for config in listed(binding, device, HeldConfig, *aligns) if not config.in_grid)
    held = [config for config in able if not config.reduced or config.capacity <= alone]
    for config in sorted(held, key=lambda c: (0, c.capacity, c.threads) if c.lanes else (1, c.blocks)):
        if realign or not config.columns_realigned:
            kind = int(config.align != "whole")
            if config.deep and not long:
                kind = 3
            elif (config.deep or config.staged) and not config.columns_realigned:
                kind = -1 if config.deep and many else 2
            groups.setdefault((kind, not config.columns_realigned), []).append(config)
    return [groups[key] for key in sorted(groups)]


def _aligns(problem: Problem) -> tuple[str, ...] | Refusal:
    """The alignments under which rows of a problem can be held, or a Refusal."""
    if problem.kind in ("strided", "outer"):
        return Refusal("contiguous rows", "rows of another stride")
    if problem.length == 0:
        return Refusal("rows that have elements", "none")
    if len(problem.kept) > MANY_DIMS:
        return Refusal(f"rows numbered by at most {MANY_DIMS} dims", str(len(problem.kept)))
    if problem.alignment.kind == "whole" and len(problem.kept) == 1:
        return ("whole", "shifted")  # whole rows are shifted ones too
    return (_unaligned(problem),)


def _unaligned(problem: Problem) -> str:
    """The alignment of contiguous rows for kernels that do not have rows of whole vectors."""
    kind, vec = problem.alignment
    if kind != "whole" or problem.length >= problem.least("shifted", vec):
        return "shifted" if kind == "whole" else kind
    return "paired" if problem.pairs else "element"


def _fitting(configs: Iterable[HeldConfig], problem: Problem) -> list[HeldConfig]:
    """The configurations that hold rows of this length."""
    near = max(problem.rows, problem.length) >= LIMIT >> 10  # below, no 32-bit limit can be reached
    length, rank = problem.length, len(problem.kept)
    return [c for c in configs if length < c.limit and rank <= c.rank and not (near and not _counts(c, problem))]


def _counts(config: HeldConfig, problem: Problem) -> bool:
    """Whether 32 bits are enough for indices of blocks and elements."""
    rows = problem.rows
    blocks = rows * max(config.blocks, 1) * max(config.lanes, 1) < LIMIT * (config.threads if config.lanes else 1)
    short = problem.length + config.capacity * config.vec < LIMIT
    return blocks and short and (rows < LIMIT or len(problem.kept) == 1)


def _choose_held(binding: Binding, problem: Problem, device: Device) -> HeldConfig | Refusal:
    """Selects among configurations that hold a row in lanes, a block or a cluster; or a Refusal."""
    aligns = _aligns(problem)
    if isinstance(aligns, Refusal):
        return _strided(binding, problem, device) or aligns
    elements, long = problem.rows * problem.length, problem.length > _DEEP_ROW
    realign, many = elements * binding.loaded_bytes >= _REALIGNED, elements >= _DEEP * device.sm_count
    for group in _held_groups(binding, device, realign, many, long, *aligns):
        if fits := _fitting(group, problem):
            break
    else:
        return Refusal("rows that fit in registers and shared memory", f"{problem.length} elements")
    rows, sm_count, vectors = problem.rows, device.sm_count, problem.length // fits[0].vec or 1
    if not fits[-1].blocks and (rows == 1 or not fits[0].lanes):
        # A map: few vectors a thread, as long as all threads are resident.
        least = rows * vectors / (_MAP_THREADS * sm_count)
        return next(c for c in fits if (not c.blocks and c.chunks >= least) or c is fits[-1])
    if fits[0].lanes:
        # Of few unaligned rows of several operands a warp would load more than it has in flight.
        many = fits[0].chunks < FEW_CHUNKS or rows > _FEW_ROWS * sm_count
        if fits[0].align != "unaligned" or len(binding.loaded) == 1 or many:
            return fits[0]
        fits = [config for config in fits if not config.lanes]
    measured = thresholds().on(device)
    if rows * 16 <= sm_count:  # few rows: as many multiprocessors as possible, if a block has enough vectors
        long = vectors >= measured["spread_vectors"]
        return max(fits, key=lambda config: (long or config.blocks == 1, -config.chunks, config.blocks))
    spread, almost, enough = measured["spread_vectors"], measured["almost_bytes"], measured["enough_bytes"]
    # Resident warps, which few vectors per thread allow, gain more than bytes in flight.
    compute_bound = binding.wide_columns and binding.loaded_bytes < 4 and rows > _FEW_ROWS * sm_count
    best: HeldConfig = fits[0]
    best_rank: tuple[float, ...] = ()
    for config in fits:
        blocks = config.blocks
        if best_rank[:2] == (sm_count, True) and blocks > best.blocks:
            break  # larger clusters rank lower
        in_flight = bytes_in_flight(config, vectors, rows, device)
        # Rows fewer than multiprocessors are spread over more blocks, if each has enough vectors.
        busy = rows * (blocks if vectors >= spread * blocks else 1)
        # An exchange of more blocks takes longer, and more bytes of other rows in flight hide it.
        useful: float = min(in_flight, enough + _BYTES_PER_BLOCK * (blocks - 1))
        if compute_bound:
            useful = config.chunks >= FEW_CHUNKS
        rank = (min(busy, sm_count), compute_bound or in_flight >= almost, -blocks, useful, -config.chunks)
        if rank > best_rank:
            best, best_rank = config, rank
    return best


def _strided(binding: Binding, problem: Problem, device: Device) -> HeldConfig | None:
    """Selects the configuration whose threads or lanes hold a row of any stride, if one can."""
    if problem.kind == "empty" or len(problem.reduced) > 1 or len(problem.kept) > MANY_DIMS:
        return None
    # Rows that are farther apart than their elements are written by several lanes each, as contiguous ones are.
    near = not binding.operands.writes or problem.neighboring(device.sm_count)
    lanes = (c for c in listed(binding, device, HeldConfig, "element") if c.reduced)
    able = (c for c in lanes if near or c.lanes > 1 or c.capacity < APART)
    return next(iter(_fitting(able, problem)), None)


def _grid(binding: Binding, problem: Problem, device: Device) -> HeldConfig | Refusal:
    """Selects the configuration that holds rows in all blocks of the GPU; or a Refusal."""
    aligns = _aligns(problem)
    if isinstance(aligns, Refusal):
        return aligns
    if problem.rows == 0:
        return Refusal("rows", "none")
    if problem.rows * 2 > device.sm_count:
        return Refusal(f"at most {device.sm_count // 2} rows, half of the multiprocessors", str(problem.rows))
    fits = _fitting((c for c in listed(binding, device, HeldConfig, *aligns) if c.in_grid), problem)
    # Several folds compute more than one block a multiprocessor overlaps.
    several = len(binding.program.folds) > 1
    most = {c: device.sm_count * (c.resident if several else 1) for c in fits}
    fits = [c for c in fits if row_parts(c, problem, device) * problem.rows <= most[c]]
    if not fits:
        return Refusal("rows that fit in the GPU's registers", f"{problem.rows} of {problem.length} elements")
    return min(fits, key=lambda c: (c.chunks, c.align != "whole"))


def _stream(binding: Binding, problem: Problem, device: Device, *, parted: bool = False) -> StreamConfig | Refusal:
    """Selects the configuration that streams rows, or parts of them; or a Refusal."""
    if parted and problem.rows * -(-2 * device.sm_count // max(problem.rows, 1)) >= LIMIT:
        return Refusal("fewer than 2^31 blocks for the parts of all rows", f"{problem.rows} rows")
    if problem.rows >= LIMIT:
        return Refusal("fewer than 2^31 rows, a block each", str(problem.rows))
    dims = max(len(problem.kept), len(problem.reduced))
    if dims > ALL_DIMS:
        return Refusal(f"at most {ALL_DIMS} dims that cannot be merged", f"{dims}; pass a contiguous() tensor")
    contiguous = problem.kind in ("inner", "empty") and len(problem.kept) <= MANY_DIMS
    kind = _unaligned(problem) if contiguous else "element"
    kind = "element" if kind == "paired" else kind
    strided = MANY_DIMS if dims <= MANY_DIMS else ALL_DIMS
    able = {c.reduced: c for c in listed(binding, device, StreamConfig, kind) if c.parted == parted}
    config = able.get(0 if contiguous else strided) or able.get(strided)
    if parted and not binding.program.folds:
        return Refusal("a program with folds, whose partial results can be combined", "a map")
    return config or Refusal(f"rows of at most {MANY_DIMS} dims", f"{dims} dims")


_CHOOSE: Mapping[str, Callable[[Binding, Problem, Device], RowConfig | Refusal]] = {
    "stream": _stream,
    "column": choose_column,
    "split": functools.partial(_stream, parted=True),
    "grid": _grid,
    "held": _choose_held,
    "persistent": choose_team,
}


def _why_team(team: PersistentConfig, problem: Problem, device: Device) -> str:
    """The launch of teams, in words."""
    threads, teams = team_sizes(team, problem, device)
    who = f"{team.lanes} lanes" if team.lanes else f"{team.blocks} blocks of {threads} threads"
    return f"{who} a row, {teams} teams for {problem.rows} rows of {problem.length} elements"


def _why(config: HeldConfig, problem: Problem, device: Device) -> str:
    """The launch of rows that are held, in words."""
    if config.lanes:
        threads, who = config.lanes, f"{config.lanes} lanes" if config.lanes > 1 else "a thread"
    else:
        blocks, threads = config.blocks or row_parts(config, problem, device), block_threads(config, problem, device)
        who = f"{'a block' if blocks == 1 else f'{blocks} blocks'} of {threads} threads"
        threads *= blocks
    rows, chunks = f"{problem.rows} rows of {problem.length} elements", -(-problem.length // (config.vec * threads))
    return f"{rows}, {config.align} vectors of {config.vec}: {who} a row, {max(1, chunks)} vectors a thread"
