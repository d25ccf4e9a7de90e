"""The compile cache: a kernel is compiled once for each configuration, architecture, toolchain and source.

``cute.compile`` takes 0.2 to 3 s and keeps nothing, so every kernel has a builder, decorated by
:func:`compile_cached`::

    @compile_cached
    def build(config: TiledConfig) -> Traceable:
        return Traceable(Tiled(config), example_arguments(config), name=config.kernel_name)

    launch = build(config, arch="sm_90a")  # from memory, from disk, from a bundle, or compiled now
    launch(*arguments)

    launch = builder_at("package.kernels.tiled:build")(config, arch="sm_90a")  # the same, without importing the kernel

    key, sources    the identity of a kernel: configuration, versions, SHA-256 of the sources
    verify          compares the imported modules with those sources; on a difference a kernel is not stored
    store, files    kernels on disk: entries, publishing, locks, size limit; safe folders
    bundle          read-only stores of kernels compiled ahead of time
    compile         cute.compile, the linker, the loader
    cached          the decorator: memory, then the user's cache, then bundles, then compile and publish
    parallel        compiles many kernels in worker processes
"""

from __future__ import annotations

from forge_core.cache.cached import CompileCached, builder_at, compile_cached
from forge_core.cache.compile import Compiled, Traceable
from forge_core.cache.key import KernelKey

__all__ = [
    "CompileCached",
    "Compiled",
    "KernelKey",
    "Traceable",
    "builder_at",
    "compile_cached",
]
