"""Which kernel does a problem, and how it is configured.

:func:`select_config` is a pure function of a :class:`~forge_week0_transpose.problem.Problem` and a
:class:`~forge_core.device.Device`: no GPU is asked, so the tests assert the branch it takes for a device they do not
have.  :func:`plan` adds the arguments of the launch.

    rows     contiguous on both sides      rows        16 bytes a thread, or as wide as the alignment allows
                                           realigned   rows that begin anywhere
    matrix   a transposition               skinny      2 to 8 rows or columns, and long
                                           vectorized  input rows of whole 8- or 16-byte words, output rows of 16
                                           shifted     rows that begin anywhere
                                           naive       small matrices in a batch
    gather   anything else                 naive
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from forge_core.choice import Refusal, refuse
from forge_core.device import Device
from forge_core.errors import ArgumentError
from forge_core.op.launch import Launch, Variant
from forge_week0_transpose import choices, tiling
from forge_week0_transpose.choices import TILE_SIZES
from forge_week0_transpose.configs import (
    CHUNK,
    NaiveConfig,
    RealignedConfig,
    RowsConfig,
    ShiftedConfig,
    SkinnyConfig,
    TiledConfig,
    VectorizedConfig,
)
from forge_week0_transpose.problem import Dim, Matrix, Problem
from forge_week0_transpose.thresholds import THRESHOLDS

__all__ = ["COPY_VARIANTS", "TILED_ONLY", "TILE_SIZES", "TRANSPOSE_VARIANTS", "Config", "plan", "select_config"]

Form = TypeVar("Form")

Config = NaiveConfig | RealignedConfig | RowsConfig | TiledConfig | VectorizedConfig | ShiftedConfig | SkinnyConfig

_KERNELS = "forge_week0_transpose.kernels"
_NAIVE = Variant(f"{_KERNELS}.naive:build", "one thread an element; does every problem")
_ROWS = Variant(f"{_KERNELS}.rows:build", "16 bytes a thread, for rows that are contiguous on both sides")
_REALIGNED = Variant(f"{_KERNELS}.realigned:build", "contiguous rows that begin anywhere: aligned chunks, shifted")
_TILED = Variant(f"{_KERNELS}.tiled:build", "a padded tile of shared memory, an element a thread and step")
_SKINNY = Variant(f"{_KERNELS}.skinny:build", "2 to 8 rows or columns: interleaved in registers, stored as one run")
_SHIFTED = Variant(f"{_KERNELS}.shifted:build", "rows that begin anywhere: aligned 16-byte accesses, shifted on chip")
_VECTORIZED = Variant(f"{_KERNELS}.vectorized:build", "16 bytes a thread on both sides, transposed in registers")

#: The kernels of ``transpose``, slowest first; the last five each have the problems that they are for.
TRANSPOSE_VARIANTS: Mapping[str, Variant] = {
    "naive": _NAIVE,
    "tiled": _TILED,
    "shifted": _SHIFTED,
    "skinny": _SKINNY,
    "vectorized": _VECTORIZED,
    "realigned": _REALIGNED,
    "rows": _ROWS,
}

#: The kernels of ``copy``, slowest first; a permuted input is a transposition.
COPY_VARIANTS: Mapping[str, Variant] = {
    "naive": _NAIVE,
    "permuted_tiled": _TILED,
    "permuted_shifted": _SHIFTED,
    "permuted_skinny": _SKINNY,
    "permuted_vectorized": _VECTORIZED,
    "realigned": _REALIGNED,
    "vectorized": _ROWS,
}

#: The kernel of ``copy_transpose``.
TILED_ONLY: Mapping[str, Variant] = {"tiled": _TILED}

_TABLES = {"transpose": TRANSPOSE_VARIANTS, "copy": COPY_VARIANTS, "copy_transpose": TILED_ONLY}


def plan(op: str, problem: Problem, device: Device, variant: str = "auto", tile_size: int | None = None) -> Launch:
    """What to launch for a problem.

    Args:
        op: ``"transpose"``, ``"copy"`` or ``"copy_transpose"``: whose variants are meant, and for messages.
        problem: the canonical problem.
        device: the GPU it runs on.
        variant: ``"auto"``, or a name in the operator's table.
        tile_size: the tiled kernel's edge, 16 or 32; chosen where None.

    Returns:
        The kernel, its configuration and the integers it is launched with.

    Raises:
        ArgumentError: the operator has no such variant, or the tile size is none of :data:`TILE_SIZES`.
        UnsupportedError: the named variant cannot do this problem; the message says which can.
    """
    config, why = select_config(op, problem, device, variant, tile_size)
    name = _name_of(op, config)
    return Launch(
        variant=name,
        builder=_TABLES[op][name].path,
        config=config,
        arguments=launch_arguments(config, problem) if problem.numel else (),  # an empty output launches nothing
        why=why + THRESHOLDS.note(device),
        read=problem.read_bytes,
        written=problem.nbytes,
    )


def select_config(
    op: str, problem: Problem, device: Device, variant: str = "auto", tile_size: int | None = None
) -> tuple[Config, str]:
    """The configuration of a kernel for a problem, and why it was chosen; the arguments are those of :func:`plan`."""
    table = _TABLES[op]
    if tile_size is not None and tile_size not in TILE_SIZES:
        raise ArgumentError(op=op, argument="tile_size", expected=" or ".join(map(str, TILE_SIZES)), got=str(tile_size))
    if variant == "auto":
        return _automatic(problem, device)
    if variant not in table:
        raise ArgumentError(
            op=op,
            argument="variant",
            expected=f"'auto' or one of {', '.join(map(repr, table))}",
            got=repr(variant),
            hint=f"{op}.variants() says what each does.",
        )
    found = _try(table[variant], problem, device, tile_size)
    if isinstance(found, Refusal):
        refuse(op, variant, found, _able(op, problem, device))
    return found, f"variant={variant!r} was asked for"


def launch_arguments(config: Config, problem: Problem) -> tuple[int | tuple[int, ...], ...]:
    """The integers that a kernel is launched with: sizes in elements, distances in bytes.

    Raises:
        ValueError: the configuration was made for a problem of another kind.
    """
    size = problem.itemsize
    if isinstance(config, NaiveConfig):
        return (_flat(problem.dims, size),)
    if isinstance(config, RowsConfig):
        rows = _suiting(problem.rows(), config, problem)
        return (rows.length * size, _flat(rows.outer, size))
    if isinstance(config, RealignedConfig):
        rows = _suiting(problem.rows(), config, problem)
        extent = rows.length + sum((dim.size - 1) * dim.src for dim in rows.outer)
        return (rows.length * size, extent * size, _flat(rows.outer, size))
    if isinstance(config, TiledConfig):
        whole = problem.any_matrix()
        steps = (whole.src_pitch, whole.src_step, whole.dst_pitch, whole.dst_step)
        return (whole.rows, whole.cols, *(step * size for step in steps), _flat(whole.batch, size))
    matrix = _suiting(problem.matrix(), config, problem)
    batch = _flat(matrix.batch, size)
    if isinstance(config, SkinnyConfig):
        if config.gather:
            return (matrix.cols, matrix.src_pitch * size, batch)
        return (matrix.rows, matrix.dst_pitch * size, batch)
    return (matrix.rows, matrix.cols, matrix.src_pitch * size, matrix.dst_pitch * size, batch)


def _suiting(form: Form | None, config: Config, problem: Problem) -> Form:
    if form is None:
        raise ValueError(f"{type(config).__name__} is not for a problem of kind {problem.kind!r}: {problem}")
    return form


def _flat(dims: tuple[Dim, ...], itemsize: int) -> tuple[int, ...]:
    """The number of entries, then size, source step and destination step in bytes of each, innermost first."""
    return (choices.count(dims), *(n for d in reversed(dims) for n in (d.size, d.src * itemsize, d.dst * itemsize)))


def _name_of(op: str, config: Config) -> str:
    kinds = {
        NaiveConfig: _NAIVE,
        RealignedConfig: _REALIGNED,
        RowsConfig: _ROWS,
        TiledConfig: _TILED,
        SkinnyConfig: _SKINNY,
        ShiftedConfig: _SHIFTED,
        VectorizedConfig: _VECTORIZED,
    }
    return next(name for name, entry in _TABLES[op].items() if entry is kinds[type(config)])


def _able(op: str, problem: Problem, device: Device) -> list[str]:
    """The operator's kernels that can do a problem."""
    return [name for name, entry in _TABLES[op].items() if not isinstance(_try(entry, problem, device, None), Refusal)]


