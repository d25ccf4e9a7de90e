"""The configurations of week 1's kernels: plain data, one frozen dataclass a kernel.

``config.py`` chooses among them.  A configuration holds only what the kernel is compiled for; sizes, strides and
addresses are arguments of the launch, so that another shape seldom compiles another kernel.  Those are laid flat:
``integers`` says how many stand by themselves, ``lengths`` how many each group of those that follow has.
"""

from __future__ import annotations

from forge_week1_reduce.configs.columns import ColumnConfig
from forge_week1_reduce.configs.elements import NaiveConfig, SharedConfig, ShuffleConfig
from forge_week1_reduce.configs.finish import FinishConfig
from forge_week1_reduce.configs.rows import ClusterConfig, ShortConfig, SplitConfig, VectorizedConfig

__all__ = [
    "ClusterConfig",
    "ColumnConfig",
    "Config",
    "FinishConfig",
    "NaiveConfig",
    "SharedConfig",
    "ShortConfig",
    "ShuffleConfig",
    "SplitConfig",
    "VectorizedConfig",
]

Config = (
    NaiveConfig
    | SharedConfig
    | ShuffleConfig
    | VectorizedConfig
    | ShortConfig
    | ClusterConfig
    | SplitConfig
    | ColumnConfig
)
