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
    SkinnyConfig,
    TiledConfig,
    UnalignedConfig,
    VectorizedConfig,
)

__all__ = ["EXPECTED"]

#: Words of 4 bytes in a chunk of 16.
WORDS = CHUNK // 4


def _rows(config: RowsConfig, arch: str) -> Expect:
    widths = (config.width, config.tail) if config.tail else (config.width,)
    return Expect(32, loads=widths, stores=widths)


def _element(config: NaiveConfig | TiledConfig, registers: int, shared: int = 0, barriers: int = 0) -> Expect:
    return Expect(registers, shared, (config.itemsize,), (config.itemsize,), barriers)


def _unaligned(config: UnalignedConfig, arch: str) -> Expect:
    held = config.vec * WORDS * (2 if config.src_shift else 1)
    # A shifted input needs a barrier more: its last, incomplete chunk goes into the tile by element.
    # A 64-bit address for each of the chunks that a thread has in flight.
    return Expect(
        60 + held,
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
    # Each element in flight has two 64-bit addresses.
    NaiveConfig: lambda c, arch: _element(c, 32 if c.items == 1 else 16 + (10 if c.wide else 8) * c.items),
    RowsConfig: _rows,
    # The two ends of a row go by element.
    RealignedConfig: lambda c, arch: Expect(32, loads=(CHUNK, c.itemsize), stores=(CHUNK, c.itemsize)),
    TiledConfig: lambda c, arch: _element(c, 32 if c.itemsize < CHUNK else 40, c.smem_bytes, 1),
    VectorizedConfig: lambda c, arch: Expect(
        56 + c.vec * c.src_width // 4, c.smem_bytes, (c.src_width,), (c.dst_width,), 1
    ),
    UnalignedConfig: _unaligned,
    SkinnyConfig: _skinny,
}
