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

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from forge_core.choice import Refusal, refuse
from forge_core.device import Device
from forge_core.errors import ArgumentError
from forge_core.op.launch import Launch, Variant
from forge_week0_transpose import choices
from forge_week0_transpose.choices import TILE_SIZES
from forge_week0_transpose.configs import (
    CHUNK,
    NaiveConfig,
    RealignedConfig,
    RowsConfig,
    SkinnyConfig,
    TiledConfig,
    UnalignedConfig,
    VectorizedConfig,
)
from forge_week0_transpose.problem import Dim, Matrix, Problem
from forge_week0_transpose.thresholds import THRESHOLDS

__all__ = [
    "COPY_VARIANTS",
    "TILED_ONLY",
    "TILE_SIZES",
    "TRANSPOSE_VARIANTS",
    "Config",
    "builder",
    "plan",
    "select_config",
]

Form = TypeVar("Form")

Config = NaiveConfig | RealignedConfig | RowsConfig | TiledConfig | VectorizedConfig | UnalignedConfig | SkinnyConfig
Numbers = tuple[int | tuple[int, ...], ...]


@dataclass(frozen=True)
class _Kernel:
    """How a kernel is built, configured and launched.

    Attributes:
        variant: the builder's path, and the idea.
        choose: the configuration for a problem, a device and the tile size asked for.
        arguments: the integers of a launch: sizes and strides, in elements unless the kernel says otherwise.
    """

    variant: Variant
    choose: Callable[[Problem, Device, int | None], Any]
    arguments: Callable[[Any, Problem], Numbers]


def _of_matrix(
    choose: Callable[[Problem, Matrix, Device], Any], plain: Callable[[int], Any]
) -> Callable[[Problem, Device, int | None], Any]:
    """For a kernel that does matrix transpositions only; ``plain`` for an empty problem: all can write nothing."""

    def chosen(problem: Problem, device: Device, tile_size: int | None) -> Any:
        matrix = problem.matrix()
        if problem.numel == 0:
            return plain(min(problem.itemsize, 8))
        if matrix is None:
            return Refusal("a batched matrix transpose", f"a permutation of {len(problem.dims)} dims")
        return choose(problem, matrix, device)

    return chosen


def _suiting(form: Form | None, config: Config, problem: Problem) -> Form:
    if form is None:
        raise ValueError(f"{type(config).__name__} is not for a problem of kind {problem.kind!r}: {problem}")
    return form


