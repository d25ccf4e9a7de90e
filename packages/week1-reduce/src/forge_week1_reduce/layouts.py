"""The drawings of week 1's layouts, from the index maps of a block's threads: ``forge-cute layout kernel sum_rows``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from forge_core.profiling.layouts import Drawing, Panel, block_slots
from forge_week1_reduce.configs import (
    ClusterConfig,
    ColumnConfig,
    NaiveConfig,
    SharedConfig,
    ShortConfig,
    ShuffleConfig,
    SplitConfig,
    VectorizedConfig,
)
from forge_week1_reduce.index_maps import (
    WARP,
    column_reads,
    column_slots,
    element_reads,
    halving,
    naive_reads,
    row_reads,
    short_reads,
)

__all__ = ["LAYOUTS"]


def _slots(threads: int, size: int) -> tuple[Panel, ...]:
    """The exchange of a block's warps."""
    if threads <= WARP:
        return ()
    return (Panel("shared memory: a slot for each warp", WARP * size, block_slots(threads, size)),)


def _naive(config: NaiveConfig) -> Drawing:
    row = 32 * config.arithmetic.src.itemsize
    reads = naive_reads(config, 4, WARP, row_step=row, step=config.arithmetic.src.itemsize)
    title = f"{config.kernel_name}: a warp's rows of {row} bytes, a thread each"
    return Drawing(title, (Panel("global memory: the first elements of neighbouring rows", row, tuple(reads)),))


def _elements(config: SharedConfig | ShuffleConfig) -> Drawing:
    size = config.arithmetic.src.itemsize
    reads = Panel("global memory: a row", WARP * size, tuple(element_reads(config, config.threads)))
    acc = config.arithmetic.acc.itemsize
    if isinstance(config, SharedConfig):
        exchange: tuple[Panel, ...] = (Panel("shared memory: halves", WARP * acc, tuple(halving(config))),)
    else:
        exchange = _slots(config.threads, acc)
    return Drawing(f"{config.kernel_name}: {config.threads} threads a row", (reads, *exchange))


def _shared_row(config: ClusterConfig | SplitConfig) -> Drawing:
    drawing = _vectorized(config.row)
    return Drawing(f"{config.kernel_name}: a turn of each block on its part of the row", drawing.panels)


def _vectorized(config: VectorizedConfig) -> Drawing:
    turn = row_reads(config, config.threads * config.unroll * config.width // config.arithmetic.src.itemsize)
    title = f"{config.kernel_name}: a turn of {config.threads} threads, {config.unroll} loads each"
    reads = Panel("global memory: a row", WARP * config.width, tuple(turn[-config.unroll :]))
    return Drawing(title, (reads, *_slots(config.threads, config.arithmetic.acc.itemsize)))


def _short(config: ShortConfig) -> Drawing:
    length = config.lanes * config.unroll * config.width // config.arithmetic.src.itemsize
    reads = short_reads(config, length, config.rows_per_block)
    title = f"{config.kernel_name}: {config.lanes} lanes a row, {config.rows_per_block} rows a block"
    return Drawing(title, (Panel("global memory: rows", config.lanes * config.unroll * config.width, tuple(reads)),))


def _column(config: ColumnConfig) -> Drawing:
    cols = config.vector * config.lanes
    reads = column_reads(config, config.groups * config.unroll, cols, 0)
    panels = [Panel("global memory: rows of a tile", cols * config.arithmetic.src.itemsize, tuple(reads))]
    if config.groups > 1:
        writes, finish = column_slots(config)
        row = config.tile * config.arithmetic.acc.itemsize
        panels.append(Panel("shared memory: accumulators of the warps", row, tuple(writes)))
        panels.append(Panel("shared memory: one accumulator a column", row, tuple(finish)))
    return Drawing(f"{config.kernel_name}: {config.lanes} x {config.groups} threads", tuple(panels))


#: The drawing of each configuration that has one.
LAYOUTS: Mapping[type, Callable[[Any], Drawing]] = {
    NaiveConfig: _naive,
    SharedConfig: _elements,
    ShuffleConfig: _elements,
    VectorizedConfig: _vectorized,
    ClusterConfig: _shared_row,
    SplitConfig: _shared_row,
    ShortConfig: _short,
    ColumnConfig: _column,
}
