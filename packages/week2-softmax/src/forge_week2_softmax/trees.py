"""The trees of week 2's kernels, from their configurations: thread, warp, block, cluster, parts.

    element of a row      -> a thread's accumulator      ``elements`` says whose it is, ``steps`` how elements become
    accumulators          -> the row's                   one and how two accumulators do

A model takes the steps on a row's elements, the configuration, and where the row begins, and follows the kernel.  Over
``Sums`` it gives the sum of a backward pass, over ``Pairs`` the (max, sum) pair of a forward one, and over
``roundings.Counts`` how often either is rounded.  NumPy is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from forge_core.testing.trees import WARP, Array, Tree
from forge_week2_softmax.configs import ColumnConfig, GridConfig, HeldConfig, PartsConfig, SplitConfig, SweepConfig
from forge_week2_softmax.elements import column_elements, held_elements, part_of, sweep_elements
from forge_week2_softmax.steps import Acc, Steps, Sums

__all__ = ["MODELS", "held_sum", "row"]


def _first(acc: Acc, every: int = 1) -> Acc:
    return tuple(part[::every] for part in acc)


def _joined(accs: Iterable[Acc]) -> Acc:
    return tuple(np.concatenate(parts) for parts in zip(*accs, strict=True))


def _block(steps: Steps, acc: Acc) -> Acc:
    """The accumulators of a block's threads become one."""
    warps = len(acc[0]) // WARP
    acc = _first(steps.across(acc, WARP), WARP)
    return tuple(part[:1] for part in (acc if warps == 1 else steps.across(acc, warps)))


def _held(steps: Steps, length: int, config: HeldConfig, parts: int, shift: int) -> Acc:
    blocks = []
    for rank in range(config.blocks):
        whole, ends = held_elements(config, length, shift=shift, rank=rank)
        # Registers are numbered with the chunk first, so a place of all chunks comes before the next place; those that
        # wait in shared memory come chunk by chunk.
        kept, staged = np.split(whole, [config.chunks - config.staged])
        groups = [kept.transpose(2, 0, 1).reshape(-1, config.lanes)]
        if config.staged:
            groups.append(staged.transpose(0, 2, 1).reshape(-1, config.lanes))
        found = [*groups, ends] if config.edges else groups
        if config.top_first:
            return tuple(part[:1] for part in steps.together(found, config.lanes))
        blocks.append(steps.of(found))
    if config.blocks > 1:
        # Every warp of every block sends its own to all: slots of the cluster, 32 at a time.
        slots = _joined(_first(steps.across(acc, WARP), WARP) for acc in blocks)
        lanes = min(len(slots[0]), WARP)
        some = [tuple(part[i : i + lanes] for part in slots) for i in range(0, len(slots[0]), lanes)]
        acc = some[0] if len(some) == 1 else steps.many(some)
        return tuple(part[:1] for part in steps.across(acc, lanes))
    if config.lanes > WARP:
        return _block(steps, blocks[0])
    return tuple(part[:1] for part in steps.across(blocks[0], config.lanes))


def _walk(steps: Steps, turns: Iterable[Array], threads: int) -> Acc:
    """A thread takes turn after turn into its accumulator."""
    acc = steps.nothing(threads)
    for places in turns:
        acc = steps.combine(acc, steps.of([places]))
    return acc


def _turns(config: SweepConfig, length: int, shift: int, begin: int, end: int) -> list[Array]:
    places = sweep_elements(config, length, shift=shift, begin=begin, end=end)
    return list(places.transpose(0, 3, 1, 2).reshape(len(places), config.vector * config.unroll, config.threads))


def _chunks(config: SweepConfig, length: int, shift: int) -> int:
    return -(-(length + shift) // config.vector)


def _sweep(steps: Steps, length: int, config: SweepConfig, parts: int, shift: int) -> Acc:
    turns = _turns(config, length, shift, 0, _chunks(config, length, shift))
    if config.idea == "naive" and not config.arithmetic.backward:
        return steps.in_two_passes(turns, config.threads)
    return _block(steps, _walk(steps, turns, config.threads))


def _parts(steps: Steps, length: int, config: PartsConfig, parts: int, shift: int) -> Acc:
    found, threads = [], config.row.threads
    for part in range(parts):
        begin, end = part_of(config.row, length, part, parts, shift=shift)
        turns = _turns(config.row, length, shift, begin, end)
        found.append(_block(steps, _walk(steps, turns, threads)))
    partials, acc = _joined(found), steps.nothing(threads)
    for first in range(0, parts, threads):
        some = tuple(part[first : first + threads] for part in partials)
        spare = steps.nothing(threads - len(some[0]))
        acc = steps.combine(acc, _joined([some, spare]))
    return _block(steps, acc)


def _column(steps: Steps, length: int, config: ColumnConfig, parts: int, shift: int) -> Acc:
    acc = _walk(steps, column_elements(config, length), config.groups)
    # Of a warp's lanes those that are ``lanes`` apart have one row.
    in_a_warp = max(WARP // config.lanes, 1)
    slots = _first(steps.across(acc, in_a_warp), in_a_warp)
    if config.threads == WARP:
        return tuple(part[:1] for part in slots)
    total = steps.nothing(1)
    for warp in range(config.threads // WARP):
        total = steps.combine(total, tuple(part[warp : warp + 1] for part in slots))
    return total


#: For each configuration: the steps, a row's elements, the configuration, the parts that its launch cuts a row into,
#: and the elements by which the row begins after a chunk's first, to the row's accumulator.
MODELS: Mapping[type, Callable[[Steps, int, Any, int, int], Acc]] = {
    HeldConfig: _held,
    SweepConfig: _sweep,
    SplitConfig: _parts,
    GridConfig: _parts,
    ColumnConfig: _column,
}


def row(steps: Steps, length: int, config: Any, *, parts: int = 1, shift: int = 0) -> tuple[Any, ...]:
    """A row's accumulator.

    Args:
        steps: the computation on this row.
        length: elements of the row.
        config: the kernel's; with ``blocks == 0`` nothing is reduced, and there is no tree.
        parts: how many its launch cuts a row into.
        shift: elements by which the row begins after a chunk's first; not 0 only where rows have edges.
    """
    return tuple(part[0] for part in MODELS[type(config)](steps, length, config, parts, shift))


def held_sum(tree: Tree, terms: Array, config: HeldConfig, *, shift: int = 0) -> Any:
    """The sum of a row that ``single_pass`` or ``cluster`` holds; :func:`row` over :class:`Sums`."""
    return row(Sums(tree, terms), len(terms), config, shift=shift)[0]
