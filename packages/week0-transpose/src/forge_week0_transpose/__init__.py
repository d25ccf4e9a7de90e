"""Forge, week 0: copy and transpose, at the memory's speed.

Importing this package imports torch and no compiler: the CuTe DSL is imported when a kernel has to be compiled.
"""

from __future__ import annotations

from forge_week0_transpose.ops import copy, copy_transpose, transpose, transpose_out

__version__ = "0.1.0"

__all__ = ["__version__", "copy", "copy_transpose", "transpose", "transpose_out"]
