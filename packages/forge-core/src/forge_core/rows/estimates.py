"""Estimates of registers per thread: those that rows held on chip need besides their elements."""

from __future__ import annotations

from typing import Any


def column_registers(config: Any) -> int:
    """Registers of column operands: all vectors, or two each, or three where they are shifted in registers."""
    vectors = config.chunks if config.columns_early else 2 if config.columns_whole else 3
    sizes = [config.binding.dtype(name).itemsize for name in config.binding.operands.columns]
    return sum(vectors * config.vec * size // 4 + 4 for size in sizes)


def staged_column_registers(config: Any) -> int:
    """The same of column operands in shared memory: a vector for each row operand but the first.

    One more for elements of 4 bytes: fewer resident blocks leave more of the L1, where accesses of unaligned rows hit
    the lines that they share.
    """
    sizes = [config.binding.dtype(n).itemsize for n in config.binding.operands.columns]
    return sum((config.vec * n // 4 + 8) * (len(config.binding.loaded) - 1 + (n > 2)) for n in sizes)


def fold_registers(config: Any) -> int:
    """Registers of several folds: constants of the row, and terms that lanes keep.

    For moments: the partial results that a thread combines at once, and the deviations that lanes keep.
    """
    program, names = config.binding.program, config.binding.program.operands
    if program.merge == "moments":
        combined = 3 * (-(-config.exchange_partials // 32)) if config.sized else config.chunks * config.vec // 2
        return int(8 + combined + 4 * len(names.scalars + names.results))
    beside, later = len(names.scalars + names.results), len(program.folds) - 1
    if later < 1 or not names.writes or not (beside or names.columns):
        return 0
    terms = later * config.chunks * config.vec * 3 // 4 if config.lanes else 0
    return int(4 * beside + (0 if program.merge else 8 * later) + terms)
