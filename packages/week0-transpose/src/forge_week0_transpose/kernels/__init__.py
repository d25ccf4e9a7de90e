"""The kernels of week 0, one idea a module.

Each module decorates one ``build(config)`` with :func:`forge_core.cache.compile_cached`.  Beside this package,
``configs.py`` has the configurations, ``choices.py`` and ``config.py`` choose among them.  Importing a kernel module
imports the CuTe DSL.
"""
