"""The command ``forge-cute layout``: thread-value layouts and swizzles as SVG, with sectors and bank conflicts."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from forge_core import dtypes
from forge_core.cli import FILE, answers
from forge_core.commands.find import call_options, explained
from forge_core.errors import ArgumentError, ForgeError
from forge_core.profiling import layouts
from forge_core.profiling.layouts import WARP, Access, Drawing, Panel, indices, of_steps, thread_value, to_svg
from forge_core.rows.config import ColumnConfig, HeldConfig, StreamConfig
from forge_core.rows.teams import PersistentConfig
from forge_core.steps import CHUNK, Stepped

HELP = """Draw which thread accesses what, and count sectors and bank conflicts: no GPU needed.

\b
forge-cute layout copy --threads 16x8 --values 1x8 --dtype bfloat16 --out copy.svg
forge-cute layout swizzle --bits 3 --base 4 --shift 3 --row-bytes 128 --out swizzle.svg
forge-cute layout kernel transpose --shape 4096x4096 --dtype bfloat16 --out transpose.svg
"""

#: Configurations of row kernels.
ROWS = (HeldConfig, StreamConfig, ColumnConfig, PersistentConfig)


@click.group(help=HELP)
def layout() -> None:
    """See :data:`HELP`."""


def _pair(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, int]:
    """Two positive integers, written ``16x8``."""
    rows, x, columns = value.partition("x")
    if not (x and rows.isdecimal() and columns.isdecimal() and int(rows) and int(columns)):
        raise click.BadParameter(f"expected ROWSxCOLUMNS such as 16x8, got {value!r}", ctx=context, param=parameter)
    return int(rows), int(columns)


def _shows(command: Callable[..., Drawing]) -> Callable[..., None]:
    """A command that prints the summary of the drawing that it returns, and writes the SVG to --out."""

    @click.option("--out", type=FILE, help="Where to write the SVG.")
    @answers
    @functools.wraps(command)
    def show(*, out: Path | None, **arguments: Any) -> tuple[Any, list[str]]:
        try:
            drawing = command(**arguments)
        except ForgeError:
            raise
        except ValueError as error:
            raise click.UsageError(str(error)) from error
        if out is not None:
            out.write_text(to_svg(drawing), encoding="utf-8")
        panels = [
            {"title": p.title, "shared": p.shared, "summary": p.summary(), "accesses": len(p.accesses)}
            for p in drawing.panels
        ]
        lines = [drawing.title, *(f"  {panel['title']}: {panel['summary']}" for panel in panels)]
        return {"title": drawing.title, "panels": panels}, [*lines, f"written: {out}"] if out is not None else lines

    return show


@layout.command("copy")
@click.option("--threads", required=True, callback=_pair, help="Rows and columns of the threads, for example 16x8.")
@click.option("--values", required=True, callback=_pair, help="Rows and columns of a thread's elements, such as 1x8.")
@click.option("--dtype", default="float32", show_default=True, help="The elements' dtype.")
@click.option("--row-bytes", type=int, help="Distance from row to row of the tile; by default its width.")
@click.option("--by-column", is_flag=True, help="Number the threads down the columns first.")
@_shows
def copy(
    threads: tuple[int, int], values: tuple[int, int], dtype: str, row_bytes: int | None, by_column: bool
) -> Drawing:
    """The thread-value layout of a tiled copy of a row-major tile.

    As ``cute.make_tiled_copy_tv``; a thread's row of values is one access up to 16 bytes, else several.
    """
    (rows, columns), itemsize = threads, dtypes.parse(dtype).itemsize
    across = values[1] * itemsize
    pitch, width = row_bytes or columns * across, math.gcd(across, CHUNK)
    if columns * across > pitch:
        raise ValueError(
            f"expected a row of at least {columns * across} bytes for {columns} threads of {across}, got {pitch}"
        )
    modes = ((columns, across), (rows, values[0] * pitch))
    shape, stride = zip(*(modes[::-1] if by_column else modes), strict=True)
    accesses = thread_value("access", ((shape, (across // width, values[0])), (stride, (width, pitch))), width)
    order = "down the columns" if by_column else "along the rows"
    title = f"{rows} x {columns} threads, {values[0]} x {values[1]} elements of {itemsize} B each, numbered {order}"
    return Drawing(title, (Panel("global memory", pitch, accesses),))


@layout.command("swizzle")
@click.option("--bits", type=int, default=3, show_default=True, help="B of Swizzle<B, M, S>.")
@click.option("--base", type=int, default=4, show_default=True, help="M, over bytes.")
@click.option("--shift", type=int, default=3, show_default=True, help="S.")
@click.option("--rows", type=click.IntRange(min=1), default=32, show_default=True, help="Rows of the tile.")
@click.option("--row-bytes", type=click.IntRange(min=1), default=128, show_default=True, help="Bytes of a row.")
@click.option("--width", type=click.Choice(["1", "2", "4", "8", "16"]), default="16", help="Bytes of a lane's access.")
@_shows
def swizzle(bits: int, base: int, shift: int, rows: int, row_bytes: int, width: str) -> Drawing:
    """A tile of shared memory under CuTe's Swizzle<bits, base, shift>; --bits 0 is none.

    It is accessed along its rows, a lane each chunk, and down its columns, a lane the same chunk of each row.
    """
    nbytes, place = int(width), layouts.swizzle(bits, base, shift)
    if row_bytes % nbytes:
        raise ValueError(f"expected rows of whole accesses of {nbytes} bytes, got rows of {row_bytes}")
    along, down = (row_bytes // nbytes, nbytes), (rows, row_bytes)
    panels = []
    for title, (fast, slow) in (("along the rows", (along, down)), ("down the columns", (down, along))):
        offsets = [place(chunk) for chunk in indices(*zip(fast, slow, strict=True))]
        warps = [tuple(offsets[i : i + WARP]) for i in range(0, len(offsets), WARP)]
        accesses = tuple(Access(f"warp access {i}", warp, nbytes) for i, warp in enumerate(warps))
        panels.append(Panel(f"shared memory, {title}", row_bytes, accesses, shared=True))
    name = f"Swizzle<{bits}, {base}, {shift}>: {rows} rows of {row_bytes} bytes, {nbytes} bytes a lane"
    return Drawing(name, tuple(panels))


@layout.command("kernel")
@call_options
@_shows
def kernel(**call: Any) -> Drawing:
    """The layouts of an operator's kernel: the steps of its configuration, or those of a row kernel."""
    explanation = explained(**call)
    return kernel_drawing(explanation.config, explanation.variant or "ref")


