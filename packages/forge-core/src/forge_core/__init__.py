"""The core of Forge, which the packages of all weeks share.

Importing it imports torch and nothing heavier: the CuTe DSL is imported when the first kernel is compiled, and CUDA is
initialised when the first kernel runs.
"""

from __future__ import annotations

from forge_core.errors import (
    ArgumentError,
    BenchmarkError,
    CompileError,
    DeviceError,
    DTypeError,
    ForgeError,
    LayoutError,
    MissingKernelError,
    SettingsError,
    ShapeError,
    UnsupportedError,
)
from forge_core.settings import Settings, use_settings

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "BenchmarkError",
    "CompileError",
    "DTypeError",
    "DeviceError",
    "ForgeError",
    "LayoutError",
    "MissingKernelError",
    "Settings",
    "SettingsError",
    "ShapeError",
    "UnsupportedError",
    "__version__",
    "use_settings",
]
