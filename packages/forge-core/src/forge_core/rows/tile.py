"""A thread's part of a tile of neighboring rows: a vector across the rows at each place, a piece of each row."""

from __future__ import annotations

from functools import partial
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32

from forge_core.cute.copy import copy_if, neighbors
from forge_core.rows.values import Piece

__all__ = ["load_tile", "store_tile"]


def load_tile(kernel: Any, gs: list[Any], begin: Int32, end: Int32) -> list[Piece]:
    """For each of this thread's rows a piece: its elements ``begin``, ``begin + groups``, ... below ``end``."""
    names, g = kernel.binding.program.operands, gs[0]
    groups = kernel.threads // kernel.lanes
    rInside, index = cute.make_rmem_tensor(kernel.chunks, Boolean), cute.make_rmem_tensor(kernel.chunks, Int32)
    rX = {n: cute.make_rmem_tensor((kernel.vec, kernel.chunks), g[n].element_type) for n in kernel.binding.loaded}
    rW = {n: cute.make_rmem_tensor(kernel.chunks, g[n].element_type) for n in names.columns}
    for c in range(kernel.chunks):
        n = begin + c * groups
        rInside[c], index[c] = n < end, n
        own = Int32(cutlass.select_(n < end, n, 0))
        for name, r in rX.items():
            rX_c = cute.make_rmem_tensor(kernel.vec, r.element_type)
            cute.autovec_copy(neighbors(g[name], own, kernel.vec), rX_c)
            for i in range(kernel.vec):
                r[i, c] = cutlass.select_(rInside[c], rX_c[i], kernel.nothing(name, g))
        for name, r in rW.items():
            r[c] = cutlass.select_(rInside[c], g[name][own], kernel.nothing(name, g))
    pieces = []
    for i in range(kernel.vec):
        registers = {n: partial(_row, r, i) for n, r in rX.items()} | {n: r.load for n, r in rW.items()}
        pieces.append(kernel.piece(gs[i], registers, index.load, rInside.load(), kernel.chunks, store=None))
    return pieces


def store_tile(
    kernel: Any, gs: list[Any], pieces: list[Piece], constants: list[Any], begin: Int32, end: Int32, inside: Boolean
) -> None:
    """Computes and writes the outputs at the places of some pieces."""
    names, g = kernel.binding.program.operands, gs[0]
    rY = {n: cute.make_rmem_tensor((kernel.vec, kernel.chunks), g[n].element_type) for n in names.writes}
    for i in range(kernel.vec):
        for name, y in zip(names.writes, kernel.binding.program.map(pieces[i], constants[i]), strict=True):
            out = y.to(g[name].element_type)
            for c in range(kernel.chunks):
                rY[name][i, c] = out[c]
    for c in range(kernel.chunks):
        n = begin + c * (kernel.threads // kernel.lanes)
        for name, r in rY.items():
            own = Int32(cutlass.select_(n < end, n, 0))
            copy_if(r[None, c], neighbors(g[name], own, kernel.vec), inside & (n < end))


def _row(rX: cute.Tensor, i: int) -> Any:
    """One row's elements among those of neighboring rows."""
    rRow = cute.make_rmem_tensor(rX.shape[1], rX.element_type)
    for c in range(rX.shape[1]):
        rRow[c] = rX[i, c]
    return rRow.load()
