"""What the kernels of week 0 are compiled for, and the layouts by which their threads move a tile.

A configuration is a frozen dataclass that imports no compiler; the kernel of ``kernels/`` is a subclass of it.  Sizes,
strides and addresses are arguments of the launch, so that another shape never compiles another kernel.

A layout is a pair (shape, stride), as ``cute.make_layout`` takes them.  A *thread-value* layout maps a thread of the
block and the number of its element to m + n * tile_m, the place in a tile (tile_m, tile_n) of the matrix (M, N):
kernels partition by it, and ``layouts`` draws it.
"""

from __future__ import annotations

from forge_week0_transpose.configs.elements import NaiveConfig, RealignedConfig, RowsConfig
from forge_week0_transpose.configs.layout import CHUNK, LINE, MAX_LINES, Layout
from forge_week0_transpose.configs.lines import LinesConfig, SkinnyConfig
from forge_week0_transpose.configs.tiles import TiledConfig, UnalignedConfig, VectorizedConfig

__all__ = [
    "CHUNK",
    "LINE",
    "MAX_LINES",
    "Layout",
    "LinesConfig",
    "NaiveConfig",
    "RealignedConfig",
    "RowsConfig",
    "SkinnyConfig",
    "TiledConfig",
    "UnalignedConfig",
    "VectorizedConfig",
]
