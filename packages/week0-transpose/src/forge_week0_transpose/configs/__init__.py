"""The configurations of week 0's kernels: plain data, one frozen dataclass a kernel.

``config.py`` chooses among them.  A configuration holds only what the kernel is compiled for; sizes, strides and
addresses are arguments of the launch, so that another shape never compiles another kernel.
"""

from __future__ import annotations

from forge_week0_transpose.configs.linear import NaiveConfig, RealignedConfig, RowsConfig
from forge_week0_transpose.configs.tiles import ShiftedConfig, SkinnyConfig, TiledConfig, VectorizedConfig
from forge_week0_transpose.kernels.words import CHUNK

__all__ = [
    "CHUNK",
    "NaiveConfig",
    "RealignedConfig",
    "RowsConfig",
    "ShiftedConfig",
    "SkinnyConfig",
    "TiledConfig",
    "VectorizedConfig",
]
