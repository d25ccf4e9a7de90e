"""The course's kernels of week 1, in the order of ``config.LADDER``; importing one imports the CuTe DSL."""
