"""Forge, week 1, reductions.

This release holds the package and no operator: sum, mean, amax, amin and prod come with a release of their own.  A name that
is not here raises AttributeError; nothing stands in for it.
"""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__"]
