"""Building blocks that kernels share on the GPU.

    memory     addresses, accesses of a stated width, offsets of an entry of some dimensions
    monoid     how two accumulators become one: sum, product, maximum, minimum; a week adds its own
    warp       a reduction among the lanes of a warp
    block      a reduction among the warps of a block, through shared memory
    cluster    a reduction among the blocks of a cluster, through distributed shared memory

Importing a module of this package imports the CuTe DSL; importing the package does not.
"""
