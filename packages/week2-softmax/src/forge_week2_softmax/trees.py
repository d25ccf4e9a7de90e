"""The trees of week 2's kernels, from their configurations: thread, warp, block, cluster.

What the sum of a row is made of: of ``exp(x - max)`` in a forward pass, of the gradients in a backward one.  The terms
are given; which of them a thread has is said by the index maps of ``layouts``.  NumPy is needed.
"""

from __future__ import annotations

import numpy as np

from forge_core.testing import trees
from forge_core.testing.trees import WARP, Array, Tree
from forge_week2_softmax import layouts
from forge_week2_softmax.configs import HeldConfig

__all__ = ["held_sum"]

#: Running sums of a thread; that of ``kernels/program.py``, which imports the DSL.
STRANDS = 4


def held_sum(tree: Tree, terms: Array, config: HeldConfig, *, shift: int = 0) -> Array:
    """The sum of a row that ``single_pass`` or ``cluster`` holds.

    Args:
        tree: what is done at each node.
        terms: those of the row's elements, in their order.
        config: the kernel's.
        shift: elements by which the row begins after a chunk's first; not 0 only where ``config.edges``.
    """
    blocks = [_threads(tree, terms, config, shift, rank) for rank in range(config.blocks)]
    if config.blocks > 1:
        # Every warp of every block sends its own to all: slots of the cluster, 32 at a time.
        warps = config.threads // WARP
        slots = np.stack(
            [
                trees.butterfly(tree, threads[warp * WARP : (warp + 1) * WARP], WARP)[0]
                for threads in blocks
                for warp in range(warps)
            ]
        )
        lanes = min(len(slots), WARP)
        folded = trees.in_turn(tree, tree.nothing(lanes), slots)
        return np.asarray(trees.butterfly(tree, folded, lanes)[0])
    if config.lanes > WARP:
        return trees.block(tree, blocks[0])
    return np.asarray(trees.butterfly(tree, blocks[0], config.lanes)[0])


def _threads(tree: Tree, terms: Array, config: HeldConfig, shift: int, rank: int) -> Array:
    """The sum of each lane of a block."""
    vector, lanes = config.vector, config.lanes
    whole = tree.nothing(vector, config.chunks, lanes)
    ends: list[Array] = []
    accesses = layouts.held_accesses(config, len(terms), shift=shift, rank=rank)
    size = accesses[0].width // vector
    for number, access in enumerate(accesses):
        own = tree.nothing(vector, lanes)
        for lane, place in enumerate(access.places):
            if place is not None:
                first = place // size - shift
                some = terms[first : first + access.width // size]
                own[: len(some), lane] = some
        if number < config.chunks:
            whole[:, number] = own
        else:
            ends.append(own[0])
    # Registers are numbered with the chunk first, so a place of all chunks comes before the next place.
    held = trees.strand_sum(tree, whole.reshape(vector * config.chunks, lanes), STRANDS)
    if not config.edges:
        return held
    edge = np.stack(ends) if ends else tree.nothing(1, lanes)
    return np.asarray(tree.add(held, trees.strand_sum(tree, edge, STRANDS)))
