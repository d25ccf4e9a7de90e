"""The trees of week 1's kernels, from their configurations: thread, warp, block, cluster, second pass.

Each model takes a :class:`~forge_core.testing.trees.Tree`, the row as accumulators, and the configuration, and gives
the row's accumulator; ``column`` takes a matrix and gives one a column.  NumPy is needed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from forge_core.testing import trees
from forge_core.testing.trees import WARP, Array, Tree
from forge_week1_reduce.configs import (
    ClusterConfig,
    ColumnConfig,
    FinishConfig,
    NaiveConfig,
    SharedConfig,
    ShortConfig,
    ShuffleConfig,
    SplitConfig,
    VectorizedConfig,
)

__all__ = ["MODELS", "depth"]

CHUNK = 16

#: Elements that ``naive`` adds up before it adds their sum to the row's; elements of a thread in flight in ``shared``
#: and ``shuffle``; chunks that parts of a row begin at multiples of.
RUN, STRANDS, LINE_CHUNKS = 128, 4, 8


def _naive(tree: Tree, x: Array, config: NaiveConfig, parts: int, misaligned: int) -> Array:
    runs = [trees.one_by_one(tree, x[start : start + RUN]) for start in range(0, len(x), RUN)]
    return trees.one_by_one(tree, np.stack(runs))


def _strands(tree: Tree, x: Array, config: SharedConfig | ShuffleConfig) -> Array:
    acc = tree.nothing(STRANDS * config.threads)
    # Strand by strand: piece p of a turn goes to strand p // threads of thread p % threads.
    acc = trees.in_turn(tree, acc, x)
    return trees.collapse(tree, acc.reshape(STRANDS, config.threads).T)


def _shared(tree: Tree, x: Array, config: SharedConfig, parts: int, misaligned: int) -> Array:
    return trees.collapse(tree, _strands(tree, x, config))


def _shuffle(tree: Tree, x: Array, config: ShuffleConfig, parts: int, misaligned: int) -> Array:
    return trees.block(tree, _strands(tree, x, config))


def _part(tree: Tree, x: Array, config: VectorizedConfig, part: int, parts: int, misaligned: int) -> Array:
    size = config.arithmetic.src.itemsize
    vector = config.width // size
    acc = tree.nothing(config.threads, vector)
    head = min(-misaligned % (CHUNK // size), len(x)) if config.peel else 0
    chunks = (len(x) - head) // vector
    tail = len(x) - head - chunks * vector
    if part == 0 and config.peel:
        acc[:head, 0] = tree.add(acc[:head, 0], x[:head])
        acc[CHUNK : CHUNK + tail, 0] = tree.add(acc[CHUNK : CHUNK + tail, 0], x[len(x) - tail :])
    # Parts are as long as those of a row that begins at a boundary.
    span = -(-(len(x) // vector) // (LINE_CHUNKS * parts)) * LINE_CHUNKS
    body = x[head : head + chunks * vector].reshape(-1, vector)[part * span : (part + 1) * span]
    return trees.block(tree, trees.collapse(tree, trees.in_turn(tree, acc, body)))


def _vectorized(tree: Tree, x: Array, config: VectorizedConfig, parts: int, misaligned: int) -> Array:
    return _part(tree, x, config, 0, 1, misaligned)


def _short(tree: Tree, x: Array, config: ShortConfig, parts: int, misaligned: int) -> Array:
    vector = config.width // config.arithmetic.src.itemsize
    acc = trees.in_turn(tree, tree.nothing(config.lanes, vector), x.reshape(-1, vector))
    return np.asarray(trees.butterfly(tree, trees.collapse(tree, acc), config.lanes)[0])


def _cluster(tree: Tree, x: Array, config: ClusterConfig, parts: int, misaligned: int) -> Array:
    blocks = [_part(tree, x, config.row, rank, config.blocks, misaligned) for rank in range(config.blocks)]
    return np.asarray(trees.butterfly(tree, np.stack(blocks), config.blocks)[0])


def _finish(tree: Tree, partials: Array, config: FinishConfig) -> Array:
    """Partial accumulators, axis 0, become results: in the order of the parts, or dealt to the threads of a block."""
    if config.threads == 1:
        return trees.one_by_one(tree, partials)
    return trees.block(tree, trees.in_turn(tree, tree.nothing(config.threads, *partials.shape[1:]), partials))


def _split(tree: Tree, x: Array, config: SplitConfig, parts: int, misaligned: int) -> Array:
    partials = [_part(tree, x, config.row, part, parts, misaligned) for part in range(parts)]
    return _finish(tree, np.stack(partials), config.finish)


def _column(tree: Tree, x: Array, config: ColumnConfig, parts: int, misaligned: int) -> Array:
    groups, cols = config.groups, x.shape[1]
    if groups == 1:
        return trees.one_by_one(tree, x)
    span = -(-len(x) // parts)
    found = []
    for part in range(parts):
        acc = trees.in_turn(tree, tree.nothing(groups, cols), x[part * span : (part + 1) * span])
        in_a_warp = max(WARP // config.lanes, 1)
        warps = [
            trees.butterfly(tree, acc[first : first + in_a_warp], in_a_warp)[0] for first in range(0, groups, in_a_warp)
        ]
        found.append(trees.one_by_one(tree, np.stack(warps)))
    partials = np.stack(found)
    return trees.one_by_one(tree, partials) if config.finish is None else _finish(tree, partials, config.finish)


#: For each configuration: the tree, the row's elements as accumulators, the configuration, the parts that its launch
#: cuts a row into, and the elements by which the row begins after a 16-byte boundary, to the row's accumulator.
MODELS: Mapping[type, Callable[[Tree, Array, Any, int, int], Array]] = {
    NaiveConfig: _naive,
    SharedConfig: _shared,
    ShuffleConfig: _shuffle,
    VectorizedConfig: _vectorized,
    ShortConfig: _short,
    ClusterConfig: _cluster,
    SplitConfig: _split,
    ColumnConfig: _column,
}


@functools.lru_cache(maxsize=4096)
def depth(config: Any, length: int, parts: int = 1) -> int:
    """The largest number of additions on an element's way into its row's sum, wherever the row begins.

    Args:
        config: the kernel's.
        length: elements of the row, or of the column.
        parts: how many its launch cuts a row, or a column, into.
    """
    own = getattr(config, "row", config)
    shape = (length, 1) if isinstance(config, ColumnConfig) else (length,)
    shifts = range(CHUNK // own.arithmetic.src.itemsize) if getattr(own, "peel", False) else (0,)
    model = MODELS[type(config)]
    found = [model(trees.DEPTH, np.zeros(shape, np.int64), config, parts, shift) for shift in shifts]
    return max(int(np.max(each)) for each in found)
