"""The kernels of week 1, one idea a module.

Each module decorates one ``build(config)`` with :func:`forge_core.cache.compile_cached`; ``config.py`` beside this
package chooses among them.  Importing a kernel module imports the CuTe DSL.
"""
