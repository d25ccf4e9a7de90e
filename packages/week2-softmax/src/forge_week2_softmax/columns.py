"""The choice of the kernel whose neighbouring threads have neighbouring rows."""

from __future__ import annotations

from forge_core.device import Device
from forge_week2_softmax.arithmetic import Arithmetic
from forge_week2_softmax.configs import ColumnConfig
from forge_week2_softmax.problem import Problem

__all__ = ["automatic", "column", "suits"]

_LIMIT = 2**31


def automatic(problem: Problem, arithmetic: Arithmetic, device: Device) -> tuple[str, ColumnConfig, str] | None:
    """The variant and configuration for neighbouring rows, and why; None where there are too many for it."""
    config = _column(problem, arithmetic)
    if isinstance(config, str):
        return None
    held = "held in registers" if config.held else "read twice"
    return "column", config, f"neighbouring rows, {config.vector} a thread; rows of {problem.length} elements {held}"


def suits(problem: Problem) -> bool:
    """Whether neighbouring rows lie closer together than neighbouring elements of a row."""
    if not problem.kept:
        return False
    rows = min(abs(step) for step in problem.kept[-1].steps)
    elements = min((abs(problem.reduced[-1].steps[i]) for i in problem.whole), default=0) if problem.reduced else 2**62
    return rows <= elements


def column(problem: Problem, arithmetic: Arithmetic, device: Device) -> ColumnConfig | str:
    """Neighbouring threads have neighbouring rows; or why not."""
    if problem.kind == "inner":
        return "has neighbouring rows in neighbouring threads, and here the elements of a row are neighbours"
    return _column(problem, arithmetic)


def _column(problem: Problem, arithmetic: Arithmetic) -> ColumnConfig | str:
    vector = problem.columns() if problem.kind == "outer" else 1
    width = problem.kept[-1].size if problem.kept else 1
    lanes = min(32 if vector == 1 else 8, 1 << max(-(-width // vector) - 1, 0).bit_length())
    inputs = sum(not on_row for on_row in arithmetic.on_rows[:-1])
    most = 8 // inputs
    groups = 256 // lanes
    while groups > 32 // lanes and groups // 2 * most >= problem.length:
        groups //= 2
    chunks = most
    while chunks > 1 and groups * chunks // 2 >= problem.length:
        chunks //= 2
    # A thread steps past the row's end by less than a turn.
    if problem.length + groups * chunks >= _LIMIT:
        return f"numbers the elements of a row by 32 bits, and there are {problem.length}"
    tiles = -(-width // (lanes * vector)) * (problem.rows // max(width, 1))
    if tiles >= _LIMIT:
        return "has a block for each tile of rows, and a grid has less than 2^31 blocks"
    return ColumnConfig(
        arithmetic,
        vector,
        lanes,
        groups,
        chunks,
        groups * chunks >= problem.length,
        max(len(problem.kept) - 1, 0),
        len(problem.reduced),
    )
