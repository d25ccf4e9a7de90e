"""Profiling: from "it is slow" to the reason.

Without a GPU: the static report of a compiled kernel (``static``, the command ``forge-cute inspect``) and drawings of
layouts (``layouts``, ``forge-cute layout``).  With one: what Nsight Compute counted under the runners of
``tools/profiling`` (``ncu``, ``diagnosis``).
"""
