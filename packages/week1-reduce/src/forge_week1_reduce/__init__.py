"""Forge, week 1: reductions: sum, mean, amax, amin and prod.

This release holds the package and none of these operators; they come with a release of their own.  Until then
nothing stands in for them: asking for one is an AttributeError.
"""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__"]
