"""The compile cache: a kernel is compiled once for each configuration, architecture and toolchain.

``cute.compile`` never caches and takes 0.2 to 3 s, so everything that launches a kernel goes through
:func:`compile_cached`.  This is the in-process part: a complete key (``key``) and a compiler (``compile``).
"""

from __future__ import annotations

from forge_core.cache.compile import CompileCached, Compiled, Traceable, compile_cached, require_dsl
from forge_core.cache.key import KernelKey

__all__ = ["CompileCached", "Compiled", "KernelKey", "Traceable", "compile_cached", "require_dsl"]
