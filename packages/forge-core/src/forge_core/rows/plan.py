"""From a call to a launch: its problem, its binding, a selected configuration and the launch's arguments."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch

from forge_core.device import Device
from forge_core.op.plan import Plan
from forge_core.rows.arguments import arguments, workspace
from forge_core.rows.binding import Binding
from forge_core.rows.config import LIMIT
from forge_core.rows.problem import Problem
from forge_core.rows.program import RowProgram, operands_of
from forge_core.rows.selection import KERNELS, NO_LADDER, VARIANTS, Rung, select

__all__ = ["VARIANTS", "Rung", "plan", "plan_call"]

# More rows than any GPU has multiprocessors, from which on selection does not depend on their number.
_MANY_ROWS = 2**15


def plan_call(
    op: str,
    program: RowProgram,
    tensors: Mapping[str, torch.Tensor],
    dims: Sequence[int],
    device: Device,
    variant: str = "auto",
    *,
    via: torch.dtype | None = None,
    order: Sequence[str] = (),
    numbers: Sequence[float] = (),
    ladder: Mapping[str, Rung] = NO_LADDER,
    invariant: bool = False,
    kernels: Collection[str] = KERNELS,
) -> Plan:
    """Plans the launch of a call from the metadata of its tensors.

    ``tensors`` are inputs and outputs, by the names of the program's operands, ``dims`` the reduced dims, none
    negative, and ``numbers`` in the order of the operands.  ``op`` is for messages; with ``invariant``, selection is as
    for many rows.  ``via``: dtype that row operands are rounded to on load; ``order``: operands in the order of the
    launch's pointers; the others are those of ``row_operator``.

    Raises:
        ArgumentError: there is no such variant.
        UnsupportedError: the variant does not support this problem, or elements are not aligned to their size.
    """
    operands = operands_of(program)
    found = [tensors[name] for name in operands.tensors]
    problem = Problem.of(operands, found, tensors[operands.rows[0]].shape, dims)
    alone = program.of_one() if problem.length == 1 and variant == "auto" else None
    if alone is not None:
        across = problem.across(operands_of(alone))
        if across.kind == "inner" and across.length < LIMIT >> 1:
            program, problem = alone, across
    dtypes = tuple([t.dtype for t in found])
    binding = Binding.of(program, dtypes, program.compute(dtypes, via), problem.broadcast, via, tuple(order))
    return plan(op, binding, problem, device, variant, numbers, ladder, invariant, kernels)


def plan(
    op: str,
    binding: Binding,
    problem: Problem,
    device: Device,
    variant: str = "auto",
    numbers: Sequence[float] = (),
    ladder: Mapping[str, Rung] = NO_LADDER,
    invariant: bool = False,
    kernels: Collection[str] = KERNELS,
) -> Plan:
    """Plans the launch of a bound program on a problem: see :func:`plan_call`."""
    chosen_for = problem.of_rows(_MANY_ROWS) if invariant else problem
    name, config, why = select(op, binding, chosen_for, device, variant, ladder, kernels)
    read, written = problem.read_bytes, problem.written_bytes
    if name in ladder:
        path, integers = ladder[name].variant.path, ladder[name].arguments(config, problem)
        return Plan(name, path, config, (*integers, *numbers), why, read, written)
    # The bits of a row do not depend on the number of teams: none is launched that has no row.
    sized_for = problem if name == "persistent" else chosen_for
    given = (*arguments(config, problem, device, sized_for), *numbers)
    scratch = workspace(config, sized_for, device) if config.workspace else 0
    return Plan(name, KERNELS[name].path, config, given, why, read, written, scratch, config.in_grid)
