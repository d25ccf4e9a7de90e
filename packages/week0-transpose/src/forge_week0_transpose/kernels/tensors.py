"""Matrices and their tiles as CuTe tensors; addresses by hand, since a pointer's alignment is stated with its address.

Elements are unsigned integers of their width, whatever their dtype.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

import cutlass.cute as cute
from cutlass import Uint8, Uint16, Uint32, Uint64, Uint128
from cutlass.cute.nvgpu import CopyUniversalOp
from cutlass.cute.testing import assert_ as check

from forge_core.cute.strided import operands, place, tensor
from forge_core.steps import Step

#: By bytes.
UNSIGNED = {1: Uint8, 2: Uint16, 4: Uint32, 8: Uint64, 16: Uint128}


def matrices(pointers: tuple[Any, Any], size: int, shape: tuple, strides: Any, batch: Any, entry: Any) -> list:
    """The matrices of ``shape`` in an entry of a batch, whose dims are as for ``operands``."""
    at = place(entry, batch[1::3])
    return [each[(None, None, *at)] for each in operands(pointers, UNSIGNED[size], batch, shape, strides)]


def tile_at(mat: cute.Tensor, origin: tuple[Any, Any], step: Step, width: int = 0) -> cute.Tensor:
    """The tile of a matrix that begins at ``origin``; accesses begin at multiples of ``width`` bytes, or the step's."""
    start, width = mat.iterator + cute.crd2idx(origin, mat.layout), width or step.width
    vec, steps = width * 8 // mat.element_type.width, [s for s in mat.stride if not isinstance(s, int)]
    check(reduce(or_, steps, 0) % vec == 0, "rows lie multiples of an access's width apart")
    stride = tuple(s if isinstance(s, int) else cute.assume(s, divby=vec) for s in mat.stride)
    return tensor(start, mat.element_type, step.tile, stride, width)


def tiled_copy(step: Step, mat: cute.Tensor, thread: Any, op: Any = CopyUniversalOp) -> tuple[Any, Any]:
    """The copy of a step for a matrix's elements, and a thread's part of the tile."""
    atom = cute.make_copy_atom(op(), mat.element_type, num_bits_per_copy=8 * step.width)
    copy = cute.make_tiled_copy(atom, cute.make_layout(step.layout[0], stride=step.layout[1]), step.tile)
    return copy, copy.get_slice(thread)
