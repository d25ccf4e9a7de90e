"""Forge, week 1: reductions, at the memory's speed.

Importing this package imports torch and no compiler: the CuTe DSL is imported when a kernel has to be compiled.
"""

from __future__ import annotations

from forge_week1_reduce.ops import amax, amin, mean, prod, reduce, reduce_sum

__version__ = "0.1.0"

__all__ = ["__version__", "amax", "amin", "mean", "prod", "reduce", "reduce_sum"]