def kernel_drawing(config: Any, variant: str) -> Drawing:
    """The drawing of a configuration that has steps, or that of a row kernel; raises ArgumentError for any other."""
    if isinstance(config, Stepped):
        return of_steps(config)
    if type(config) in ROWS:
        return _row_drawing(config)
    raise ArgumentError(
        op="layout",
        argument="variant",
        expected=f"a configuration with steps, or a row kernel's: {', '.join(kind.__name__ for kind in ROWS)}",
        got=f"{variant!r} ({type(config).__name__})",
        hint="Make it a forge_core.steps.Stepped.",
    )


def _row_drawing(config: Any) -> Drawing:
    """The thread-value layout of a row kernel: a panel for the operands of each element size.

    Each thread has ``chunks`` vectors: of a row, one for each ``threads`` of them (``held``, ``stream``), or of as many
    elements of neighboring rows (``column``).  Drawn are whole vectors of a row that begins at the configuration's
    alignment; head, tail and tiles of skewed rows differ by single elements.
    """
    binding, vec = config.binding, config.vec
    threads = getattr(config, "lanes", 0) or config.threads
    # The first block of a cluster, whose blocks alternate along the row.
    step = threads * max(getattr(config, "blocks", 1), 1)
    sizes: dict[int, list[str]] = {}
    for name in binding.moving:
        sizes.setdefault(binding.dtype(name).itemsize, []).append(name)
    panels = []
    for size, names in sorted(sizes.items()):
        vector = vec * size
        width = min(vector, CHUNK)
        layout = ((threads,), (vector // width, config.chunks)), ((vector,), (width, step * vector))
        accesses = thread_value("vectors", layout, width)
        panels.append(Panel(f"global memory: {', '.join(names)}", WARP * vector, accesses))
    return Drawing(f"{config.kernel_name}: {config.threads} threads, {config.chunks} vectors each", tuple(panels))
