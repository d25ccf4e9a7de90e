"""The variants, each with its one entry in :data:`KERNELS`, and which of them does a problem.

:func:`plan` is a pure function of a :class:`~forge_week0_transpose.problem.Problem` and a
:class:`~forge_core.device.Device`: no GPU is asked, so the tests assert the branch it takes for a device they do not
have.  What it decides by was measured on an H200 (docs/lab/week0.md), ``thresholds`` on each GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from operator import attrgetter
from typing import Any

from forge_core.choice import Refusal, refuse
from forge_core.device import Device
from forge_core.op.plan import Plan, Variant
from forge_core.steps import CHUNK
from forge_core.strided import Dim, entries, flatten
from forge_week0_transpose.config import (
    Config,
    LinesConfig,
    NaiveConfig,
    RealignedConfig,
    RowsConfig,
    ShiftedConfig,
    TiledConfig,
    VectorizedConfig,
)
from forge_week0_transpose.problem import MAX_APART, MAX_LINES, Few, Matrix, Problem, Rows
from forge_week0_transpose.thresholds import THRESHOLDS

#: Edges of the tiled kernel, in elements, and the one for all but small matrices: it fills 32-byte sectors always.
TILE_SIZES, EDGE = (16, 32), 32

#: For ``lines``: chunks of a thread, most first, and the blocks for each multiprocessor below which the next is taken,
#: and others behind the last; columns, and rows, from which there are enough for the first.
LINES_LOADS, MIN_LINES = ((8, 2.0), (4, 2.0), (2, 1.0), (1, 1.0)), (25, 65)

#: Lines, and bytes of an output row, up to which rows that begin anywhere are faster by ``lines`` than by ``shifted``;
#: the share of its tiles that a matrix must fill for them to be faster than ``lines`` elsewhere: aligned, unaligned.
MANY_LINES, LONG_ROW, MIN_FILL_LINES = 72, 256, (0.45, 0.61)

#: Bytes of a matrix from which ``lines`` has work for a block.
LINES_BYTES = 2048

#: Tiles of 32 x 32 for each multiprocessor up to which ``tiled`` is faster than ``shifted``.
FEW_TILES = 3

#: Elements of a thread where nothing but the naive kernel is left, as many reads in flight, if a matrix has enough for
#: all multiprocessors.
UNROLL = 8

#: Blocks of a grid, and of its second and its third dimension.
MAX_BLOCKS, MAX_OUTER = 2**31 - 1, 65535

#: Bytes of a line of memory; rows or columns from which places are 64-bit integers, as a tile may reach over a matrix.
LINE, WIDE = 128, 2**31 - 2**12

#: Share of a tile that a matrix must fill on average, or its elements are moved by ``naive``; and the share for one of
#: at least LONG tiles one way, which follow one another.
MIN_FILL, MIN_FILL_LONG, LONG = 0.25, 0.0625, 8

#: Share of the fullest tiles' fill from which larger tiles are faster; fill of tiles that are as good as full.
FILLED, FULL = 0.6, 0.9

#: Bytes of a row from which ``realigned`` beats ``rows``, for each width that the alignment leaves.
MIN_REALIGNED: Mapping[int, int] = {1: 32, 2: 32, 4: 128, 8: 256}

#: For a kernel, element sizes, and whether input rows are whole chunks, largest tile first: row_chunks, col_chunks, the
#: widest load (of ``shifted`` the blocks that a multiprocessor must be able to hold), and the tiles for each
#: multiprocessor below which the next entry is taken, None for the threshold.
TILES: Mapping[tuple[str, int, bool], tuple[tuple[int, int, int, int | None], ...]] = {
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

#: A configuration, and the integers of its launch: sizes and strides, in elements unless the kernel says otherwise.
Found = tuple[Any, tuple[int | tuple[int, ...], ...]]
Choice = Found | Refusal


def _found(config: Any, integers: tuple[int | tuple[int, ...], ...], blocks: int) -> Choice:
    """The launch of a block a tile, unless these are too many."""
    return (config, integers) if blocks <= MAX_BLOCKS else Refusal(f"at most {MAX_BLOCKS} tiles, a block each", "more")


def _naive(problem: Problem, dims: tuple[Dim, ...], device: Device, items: int = 1) -> Choice:
    """Does every problem."""
    dims = dims or (Dim(1, 0, 0),)
    return NaiveConfig(problem.itemsize, len(dims), wide=problem.numel >= 2**31, items=items), (flatten(dims),)


def _unrolled(problem: Problem, device: Device) -> int:
    """Elements of a thread: one while there are fewer than all multiprocessors' threads have with more."""
    return UNROLL if problem.numel >= UNROLL * device.sm_threads * device.sm_count else 1


