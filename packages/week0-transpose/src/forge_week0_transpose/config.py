"""Which kernel does a problem, and how it is configured.

:func:`select_config` is a pure function of a :class:`~forge_week0_transpose.problem.Problem` and a
:class:`~forge_core.device.Device`: no GPU is asked, so the tests assert the branch it takes for a device they do not
have.  :func:`plan` adds the arguments of the launch.

    rows     contiguous on both sides      rows        16 bytes a thread, or as wide as the alignment allows
                                           realigned   rows that begin anywhere
    matrix   a transposition               skinny      2 to 8 rows or columns, and long
                                           vectorized  rows of whole 16-byte chunks on both sides
                                           shifted     rows that begin anywhere
                                           tiled       matrices that fill too little of the larger tiles
                                           naive       matrices that fill too little of any
    gather   anything else                 naive
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from forge_core.device import Device
from forge_core.errors import ArgumentError, UnsupportedError
from forge_core.op.launch import Launch, Variant
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

__all__ = ["COPY_VARIANTS", "TILED_ONLY", "TILE_SIZES", "TRANSPOSE_VARIANTS", "Config", "plan", "select_config"]

Config = NaiveConfig | RealignedConfig | RowsConfig | TiledConfig | VectorizedConfig | ShiftedConfig | SkinnyConfig

#: Edges of the tiled kernel, in elements.
TILE_SIZES = (16, 32)

#: The longest short side that the skinny kernel takes; one kernel is compiled for each.
MAX_LINES = 8

#: Rows and columns are counted by 32-bit integers inside a tile, tiles by 32 bits in a grid.
MAX_BLOCKS = 2**31 - 1

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
        why=why,
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
    if isinstance(found, str):
        _refuse(op, variant, found, problem, device)
    return found, f"variant={variant!r} was asked for"


def launch_arguments(config: Config, problem: Problem) -> tuple[int | tuple[int, ...], ...]:
    """The integers that a kernel is launched with: sizes in elements, distances in bytes."""
    size = problem.itemsize
    if isinstance(config, NaiveConfig):
        return (_flat(problem.dims, size),)
    if isinstance(config, RowsConfig):
        rows = problem.rows()
        assert rows is not None  # noqa: S101  # select_config gives this configuration to rows only
        return (rows.length * size, _flat(rows.outer, size))
    if isinstance(config, RealignedConfig):
        rows = problem.rows()
        assert rows is not None  # noqa: S101  # likewise
        extent = rows.length + sum((dim.size - 1) * dim.src for dim in rows.outer)
        return (rows.length * size, extent * size, _flat(rows.outer, size))
    if isinstance(config, TiledConfig):
        whole = problem.any_matrix()
        steps = (whole.src_pitch, whole.src_step, whole.dst_pitch, whole.dst_step)
        return (whole.rows, whole.cols, *(step * size for step in steps), _flat(whole.batch, size))
    matrix = problem.matrix()
    assert matrix is not None  # noqa: S101  # select_config gives these configurations to matrices only
    batch = _flat(matrix.batch, size)
    if isinstance(config, SkinnyConfig):
        if config.gather:
            return (matrix.cols, matrix.src_pitch * size, batch)
        return (matrix.rows, matrix.dst_pitch * size, batch)
    return (matrix.rows, matrix.cols, matrix.src_pitch * size, matrix.dst_pitch * size, batch)


def _count(dims: tuple[Dim, ...]) -> int:
    count = 1
    for dim in dims:
        count *= dim.size
    return count


def _flat(dims: tuple[Dim, ...], itemsize: int) -> tuple[int, ...]:
    """The number of entries, then size, source step and destination step in bytes of each, innermost first."""
    return (_count(dims), *(n for d in reversed(dims) for n in (d.size, d.src * itemsize, d.dst * itemsize)))


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


def _refuse(op: str, variant: str, reason: str, problem: Problem, device: Device) -> NoReturn:
    able = [name for name, entry in _TABLES[op].items() if not isinstance(_try(entry, problem, device, None), str)]
    raise UnsupportedError(
        f"{op}: variant {variant!r} was asked for, and it {reason}. "
        f"Variants that can do this call: {', '.join(map(repr, able)) or 'none'}; or leave variant='auto'.",
        requirement=reason,
    )


def _automatic(problem: Problem, device: Device) -> tuple[Config, str]:
    kind = problem.kind
    if kind in ("rows", "empty"):
        rows = _rows(problem)
        realigned = _realigned(problem)
        if isinstance(rows, RowsConfig) and isinstance(realigned, RealignedConfig) and _unaligned(problem, rows):
            return realigned, f"rows contiguous on both sides, aligned to {rows.width} bytes only"
        if isinstance(rows, RowsConfig):
            return rows, f"rows contiguous on both sides, moved {rows.width} bytes a thread"
    if kind == "matrix":
        return _transposition(problem, device)
    return _naive(problem, items=UNROLL), "neither rows nor columns are contiguous on both sides"


def _transposition(problem: Problem, device: Device) -> tuple[Config, str]:
    matrix = problem.matrix()
    assert matrix is not None  # noqa: S101  # the caller looked
    skinny = _skinny(problem)
    if isinstance(skinny, SkinnyConfig):
        side = "rows" if skinny.gather else "columns"
        return skinny, f"only {skinny.lines} {side}, so the {side} are interleaved in registers"
    if max(matrix.rows, matrix.cols) > MAX_BLOCKS:
        return _naive(problem), "a side of 2^31 elements or more"
    vectorized = _vectorized(problem, device)
    if (
        isinstance(vectorized, VectorizedConfig)
        and min(_widths(problem, matrix)) >= 8
        and _fill(matrix, vectorized.tile_rows, vectorized.tile_cols) >= MIN_FILL
    ):
        return vectorized, (
            f"rows of whole {vectorized.src_width}-byte words in and {vectorized.dst_width}-byte words out, "
            f"tile {vectorized.tile_rows}x{vectorized.tile_cols}"
        )
    shifted = _shifted(problem, device)
    if isinstance(shifted, ShiftedConfig) and _fill(matrix, shifted.tile_rows, shifted.tile_cols) >= MIN_FILL:
        sides = [name for name, shift in (("input", shifted.src_shift), ("output", shifted.dst_shift)) if shift]
        where = " and ".join(sides)
        return shifted, (
            f"{where} rows do not begin and end at 16-byte boundaries" if sides else "smaller tiles than vectorized has"
        )
    tiled = _tiled(problem, device, None)
    if isinstance(tiled, TiledConfig) and _fill(matrix, tiled.tile, tiled.tile) >= MIN_TILED_FILL:
        return tiled, f"matrices of {matrix.rows}x{matrix.cols} are smaller than a tile of whole chunks"
    return _naive(problem, items=UNROLL), f"matrices of {matrix.rows}x{matrix.cols} are smaller than any tile"


#: Elements of a thread where nothing but the naive kernel is left: as many reads in flight.
UNROLL = 4

#: As below, for tiles of 16 or 32 elements: below it an element a thread is faster.
MIN_TILED_FILL = 0.5

#: Share of a tile that a matrix must fill on average, below which the element-wise tile does less useless work.
MIN_FILL = 0.2


def _fill(matrix: Matrix, tile_rows: int, tile_cols: int) -> float:
    tiles = -(-matrix.rows // tile_rows) * -(-matrix.cols // tile_cols)
    return matrix.rows * matrix.cols / (tiles * tile_rows * tile_cols)


def _try(entry: Variant, problem: Problem, device: Device, tile_size: int | None) -> Config | str:
    """The configuration of one kernel for a problem, or why it cannot do it, as the end of "it ..."."""
    if problem.numel == 0:
        return _nothing(entry, problem.itemsize, tile_size)
    if entry is _NAIVE:
        return _naive(problem)
    if entry is _ROWS:
        return _rows(problem)
    if entry is _REALIGNED:
        return _realigned(problem)
    if entry is _TILED:
        return _tiled(problem, device, tile_size)
    if problem.matrix() is None:
        return "transposes matrices, and this layout is none"
    if entry is _SKINNY:
        return _skinny(problem)
    return _vectorized(problem, device) if entry is _VECTORIZED else _shifted(problem, device)


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


def _naive(problem: Problem, items: int = 1) -> NaiveConfig:
    return NaiveConfig(problem.itemsize, len(problem.dims), wide_index=problem.numel >= 2**32, items=items)


def _rows(problem: Problem) -> RowsConfig | str:
    rows = problem.rows()
    if rows is None:
        return "copies rows that are contiguous on both sides, and these are not"
    size = problem.itemsize
    width = min(problem.src_vector([d.src for d in rows.outer]), problem.dst_vector([d.dst for d in rows.outer]))
    tail = 0
    if rows.length * size % width:
        if rows.outer:  # Ends inside a chunk at every row: narrower accesses beat a branch in each.
            width = _power_of_two(rows.length * size, width)
        else:
            tail = _power_of_two(rows.length * size, width)
    chunks = -(-rows.length * size // width) * _count(rows.outer)
    return RowsConfig(width, len(rows.outer), tail, wide_index=chunks >= 2**32)


#: Bytes of a row from which aligned accesses are worth the ends of a row that go by element.
MIN_REALIGNED = 128


def _unaligned(problem: Problem, config: RowsConfig) -> bool:
    rows = problem.rows()
    return rows is not None and config.width <= 4 and rows.length * problem.itemsize >= MIN_REALIGNED


def _realigned(problem: Problem) -> RealignedConfig | str:
    rows = problem.rows()
    if rows is None:
        return "copies rows that are contiguous on both sides, and these are not"
    if problem.itemsize > 8:  # such elements lie on 16-byte boundaries
        return "takes elements of up to 8 bytes"
    chunks = -(-(rows.length * problem.itemsize + 2 * (CHUNK - 1)) // CHUNK) * _count(rows.outer)
    return RealignedConfig(problem.itemsize, len(rows.outer), wide_index=chunks >= 2**32)


def _power_of_two(distance: int, limit: int) -> int:
    return min(distance & -distance, limit)


def _tiled(problem: Problem, device: Device, tile_size: int | None) -> TiledConfig | str:
    matrix = problem.any_matrix()
    if tile_size is None:
        # Tiles of 32 fill whole 32-byte sectors at every width; 16 wastes less of a small matrix.
        tile_size = 32 if min(matrix.rows, matrix.cols) > 16 else 16
    if -(-matrix.rows // tile_size) * -(-matrix.cols // tile_size) * _count(matrix.batch) > MAX_BLOCKS:
        return f"needs more than {MAX_BLOCKS} tiles of {tile_size}x{tile_size} here"
    return TiledConfig(problem.itemsize, tile_size, len(matrix.batch))


def _skinny(problem: Problem) -> SkinnyConfig | str:
    matrix = problem.matrix()
    assert matrix is not None  # noqa: S101  # the caller looked
    size = problem.itemsize
    batch_src, batch_dst = [d.src for d in matrix.batch], [d.dst for d in matrix.batch]
    for gather in (True, False):
        lines, length = (matrix.rows, matrix.cols) if gather else (matrix.cols, matrix.rows)
        run_pitch = matrix.dst_pitch if gather else matrix.src_pitch
        if not 2 <= lines <= MAX_LINES or run_pitch != lines or size > 8:
            continue
        if gather:
            line, run = problem.src_vector([matrix.src_pitch, *batch_src]), problem.dst_vector(batch_dst)
        else:
            line, run = problem.dst_vector([matrix.dst_pitch, *batch_dst]), problem.src_vector(batch_src)
        config = SkinnyConfig(size, lines, gather, line, run, len(matrix.batch))
        if length >= config.tile:
            return config
    return (
        f"takes 2 to {MAX_LINES} rows (of a dense output) or columns (of a dense input) of at least one block's "
        "length, with elements of up to 8 bytes"
    )


def _widths(problem: Problem, matrix: Matrix) -> tuple[int, int]:
    """Bytes of the widest access in which every row begins and ends, in the input and in the output."""
    return (
        problem.src_vector([matrix.src_pitch, matrix.cols, *(d.src for d in matrix.batch)]),
        problem.dst_vector([matrix.dst_pitch, matrix.rows, *(d.dst for d in matrix.batch)]),
    )


def _vectorized(problem: Problem, device: Device) -> VectorizedConfig | str:
    matrix = problem.matrix()
    assert matrix is not None  # noqa: S101  # the caller looked
    size = problem.itemsize
    src, dst = _widths(problem, matrix)
    if min(src, dst) < max(4, size):
        return (
            f"needs rows that begin and end at multiples of {max(4, size)} bytes, "
            f"and the input's are at multiples of {src}, the output's of {dst}"
        )
    tiles = _NARROW_TILES if size == 1 and src < CHUNK else _VECTORIZED_TILES[size]
    for row_chunks, col_chunks, width, tiles_per_sm in tiles:
        chosen = VectorizedConfig(size, row_chunks, col_chunks, min(width, src), dst, len(matrix.batch))
        if _suits(chosen, matrix, device, tiles_per_sm):
            break
    return chosen


#: For each element size, largest tile first: row_chunks, col_chunks, the widest load, and the tiles for each
#: multiprocessor below which the next entry is taken.  H200, 2026-11-21: 256 bytes by 256 bytes reach 0.97 to 0.99 of
#: a copy where there are enough of them; at 4096x4096 int8 (2 tiles each) half the size is worth 4 to 8 %, at
#: 1024x1024 2 to 5 %, and at 131072x64 bf16, whose rows are half a tile, 3 %.
_VECTORIZED_TILES: Mapping[int, tuple[tuple[int, int, int, int], ...]] = {
    1: ((16, 16, 16, 6), (8, 16, 8, 0), (8, 8, 8, 0)),
    2: ((16, 16, 16, 6), (8, 16, 16, 0), (8, 8, 16, 0)),
    4: ((16, 16, 16, 4), (16, 8, 16, 0), (8, 8, 16, 0)),
    8: ((16, 16, 16, 4), (16, 8, 16, 0), (8, 8, 16, 0)),
    16: ((16, 16, 16, 4), (16, 8, 16, 0), (8, 8, 16, 0)),
}

#: The same for bytes that can only be loaded by 8 or 4.  At 32768x1000 more columns are worth 2 to 3 %.
_NARROW_TILES = ((8, 32, 8, 4), (8, 16, 8, 0), (8, 8, 8, 0))


def _suits(config: VectorizedConfig | ShiftedConfig, matrix: Matrix, device: Device, tiles_per_sm: int) -> bool:
    """Whether a tile is small enough for the matrix and the device, and there are enough of them.

    A tile that is only taken where there are many must not reach over the matrix; a smaller one may, by its own size.
    """
    overhang = 1 if tiles_per_sm else 2
    tiles = -(-matrix.rows // config.tile_rows) * -(-matrix.cols // config.tile_cols) * _count(matrix.batch)
    return (
        config.tile_rows <= overhang * matrix.rows
        and config.tile_cols <= overhang * matrix.cols
        and tiles >= tiles_per_sm * device.sm_count
        and config.smem_bytes <= device.smem_per_block
    )


def _shifted(problem: Problem, device: Device) -> ShiftedConfig | str:
    matrix = problem.matrix()
    assert matrix is not None  # noqa: S101  # the caller looked
    size = problem.itemsize
    if size > 8:
        return "takes elements of up to 8 bytes"
    src, dst = _widths(problem, matrix)
    if src < CHUNK and (matrix.src_pitch < matrix.cols or matrix.cols * size < CHUNK):
        return "needs input rows of at least 16 bytes that do not overlap"
    shifts = (src < CHUNK, dst < CHUNK)
    for row_chunks, col_chunks, blocks, tiles_per_sm in _SHIFTED_TILES[size, shifts[0]]:
        chosen = ShiftedConfig(size, *shifts, row_chunks, col_chunks, len(matrix.batch), blocks)
        if _suits(chosen, matrix, device, tiles_per_sm):
            break
    return chosen


#: For each element size, and for shifted input rows or not, largest tile first: row_chunks, col_chunks, the blocks
#: that a multiprocessor must be able to hold, and the tiles for each below which the next entry is taken.
#: H200, 2026-11-21: at 8191x8193 int8, 240x128 elements reach 0.87 of a copy, twice as wide 0.86; at 50257x768, where
#: only output rows are shifted, longer tiles share fewer rows: 0.96 against 0.95 in fp32, 0.99 against 0.96 in bf16.
_SHIFTED_TILES: Mapping[tuple[int, bool], tuple[tuple[int, int, int, int], ...]] = {
    (1, True): ((16, 8, 3, 4), (8, 8, 4, 0)),
    (2, True): ((24, 8, 2, 4), (16, 8, 3, 0), (8, 8, 4, 0)),
    (4, True): ((16, 16, 3, 4), (16, 8, 3, 0), (8, 8, 4, 0)),
    (8, True): ((16, 16, 2, 4), (16, 8, 3, 0), (8, 8, 4, 0)),
    (1, False): ((32, 8, 3, 4), (16, 8, 3, 0), (8, 8, 4, 0)),
    (2, False): ((32, 16, 2, 4), (16, 8, 3, 0), (8, 8, 4, 0)),
    (4, False): ((32, 16, 2, 4), (16, 8, 3, 0), (8, 8, 4, 0)),
    (8, False): ((32, 16, 2, 4), (16, 8, 3, 0), (8, 8, 4, 0)),
}
