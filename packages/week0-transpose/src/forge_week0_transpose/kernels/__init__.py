"""The kernels of week 0, one idea a module; importing one imports the CuTe DSL."""
