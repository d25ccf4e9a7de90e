"""An operator with a CuTe DSL kernel of its own; importing this package imports torch and no compiler."""

from __future__ import annotations

from forge_sample_kernel.ops import sample_scale

__version__ = "0.1.0"

__all__ = ["__version__", "sample_scale"]
