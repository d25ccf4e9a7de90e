"""The row engine: how rows move, written once for all row-wise operators.

    operator    a program and one declaration: a PyTorch operator
    program     what is computed for a row: a frozen dataclass of arithmetic

    plan        from a call to a launch
    problem     any dims, strides, offsets and dtypes as rows
    binding     a program and the dtypes of its operands
    config      configurations, each compiled to one kernel
    listing     the configurations of a program, an enumerable list
    selection   the variant and configuration of a launch
    neighbors   the part of it for the column kernel
    thresholds  the numbers that selection decides by
    arguments   the integers of a launch, and the size of its workspace
    teams       configurations, selection and arguments of the persistent kernel

    held        kernels held and grid: rows on chip, in lanes, a block, a cluster or the whole grid
    stream      kernels stream and split: rows read for their totals and again to write
    column      kernel: neighboring rows in neighboring threads, for rows that are not contiguous
    persistent  kernel: blocks that process rows one after the other, for sums over rows

    kernel      base of all kernels: arguments, folds, and reductions over the threads that share a row on chip
    pieces      base of kernel: a thread's loads and stores
    values      what a program is given while a kernel is traced
    folds       monoids of folds, and the reduction of a vector
    realign     base of held: copies of column operands at each distance from a boundary
    columns     a thread's share of a row, and the column operands there: loaded where they are used, or staged
    parted      base of stream and column: rows in parts, with a launch per pass
    tile        a thread's part of a tile of neighboring rows, for column
    successive  the pipeline of rows of the persistent kernel
    accumulate  base of persistent: sums over rows, per thread, per team and over teams

Importing the package imports no DSL.  ``row_operator`` and ``row_output`` are imported from ``operator``, so that a
program's module need not import what declares operators.
"""

from forge_core.rows.binding import Binding
from forge_core.rows.listing import configurations
from forge_core.rows.problem import Problem
from forge_core.rows.program import Fold, Operands, RowProgram, erf, exp, log, reciprocal, rounded, rsqrt, tanh, where

__all__ = [
    "Binding",
    "Fold",
    "Operands",
    "Problem",
    "RowProgram",
    "configurations",
    "erf",
    "exp",
    "log",
    "reciprocal",
    "rounded",
    "rsqrt",
    "tanh",
    "where",
]
