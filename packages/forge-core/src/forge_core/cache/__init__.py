"""The compile cache: a kernel is compiled once for each configuration, architecture and toolchain.

``cute.compile`` never caches and takes 0.2 to 3 s, so everything that launches a kernel goes through
:func:`compile_cached`::

    @compile_cached
    def build(config: TiledConfig) -> Traceable:
        return Traceable(Tiled(config), example_arguments(config), name=config.kernel_name)

    launch = build(config, arch="sm_90a")  # from memory, from disk, from a bundle, or compiled now
    launch(*arguments)

    launch = builder_at("package.kernels.tiled:build")(config, arch="sm_90a")  # the same, without importing the kernel

``cached`` is that decorator, with what this process has loaded; ``key``, ``sources`` and ``toolchain`` define the
identity of a kernel; ``verify`` and ``expressions`` compare the imported modules with those sources; ``store``,
``entry`` and ``files`` keep it on disk, ``upkeep`` removes what is not used; ``compile`` makes and loads it; ``lookup``
finds it in the cache or in a ``bundle`` of kernels that were compiled ahead of time; ``parallel`` compiles many at once
in processes that run ``worker``.
"""

from __future__ import annotations

from forge_core.cache.cached import CompileCached, builder_at, compile_cached, compile_lock
from forge_core.cache.compile import Compiled, Traceable
from forge_core.cache.key import KernelKey
from forge_core.cache.toolchain import require_dsl

__all__ = [
    "CompileCached",
    "Compiled",
    "KernelKey",
    "Traceable",
    "builder_at",
    "compile_cached",
    "compile_lock",
    "require_dsl",
]
