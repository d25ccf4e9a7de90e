"""Forge, week 0: copy and transpose."""

from __future__ import annotations

__version__ = "0.1.0"
