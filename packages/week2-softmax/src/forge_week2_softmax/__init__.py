"""Forge, week 2: softmax, log_softmax and logsumexp, at the memory's speed.

Importing this package imports torch and no compiler: the CuTe DSL is imported when a kernel has to be compiled.
"""

from __future__ import annotations

from forge_week2_softmax.backends import (
    get_softmax_online_backend,
    list_softmax_online_backends,
    set_softmax_online_backend,
)
from forge_week2_softmax.backward import log_softmax_backward, logsumexp_backward, softmax_backward
from forge_week2_softmax.ops import log_softmax, logsumexp, softmax, softmax_online

__version__ = "0.1.0"

__all__ = [
    "__version__",
    "get_softmax_online_backend",
    "list_softmax_online_backends",
    "log_softmax",
    "log_softmax_backward",
    "logsumexp",
    "logsumexp_backward",
    "set_softmax_online_backend",
    "softmax",
    "softmax_backward",
    "softmax_online",
]
