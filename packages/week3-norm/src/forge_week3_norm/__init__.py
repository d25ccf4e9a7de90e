"""A row-wise operator on Forge's row engine; importing this package imports torch and no compiler."""

from __future__ import annotations

from forge_week3_norm.ops import rms_norm

__version__ = "0.1.0"

__all__ = ["__version__", "rms_norm"]
