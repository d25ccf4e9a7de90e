"""What the compiled code of week 0's kernels must look like: one declaration a configuration, for every architecture.

Registers are bounded so that the blocks that a design counts on fit a multiprocessor of 65536: 32 a thread let 2048
threads in, 64 half as many; a tile that is transposed in registers needs room for V chunks of 16 bytes twice.  All
else follows from the configuration.  ``forge_core.testing.expectations`` checks it.
"""

from __future__ import annotations

from forge_core.testing.expectations import Declarations, Expect
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

__all__ = ["EXPECTED"]

#: Words of 4 bytes in a chunk of 16.
WORDS = CHUNK // 4


def _naive(config: NaiveConfig, arch: str) -> Expect:
    # Each element in flight has two 64-bit addresses.
    return Expect(
        32 if config.items == 1 else 16 + 8 * config.items, loads=(config.itemsize,), stores=(config.itemsize,)
    )


def _rows(config: RowsConfig, arch: str) -> Expect:
    widths = (config.width, config.tail) if config.tail else (config.width,)
    return Expect(24, loads=widths, stores=widths)


def _realigned(config: RealignedConfig, arch: str) -> Expect:
    # The two ends of a row go by element.
    return Expect(32, loads=(CHUNK, config.itemsize), stores=(CHUNK, config.itemsize))


def _tiled(config: TiledConfig, arch: str) -> Expect:
    element = (config.itemsize,)
    return Expect(32, config.smem_bytes, loads=element, stores=element, barriers=1)


def _vectorized(config: VectorizedConfig, arch: str) -> Expect:
    held = config.chunk_items * config.src_width // 4
    return Expect(
        40 + held,
        config.smem_bytes,
        loads=(config.src_width,),
        stores=(config.dst_width,),
        barriers=1,
    )


def _shifted(config: ShiftedConfig, arch: str) -> Expect:
    held = config.chunk_items * WORDS * (2 if config.src_shift else 1)
    # A shifted input needs a barrier more: its last, incomplete chunk goes into the tile by element.
    # A 64-bit address for each of the chunks that a thread has in flight.
    return Expect(
        56 + held,
        config.smem_bytes,
        loads=(CHUNK, config.itemsize) if config.src_shift else (CHUNK,),
        stores=(CHUNK, config.itemsize) if config.dst_shift else (CHUNK,),
        barriers=2 if config.src_shift else 1,
    )


def _skinny(config: SkinnyConfig, arch: str) -> Expect:
    lines, run = (config.line_width, config.itemsize), (config.run_width, config.itemsize)
    loads, stores = (lines, run) if config.gather else (run, lines)
    # What goes by less than a register takes one for each element.
    each = max(5, CHUNK // config.line_width)
    return Expect(40 + each * config.lines, config.smem_bytes, loads=loads, stores=stores, barriers=1)


#: The declaration of each configuration.
EXPECTED: Declarations = {
    NaiveConfig: _naive,
    RowsConfig: _rows,
    RealignedConfig: _realigned,
    TiledConfig: _tiled,
    VectorizedConfig: _vectorized,
    ShiftedConfig: _shifted,
    SkinnyConfig: _skinny,
}
