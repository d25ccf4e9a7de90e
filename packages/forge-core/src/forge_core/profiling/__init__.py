"""Profiling: from "it is slow" to the reason.

Without a GPU: the static report of a compiled kernel (``static``, the command ``forge-cute inspect``) and drawings of
layouts (``layouts``, ``forge-cute layout``).  With one: the runners in ``tools/profiling``, which mark what is to be
profiled by :func:`profiled_range`, and what Nsight Compute counted (``counters``, ``readers``, ``diagnosis``,
``extraction``).
"""

from __future__ import annotations

from forge_core.profiling.ranges import profiled_range

__all__ = ["profiled_range"]
