"""Forge, week 2, softmax.

This release holds the package and no operator: softmax, log_softmax and logsumexp come with a release of their own.  A name that
is not here raises AttributeError; nothing stands in for it.
"""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__"]
