"""The variants, each with its one entry in :data:`KERNELS`, and which of them does a problem.

:func:`plan` is a pure function of a :class:`~forge_week0_transpose.problem.Problem` and a
:class:`~forge_core.device.Device`: no GPU is asked, so the tests assert the branch it takes for a device they do not
have.  What it decides by was measured on an H200 (docs/lab/week0.md), ``thresholds`` on each GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from operator import attrgetter
from typing import Any, TypeVar

from forge_core.choice import Refusal, refuse
from forge_core.device import Device
from forge_core.op.launch import Launch, Variant
from forge_week0_transpose.configs import (
    CHUNK,
    NaiveConfig,
    RealignedConfig,
    RowsConfig,
    TiledConfig,
    UnalignedConfig,
    VectorizedConfig,
)
from forge_week0_transpose.lines import MAX_LINES, MAX_SKINNY, LinesConfig, SkinnyConfig
from forge_week0_transpose.problem import Dim, Matrix, Problem, Rows
from forge_week0_transpose.thresholds import THRESHOLDS

#: Edges of the tiled kernel, in elements.
TILE_SIZES = (16, 32)

#: Bytes of a matrix for each byte of an incomplete tile from which ``skinny`` is faster than ``lines``: one warp copies
#: that tile by element, as long each as 16 KiB of the rest take.  It should be 1/16 of the time.
REST = 2**18

#: For ``lines``: chunks of a thread, most first, and the blocks for each multiprocessor below which the next is taken,
#: and ``naive`` behind the last; the share of aligned tiles that a matrix must fill for ``vectorized`` to be faster.
LINES_LOADS, MIN_FILL_LINES = ((4, 1.0), (2, 0.5), (1, 0.5)), 0.5

#: Elements of a thread where nothing but the naive kernel is left: as many reads in flight.
UNROLL = 8

#: Blocks of a grid, and of its second and its third dimension.
MAX_BLOCKS, MAX_OUTER = 2**31 - 1, 65535

#: Bytes of a line of memory; rows or columns from which places are 64-bit integers, as a tile may reach over a matrix.
LINE, WIDE = 128, 2**31 - 2**12

#: Share of a tile that a matrix must fill on average, or its elements are moved by ``naive``; and the share for one of
#: at least LONG tiles one way, which follow one another.
MIN_FILL, MIN_FILL_LONG, LONG = 0.25, 0.0625, 8

#: Bytes of a row from which ``realigned`` beats ``rows``, for each width that the alignment leaves.
MIN_REALIGNED: Mapping[int, int] = {1: 32, 2: 32, 4: 128, 8: 256}

#: An entry of :data:`TILES`.
Tile = tuple[int, int, int, int | None]
#: For a kernel, element sizes, and whether input rows are whole chunks, largest tile first: row_chunks, col_chunks, the
#: widest load (of ``shifted`` the blocks that a multiprocessor must be able to hold), and the tiles for each
#: multiprocessor below which the next entry is taken, None for the threshold.
TILES: Mapping[tuple[str, int, bool], tuple[Tile, ...]] = {
    (kernel, size, whole): tiles
    for kernel, sizes, wholes, tiles in (
        ("vectorized", (1,), (True,), ((16, 16, 16, None), (8, 16, 8, 0), (8, 8, 8, 0))),
        ("vectorized", (1,), (False,), ((8, 32, 8, 4), (8, 16, 8, 0), (8, 8, 8, 0))),
        ("vectorized", (2,), (True, False), ((16, 16, 16, None), (8, 16, 16, 1), (8, 16, 8, 0), (8, 8, 16, 0))),
        ("vectorized", (4,), (True, False), ((16, 16, 16, None), (8, 16, 16, 0), (8, 8, 16, 0))),
        ("vectorized", (8, 16), (True, False), ((16, 16, 16, None), (16, 8, 16, 0), (8, 8, 16, 0))),
        ("shifted", (1, 8), (False,), ((16, 8, 3, None), (8, 8, 4, 0))),
        ("shifted", (2,), (False,), ((16, 8, 5, None), (8, 8, 4, 0))),
        ("shifted", (4,), (False,), ((16, 16, 3, None), (16, 8, 3, 0), (8, 8, 4, 0))),
        ("shifted", (1,), (True,), ((32, 8, 3, None), (16, 8, 3, 0), (8, 8, 4, 0))),
        ("shifted", (2, 4, 8), (True,), ((32, 16, 2, None), (16, 8, 3, 0), (8, 8, 4, 0))),
    )
    for size, whole in product(sizes, wholes)
}

TOO_MANY = Refusal(f"at most {MAX_BLOCKS} tiles, a block each", "more")

C = TypeVar("C")
Tiles = TypeVar("Tiles", bound=VectorizedConfig)
#: A configuration, and the integers of its launch: sizes and strides, in elements unless the kernel says otherwise.
Found = tuple[C, tuple[int | tuple[int, ...], ...]]
Choice = Found[C] | Refusal


def _count(dims: Iterable[Dim]) -> int:
    """How many entries some dimensions have together."""
    return math.prod(dim.size for dim in dims)


def _flat(dims: tuple[Dim, ...], unit: int = 1) -> tuple[int, ...]:
    """The number of entries, then size and strides in units of ``unit`` elements of each dimension, innermost first."""
    return (_count(dims), *(n for d in reversed(dims) for n in (d.size, d.src // unit, d.dst // unit)))


def _naive(problem: Problem, dims: tuple[Dim, ...], device: Device, items: int = 1) -> Found[NaiveConfig]:
    """Does every problem."""
    dims = dims or (Dim(1, 0, 0),)
    return NaiveConfig(problem.itemsize, len(dims), wide=problem.numel >= 2**32, items=items), (_flat(dims),)


def _tiled(problem: Problem, m: Matrix, device: Device, tile_size: int | None = None) -> Choice[TiledConfig]:
    """Takes any strides."""
    # Tiles of 32 fill whole 32-byte sectors at every width; 16 wastes less of a small matrix.
    edge = tile_size or (32 if min(m.shape) > 16 else 16)
    if math.prod(_tiles(m, (edge, edge))) > MAX_BLOCKS:
        return TOO_MANY
    integers = (*m.shape, m.rows.src, m.cols.src, m.rows.dst, m.cols.dst, _flat(m.batch))
    return TiledConfig(problem.itemsize, edge, len(m.batch)), integers


def _rows(problem: Problem, rows: Rows, device: Device) -> Found[RowsConfig]:
    """By accesses as wide as every row's begin and end allow."""
    (length, outer), tail = rows, 0
    width, nbytes = min(problem.widths((), (), outer)), length * problem.itemsize
    if nbytes % width:
        # Rows that end inside a chunk: narrower accesses beat a branch in each.
        narrow = min(nbytes & -nbytes, width)
        width, tail = (narrow, 0) if outer else (width, narrow)
    chunks = -(-nbytes // width)
    config = RowsConfig(width, len(outer), tail, wide=chunks * _count(outer) >= 2**32)
    return config, (chunks, nbytes // (tail or width), _flat(outer, width // problem.itemsize))


def _realigned(problem: Problem, rows: Rows, device: Device) -> Choice[RealignedConfig]:
    """By aligned chunks wherever rows begin."""
    (length, outer), size = rows, problem.itemsize
    if size > 8:  # such elements lie on 16-byte boundaries
        return Refusal("elements of at most 8 bytes", f"{size}")
    chunks = -(-(length * size + CHUNK - size) // CHUNK)  # that a row can touch: it begins at an element
    return RealignedConfig(size, len(outer), wide=chunks * _count(outer) >= 2**32), (chunks, length, _flat(outer))


def _skinny(problem: Problem, m: Matrix, device: Device) -> Choice[SkinnyConfig]:
    """Few rows into a dense output, or few columns out of a dense input."""
    size, count = problem.itemsize, _count(m.batch)
    for gather, lines, pitch, length in m.dense():
        if not 2 <= lines <= MAX_SKINNY or size > 8:
            continue
        src, dst = problem.widths([pitch] * gather, [pitch] * (not gather), m.batch)
        line, run = (src, dst) if gather else (dst, src)
        config = SkinnyConfig(size, lines, gather, line, run, len(m.batch), count > MAX_OUTER)
        if length >= config.tile[1]:
            many = -(-length // config.tile[1]) * count > MAX_BLOCKS
            return TOO_MANY if many else (config, (length, pitch, _flat(m.batch)))
    needs = f"2 to {MAX_SKINNY} rows (output dense) or columns (input dense), a block long, of at most 8-byte elements"
    return Refusal(needs, f"a matrix of {m.rows.size}x{m.cols.size}, elements of {size} bytes")


def _lines(problem: Problem, m: Matrix, device: Device) -> Choice[LinesConfig]:
    """The same of any alignment, and of more lines: the largest tile of which there are enough."""
    for gather, lines, pitch, length in m.dense():
        if 2 <= lines <= MAX_LINES:
            bits = min((lines & -lines).bit_length() - 1, 3)
            for loads, least in LINES_LOADS:
                config = LinesConfig(problem.itemsize, gather, bits, len(m.batch), loads)
                if config.groups(lines):
                    chosen, blocks = config, config.tiles(lines, length) * _count(m.batch)
                    if blocks >= least * device.sm_count:
                        break
            integers = (lines, length, pitch, chosen.groups(lines), _flat(m.batch))
            return (chosen, integers) if blocks <= MAX_BLOCKS else TOO_MANY
    needs = f"2 to {MAX_LINES} rows (output dense) or columns (input dense)"
    return Refusal(needs, f"a matrix of {m.rows.size}x{m.cols.size}")


def _vectorized(problem: Problem, m: Matrix, device: Device) -> Choice[VectorizedConfig]:
    """The largest tile of which there are enough."""
    size, (src, dst) = problem.itemsize, problem.row_widths(m)
    least = max(4, size)
    if min(src, dst) < least:
        got = f"multiples of {src} in the input, of {dst} in the output"
        return Refusal(f"rows that begin and end at multiples of {least} bytes", got)

    def config(row_chunks: int, col_chunks: int, width: int) -> VectorizedConfig:
        return VectorizedConfig(size, row_chunks, col_chunks, min(width, src), dst, len(m.batch))

    return _largest(config, TILES["vectorized", size, src == CHUNK], f"large_tiles_{size}", m, device)


def _shifted(problem: Problem, m: Matrix, device: Device) -> Choice[UnalignedConfig]:
    """The largest tile of which there are enough, shifting the sides that need it."""
    size, (src, dst) = problem.itemsize, problem.row_widths(m)
    if size > 8:
        return Refusal("elements of at most 8 bytes", f"{size}")
    if src < CHUNK and (m.rows.src < m.cols.size or m.cols.size * size < CHUNK):
        return Refusal("input rows of at least 16 bytes that do not overlap", f"{m.cols.size * size} bytes")

    def config(row_chunks: int, col_chunks: int, blocks: int) -> UnalignedConfig:
        # Before Hopper the 64 registers that two blocks leave are too few for 2-byte elements.
        room = 1 if size == 2 and blocks == 2 and device.capability < (9, 0) else blocks
        shape = UnalignedConfig(size, row_chunks, col_chunks, batch_rank=len(m.batch), room=room)
        return replace(shape, src_shift=src < CHUNK, dst_shift=dst < CHUNK)

    return _largest(config, TILES["shifted", size, src == CHUNK], "unaligned_tiles", m, device)


def _largest(
    make: Callable[[int, int, int], Tiles], tiles: Sequence[Tile], threshold: str, m: Matrix, device: Device
) -> Choice[Tiles]:
    """The first configuration of which there are enough tiles, or the last, and how its blocks find their places."""
    for *shape, stated in tiles:
        config, least = make(*shape), THRESHOLDS.value(threshold, device) if stated is None else stated
        # A tile that is only taken where there are many must not reach over the matrix; a smaller one may, by its size.
        overhang = 1 if least > 1 else 2
        fits = all(edge <= overhang * n for edge, n in zip(config.tile, m.shape, strict=True))
        enough = math.prod(_tiles(m, config.tile)) >= least * device.sm_count
        if fits and enough and config.smem_bytes <= device.smem_per_block:
            break
    down, along, count = _tiles(m, config.tile)
    if down * along * count > MAX_BLOCKS:
        return TOO_MANY
    # Down the rows, neighbors in time extend the same output rows.  But where the input's rows do not begin at lines of
    # memory, tiles side by side share a line in each row, which is fetched again if the neighbor comes late.
    src_shares, dst_shares = (pitch * config.itemsize % LINE != 0 for pitch in (m.rows.src, m.cols.dst))
    by_columns = src_shares and not dst_shares and 1 < along <= THRESHOLDS.value("columns_beside", device)
    flat, wide = max(down if by_columns else along, count) > MAX_OUTER, max(m.shape) >= WIDE
    integers = (*m.shape, m.rows.src, m.cols.dst, _flat(m.batch))
    return replace(config, by_columns=by_columns, flat=flat, wide=wide), integers


def _tiles(m: Matrix, tile: tuple[int, int]) -> tuple[int, int, int]:
    """Tiles down the rows and along the columns, incomplete ones at the edges included, and matrices of the batch."""
    return -(-m.rows.size // tile[0]), -(-m.cols.size // tile[1]), _count(m.batch)


def _pays(m: Matrix, found: Choice[Tiles], wanted: Callable[[Tiles], bool]) -> bool:
    """Whether a configuration was found, and as wanted, whose tiles the matrix fills well enough."""
    if isinstance(found, Refusal) or not wanted(found[0]):
        return False
    long = max(size / edge for size, edge in zip(m.shape, found[0].tile, strict=True)) >= LONG
    return m.fill(found[0].tile) >= (MIN_FILL_LONG if long else MIN_FILL)


def _whole(m: Matrix, problem: Problem, config: SkinnyConfig) -> bool:
    """Whether ``skinny`` has full accesses, and little is left beside its whole tiles."""
    rest = m.shape[config.gather] % config.tile[1] * config.lines * _count(m.batch)
    return min(config.line_width, config.run_width) == CHUNK and rest * REST <= problem.nbytes


def _few(m: Matrix, problem: Problem, aligned: Choice[VectorizedConfig] | bool) -> bool:
    """Whether a matrix has few lines and no other kernel's tiles are filled well: up to 32, of 2 KiB together."""
    few = min(m.shape) <= MAX_LINES // 2 and math.prod(m.shape) * problem.itemsize >= 2048
    return few and not (isinstance(aligned, tuple) and m.fill(aligned[0].tile) >= MIN_FILL_LINES)


@dataclass(frozen=True)
class Kernel:
    """A variant."""

    name: str  # as a variant of ``transpose``
    config: type  # the class of its configurations
    form: Callable[[Problem], Any]  # the part of a problem that it moves; None where a problem has none
    chosen: Callable[[Problem, Any, Device], Choice[Any]]  # by a problem, that part of it, and a device
    build: str = "{name}:build"  # in ``kernels``
    copy: str = "permuted_{name}"  # as a variant of ``copy``, to which a permuted input is a transposition

    @property
    def variant(self) -> Variant:
        """What an operator declares."""
        return Variant(f"forge_week0_transpose.kernels.{self.build.format(name=self.name)}", IDEAS[self.name])

    def choose(self, problem: Problem, device: Device) -> Choice[Any]:
        """The configuration and the integers of the launch for a problem."""
        part = self.form(problem)
        return LACKS[self.form] if part is None else self.chosen(problem, part, device)


ROWS, MATRIX = Problem.rows, Problem.matrix
#: What a kernel needs whose form a problem lacks.
LACKS: Mapping[Callable[[Problem], Any], Refusal] = {
    ROWS: Refusal("rows that are contiguous in input and output", "a permutation"),
    MATRIX: Refusal("a batched matrix transpose", "another permutation"),
}

IDEAS = {
    "naive": "one thread an element; does every problem",
    "tiled": "a padded tile of shared memory, an element a thread and step",
    "shifted": "rows that begin anywhere: aligned 16-byte accesses, shifted on chip",
    "lines": "2 to 64 rows or columns of any alignment: gathered by element",
    "skinny": "2 to 8 rows or columns: interleaved in registers, stored as one run",
    "vectorized": "16 bytes a thread on both sides, transposed in registers",
    "realigned": "contiguous rows that begin anywhere: aligned chunks, shifted",
    "rows": "16 bytes a thread, for rows that are contiguous on both sides",
}
#: Slowest first; the last six each have the problems they are for.
KERNELS = (
    Kernel("naive", NaiveConfig, attrgetter("dims"), _naive, copy="naive"),
    Kernel("tiled", TiledConfig, Problem.any_matrix, _tiled),
    Kernel("shifted", UnalignedConfig, MATRIX, _shifted, "unaligned:build"),
    Kernel("lines", LinesConfig, MATRIX, _lines),
    Kernel("skinny", SkinnyConfig, MATRIX, _skinny),
    Kernel("vectorized", VectorizedConfig, MATRIX, _vectorized),
    Kernel("realigned", RealignedConfig, ROWS, _realigned, "rows:build_realigned", "realigned"),
    Kernel("rows", RowsConfig, ROWS, _rows, "rows:build", "vectorized"),
)

_TABLES: Mapping[str, Mapping[str, Kernel]] = {
    "transpose": {kernel.name: kernel for kernel in KERNELS},
    "copy": {kernel.copy.format(name=kernel.name): kernel for kernel in KERNELS},
    "copy_transpose": {"tiled": KERNELS[1]},
}

#: The variants of each operator.
VARIANTS = {op: {name: kernel.variant for name, kernel in table.items()} for op, table in _TABLES.items()}


def plan(op: str, problem: Problem, device: Device, variant: str = "auto", tile_size: int | None = None) -> Launch:
    """What to launch for a problem.

    Args:
        op: ``"transpose"``, ``"copy"`` or ``"copy_transpose"``: whose variants are meant, and for messages.
        problem: the canonical problem; without elements nothing is launched, and ``naive`` stands for any variant.
        device: the GPU it runs on.
        variant: ``"auto"``, or one of the operator's.
        tile_size: the tiled kernel's edge, 16 or 32; chosen where None.

    Raises:
        UnsupportedError: the named variant cannot do this problem; the message says which can.
    """
    table, why = _TABLES[op], f"variant={variant!r} was asked for"
    found: Choice[Any]
    if problem.numel == 0:
        found, why = _naive(problem, problem.dims, device), "there are no elements"
    elif variant == "auto":
        found, why = _automatic(problem, device)
    elif tile_size is not None:
        found = _tiled(problem, problem.any_matrix(), device, tile_size)
    else:
        found = table[variant].choose(problem, device)
    if isinstance(found, Refusal):
        able = [name for name, kernel in table.items() if not isinstance(kernel.choose(problem, device), Refusal)]
        refuse(op, variant, found, able)
    config, integers = found
    chosen = next(kernel for kernel in KERNELS if kernel.config is type(config))
    return Launch(
        variant=next(name for name, kernel in table.items() if kernel is chosen) if variant == "auto" else variant,
        builder=chosen.variant.path,
        config=config,
        arguments=integers,
        why=why + THRESHOLDS.note(device),
        read=problem.read_bytes,
        written=problem.nbytes,
    )


def _automatic(problem: Problem, device: Device) -> tuple[Choice[Any], str]:
    """Rows where both sides have them, else a transposition, else elements."""
    if (contiguous := problem.rows()) is not None:
        rows = _rows(problem, contiguous, device)
        width = rows[0].itemsize
        if contiguous[0] * problem.itemsize >= MIN_REALIGNED.get(width, math.inf):
            why = f"rows contiguous on both sides, aligned to {width} bytes only"
            return _realigned(problem, contiguous, device), why
        return rows, f"rows contiguous on both sides, moved {width} bytes a thread"
    if (m := problem.matrix()) is None:
        why = "neither rows nor columns are contiguous on both sides"
        return _naive(problem, problem.dims, device, UNROLL), why
    skinny, vectorized = _skinny(problem, m, device), _vectorized(problem, m, device)
    # Of 8-byte words on both sides shifting is faster.
    aligned = _pays(m, vectorized, lambda c: c.src_width >= CHUNK // 2 and c.dst_width == CHUNK)
    lines, left = _lines(problem, m, device), not isinstance(skinny, Refusal) and not _whole(m, problem, skinny[0])
    if not isinstance(skinny, Refusal) and (isinstance(lines, Refusal) or not left):
        return skinny, f"only {skinny[0].lines} {'rows' if skinny[0].gather else 'columns'}, and long"
    if not isinstance(lines, Refusal) and (left or _few(m, problem, aligned and vectorized)):
        config = lines[0]
        count, length = next((n, length) for gather, n, _, length in m.dense() if gather is config.gather)
        what = f"only {count} {'rows' if config.gather else 'columns'}"
        if config.tiles(count, length) * _count(m.batch) < LINES_LOADS[-1][1] * device.sm_count:
            return _naive(problem, problem.dims, device), f"{what}, and short"
        return lines, what
    if aligned:
        return vectorized, "rows of whole 8- or 16-byte words in, and of 16-byte words out"
    shifted = _shifted(problem, m, device)
    if _pays(m, shifted, lambda c: c.src_shift or c.dst_shift):
        return shifted, "rows do not begin and end at 16-byte boundaries"
    why = f"matrices of {m.rows.size}x{m.cols.size} fill too little of a tile"
    return _naive(problem, problem.dims, device, UNROLL), why