def _automatic(problem: Problem, device: Device) -> tuple[Config, str]:
    kind = problem.kind
    if kind in ("rows", "empty"):
        rows = choices.rows(problem)
        realigned = choices.realigned(problem)
        if (
            isinstance(rows, RowsConfig)
            and isinstance(realigned, RealignedConfig)
            and choices.prefers_realigned(problem, rows)
        ):
            return realigned, f"rows contiguous on both sides, aligned to {rows.width} bytes only"
        if isinstance(rows, RowsConfig):
            return rows, f"rows contiguous on both sides, moved {rows.width} bytes a thread"
    matrix = problem.matrix()
    if matrix is not None:
        return _transposition(problem, matrix, device)
    return choices.naive(problem, items=choices.UNROLL), "neither rows nor columns are contiguous on both sides"


def _transposition(problem: Problem, matrix: Matrix, device: Device) -> tuple[Config, str]:
    skinny = choices.skinny(problem, matrix)
    if isinstance(skinny, SkinnyConfig):
        side = "rows" if skinny.gather else "columns"
        return skinny, f"only {skinny.lines} {side}, so the {side} are interleaved in registers"
    src, dst = tiling.widths(problem, matrix)
    vectorized = tiling.vectorized(problem, matrix, device)
    if (
        isinstance(vectorized, VectorizedConfig)
        # H200, 2026-11-21: rows of 8-byte words on both sides reach 0.72 to 0.86 of a copy at 8190x8198 and the like,
        # shifted ones 0.88 to 0.91; where only the input's are, at 32768x1000 int8, it is 0.91 against 0.84.
        and src >= CHUNK // 2
        and dst == CHUNK
        and tiling.fills(matrix, vectorized)
    ):
        return vectorized, (
            f"rows of whole {vectorized.src_width}-byte words in and {vectorized.dst_width}-byte words out, "
            f"tile {vectorized.tile_rows}x{vectorized.tile_cols}"
        )
    shifted = tiling.shifted(problem, matrix, device)
    if (
        isinstance(shifted, ShiftedConfig)
        and (shifted.src_shift or shifted.dst_shift)
        and tiling.fills(matrix, shifted)
    ):
        sides = [name for name, shift in (("input", shifted.src_shift), ("output", shifted.dst_shift)) if shift]
        return shifted, f"{' and '.join(sides)} rows do not begin and end at 16-byte boundaries"
    return choices.naive(
        problem, items=choices.UNROLL
    ), f"matrices of {matrix.rows}x{matrix.cols} fill too little of a tile"