def _flat(dims: tuple[Dim, ...], unit: int = 1) -> tuple[int, ...]:
    """The number of entries, then size and strides in units of ``unit`` elements of each dimension, innermost first."""
    return (choices.count(dims), *(n for d in reversed(dims) for n in (d.size, d.src // unit, d.dst // unit)))


def _naive_arguments(config: NaiveConfig, problem: Problem) -> Numbers:
    return (_flat(problem.dims or (Dim(1, 0, 0),)),)


def _rows_arguments(config: RowsConfig, problem: Problem) -> Numbers:
    rows = _suiting(problem.rows(), config, problem)
    nbytes, each = rows.length * problem.itemsize, config.width // problem.itemsize
    return (-(-nbytes // config.width), nbytes // (config.tail or config.width), _flat(rows.outer, each))


def _realigned_arguments(config: RealignedConfig, problem: Problem) -> Numbers:
    rows = _suiting(problem.rows(), config, problem)
    return (rows.length, rows.length + sum((dim.size - 1) * dim.src for dim in rows.outer), _flat(rows.outer))


def _tiled_arguments(config: TiledConfig, problem: Problem) -> Numbers:
    m = problem.any_matrix()
    return (m.rows, m.cols, m.src_pitch, m.src_step, m.dst_step, m.dst_pitch, _flat(m.batch))


def _skinny_arguments(config: SkinnyConfig, problem: Problem) -> Numbers:
    matrix = _suiting(problem.matrix(), config, problem)
    if config.gather:
        return (matrix.cols, matrix.src_pitch, _flat(matrix.batch))
    return (matrix.rows, matrix.dst_pitch, _flat(matrix.batch))


def _matrix_arguments(config: VectorizedConfig, problem: Problem) -> Numbers:
    matrix = _suiting(problem.matrix(), config, problem)
    return (matrix.rows, matrix.cols, matrix.src_pitch, matrix.dst_pitch, _flat(matrix.batch))


def _variant(module: str, idea: str, build: str = "build") -> Variant:
    return Variant(f"forge_week0_transpose.kernels.{module}:{build}", idea)


_KERNELS: Mapping[type, _Kernel] = {
    NaiveConfig: _Kernel(
        _variant("naive", "one thread an element; does every problem"),
        lambda problem, device, tile: choices.naive(problem),
        _naive_arguments,
    ),
    TiledConfig: _Kernel(
        _variant("tiled", "a padded tile of shared memory, an element a thread and step"),
        lambda problem, device, tile: choices.tiled(problem, tile),
        _tiled_arguments,
    ),
    UnalignedConfig: _Kernel(
        _variant("unaligned", "rows that begin anywhere: aligned 16-byte accesses, shifted on chip"),
        _of_matrix(choices.unaligned, UnalignedConfig),
        _matrix_arguments,
    ),
    SkinnyConfig: _Kernel(
        _variant("skinny", "2 to 8 rows or columns: interleaved in registers, stored as one run"),
        _of_matrix(choices.skinny, lambda size: SkinnyConfig(size, 2, gather=True)),
        _skinny_arguments,
    ),
    VectorizedConfig: _Kernel(
        _variant("vectorized", "16 bytes a thread on both sides, transposed in registers"),
        _of_matrix(choices.vectorized, VectorizedConfig),
        _matrix_arguments,
    ),
    RealignedConfig: _Kernel(
        _variant("rows", "contiguous rows that begin anywhere: aligned chunks, shifted", "build_realigned"),
        lambda problem, device, tile: choices.realigned(problem),
        _realigned_arguments,
    ),
    RowsConfig: _Kernel(
        _variant("rows", "16 bytes a thread, for rows that are contiguous on both sides"),
        lambda problem, device, tile: choices.rows(problem),
        _rows_arguments,
    ),
}

_TRANSPOSE: Mapping[str, type] = {
    "naive": NaiveConfig,
    "tiled": TiledConfig,
    "shifted": UnalignedConfig,
    "skinny": SkinnyConfig,
    "vectorized": VectorizedConfig,
    "realigned": RealignedConfig,
    "rows": RowsConfig,
}

#: The configurations of each operator's variants.
_TABLES: Mapping[str, Mapping[str, type]] = {
    "transpose": _TRANSPOSE,
    # A permuted input is a transposition.
    "copy": {
        "naive": NaiveConfig,
        **{f"permuted_{name}": _TRANSPOSE[name] for name in ("tiled", "shifted", "skinny", "vectorized")},
        "realigned": RealignedConfig,
        "vectorized": RowsConfig,
    },
    "copy_transpose": {"tiled": TiledConfig},
}


def builder(config: Config) -> str:
    """The path of what compiles a configuration."""
    return _KERNELS[type(config)].variant.path


def _variants(op: str) -> Mapping[str, Variant]:
    return {name: _KERNELS[kind].variant for name, kind in _TABLES[op].items()}


#: The kernels of each operator, slowest first; the last five of ``transpose`` each have the problems they are for.
TRANSPOSE_VARIANTS, COPY_VARIANTS, TILED_ONLY = (_variants(op) for op in _TABLES)


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
    return Launch(
        variant=next(name for name, kind in _TABLES[op].items() if kind is type(config)),
        builder=builder(config),
        config=config,
        arguments=_KERNELS[type(config)].arguments(config, problem)
        if problem.numel
        else (),  # an empty output launches nothing
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
        able = [name for name, kind in table.items() if not isinstance(_try(kind, problem, device), Refusal)]
        refuse(op, variant, found, able)
    return found, f"variant={variant!r} was asked for"


def _try(kind: type, problem: Problem, device: Device, tile_size: int | None = None) -> Config | Refusal:
    """The configuration of one kernel for a problem, or a Refusal."""
    found: Config | Refusal = _KERNELS[kind].choose(problem, device, tile_size)
    return found


def _automatic(problem: Problem, device: Device) -> tuple[Config, str]:
    rows, matrix = choices.rows(problem), problem.matrix()
    if isinstance(rows, RowsConfig):
        realigned = choices.realigned(problem)
        if isinstance(realigned, RealignedConfig) and choices.prefers_realigned(problem, rows):
            return realigned, f"rows contiguous on both sides, aligned to {rows.width} bytes only"
        return rows, f"rows contiguous on both sides, moved {rows.width} bytes a thread"
    if matrix is not None:
        return _transposition(problem, matrix, device)
    return choices.naive(problem, items=choices.UNROLL), "neither rows nor columns are contiguous on both sides"


def _transposition(problem: Problem, matrix: Matrix, device: Device) -> tuple[Config, str]:
    skinny = choices.skinny(problem, matrix, device)
    if isinstance(skinny, SkinnyConfig):
        side = "rows" if skinny.gather else "columns"
        return skinny, f"only {skinny.lines} {side}, so the {side} are interleaved in registers"
    src, dst = choices.widths(problem, matrix)
    vectorized = choices.vectorized(problem, matrix, device)
    if (
        isinstance(vectorized, VectorizedConfig)
        # H200, 2026-11-21: rows of 8-byte words on both sides reach 0.72 to 0.86 of a copy at 8190x8198 and the like,
        # shifted ones 0.88 to 0.91; where only the input's are, at 32768x1000 int8, it is 0.91 against 0.84.
        and src >= CHUNK // 2
        and dst == CHUNK
        and choices.fills(matrix, vectorized)
    ):
        return vectorized, (
            f"rows of whole {vectorized.src_width}-byte words in and {vectorized.dst_width}-byte words out, "
            f"tile {vectorized.tile[0]}x{vectorized.tile[1]}"
        )
    unaligned = choices.unaligned(problem, matrix, device)
    if (
        isinstance(unaligned, UnalignedConfig)
        and (unaligned.src_shift or unaligned.dst_shift)
        and choices.fills(matrix, unaligned)
    ):
        sides = [name for name, shift in (("input", unaligned.src_shift), ("output", unaligned.dst_shift)) if shift]
        return unaligned, f"{' and '.join(sides)} rows do not begin and end at 16-byte boundaries"
    why = f"matrices of {matrix.rows}x{matrix.cols} fill too little of a tile"
    return choices.naive(problem, items=choices.UNROLL), why
