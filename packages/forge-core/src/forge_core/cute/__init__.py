"""Device code that kernels share.

    check      assertions, compiled in by FORGE_DEBUG=1
    copy       vector copies of any alignment between global memory, shared memory and registers
    memory     accesses at byte addresses, names of kernels, arguments for tracing
    math       exponential of stated error, division of coordinates
    room       launch bounds: registers for a minimum of resident blocks
    monoid     reductions: sum, product, maximum, minimum
    moments    the monoid of count, sum and squared deviations
    online     the (max, sum) monoid of a softmax
    warp       reduction among the lanes of a warp
    exchange   reduction among the threads of a block, a cluster or the grid, and over columns
    grid       slots of a grid-wide reduction

Importing the package does not import the CuTe DSL; importing one of its modules does.
"""