def _try(entry: Variant, problem: Problem, device: Device, tile_size: int | None) -> Config | Refusal:
    """The configuration of one kernel for a problem, or a Refusal."""
    if problem.numel == 0:
        return _nothing(entry, problem.itemsize, tile_size)
    if entry is _NAIVE:
        return choices.naive(problem)
    if entry is _ROWS:
        return choices.rows(problem)
    if entry is _REALIGNED:
        return choices.realigned(problem)
    if entry is _TILED:
        return choices.tiled(problem, tile_size)
    matrix = problem.matrix()
    if matrix is None:
        return Refusal("a batched matrix transpose", f"a permutation of {len(problem.dims)} dims")
    if entry is _SKINNY:
        return choices.skinny(problem, matrix)
    choose = tiling.vectorized if entry is _VECTORIZED else tiling.shifted
    return choose(problem, matrix, device)


def _nothing(entry: Variant, itemsize: int, tile_size: int | None) -> Config:
    """A kernel's plainest configuration, for an empty problem: every kernel can write nothing."""
    size = min(itemsize, 8)
    plain: dict[Variant, Config] = {
        _NAIVE: NaiveConfig(itemsize, 1),
        _ROWS: RowsConfig(CHUNK),
        _REALIGNED: RealignedConfig(size),
        _TILED: TiledConfig(itemsize, tile_size or TILE_SIZES[0]),
        _SKINNY: SkinnyConfig(size, 2, gather=True),
        _SHIFTED: ShiftedConfig(size, src_shift=True, dst_shift=True),
        _VECTORIZED: VectorizedConfig(itemsize),
    }
    return plain[entry]
