"""The row engine: how rows move, written once for all row-wise operators.

    program    what is computed for a row: a frozen dataclass of arithmetic
    binding    a program and the dtypes of its operands
    problem    any dims, strides, offsets and dtypes as rows
    config     configurations, each compiled to one kernel
    listing    the configurations of a program, an enumerable list
    plan       from a call to a launch: selection and its arguments
    operator   a program and one declaration: a PyTorch operator
    held       kernel: rows on chip, in lanes, a block, a cluster or the whole grid
    stream     kernel: rows read by a block, once for their totals and once to write
    column     kernel: neighboring rows in neighboring threads, for rows that are not contiguous
    kernel     what the kernels share
    columns    where column operands wait until they are used
    values     what a program is given while a kernel is traced

Importing the package imports no DSL.  ``row_operator`` and ``like`` are imported from ``operator``, so that a program's
module need not import what declares operators.
"""

from forge_core.rows.binding import Binding
from forge_core.rows.listing import configurations
from forge_core.rows.problem import Problem
from forge_core.rows.program import Fold, Operands, RowProgram, exp, log, reciprocal, rounded, rsqrt, where

__all__ = [
    "Binding",
    "Fold",
    "Operands",
    "Problem",
    "RowProgram",
    "configurations",
    "exp",
    "log",
    "reciprocal",
    "rounded",
    "rsqrt",
    "where",
]
