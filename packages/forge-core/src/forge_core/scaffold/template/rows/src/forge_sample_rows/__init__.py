"""A row-wise operator on Forge's row engine; importing this package imports torch and no compiler."""

from __future__ import annotations

from forge_sample_rows.ops import sample_norm

__version__ = "0.1.0"

__all__ = ["__version__", "sample_norm"]
