"""Which kernel does a softmax, and how it is configured.

:func:`select_config` is a pure function of a :class:`~forge_week2_softmax.problem.Problem`, an
:class:`~forge_week2_softmax.arithmetic.Arithmetic` and a :class:`~forge_core.device.Device`: no GPU is asked, so the
tests assert the branch it takes for a device they do not have.  :func:`plan_forward` and :func:`plan_backward` make the
problem from tensors and add the arguments of the launch.

    inner     row contiguous               single_pass  rows that one block holds, or a few lanes of it
                                           cluster      longer ones, and few ones (sm_90 and newer)
                                           grid         very few: all of the GPU's blocks hold them
                                           split        longer still: many blocks a row, two passes
                                           online       what none of them can do
    outer     neighbouring rows adjacent   column
    strided   neither                      column or online, whichever reads neighbours together
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from forge_core.choice import refuse, require_known
from forge_core.device import Device
from forge_core.errors import UnsupportedError
from forge_core.op import Launch, Variant
from forge_week2_softmax import columns, parting, rows
from forge_week2_softmax.arithmetic import Arithmetic
from forge_week2_softmax.configs import (
    ColumnConfig,
    Config,
    GridConfig,
    HeldConfig,
    PartsConfig,
    SplitConfig,
    SweepConfig,
)
from forge_week2_softmax.holding import LIMIT
from forge_week2_softmax.problem import Dim, Problem
from forge_week2_softmax.thresholds import THRESHOLDS

__all__ = [
    "GRID_SLOT_BYTES",
    "VARIANTS",
    "launch_arguments",
    "plan_backward",
    "plan_forward",
    "select_config",
    "workspace_bytes",
]

_KERNELS = "forge_week2_softmax.kernels"

#: Bytes of a block's slot; that of ``forge_core.cute.grid``, which imports the DSL.
GRID_SLOT_BYTES = 128

#: The kernels of every operator, slowest idea first; the last one is for rows that are not contiguous.
VARIANTS: Mapping[str, Variant] = {
    "naive": Variant(f"{_KERNELS}.sweep:build", "three passes: maximum, sum, write; does every problem"),
    "online": Variant(f"{_KERNELS}.sweep:build", "maximum and sum in one pass, by merging (max, sum) pairs"),
    "single_pass": Variant(f"{_KERNELS}.held:build", "the row stays in registers: one read, one write"),
    "cluster": Variant(
        f"{_KERNELS}.held:build", "a row over several multiprocessors, through distributed shared memory"
    ),
    "grid": Variant(
        f"{_KERNELS}.grid:build", "a row over the whole GPU: its blocks exchange through global memory, in one launch"
    ),
    "split": Variant(f"{_KERNELS}.split:build", "many blocks a row, and a second pass"),
    "column": Variant(f"{_KERNELS}.column:build", "neighbouring threads have neighbouring rows"),
}


def plan_forward(
    op: str,
    out: torch.Tensor,
    x: torch.Tensor,
    dims: tuple[int, ...],
    convert: torch.dtype | None,
    device: Device,
    variant: str = "auto",
) -> Launch:
    """What to launch for an operator; its pointers are those of ``x`` and ``out``.

    Args:
        op: ``"softmax"``, ``"log_softmax"`` or ``"logsumexp"``.
        out: of the shape of ``x``; for logsumexp of that without ``dims``, or with size 1 there.
        x: any strides; fp16, bf16, fp32, fp64, or an integer or bool with ``convert``.
        dims: the dimensions that make a row, none negative; one for softmax and log_softmax.
        convert: what each element is rounded to as it is loaded, or None.
        device: the GPU it runs on.
        variant: ``"auto"``, or a name in :data:`VARIANTS`.

    Returns:
        The kernel, its configuration, its workspace and the integers it is launched with.

    Raises:
        ArgumentError: there is no such variant.
        UnsupportedError: the named variant cannot do this problem; the message says which can.
    """
    problem = Problem.forward(x, out, dims)
    return _plan(op, problem, Arithmetic.forward(op, x.dtype, out.dtype, convert), device, variant)


def plan_backward(
    op: str,
    grad_input: torch.Tensor,
    grad: torch.Tensor,
    saved: Sequence[torch.Tensor],
    dims: tuple[int, ...],
    device: Device,
    variant: str = "auto",
) -> Launch:
    """What to launch for an operator's gradient; its pointers are those of ``grad``, ``saved`` and ``grad_input``.

    Args:
        op: ``"softmax"`` (y * (grad - sum(y * grad))), ``"log_softmax"`` (grad - exp(y) * sum(grad)) or
            ``"logsumexp"`` (grad * exp(x - lse)).
        grad_input: of the shape of the input.
        grad: of the shape of the output; any strides, 0 among them.
        saved: ``(y,)``, the output; for logsumexp ``(x, lse)``.
        dims: as for :func:`plan_forward`.
        device: the GPU it runs on.
        variant: ``"auto"``, or a name in :data:`VARIANTS`.

    Returns:
        As :func:`plan_forward`.

    Raises:
        ArgumentError: there is no such variant.
        UnsupportedError: the named variant cannot do this problem; the message says which can.
    """
    problem = Problem.backward(grad, saved, grad_input, dims)
    sources = (grad.dtype, *(t.dtype for t in saved))
    arithmetic = Arithmetic.backward_of(op, sources, grad_input.dtype)
    return _plan(f"{op}_backward", problem, arithmetic, device, variant)


def _plan(op: str, problem: Problem, arithmetic: Arithmetic, device: Device, variant: str) -> Launch:
    name, config, why = select_config(op, problem, arithmetic, device, variant)
    count = parting.parts(config, problem, device)
    return Launch(
        variant=name,
        builder=VARIANTS[name].path,
        config=config,
        arguments=launch_arguments(config, problem, count),
        why=why,
        read=problem.read_bytes,
        written=problem.written_bytes,
        workspace=workspace_bytes(config, problem, count),
        numbered=isinstance(config, GridConfig),
    )


def select_config(
    op: str, problem: Problem, arithmetic: Arithmetic, device: Device, variant: str = "auto"
) -> tuple[str, Config, str]:
    """The variant and configuration of a kernel for a problem, and why it was chosen.

    Args:
        op: the operator's name, for messages.
        problem: the canonical problem.
        arithmetic: what is computed.
        device: the GPU it runs on.
        variant: ``"auto"``, or a name in :data:`VARIANTS`.

    Raises:
        ArgumentError: there is no such variant.
        UnsupportedError: the named variant cannot do this problem; the message says which can.
    """
    for offset, size in zip(problem.offsets, problem.itemsizes, strict=True):
        if offset % size:
            raise UnsupportedError(
                f"{op}: a tensor's elements of {size} bytes begin {offset % size} bytes after a multiple of that; "
                "kernels read whole elements. Pass a clone().",
                requirement="elements at multiples of their size",
            )
    if variant == "auto":
        name, config, why = _automatic(problem, arithmetic, device)
        if _too_many_rows(config, problem):
            refuse(op, variant, _TOO_MANY_ROWS, _able(problem, arithmetic, device))
        return name, config, why + THRESHOLDS.note(device)
    require_known(op, variant, VARIANTS)
    found = _try(variant, problem, arithmetic, device)
    if isinstance(found, str):
        refuse(op, variant, found, _able(problem, arithmetic, device))
    return variant, found, f"variant={variant!r} was asked for"


def launch_arguments(config: Config, problem: Problem, parts: int = 1) -> tuple[int, ...]:
    """The integers that a kernel is launched with: sizes in elements, distances in bytes.

    First as many as ``config.integers``, then groups of as many as ``config.lengths`` says, laid flat.

    Args:
        config: the kernel's.
        problem: the canonical problem.
        parts: blocks of a row, where the kernel takes any number of them.
    """
    sizes = problem.itemsizes
    if isinstance(config, ColumnConfig):
        inner = problem.kept[-1] if problem.kept else Dim(1, (1,) * problem.sides)
        count = problem.rows // max(inner.size, 1)
        steps = (inner.size, *(step * size for step, size in zip(inner.steps, sizes, strict=True)))
        return (*steps, *_dims(count, problem.kept[:-1], sizes), *_dims(problem.length, problem.reduced, sizes))
    kept = _dims(problem.rows, problem.kept, sizes)
    row = config.row if isinstance(config, PartsConfig) else config
    split = isinstance(config, PartsConfig) or (isinstance(config, HeldConfig) and config.blocks == 0)
    head = (problem.length, parts) if split else (problem.length,)
    if isinstance(row, SweepConfig) and row.reduced_rank:
        return (*head, *kept, *_dims(problem.length, problem.reduced, sizes))
    return (*head, *kept)


def workspace_bytes(config: Config, problem: Problem, parts: int) -> int:
    """Bytes of the accumulators that blocks pass on through global memory; 0 where they do not."""
    if isinstance(config, GridConfig):
        return GRID_SLOT_BYTES * parts * problem.rows
    if not isinstance(config, SplitConfig):
        return 0
    return 2 * parts * problem.rows * config.arithmetic.acc.itemsize


def _dims(count: int, dims: tuple[Dim, ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
    """A count, then for each dimension, innermost first, its size and its step in bytes for each tensor."""
    steps = (n for d in reversed(dims) for n in (d.size, *(a * b for a, b in zip(d.steps, sizes, strict=True))))
    return (count, *steps)


def _able(problem: Problem, arithmetic: Arithmetic, device: Device) -> list[str]:
    """The kernels that can do a problem."""
    return [name for name in VARIANTS if not isinstance(_try(name, problem, arithmetic, device), str)]


def _automatic(problem: Problem, arithmetic: Arithmetic, device: Device) -> tuple[str, Config, str]:
    if problem.kind == "empty":
        return "naive", rows.naive(problem, arithmetic, device), "rows of no elements"
    if problem.kind == "inner":
        return rows.automatic(problem, arithmetic, device)
    if problem.kind == "outer" or columns.suits(problem):
        found = columns.automatic(problem, arithmetic, device)
        if found is not None:
            return found
    return "online", rows.online(problem, arithmetic, device), "no dimension that wide loads could take; a block a row"


def _try(variant: str, problem: Problem, arithmetic: Arithmetic, device: Device) -> Config | str:
    """The configuration of one kernel for a problem, or why it cannot do it, as the end of "it ..."."""
    choose = {
        "naive": rows.naive,
        "online": rows.online,
        "single_pass": rows.single_pass,
        "cluster": rows.cluster,
        "grid": parting.grid,
        "split": parting.split,
        "column": columns.column,
    }[variant]
    found = choose(problem, arithmetic, device)
    return _TOO_MANY_ROWS if not isinstance(found, str) and _too_many_rows(found, problem) else found


#: The end of "it ..." where a grid cannot hold a block for each row.
_TOO_MANY_ROWS = "has a block for each row, and a grid has fewer than 2^31 blocks"


def _too_many_rows(config: Config, problem: Problem) -> bool:
    return isinstance(config, SweepConfig) and problem.rows >= LIMIT
