"""The course's ladder for a sum along rows: four kernels, one idea each, taken by name only.

naive         a thread a row                                      reads that lie a row apart
shared        a block a row, a tree in shared memory              coalesced; a barrier for each level
shuffle       a block a row, shuffles and one barrier             no levels in shared memory
vectorized    16 bytes an access, several of a thread in flight   the bytes in flight that the memory needs

A configuration is what a kernel is compiled for; sizes and strides are arguments of its launch.  All other variants are
the row engine's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import cast

import torch

from forge_core.choice import Refusal, power_of_two
from forge_core.device import Device
from forge_core.dtypes import short_name
from forge_core.op.plan import Variant
from forge_core.rows import Binding, Problem
from forge_core.rows.plan import Rung
from forge_core.steps import CHUNK, Step, Stepped, contiguous
from forge_week1_reduce.program import Reduce

__all__ = ["LADDER", "NaiveConfig", "SharedConfig", "ShuffleConfig", "VectorizedConfig"]


@dataclass(frozen=True)
class NaiveConfig(Stepped):
    """``kernels/naive.py``: the operator, the dtype of x and y, threads of a block."""

    op: str
    dtype: torch.dtype
    threads: int = 128

    @property
    def kernel_name(self) -> str:
        """What a profiler shows: the operator, the kernel, the dtype, and the other fields in order."""
        sizes = (str(getattr(self, field.name)) for field in fields(self)[2:])
        return "_".join((self.op, type(self).__name__.removesuffix("Config"), short_name(self.dtype), *sizes))

    @property
    def steps(self) -> tuple[Step, ...]:
        """A thread has a row, drawn with 64 elements of which it loads four."""
        size, rows = self.dtype.itemsize, self.threads
        layout = ((rows,), (4,)), ((64,), (1,))
        return (Step("rows of 64 elements: loads", size, layout, (64, rows), (1, 64), size),)


@dataclass(frozen=True)
class SharedConfig(NaiveConfig):
    """``kernels/shared.py``."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """A thread has every ``threads``-th element of a row."""
        size = self.dtype.itemsize
        return (contiguous("a row: loads", self.threads, size, size, 4),)


@dataclass(frozen=True)
class ShuffleConfig(SharedConfig):
    """``kernels/shuffle.py``."""


@dataclass(frozen=True)
class VectorizedConfig(NaiveConfig):
    """``kernels/vectorized.py``: also vectors of a thread in flight."""

    chunks: int = 4

    @property
    def steps(self) -> tuple[Step, ...]:
        """A thread has every ``threads``-th vector of a row."""
        return (contiguous("a row: loads", self.threads, self.dtype.itemsize, CHUNK, self.chunks),)


def _refusal(binding: Binding, problem: Problem) -> Refusal | None:
    """Why no kernel of the ladder supports a problem."""
    dtypes = set(binding.dtypes)
    if binding.operands.paired:
        return Refusal("real numbers", "complex ones")
    if len(dtypes) > 1 or binding.via or not dtypes <= {torch.float16, torch.bfloat16, torch.float32}:
        return Refusal("fp16, bf16 or fp32, and the same dtype for the result", ", ".join(map(str, binding.dtypes)))
    if problem.kind == "empty":
        return Refusal("rows that have elements", "none")
    if len(problem.kept) > 1 or len(problem.reduced) > 1:
        return Refusal("one stride between rows and one between elements", "more dims; pass a contiguous() tensor")
    if max(problem.rows, problem.length) >= 2**31:
        return Refusal("fewer than 2^31 rows and elements a row", f"{problem.rows} of {problem.length}")
    return None


def _op(binding: Binding) -> str:
    return cast("Reduce", binding.program).op


def _threads(problem: Problem, each: int) -> int:
    """Threads of a block, for rows of which a thread takes so many elements at once."""
    return max(32, min(power_of_two(-(-problem.length // each)), 256))


def _naive(binding: Binding, problem: Problem, device: Device) -> NaiveConfig | Refusal:
    return _refusal(binding, problem) or NaiveConfig(_op(binding), binding.dtypes[0])


def _shared(binding: Binding, problem: Problem, device: Device) -> SharedConfig | Refusal:
    return _refusal(binding, problem) or SharedConfig(_op(binding), binding.dtypes[0], _threads(problem, 4))


def _shuffle(binding: Binding, problem: Problem, device: Device) -> ShuffleConfig | Refusal:
    return _refusal(binding, problem) or ShuffleConfig(_op(binding), binding.dtypes[0], _threads(problem, 4))


def _vectorized(binding: Binding, problem: Problem, device: Device) -> VectorizedConfig | Refusal:
    if refusal := _refusal(binding, problem):
        return refusal
    if problem.kind != "inner" or binding.broadcast or problem.alignment.kind != "whole":
        return Refusal("contiguous rows of whole 16-byte vectors, at multiples of 16 bytes", f"{problem.kind} rows")
    return VectorizedConfig(_op(binding), binding.dtypes[0], _threads(problem, 4 * problem.alignment.vec))


def _strided(config: NaiveConfig, problem: Problem) -> tuple[int, ...]:
    """Rows, elements of a row; strides of x and y between rows, and of x between elements."""
    kept, reduced = problem.kept[0], problem.reduced[0]
    return (kept.size, reduced.size, *kept.strides, reduced.strides[0])


def _variant(name: str, idea: str) -> Variant:
    return Variant(f"forge_week1_reduce.kernels.{name}:build", idea)


#: In the order of the course.
LADDER: Mapping[str, Rung] = {
    "naive": Rung(_variant("naive", "a thread a row"), _naive, _strided),
    "shared": Rung(_variant("shared", "a block a row, a tree in shared memory"), _shared, _strided),
    "shuffle": Rung(_variant("shuffle", "a block a row, warp shuffles and one barrier"), _shuffle, _strided),
    "vectorized": Rung(_variant("vectorized", "16-byte vectors, several in flight"), _vectorized, _strided),
}
