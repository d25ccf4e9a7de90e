"""The core of Forge, which the packages of all weeks share.

Importing it imports torch and nothing heavier: the CuTe DSL is imported when the first kernel is compiled, and CUDA is
initialised when the first kernel runs.
"""

from __future__ import annotations

from forge_core.errors import ForgeError
from forge_core.settings import Settings, use_settings

__version__ = "0.1.0"

__all__ = ["ForgeError", "Settings", "__version__", "use_settings"]
