"""The course's ladder for softmax: three kernels, one idea each, taken by name only.

naive          a block a row: maximum, sum, write       three reads and a write of each element
online         maximum and sum in one pass              two reads and a write
single_pass    the row stays in registers               one read and a write, 16 bytes an access

A configuration is what a kernel is compiled for; sizes and strides are arguments of its launch.  All other variants are
the row engine's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from forge_core.choice import Refusal, power_of_two
from forge_core.device import Device
from forge_core.dtypes import short_name
from forge_core.op.plan import Variant
from forge_core.rows import Binding, Problem
from forge_core.rows.plan import Rung
from forge_core.steps import CHUNK, Step, Stepped, contiguous
from forge_week2_softmax.program import Softmax

__all__ = ["LADDER", "NaiveConfig", "OnlineConfig", "SinglePassConfig"]


@dataclass(frozen=True)
class NaiveConfig(Stepped):
    """``kernels/naive.py``: the dtype of x and y, threads of a block."""

    dtype: torch.dtype
    threads: int = 256

    @property
    def kernel_name(self) -> str:
        """What a profiler shows: the kernel, the dtype, and the other fields in order."""
        sizes = (str(getattr(self, field.name)) for field in fields(self) if field.name != "dtype")
        return "_".join(("softmax", type(self).__name__.removesuffix("Config"), short_name(self.dtype), *sizes))

    @property
    def steps(self) -> tuple[Step, ...]:
        """A thread has every ``threads``-th element of a row."""
        return (self._accesses(self.threads, self.dtype.itemsize, 1),)

    def _accesses(self, threads: int, width: int, chunks: int) -> Step:
        return contiguous("a row, read and written: accesses", threads, self.dtype.itemsize, width, chunks)


@dataclass(frozen=True)
class OnlineConfig(NaiveConfig):
    """``kernels/online.py``: also elements of a vector, and vectors of a thread in flight."""

    vec: int = 1
    chunks: int = 4

    @property
    def steps(self) -> tuple[Step, ...]:
        """A thread has every ``threads``-th vector of a row."""
        return (self._accesses(self.threads, self.dtype.itemsize * self.vec, self.chunks),)


@dataclass(frozen=True)
class SinglePassConfig(NaiveConfig):
    """``kernels/single_pass.py``: threads of a block at most, where a row has the whole block.

    Attributes:
        chunks: vectors of a thread.
        lanes: threads of a warp that share a row, a power of two; 0: the whole block does.
        resident: blocks that the compiler leaves registers for on a multiprocessor.
    """

    chunks: int = 10
    lanes: int = 0
    resident: int = 1

    @property
    def steps(self) -> tuple[Step, ...]:
        """A thread, or lane, has every ``threads``-th vector of a row."""
        return (self._accesses(self.lanes or self.threads, CHUNK, self.chunks),)


def _refusal(binding: Binding, problem: Problem) -> Refusal | None:
    """Why no kernel of the ladder supports a problem."""
    program, dtypes = binding.program, set(binding.dtypes)
    if not isinstance(program, Softmax) or program.op != "softmax":
        return Refusal("softmax", type(program).__name__)
    if len(dtypes) > 1 or binding.via or not dtypes <= {torch.float16, torch.bfloat16, torch.float32}:
        return Refusal("fp16, bf16 or fp32, and the same dtype for the result", ", ".join(map(str, binding.dtypes)))
    if problem.kind == "empty":
        return Refusal("rows that have elements", "none")
    if len(problem.kept) > 1 or len(problem.reduced) > 1:
        return Refusal("one stride between rows and one between elements", "more dims; pass a contiguous() tensor")
    if max(problem.rows, problem.length) >= 2**31:
        return Refusal("fewer than 2^31 rows and elements a row", f"{problem.rows} of {problem.length}")
    return None


def _whole(binding: Binding, problem: Problem) -> bool:
    """Whether rows are contiguous, and whole aligned vectors."""
    return problem.kind == "inner" and not binding.broadcast and problem.alignment.kind == "whole"


def _threads(binding: Binding, problem: Problem) -> int:
    """A thread for 64 bytes of a row; many for a long one, so that the rows of few blocks stay in the L1."""
    return max(128, min(power_of_two(problem.length * binding.dtypes[0].itemsize // 64), 512))


def _naive(binding: Binding, problem: Problem, device: Device) -> NaiveConfig | Refusal:
    return _refusal(binding, problem) or NaiveConfig(binding.dtypes[0], _threads(binding, problem))


def _online(binding: Binding, problem: Problem, device: Device) -> OnlineConfig | Refusal:
    vec = problem.alignment.vec if _whole(binding, problem) else 1
    return _refusal(binding, problem) or OnlineConfig(binding.dtypes[0], _threads(binding, problem), vec)


def _strided(config: Any, problem: Problem) -> tuple[int, ...]:
    """Rows, elements of a row; strides of x and y between rows, and between elements."""
    kept, reduced = problem.kept[0], problem.reduced[0]
    return (kept.size, reduced.size, *kept.strides, *reduced.strides)


def _single_pass(binding: Binding, problem: Problem, device: Device) -> SinglePassConfig | Refusal:
    if refusal := _refusal(binding, problem):
        return refusal
    if not _whole(binding, problem):
        return Refusal("contiguous rows of whole 16-byte vectors, at multiples of 16 bytes", f"{problem.kind} rows")
    vectors = problem.length // problem.alignment.vec
    if vectors <= 128:  # lanes of a warp
        threads, chunks, lanes = 128, 2 if vectors <= 64 else 4, max(2, min(power_of_two(-(-vectors // 2)), 32))
    else:  # the smallest block that holds the row, so that the most rows are in flight
        threads, chunks, lanes = max(256, power_of_two(-(-vectors // 10))), 10, 0
    if threads > 1024:
        return Refusal("rows that fit in the registers of one block", f"{problem.length} elements")
    # A thread has four registers for each vector, and others beside them: more from sm_100 on, for the same code.
    registers = -(-(4 * chunks + (32 if device.capability >= (10, 0) else 24)) // 8) * 8
    resident = max(1, min(device.sm_threads, 65536 // registers) // threads)
    return SinglePassConfig(binding.dtypes[0], threads, chunks, lanes, resident)


def _contiguous(config: SinglePassConfig, problem: Problem) -> tuple[int, ...]:
    """Rows, elements of a row, threads of a block: as few warps as hold the row; strides of x and y between rows."""
    kept, length = problem.kept[0], problem.length
    warps = -(-length // (32 * config.chunks * problem.alignment.vec))
    return (kept.size, length, config.threads if config.lanes else 32 * warps, *kept.strides)


def _variant(name: str, idea: str) -> Variant:
    return Variant(f"forge_week2_softmax.kernels.{name}:build", idea)


#: In the order of the course.
LADDER: Mapping[str, Rung] = {
    "naive": Rung(_variant("naive", "a block a row: maximum, sum and write each read it"), _naive, _strided),
    "online": Rung(_variant("online", "pairs (max, sum) merge: one read for both, one to write"), _online, _strided),
    "single_pass": Rung(_variant("single_pass", "the row stays in registers: one read"), _single_pass, _contiguous),
}
