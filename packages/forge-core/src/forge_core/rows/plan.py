"""From a call to a launch: which configuration of which kernel, and its arguments.

    whole rows of vectors     held      the fewest threads that hold a row; few rows: as many as have a vector each
    longer rows               stream    a block a row, two reads
    rows side by side         column    neighboring rows in neighboring threads
    any others                stream    by element

:func:`select` is a pure function of a problem, a binding and a device: no GPU is asked.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import torch

from forge_core.choice import refuse, require_known
from forge_core.device import Device
from forge_core.errors import UnsupportedError
from forge_core.op.launch import Launch, Variant
from forge_core.rows.config import (
    ALL_DIMS,
    MANY_DIMS,
    Binding,
    ColumnConfig,
    HeldConfig,
    RowConfig,
    StreamConfig,
    configurations,
)
from forge_core.rows.problem import Dim, Problem

__all__ = ["VARIANTS", "arguments", "plan", "select"]

#: The engine's kernels.
VARIANTS: Mapping[str, Variant] = {
    "stream": Variant("forge_core.rows.stream:build", "a block streams a row: one read for its totals, one to write"),
    "column": Variant("forge_core.rows.column:build", "neighboring threads have neighboring rows"),
    "held": Variant("forge_core.rows.held:build", "rows stay in registers: one read, one write"),
}

# Grids have fewer blocks than this, and 32-bit element numbers end here.
_LIMIT = 2**31


def plan(
    op: str,
    binding: Binding,
    problem: Problem,
    device: Device,
    variant: str = "auto",
    numbers: Sequence[float] = (),
) -> Launch:
    """What to launch for a call.

    Args:
        op: the operator's name, for messages.
        binding: the program and its dtypes.
        problem: the rows.
        device: the GPU.
        variant: ``"auto"``, or a name in :data:`VARIANTS`.
        numbers: in the order of the program's operands.

    Raises:
        ArgumentError: there is no such variant.
        UnsupportedError: the variant cannot do this problem, or an element lies across its alignment.
    """
    name, config, why = select(op, binding, problem, device, variant)
    return Launch(
        variant=name,
        builder=VARIANTS[name].path,
        config=config,
        arguments=(*arguments(config, problem), *numbers),
        why=why,
        read=problem.read_bytes,
        written=problem.written_bytes,
    )


def select(
    op: str, binding: Binding, problem: Problem, device: Device, variant: str = "auto"
) -> tuple[str, RowConfig, str]:
    """The variant and configuration for a problem, and why; as :func:`plan`."""
    for name, offset, size in zip(problem.operands.tensors, problem.offsets, problem.itemsizes, strict=True):
        if offset % size:
            raise UnsupportedError(
                f"{op}: expected elements of {name!r} at multiples of their {size} bytes, got an offset of "
                f"{offset % size} bytes; pass a clone().",
                requirement="elements at multiples of their size",
            )
    if variant == "auto":
        chosen = _automatic(binding, problem, device)
        if isinstance(chosen, str):
            refuse(op, variant, chosen, [])
        return chosen
    require_known(op, variant, VARIANTS)
    found = _CHOOSE[variant](binding, problem, device)
    if isinstance(found, str):
        able = [name for name, choose in _CHOOSE.items() if not isinstance(choose(binding, problem, device), str)]
        refuse(op, variant, found, able)
    return variant, found, f"variant={variant!r} was asked for"


def _automatic(binding: Binding, problem: Problem, device: Device) -> tuple[str, RowConfig, str] | str:
    held = _held(binding, problem, device)
    if isinstance(held, HeldConfig):
        return "held", held, _why(held, problem)
    beside = _column(binding, problem, device)
    if problem.kind in ("outer", "strided") and _beside(problem) and isinstance(beside, ColumnConfig):
        once = "once" if beside.held else "twice"
        return "column", beside, f"{beside.tile} neighboring rows a block, each read {once}"
    streamed = _stream(binding, problem, device)
    return streamed if isinstance(streamed, str) else ("stream", streamed, f"a block a row: held {held}")


def _beside(problem: Problem) -> bool:
    """Whether there are neighboring rows, and they lie closer together than neighboring elements of a row."""
    rows = max((abs(problem.kept[-1].strides[i]) for i in problem.stepping), default=0)
    elements = min((abs(problem.reduced[-1].strides[i]) for i in problem.stepping), default=0)
    return problem.kept[-1].size > 1 and rows <= elements


@functools.lru_cache(maxsize=1024)
def _listed(binding: Binding, device: Device) -> tuple[RowConfig, ...]:
    return configurations(binding, device)


def _held(binding: Binding, problem: Problem, device: Device) -> HeldConfig | str:
    """The kernel that holds a row, or why there is none, as the end of "it ..."."""
    if problem.kind in ("strided", "outer"):
        return "reads contiguous rows, and these are not"
    if problem.length == 0:
        return "holds rows that have elements"
    if len(problem.kept) > MANY_DIMS:
        return f"has rows numbered by at most {MANY_DIMS} dims, and there are {len(problem.kept)}"
    align, length = problem.alignment, problem.length
    kind = align.kind
    if kind == "whole" and len(problem.kept) > 1:
        kind = "shifted" if length >= 2 * align.vec else "element"
    vec = 1 if kind == "element" else align.vec
    vectors = -(-(length + (vec - 1 if kind == "shifted" else 0)) // vec)
    fits = [
        config
        for config in _listed(binding, device)
        if isinstance(config, HeldConfig)
        and config.align == kind
        and (config.capacity >= vectors or config.blocks == 0)
        and (problem.rows * max(config.blocks, 1) * config.lanes < _LIMIT * config.threads)
        and (problem.rows < _LIMIT or config.rank == 1)
        and length + config.capacity * vec < _LIMIT
    ]
    if not fits:
        return f"holds no row of {length} elements here"
    any_blocks = [config for config in fits if config.blocks == 0]
    if any_blocks and (vectors > any_blocks[0].capacity or len(any_blocks) == len(fits)):
        return any_blocks[0]
    fits = [config for config in fits if config.blocks]
    if problem.rows * 16 <= device.sm_count:
        # Few rows: as many threads as have a vector each, so that as many multiprocessors as can take part.
        spread = [config for config in fits if config.lanes * config.blocks <= vectors]
        return max(spread or fits, key=lambda config: (config.lanes * config.blocks, -config.chunks))
    return min(fits, key=lambda config: (config.capacity, config.blocks, config.threads))


def _stream(binding: Binding, problem: Problem, device: Device) -> StreamConfig | str:
    """The kernel that streams rows, or why there is none."""
    if problem.rows >= _LIMIT:
        return f"has a block for each row, fewer than 2^31, and there are {problem.rows} rows"
    dims = max(len(problem.kept), len(problem.reduced))
    if dims > ALL_DIMS:
        return f"takes at most {ALL_DIMS} dims that cannot be merged, and there are {dims}; pass a contiguous() tensor"
    contiguous = problem.kind in ("inner", "empty") and len(problem.kept) <= MANY_DIMS
    kind = problem.alignment.kind if contiguous else "element"
    if kind == "whole" and len(problem.kept) > 1:
        kind = "shifted" if problem.length >= 2 * problem.alignment.vec else "element"
    reduced = 0 if contiguous else MANY_DIMS if dims <= MANY_DIMS else ALL_DIMS
    return next(
        config
        for config in _listed(binding, device)
        if isinstance(config, StreamConfig) and config.align == kind and config.reduced == reduced
    )


def _column(binding: Binding, problem: Problem, device: Device) -> ColumnConfig | str:
    """The kernel whose neighboring threads have neighboring rows, or why there is none."""
    if problem.kind in ("inner", "empty"):
        return "reads rows that lie side by side, and these are contiguous"
    if max(len(problem.kept), len(problem.reduced)) > MANY_DIMS:
        return f"takes at most {MANY_DIMS} dims that cannot be merged"
    reduced = 1 if len(problem.reduced) == 1 else MANY_DIMS
    kind = "whole" if reduced == 1 and problem.aligned_columns(binding.widest_vec) else "element"
    listed = [c for c in _listed(binding, device) if isinstance(c, ColumnConfig)]
    fits = [c for c in listed if (c.align, c.reduced) == (kind, reduced)]
    config = next((c for c in fits if c.held and c.capacity >= problem.length), fits[-1])
    tiles = -(-problem.kept[-1].size // config.tile) * (problem.rows // problem.kept[-1].size)
    if max(problem.length + config.capacity, problem.rows, tiles) >= _LIMIT:
        return f"numbers rows, blocks and elements by 31 bits, and there are {problem.rows} rows of {problem.length}"
    return config


_CHOOSE: Mapping[str, Callable[[Binding, Problem, Device], RowConfig | str]] = {
    "stream": _stream,
    "column": _column,
    "held": _held,
}


def _why(config: HeldConfig, problem: Problem) -> str:
    who = (
        f"{config.lanes} lanes"
        if config.lanes <= 32
        else "a block"
        if config.blocks <= 1
        else f"{config.blocks} blocks"
    )
    rows = f"{problem.rows} rows of {problem.length} elements"
    return f"{rows}, {config.align} vectors of {config.vec}: {who} a row, {config.chunks} vectors a thread"


def arguments(config: RowConfig, problem: Problem) -> tuple[int, ...]:
    """The integers that a kernel is launched with: see ``RowKernel.split``."""
    kept = _padded(problem.kept, config.rank)
    reduced = _padded(problem.reduced, config.reduced) if config.reduced else ()
    return (problem.length, *(n for dim in (*kept, *reduced) for n in (dim.size, *dim.strides)))


def _padded(dims: tuple[Dim, ...], rank: int) -> tuple[Dim, ...]:
    """With dims of size 1 in front."""
    return (Dim(1, (0,) * len(dims[0].strides)),) * (rank - len(dims)) + dims


def compute_dtype(dtypes: Sequence[torch.dtype], via: torch.dtype | None = None) -> torch.dtype:
    """The dtype of values and totals: float64 where an operand has it, else float32."""
    return torch.float64 if torch.float64 in (*dtypes, via) else torch.float32
