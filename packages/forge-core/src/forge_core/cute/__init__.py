"""Building blocks that kernels share on the GPU.

    check      assertions on the GPU, compiled in by FORGE_DEBUG=1 alone
    memory     accesses of a stated width at an address, the name of a kernel
    hold       the policies by which the L2 evicts lines last or first, and copies into shared memory by them
    room       registers for a stated number of blocks
    monoid     how two accumulators become one: sum, product, maximum, minimum; a week adds its own
    moments    count, sum and squared deviations of a union, without cancellation
    online     the (max, sum) pair of a softmax, its identity and its proof
    warp       a reduction among the lanes of a warp
    grid       a reduction among blocks that are resident all at once, through slots in global memory

Importing a module of this package imports the CuTe DSL; importing the package does not.
"""