def _tiled(problem: Problem, m: Matrix, device: Device, tile_size: int | None = None) -> Choice:
    """Takes any strides."""
    edge = tile_size or (EDGE if min(m.shape) > TILE_SIZES[0] else TILE_SIZES[0])
    integers = (*m.shape, m.rows.src, m.cols.src, m.rows.dst, m.cols.dst, flatten(m.batch))
    return _in_tiles(TiledConfig(problem.itemsize, edge, len(m.batch)), m, integers)


def _in_tiles(config: Any, m: Matrix, integers: tuple[int | tuple[int, ...], ...]) -> Choice:
    """The launch of a block a tile, in a grid of three dimensions if none is too long."""
    down, along, count = _tiles(m, config.tile)
    flat = max(down if config.by_columns else along, count) > MAX_OUTER
    return _found(replace(config, flat=flat, wide=max(m.shape) >= WIDE), integers, down * along * count)


def _rows(problem: Problem, rows: Rows, device: Device) -> Found:
    """By accesses as wide as every row's begin and end allow."""
    (length, outer), tail = rows, 0
    width, nbytes = min(problem.widths((), (), outer)), length * problem.itemsize
    if nbytes % width:
        # Rows that end inside a chunk: narrower accesses beat a branch in each.
        narrow = min(nbytes & -nbytes, width)
        width, tail = (narrow, 0) if outer else (width, narrow)
    chunks = nbytes // width
    if tail:  # a thread for each tail of the last, incomplete chunk, in warps that wait for no chunk
        chunks = -(-chunks // 32) * 32 + nbytes % width // tail
    config = RowsConfig(width, len(outer), tail, wide=chunks * entries(outer) >= 2**31)
    return config, (chunks, nbytes // (tail or width), flatten(outer, width // problem.itemsize))


def _realigned(problem: Problem, rows: Rows, device: Device) -> Choice:
    """By aligned chunks wherever rows begin."""
    (length, outer), size = rows, problem.itemsize
    if size > 8:  # such elements lie on 16-byte boundaries
        return Refusal("elements of at most 8 bytes", f"{size}")
    chunks = -(-(length * size + CHUNK - size) // CHUNK)  # that a row can touch: it begins at an element
    return RealignedConfig(size, len(outer), wide=chunks * entries(outer) >= 2**31), (chunks, length, flatten(outer))


def _lines(problem: Problem, few: Few, device: Device) -> Choice:
    """Lines of any alignment: the largest tile of which there are enough."""
    bits = min((few.apart & -few.apart).bit_length() - 1, 3)
    for loads, least in LINES_LOADS[few.lines < MIN_LINES[few.gather] :]:
        config = LinesConfig(problem.itemsize, few.gather, bits, len(few.batch), loads, gaps=few.apart > few.lines)
        if groups := config.groups(few.apart):
            blocks = config.tiles(few.apart, few.length) * entries(few.batch)
            found = _found(config, (few.lines, few.length, few.pitch, few.apart, groups, flatten(few.batch)), blocks)
            if blocks >= least * device.sm_count:
                break
    return found


def _vectorized(problem: Problem, m: Matrix, device: Device) -> Choice:
    """Rows of whole 8- or 16-byte words in, and of chunks out."""
    size, (src, dst) = problem.itemsize, problem.row_widths(m)
    if src < max(CHUNK // 2, size) or dst < CHUNK:  # of 8-byte words on both sides shifting is faster
        got = f"multiples of {src} in the input, of {dst} in the output"
        return Refusal(f"rows that begin and end at multiples of 8 bytes in the input, of {CHUNK} in the output", got)

    def config(row_chunks: int, col_chunks: int, width: int) -> VectorizedConfig:
        return VectorizedConfig(size, row_chunks, col_chunks, min(width, src), len(m.batch))

    return _largest(config, ("vectorized", size, src == CHUNK), m, device)


def _shifted(problem: Problem, m: Matrix, device: Device) -> Choice:
    """Rows that begin anywhere, shifting the sides that need it."""
    size, (src, dst) = problem.itemsize, problem.row_widths(m)
    if size > 8:
        return Refusal("elements of at most 8 bytes", f"{size}")
    if src < CHUNK and (m.rows.src < m.cols.size or m.cols.size * size < CHUNK):
        return Refusal("input rows of at least 16 bytes that do not overlap", f"{m.cols.size * size} bytes")

    def config(row_chunks: int, col_chunks: int, blocks: int) -> ShiftedConfig:
        # Too few registers: 64 for 2-byte elements before Hopper; 80 for bytes, by CUDA 13's assembler, but on Hopper.
        few = (size, blocks) == (2, 2) and device.capability < (9, 0)
        few |= (size, row_chunks) == (1, 32) and device.capability[0] != 9
        shape = ShiftedConfig(size, row_chunks, col_chunks, batch_rank=len(m.batch), room=blocks - few)
        return replace(shape, src_shift=src < CHUNK, dst_shift=dst < CHUNK)

    return _largest(config, ("shifted", size, src == CHUNK), m, device)


def _largest(make: Callable[..., VectorizedConfig], key: tuple[str, int, bool], m: Matrix, device: Device) -> Choice:
    """The first of some TILES of which there are enough, or the last, and how its blocks find their places."""
    threshold = f"large_tiles_{key[1]}" if key[0] == "vectorized" else "shifted_tiles"
    configs = [make(*shape) for *shape, _ in TILES[key]]
    fills = [m.fill(config.tile) for config in configs]
    for config, fill, (*_, stated) in zip(configs, fills, TILES[key], strict=True):
        least = THRESHOLDS.value(threshold, device) if stated is None else stated
        enough = math.prod(_tiles(m, config.tile)) >= least * device.sm_count
        if fill >= FILLED * max(fills) and enough and config.smem_bytes <= device.smem_per_block:
            break
    # Down the rows, neighbors in time extend the same output rows.  But where the input's rows do not begin at lines of
    # memory, tiles side by side share a line in each row, which is fetched again if the neighbor comes late.
    src_shares, dst_shares = (pitch * config.itemsize % LINE != 0 for pitch in (m.rows.src, m.cols.dst))
    along = _tiles(m, config.tile)[1]
    by_columns = src_shares and not dst_shares and 1 < along <= THRESHOLDS.value("columns_beside", device)
    return _in_tiles(replace(config, by_columns=by_columns), m, (*m.shape, m.rows.src, m.cols.dst, flatten(m.batch)))


def _tiles(m: Matrix, tile: tuple[int, int]) -> tuple[int, int, int]:
    """Tiles down the rows and along the columns, incomplete ones at the edges included, and matrices of the batch."""
    return -(-m.rows.size // tile[0]), -(-m.cols.size // tile[1]), entries(m.batch)


def _by_lines(problem: Problem, m: Matrix, tiles: Choice, device: Device) -> tuple[Choice, str] | None:
    """The launch of ``lines`` where tiles of vectors are slower: too empty, or with output rows that begin anywhere.

    For too few blocks that of ``tiled`` or ``naive``; None where tiles of vectors are to be considered.
    """
    few = problem.few()
    if few is None or math.prod(m.shape) * problem.itemsize < LINES_BYTES:
        return None
    # The short rows are the output's where few rows are gathered, otherwise the input's.
    unaligned, wide = problem.row_widths(m)[few.gather] < CHUNK, problem.itemsize == 8
    if unaligned and (few.gather or wide):
        faster = few.lines <= MANY_LINES or (few.gather and few.lines * problem.itemsize < LONG_ROW)
    else:
        faster = isinstance(tiles, Refusal) or m.fill(tiles[0].tile) < (FULL if wide else MIN_FILL_LINES[unaligned])
    if not faster or isinstance(lines := _lines(problem, few, device), Refusal):
        return None
    what = f"only {few.lines} {'rows' if few.gather else 'columns'}"
    if lines[0].tiles(few.apart, few.length) * entries(few.batch) >= LINES_LOADS[-1][1] * device.sm_count:
        return lines, what
    if m.fill((EDGE, EDGE)) >= FULL:
        return _tiled(problem, m, device, EDGE), f"{what}, and short"
    return (_naive(problem, problem.dims, device), f"{what}, and short") if few.lines <= EDGE else None


def _pays(m: Matrix, found: Choice) -> bool:
    """Whether a configuration was found whose tiles the matrix fills well enough."""
    if isinstance(found, Refusal):
        return False
    long = max(size / edge for size, edge in zip(m.shape, found[0].tile, strict=True)) >= LONG
    return m.fill(found[0].tile) >= (MIN_FILL_LONG if long else MIN_FILL)


@dataclass(frozen=True)
class Kernel:
    """A variant."""

    name: str  # as a variant of ``transpose``
    config: type[Config]  # the class of its configurations
    form: Callable[[Problem], Any]  # the part of a problem that it moves; None where a problem has none
    chosen: Callable[[Problem, Any, Device], Choice]  # by a problem, that part of it, and a device
    build: str = "{name}:build"  # in ``kernels``
    copy: str = "permuted_{name}"  # as a variant of ``copy``, to which a permuted input is a transposition

    @property
    def variant(self) -> Variant:
        """What an operator declares."""
        return Variant(f"forge_week0_transpose.kernels.{self.build.format(name=self.name)}", self.config.idea)

    def choose(self, problem: Problem, device: Device) -> Choice:
        """The configuration and the integers of the launch for a problem."""
        part = self.form(problem)
        return LACKS[self.form] if part is None else self.chosen(problem, part, device)


ROWS, MATRIX, FEW = Problem.rows, Problem.matrix, Problem.few
#: What a kernel needs whose form a problem lacks.
LACKS: Mapping[Callable[[Problem], Any], Refusal] = {
    ROWS: Refusal("rows that are contiguous in input and output", "a permutation"),
    MATRIX: Refusal("a batched matrix transpose", "another permutation"),
    FEW: Refusal(
        f"2 to {MAX_LINES} rows (output dense), or columns (input rows at most {MAX_APART} times their length, and "
        f"{MAX_LINES} elements, apart)",
        "another permutation, or more",
    ),
}

#: Slowest first; the last five each have the problems they are for.
KERNELS = (
    Kernel("naive", NaiveConfig, attrgetter("dims"), _naive, copy="naive"),
    Kernel("tiled", TiledConfig, Problem.any_matrix, _tiled),
    Kernel("shifted", ShiftedConfig, MATRIX, _shifted),
    Kernel("lines", LinesConfig, FEW, _lines),
    Kernel("vectorized", VectorizedConfig, MATRIX, _vectorized),
    Kernel("realigned", RealignedConfig, ROWS, _realigned, "rows:build", "realigned"),
    Kernel("rows", RowsConfig, ROWS, _rows, copy="vectorized"),
)

_TABLES: Mapping[str, Mapping[str, Kernel]] = {
    "transpose": {kernel.name: kernel for kernel in KERNELS},
    "copy": {kernel.copy.format(name=kernel.name): kernel for kernel in KERNELS},
    "copy_transpose": {kernel.name: kernel for kernel in KERNELS if kernel.config is TiledConfig},
}

#: The variants of each operator.
VARIANTS = {op: {name: kernel.variant for name, kernel in table.items()} for op, table in _TABLES.items()}


def plan(op: str, problem: Problem, device: Device, variant: str = "auto", tile_size: int | None = None) -> Plan:
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
    if variant == "auto":
        variant = next(name for name, kernel in table.items() if kernel is chosen)
    read, written, why = problem.read_bytes, problem.nbytes, why + THRESHOLDS.note(device)
    return Plan(variant, chosen.variant.path, config, integers, why, read, written)


def _automatic(problem: Problem, device: Device) -> tuple[Choice, str]:
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
        return _naive(problem, problem.dims, device, _unrolled(problem, device)), why
    vectorized = _vectorized(problem, m, device)
    tiles = _shifted(problem, m, device) if isinstance(vectorized, Refusal) else vectorized
    if (by_lines := _by_lines(problem, m, tiles, device)) is not None:
        return by_lines
    few = math.prod(_tiles(m, (EDGE, EDGE))) <= FEW_TILES * device.sm_count
    by_element = isinstance(tiles, Refusal) or (few and tiles is not vectorized)
    if by_element and m.fill((EDGE, EDGE)) >= MIN_FILL:
        small = _tiled(problem, m, device, EDGE)
        if not isinstance(small, Refusal):
            return small, "rows do not begin and end at 16-byte boundaries, moved by element"
    if _pays(m, tiles):
        aligned = "rows of whole 8- or 16-byte words in, and of 16-byte words out"
        return tiles, aligned if tiles is vectorized else "rows do not begin and end at 16-byte boundaries"
    why = f"matrices of {m.rows.size}x{m.cols.size} fill too little of a tile"
    return _naive(problem, problem.dims, device, _unrolled(problem, device)), why
