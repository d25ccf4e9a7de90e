r"""Transposition through a padded tile of shared memory: the course's ``copy_transpose``.

    Y[b, n, m] = X[b, m, n]            (B, M, N) -> (B, N, M), elements of 1, 2, 4, 8 or 16 bytes

The steps are those of ``tile``.  A tile is square, T = 16 or 32; a thread moves one element at a time:

    tXgX   ((1, steps), 1, 1)     loads: neighboring threads have neighboring elements of an input row
    sX     (T, T):(T + 1, 1)      rows with an element of padding
    tYgY   ((1, steps), 1, 1)     stores: neighboring threads have neighboring elements of an output row

The padding moves each row of the tile by one bank: without it the T lanes that read down a column would meet in one.

Bytes moved: 2 * B * M * N * itemsize, each once.  ``vectorized`` takes fewer instructions, and whole 128-byte lines,
of which a row of this tile is a part for 1- and 2-byte elements.
Limits: none; with steps other than one element along a row the accesses are correct and no longer contiguous.
"""

from __future__ import annotations

from typing import Any

from forge_core.cache import Traceable, compile_cached
from forge_week0_transpose.configs import TiledConfig
from forge_week0_transpose.kernels.tensors import traceable
from forge_week0_transpose.kernels.tile import TileKernel


class Tiled(TiledConfig, TileKernel):
    """The kernel of a configuration."""

    def view(self, rows: Any, cols: Any, x0: Any, x1: Any, y0: Any, y1: Any) -> tuple[tuple, tuple, tuple]:
        """Strides of x and y between rows (0) and columns (1) of x."""
        return (rows, cols), (x0, x1), (y0, y1)


@compile_cached
def build(config: TiledConfig) -> Traceable:
    """What to compile for a configuration."""
    return traceable(Tiled(**vars(config)), 6, config.batch_rank)
