"""The integers of a launch, followed on the host as a kernel follows them, reach the right elements of every layout."""

from __future__ import annotations

import itertools

import pytest
import torch

import forge_week1_reduce as week1
from forge_core.device import SPECS
from forge_core.errors import UnsupportedError
from forge_core.testing import layouts
from forge_week1_reduce.arithmetic import Arithmetic
from forge_week1_reduce.config import plan
from forge_week1_reduce.configs import ColumnConfig
from forge_week1_reduce.problem import Problem, normalize_dims, result_shape

pytest.importorskip("cutlass", reason="the CuTe DSL is not installed (it exists for Linux only)")

from cutlass import Uint32  # after the check that it is there

from forge_core.cute.memory import entry_offsets, split_arguments

H200 = SPECS["H200"]
SIZE = 4


def offsets(entry, dims, sides):
    return tuple(int(offset.value) for offset in entry_offsets(Uint32(entry), dims, sides))


def taken_apart(launch):
    """A launch's integers as its kernel has them: those that stand by themselves, then the groups."""
    _, given, groups = split_arguments((*launch.arguments, None), launch.config, pointers=0)
    return *given, *groups


def rows_by_element(arguments):
    """naive, shared, shuffle: yields each result's offset and its elements' offsets."""
    kept, reduced = arguments
    for row in range(kept[0]):
        src, dst = offsets(row, kept, 2)
        yield dst, [src + offsets(k, reduced, 1)[0] for k in range(reduced[0])]


def rows_by_chunk(arguments, config):
    """vectorized without peeling, and with several runs: chunks numbered through all runs."""
    length, kept, outer = arguments
    vector = config.width // SIZE
    per_run = length // vector
    for row in range(kept[0]):
        src, dst = offsets(row, kept, 2)
        found = []
        if config.peel:
            found = [src + i * SIZE for i in range(length)]
        else:
            assert length % vector == 0
            for chunk in range(per_run * outer[0]):
                start = src + offsets(chunk // per_run, outer, 1)[0] + chunk % per_run * config.width
                assert start % config.width == 0
                found += [start + v * SIZE for v in range(vector)]
        yield dst, found


def columns(arguments, config):
    """column: matrices around, columns side by side; the second pass must write where the first would have."""
    cols, col_step, _, around, reduced, *results = arguments
    for matrix in range(around[0]):
        src, dst = offsets(matrix, around, 2)
        for column in range(cols):
            place = dst + column * col_step
            if results:
                assert offsets(matrix * cols + column, results[0], 2)[1] == place
            yield place, [src + column * SIZE + offsets(r, reduced, 1)[0] for r in range(reduced[0])]


def follow(x, launch):
    """The sums that a launch's integers mean, as {offset in the result: sum}."""
    memory = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage()).tolist()
    if isinstance(launch.config, ColumnConfig):
        walk = columns(taken_apart(launch), launch.config)
    elif launch.variant == "vectorized":
        walk = rows_by_chunk(taken_apart(launch), launch.config)
    else:
        walk = rows_by_element(taken_apart(launch))
    sums = {}
    for dst, elements in walk:
        assert dst not in sums
        sums[dst] = sum(memory[x.storage_offset() + e // SIZE] for e in elements)
    return sums


@pytest.mark.parametrize("variant", ["naive", "vectorized", "column"])
@pytest.mark.parametrize("shape", [(6, 8), (5, 7), (2, 3, 8), (3, 2, 4, 5)], ids=str)
def test_every_layout(shape, variant):
    done = 0
    for name, x in layouts(shape, torch.int32):
        for count in range(1, len(shape) + 1):
            for dims in itertools.combinations(range(len(shape)), count):
                out = torch.empty(result_shape(x.shape, dims, False), dtype=torch.int64)
                problem = Problem.of(x, normalize_dims("f", dims, x.ndim), out, False)
                arithmetic = Arithmetic.of("sum", x.dtype, out.dtype, None)
                try:
                    launch = plan("reduce_sum", problem, arithmetic, H200, variant)
                except UnsupportedError:
                    continue
                want = {i * 8: value for i, value in enumerate(x.to(torch.int64).sum(dims).flatten().tolist())}
                assert follow(x, launch) == want, (name, dims)
                done += 1
    assert done >= 10


def test_a_result_of_any_strides():
    x = torch.randint(-9, 9, (3, 5, 4), dtype=torch.int32)
    out = torch.empty(4, 3, dtype=torch.int64).t()  # a transposed result
    problem = Problem.of(x, (1,), out, False)
    arithmetic = Arithmetic.of("sum", x.dtype, out.dtype, None)
    for variant in ("naive", "column"):
        sums = follow(x, plan("reduce_sum", problem, arithmetic, H200, variant))
        want = x.to(torch.int64).sum(1)
        assert sums == {(i + j * 3) * 8: int(want[i, j]) for i in range(3) for j in range(4)}


def test_the_second_pass_of_columns_writes_where_the_first_would():
    # Enough rows for two passes, few enough columns to follow them.
    x = torch.empty(2, 2**17, 6, device="meta")
    told = week1.reduce_sum.explain(x, 1, arch="sm_90a", variant="column")
    assert told.config.finish is not None
    problem = Problem.make(x.shape, x.stride(), (1,), (6, 1), SIZE, 4)
    launch = plan("reduce_sum", problem, told.config.finish.arithmetic, H200, "column")
    cols, col_step, parts, around, _, results = taken_apart(launch)
    assert parts > 1
    assert launch.workspace == parts * 12 * 4
    for matrix, column in itertools.product(range(around[0]), range(cols)):
        first = offsets(matrix, around, 2)[1] + column * col_step
        assert offsets(matrix * cols + column, results, 2)[1] == first
