"""The row engine on the host: problems, selection, and the list of configurations that it selects from."""

from __future__ import annotations

import importlib
import inspect
import itertools
import random
from dataclasses import dataclass, replace

import pytest
import torch

from forge_core.cache.parallel import Request, compile_all
from forge_core.cache.store import Store
from forge_core.choice import Refusal
from forge_core.device import SPECS
from forge_core.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError, UnsupportedError
from forge_core.op.plan import Variant
from forge_core.profiling.compiled import compile_to_look_at
from forge_core.profiling.cubin import read_cubin
from forge_core.rows import (
    Binding,
    Fold,
    Operands,
    Problem,
    RowProgram,
    configurations,
    rsqrt,
)
from forge_core.rows.arguments import arguments, row_parts
from forge_core.rows.config import MANY_DIMS, ColumnConfig, HeldConfig, StreamConfig
from forge_core.rows.kernel import RowKernel
from forge_core.rows.operator import row_operator, row_output
from forge_core.rows.plan import VARIANTS, Rung, plan, plan_call
from forge_core.rows.problem import UNALIGNED
from forge_core.rows.selection import KERNELS, select
from forge_core.rows.teams import PersistentConfig
from forge_core.rows.thresholds import row_thresholds, thresholds
from forge_core.testing.rows_expected import assert_listed_as_declared, builder_of
from forge_core.thresholds import Probe

H200, A100 = SPECS["H200"], SPECS["A100"]
BF16, FP32, FP64 = torch.bfloat16, torch.float32, torch.float64


@dataclass(frozen=True)
class Total(RowProgram):
    """y = sum of x: nothing is written but a result for each row."""

    operands = Operands(("x",), results=("y",))
    folds = (Fold("sum", lambda v, row: v.x, masked=False),)

    def results(self, totals, row):
        return totals


@dataclass(frozen=True)
class LayerNorm(RowProgram):
    """Two folds, one after the other, and results beside what is written."""

    operands = Operands(("x",), columns=("weight", "bias"), writes=("y",), results=("mean", "rstd"), numbers=("eps",))
    folds = (
        Fold("sum", lambda v, row: v.x, masked=False),
        Fold("sum", lambda v, row, total: (v.x - total / row.count) * (v.x - total / row.count)),
    )

    def constants(self, totals, row):
        return totals[0] / row.count, rsqrt(totals[1] / row.count + row.eps)

    def results(self, constants, row):
        return constants

    def map(self, v, constants):
        mean, rstd = constants
        return ((v.x - mean) * rstd * v.weight + v.bias,)


@dataclass(frozen=True)
class LayerNormBackward(RowProgram):
    """Two folds exchanged at once, and scalars."""

    operands = Operands(("dy", "x"), columns=("weight",), scalars=("mean", "rstd"), writes=("dx",))
    folds = (
        Fold("sum", lambda v, row: v.dy * v.weight, masked=False),
        Fold("sum", lambda v, row, *_: v.dy * v.weight * (v.x - row.mean) * row.rstd),
    )
    merge = "each"

    def constants(self, totals, row):
        return totals[0] / row.count, totals[1] / row.count, row.mean, row.rstd

    def map(self, v, constants):
        total, product, mean, rstd = constants
        return ((v.dy * v.weight - total - (v.x - mean) * rstd * product) * rstd,)


@dataclass(frozen=True)
class Scaled(RowProgram):
    """y = x * weight / sqrt(sum of x * dy): row, column and number operands, and two folds exchanged at once."""

    operands = Operands(rows=("dy", "x"), columns=("weight",), writes=("y",), numbers=("eps",))
    folds = (
        Fold("sum", lambda v, row: v.x * v.dy, masked=False),
        Fold("sum", lambda v, row, *_: v.x * v.weight, masked=False),
    )
    merge = "each"

    def constants(self, totals, row):
        return rsqrt(totals[0] + totals[1] + row.eps)

    def map(self, v, factor):
        return (v.x * v.weight * factor,)


@dataclass(frozen=True)
class Shift(RowProgram):
    """y = x - shift: no folds."""

    operands = Operands(rows=("x",), scalars=("shift",), writes=("y",))

    def constants(self, totals, row):
        return row.shift

    def map(self, v, shift):
        return (v.x - shift,)


@dataclass(frozen=True)
class Centered(RowProgram):
    """y = x - sum of x * z: two row operands, no column operand."""

    operands = Operands(rows=("x", "z"), writes=("y",))
    folds = (Fold("sum", lambda v, row: v.x * v.z, masked=False),)

    def map(self, v, totals):
        return (v.x - totals[0],)


@dataclass(frozen=True)
class Twice(RowProgram):
    """y = x, z = x: two outputs."""

    operands = Operands(rows=("x",), writes=("y", "z"))

    def map(self, v, constants):
        return v.x, v.x


def centered(shape, dtype, variant="auto", **options):
    x = torch.empty(shape, dtype=dtype, device="meta")
    return plan_call("centered", Centered(), {"x": x, "z": x, "y": x}, (1,), H200, variant, **options)


def problem_of(x, dims=(-1,), out=None):
    dims = tuple(dim % x.ndim for dim in dims)
    weight = torch.empty([x.shape[i] for i in dims], device=x.device)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
    return Problem.of(Scaled().operands, [x, x, weight, out], x.shape, dims)


def binding_of(problem, dtype):
    compute = FP64 if dtype is FP64 else FP32
    return Binding(Scaled(), (dtype, dtype, FP32, dtype), compute, problem.broadcast)


# ---------------------------------------------------------------------------------------------------------- problems


def test_dims_are_merged_and_classified():
    inner = problem_of(torch.empty(3, 4, 5))
    assert (inner.kind, inner.rows, inner.length, len(inner.kept)) == ("inner", 12, 5, 1)
    assert problem_of(torch.empty(3, 4, 5), (1, 2)).length == 20
    assert len(problem_of(torch.empty(3, 4, 5), (1, 2)).reduced) == 1
    assert problem_of(torch.empty(3, 4, 5), (0,)).kind == "outer"
    assert problem_of(torch.empty(3, 4, 5), (1,)).kind == "outer"
    assert problem_of(torch.empty(3, 4, 5), (0, 2)).kind == "strided"
    assert problem_of(torch.empty(3, 0)).kind == "empty"
    assert problem_of(torch.empty(6, 1)).length == 1


def test_an_operand_without_elements_along_the_row_has_stride_0():
    grad = torch.empty(3, 1).expand(3, 8)
    problem = Problem.of(Scaled().operands, [grad, *(torch.empty(s) for s in ((3, 8), (8,), (3, 8)))], (3, 8), (1,))
    assert problem.broadcast == ("dy",)
    assert problem.reduced[0].strides == (0, 1, 1, 1)
    assert problem.kept[0].strides == (1, 8, 0, 8)


@pytest.mark.parametrize(
    "shape, dtype, kind, vec",
    [
        ((4, 64), FP32, "whole", 4),
        ((4, 64), BF16, "whole", 8),
        ((4, 529), BF16, "shifted", 8),
        ((4, 15), BF16, "element", 1),  # less than two vectors
        ((4, 8), FP64, "whole", 2),
    ],
)
def test_rows_begin_at_the_same_place_in_all_operands(shape, dtype, kind, vec):
    alignment = problem_of(torch.empty(shape, dtype=dtype)).alignment
    assert (alignment.kind, alignment.vec) == (kind, vec)


def rows_of(x, out):
    return Problem.of(Twice.operands, (x, out, out), x.shape, (1,)).alignment


def test_operands_that_begin_at_other_places_are_shifted_in_registers():
    x = torch.empty(4, 66)[:, 1:]
    assert rows_of(x, torch.empty(4, 65)) == ("unaligned", 4)
    assert rows_of(x, torch.empty(4, 66)[:, 1:]) == ("shifted", 4)
    assert rows_of(x.bfloat16(), torch.empty(4, 66)[:, 1:]) == ("unaligned", 8)


def test_short_rows_are_read_by_element_unless_aligned():
    """Otherwise most elements are in head and tail; with column operands up to 512 are all in flight at once."""
    x = torch.empty(4, 601)
    assert rows_of(x[:, :23], torch.empty(4, 601)[:, :23]) == ("element", 1)
    assert rows_of(x[:, :24], torch.empty(4, 601)[:, :24]) == ("shifted", 4)
    assert rows_of(x[:, 1:65], torch.empty(4, 64)) == ("element", 1)
    assert problem_of(torch.empty(4, 511)).alignment == ("element", 1)
    assert problem_of(torch.empty(4, 512)).alignment == ("whole", 4)
    assert problem_of(torch.empty(4, 513)).alignment == ("shifted", 4)


def test_rows_of_pairs_with_column_operands_are_read_by_pairs():
    assert problem_of(torch.empty(4, 510)).alignment == ("paired", 2)
    assert problem_of(torch.empty(4, 16, dtype=BF16)[:, :4]).alignment == ("element", 1)
    assert problem_of(torch.empty(4, 24, dtype=BF16)[:, 1:23]).alignment == ("element", 1)
    assert problem_of(torch.empty(4, 24, dtype=BF16)[:, 2:24]).alignment == ("paired", 2)
    heads = torch.empty(1000, 3, 8, 64, dtype=BF16)[:, 0]  # whole rows, of two kept dims
    for x, lanes, pairs in ((torch.empty(1000, 172, dtype=BF16), 32, 3), (heads, 8, 4)):
        problem = problem_of(x)
        name, config, _ = select("scaled", binding_of(problem, BF16), problem, H200)
        assert (name, config.align, config.vec, config.lanes, config.chunks) == ("held", "paired", 2, lanes, pairs)
        assert select("scaled", binding_of(problem, BF16), problem, H200, "stream")[1].align != "paired"


def test_outputs_that_begin_at_other_places_are_written_by_element():
    x, y, z = torch.empty(4, 65), torch.empty(4, 66)[:, 1:], torch.empty(4, 65)
    problem = Problem.of(Twice.operands, (x, y, z), (4, 65), (1,))
    assert problem.alignment == ("element", 1)
    name, config, _ = select("twice", Binding(Twice(), (FP32,) * 3, FP32), problem, H200)
    assert (name, config.align, config.reduced) == ("stream", "element", MANY_DIMS)


@pytest.mark.parametrize(
    "dtypes", [(BF16,) * 3, (FP32,) * 3, (FP64,) * 3, (FP32, FP32, torch.int8), (torch.int8, FP32, FP32)]
)
def test_threads_have_all_elements_beside_the_vectors_of_unaligned_rows(dtypes):
    """At every distance of an operand and of the output from a boundary: see ``Held.load``."""
    binding = Binding(Centered(), dtypes, FP64 if FP64 in dtypes else FP32)
    configs = [c for c in configurations(binding, H200) if isinstance(c, HeldConfig) and c.align == "unaligned"]
    vec, size, most = configs[0].vec, min(dtype.itemsize for dtype in dtypes[:2]), 0
    outer = configs[0].outer
    for start, head, count in itertools.product(range(0, 16, size), range(vec), range(UNALIGNED, UNALIGNED + vec)):
        first, body = head + outer, (count - head) // vec * vec - 2 * outer
        assert body >= 0 and (start + first * size) // 16 * 16 >= start
        assert -(-(start + (first + body) * size) // 16) * 16 <= start + count * size
        most = max(most, count - body)
    assert {c.lanes for c in configs} >= {8, 16, 32}
    assert all(most <= c.edges * (c.lanes or 32) for c in configs)


# --------------------------------------------------------------------------------------------------------- selection


def random_tensor(rng):
    """Up to four dims, permuted, sliced or expanded, at any offset."""
    rank = rng.randint(1, 4)
    shape = [rng.choice((1, 2, 3, 7, 8, 16, 33, 129, 1000)) for _ in range(rank)]
    if torch.Size(shape).numel() > 2_000_000:
        shape = [min(size, 16) for size in shape]
    dtype = rng.choice((BF16, torch.float16, FP32, FP64))
    x = torch.empty(torch.Size(shape).numel() + 3, dtype=dtype)[rng.randint(0, 3) :][: torch.Size(shape).numel()]
    x = x.view(shape).permute(rng.sample(range(rank), rank))
    if rng.random() < 0.3:
        x = x[..., ::2]
    return x, tuple(sorted(rng.sample(range(rank), rng.randint(1, min(rank, 2)))))


@pytest.mark.parametrize("gpu", SPECS)
def test_every_problem_has_a_listed_configuration(gpu):
    rng, seen = random.Random(5), set()
    for _ in range(400):
        x, dims = random_tensor(rng)
        problem = problem_of(x, dims)
        binding = binding_of(problem, x.dtype)
        for variant in ("auto", *VARIANTS):
            try:
                name, config, why = select("scaled", binding, problem, SPECS[gpu], variant)
            except UnsupportedError:
                assert variant not in ("auto", "stream")
                continue
            assert why
            assert config in configurations(binding, SPECS[gpu])
            given = arguments(config, problem, SPECS[gpu])
            assert len(given) == 1 + config.sizes + (config.rank + config.reduced) * 5
            pointers, length, _, dims_given, numbers = RowKernel.unpack(
                config, (*[0] * (4 + config.workspace), *given, 1e-5, *[0] * config.in_grid, None)
            )
            assert (len(pointers), length, len(numbers)) == (4, problem.length, 1)
            assert RowKernel.rows_of(config, dims_given) == problem.rows
            seen.add((name, config.align))
    assert {("held", "whole"), ("held", "shifted"), ("column", "whole"), ("stream", "element")} <= seen


@pytest.mark.parametrize(
    "shape, kind, cluster",
    [
        ((32768, 1024), HeldConfig, 1),
        ((32768, 8192), HeldConfig, 1),
        ((32768, 32768), HeldConfig, 4),
        ((8192, 50257), HeldConfig, 4),
        ((4096, 262144), PersistentConfig, 16),
        ((64, 2**22), StreamConfig, None),
    ],
)
def test_longer_rows_take_more_blocks(shape, kind, cluster):
    problem = problem_of(torch.empty(shape, dtype=BF16, device="meta"))
    _, config, _ = select("scaled", binding_of(problem, BF16), problem, H200)
    assert isinstance(config, kind)
    if cluster is not None:
        assert config.blocks >= cluster
        assert config.capacity * config.vec >= problem.length
    _, config, _ = select("scaled", binding_of(problem, BF16), problem, A100)
    assert getattr(config, "blocks", 1) == 1


def test_a_block_has_the_threads_that_a_row_needs():
    """Whole warps, and less than one of them without a vector; in lanes of a warp rows share a block of one size."""
    for length in (4104, 4097, 20480, 50257, 200000):
        problem = problem_of(torch.empty(2048, length, dtype=BF16, device="meta"))
        _, config, _ = select("scaled", binding_of(problem, BF16), problem, H200)
        threads = arguments(config, problem, H200)[1]
        vectors = length // config.vec
        held = threads * config.blocks * config.chunks
        assert config.sized
        assert threads % 32 == 0
        assert threads <= config.threads
        assert vectors <= held < vectors + 32 * config.blocks * config.chunks


@pytest.mark.parametrize("shape, expected", [((1, 2**20), "grid"), ((4, 400001), "grid"), ((16, 2**23), "split")])
def test_few_long_rows_take_the_whole_gpu(shape, expected):
    problem = problem_of(torch.empty(shape, dtype=BF16, device="meta"))
    planned = plan("scaled", binding_of(problem, BF16), problem, H200, numbers=[1e-5])
    assert planned.variant == expected
    assert planned.numbered == (expected == "grid")
    parts = (
        planned.arguments[1]
        if expected == "split"
        else -(-shape[1] // (planned.arguments[1] * 8 * planned.config.chunks))
    )
    assert parts * shape[0] >= H200.sm_count // 2
    assert planned.workspace >= parts * shape[0] * (16 if expected == "split" else 128)
    without_clusters = plan("scaled", binding_of(problem, BF16), problem, A100, numbers=[1e-5])
    assert without_clusters.variant == "split"


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_the_longest_rows_wait_in_registers_and_shared_memory(dtype):
    """On each of a cluster's multiprocessors two blocks have room, so that one computes while the other loads."""
    config = centered((4096, 960 * 1024 // dtype.itemsize), dtype).config
    assert 0 < config.staged < config.chunks
    waiting = config.shared(config.threads)
    assert config.staged * config.binding.words(config.vec) * 4 * config.threads < waiting
    assert config.resident == 2
    assert 2 * (waiting + 1024) <= H200.smem_per_sm
    assert config.registers * config.threads * 2 <= 65536
    ptx = compile_to_look_at(VARIANTS["held"].path, config, None, arch="sm_90a").ptx
    # Through the L1, with the L2's policy, and without filling with zeros what is to be the fold's neutral element.
    # A loop, behind all loads into registers.
    assert ptx.count("@inside cp.async.ca.shared.global.L2::cache_hint") == ptx.count("cp.async.ca") == 2
    loads = [line for line in ptx.splitlines() if "ld.global" in line or "cp.async" in line]
    assert "cp.async.wait_group" in loads[-1] and all("cp.async" in line for line in loads[-4:])
    assert ptx.count("cp.async.wait_group") == 1


@pytest.mark.parametrize("gpu", SPECS)
def test_column_operands_that_wait_in_shared_memory_take_no_block_away(gpu):
    listed = configurations(Binding(Scaled(), (BF16, BF16, FP32, BF16), FP32), SPECS[gpu])
    waiting = [c for c in listed if isinstance(c, HeldConfig) and c.columns_staged]
    assert waiting
    assert all(c.sized and c.align != "element" for c in waiting)
    for config in waiting:
        shared, alone = config.shared(config.threads), replace(config, columns_staged=False)
        assert config.threads * config.chunks * config.vec * 4 < shared <= SPECS[gpu].smem_per_block
        assert alone.resident * (shared + 1024) <= SPECS[gpu].smem_per_sm


@pytest.mark.parametrize("length", [50256, 50257])
def test_column_operands_are_asked_for_before_the_exchange(length):
    problem = problem_of(torch.empty(8192, length, device="meta"))
    _, config, _ = select("scaled", binding_of(problem, FP32), problem, H200)
    assert config.columns_staged
    ptx = compile_to_look_at(VARIANTS["held"].path, config, None, arch="sm_90a").ptx
    # An access for each vector; of unaligned rows in a loop over the chunks, and one at the end.
    assert ptx.count("cp.async.ca.shared.global") == (2 if length == 50257 else config.chunks)
    # ptxas moves copies without a loop around them behind the sum, which waits for the loads of the row.
    assert "bra" in ptx[ptx.rindex("cp.async.ca.shared.global") : ptx.index("cp.async.commit_group")]
    assert ptx.rindex("cp.async.ca.shared.global") < ptx.index("cp.async.wait_group") < ptx.index("st.async")
    assert ptx.count("cp.async.wait_group") == 1


def test_short_rows_that_begin_anywhere_share_warps():
    """Rows of 25 elements: 4 lanes each, and a few elements beside vectors for each of them."""
    launch = centered((1000, 25), BF16)
    assert (launch.config.align, launch.config.lanes, launch.config.edges) == ("shifted", 4, 4)
    wide = centered((1000, 600), BF16).config
    assert (wide.lanes, wide.edges) == (32, 1)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.bool])
def test_integers_of_a_byte_are_read_by_eight(dtype):
    x, y = torch.empty(64, 1024, dtype=dtype, device="meta"), torch.empty(64, 1024, device="meta")
    tensors = {"x": x, "z": x, "y": y}
    config = plan_call("centered", Centered(), tensors, (1,), H200, via=FP32).config
    assert (config.align, config.vec) == ("whole", 8)
    (kernel,) = read_cubin(compile_to_look_at(VARIANTS["held"].path, config, None, arch="sm_90a").cubin)
    assert kernel.stack_bytes == 0


def test_a_step_of_a_ladder_is_taken_by_its_name_only():
    def choose(binding, problem, device):
        return 8 if problem.length == 8 else Refusal("rows of 8 elements", str(problem.length))

    rung = Rung(Variant("a.module:build", "one idea"), choose, lambda config, problem: (problem.rows, 7))
    assert centered((4, 8), BF16, ladder={"first": rung}).variant == "held"
    launch = centered((4, 8), BF16, "first", ladder={"first": rung})
    assert (launch.variant, launch.builder, launch.config) == ("first", "a.module:build", 8)
    assert launch.arguments == (4, 7)
    with pytest.raises(UnsupportedError, match=r"'first' was asked for, and it needs rows of 8 .*'stream'.*'held'"):
        centered((4, 16), BF16, "first", ladder={"first": rung})
    with pytest.raises(ArgumentError, match=r"'auto' or one of 'first', 'stream'"):
        centered((4, 8), BF16, "second", ladder={"first": rung})


def test_thresholds_decide_and_are_measured_where_a_package_says():
    probes = {each.name: (Probe("softmax", ("8x8",), ("float32",)),) for each in thresholds().declared}
    assert [each.probes for each in row_thresholds(probes).declared] == list(probes.values())
    assert centered((1, 2**18), BF16).variant == "grid"
    assert centered((1, 2**17), BF16).variant == "held"
    with row_thresholds(probes).override("grid_vectors", 2**13):
        assert centered((1, 2**17), BF16).variant == "grid"


@pytest.mark.parametrize("shape", [(0, 64), (0, 5000), (3, 0), (0, 0)])
@pytest.mark.parametrize("gpu", ["A100", "H200"])
def test_nothing_to_do_is_planned_too(gpu, shape):
    problem = problem_of(torch.empty(shape, dtype=BF16, device="meta"))
    for variant in ("auto", "stream", "split"):
        planned = plan("scaled", binding_of(problem, BF16), problem, SPECS[gpu], variant, numbers=[1e-5])
        if planned.config.sized:
            assert planned.arguments[1] >= 1
        assert planned.workspace >= 0
    rows_without_elements = problem_of(torch.empty(3, 0, dtype=BF16, device="meta"))
    planned = plan("scaled", binding_of(rows_without_elements, BF16), rows_without_elements, H200, "split", [1e-5])
    assert planned.workspace > 0


def test_neighboring_numbers_of_rows_and_elements_take_like_launches():
    def blocks(rows, length):
        problem = problem_of(torch.empty(rows, length, dtype=BF16, device="meta"))
        planned = plan("scaled", binding_of(problem, BF16), problem, H200, numbers=[1e-5])
        return planned.variant, rows * planned.config.blocks

    assert blocks(9, 65536)[1] >= blocks(8, 65536)[1] / 2
    assert blocks(32, 20480)[1] > 32
    assert blocks(1, 2**21)[0] == blocks(1, 2**21 + 1)[0] == "grid"


@pytest.mark.parametrize("gpu", SPECS)
def test_no_configuration_asks_for_more_threads_than_a_multiprocessor_has(gpu):
    for dtype in (BF16, FP32, FP64):
        for config in configurations(Binding(Scaled(), (dtype, dtype, FP32, dtype), FP32), SPECS[gpu]):
            assert config.resident * config.threads <= max(SPECS[gpu].sm_threads, config.threads)


def test_a_program_without_operands_says_what_it_lacks():
    with pytest.raises(NotImplementedError, match="RowProgram: expected a class attribute `operands`"):
        _ = RowProgram().operands


def test_a_program_without_folds_needs_no_cluster():
    x = torch.empty(64, 2**20, device="meta")
    problem = Problem.of(Shift().operands, [x, torch.empty(64, device="meta"), x], x.shape, (1,))
    _, config, _ = select("shift", Binding(Shift(), (FP32,) * 3, FP32), problem, H200)
    assert isinstance(config, HeldConfig)
    assert config.blocks == 0


def test_expanded_rows_and_rows_without_elements_have_a_kernel():
    """Of an expanded row no operand moves; a row without elements must not be read at all."""
    for shape in ((8, 8192), (1000, 8192), (1000, 10)):
        x = torch.empty(shape[0], 1, device="meta").expand(shape)
        out = torch.empty(shape, device="meta")
        problem = Problem.of(Shift().operands, [x, torch.empty(shape[0], device="meta"), out], shape, (1,))
        binding = Binding(Shift(), (FP32,) * 3, FP32, problem.broadcast)
        assert binding.broadcast == ("x",)
        assert select("shift", binding, problem, H200)[0] in VARIANTS
    empty = problem_of(torch.empty(6, 0))
    name, _, _ = select("scaled", binding_of(empty, FP32), empty, H200)
    assert name == "stream"


def test_a_call_is_planned_with_a_dtype_that_rows_are_rounded_to():
    x, out = torch.empty(64, 1000, dtype=torch.int64, device="meta"), torch.empty(64, 1000, dtype=BF16, device="meta")
    tensors = {"x": x, "shift": torch.empty(64, dtype=BF16, device="meta"), "y": out}
    planned = plan_call("shift", Shift(), tensors, (1,), H200, via=BF16, order=("shift", "x", "y"))
    assert (planned.config.binding.via, planned.config.binding.compute) == (BF16, FP32)
    assert planned.config.binding.order == ("shift", "x", "y")
    assert planned.config.vec == 8  # of the output, whose elements are the smaller ones
    assert plan_call("shift", Shift(), tensors, (1,), H200, via=FP64).config.binding.compute is FP64


def test_rows_that_32_bits_cannot_number_are_streamed():
    x = torch.empty(1, 2**31 + 8, dtype=BF16, device="meta")
    problem = Problem.of(Shift().operands, [x, torch.empty(1, device="meta"), x], x.shape, (1,))
    assert select("shift", Binding(Shift(), (BF16, FP32, BF16), FP32), problem, H200)[0] == "stream"


def test_rows_side_by_side_are_read_by_columns():
    problem = problem_of(torch.empty(4096, 512, dtype=BF16, device="meta"), (0,))
    name, config, _ = select("scaled", binding_of(problem, BF16), problem, H200)
    assert isinstance(config, ColumnConfig)
    assert (name, config.align, config.held) == ("column", "whole", False)


def test_held_rows_of_one_kept_dim_have_kernels_without_code_for_several():
    for x, dim, rank in (
        (torch.empty(64, 1000, device="meta"), 0, 1),
        (torch.empty(500, 16, device="meta")[:, :3], 1, 1),
        (torch.empty(8, 64, 1000, device="meta")[:, :, :500], 1, MANY_DIMS),
        (torch.empty(50, 10, 16, device="meta")[:, :9, :3], 2, MANY_DIMS),
    ):
        tensors = {"x": x, "y": torch.empty_like(x.select(dim, 0))}
        config = plan_call("total", Total(), tensors, (dim,), H200).config
        assert (config.rank, config.reduced) == (rank, 1)


@pytest.mark.parametrize(
    "rows, length, parted, parts",
    [
        (15, 102518, True, 377),  # one tile: a turn of a block's threads at least
        (512, 4096, True, 128),  # as many blocks as half of the GPU has room for
        (65536, 4096, False, 1),  # enough tiles for all multiprocessors
        (512, 100, False, 1),  # held
        (512, 300, False, 1),
        (512, 1000, False, 1),  # narrow tiles
    ],
)
def test_few_rows_side_by_side_are_cut_into_parts(rows, length, parted, parts):
    problem = problem_of(torch.empty(length, rows, dtype=BF16, device="meta"), (0,))
    launch = plan("scaled", binding_of(problem, BF16), problem, H200)
    assert launch.config.held is not parted
    assert row_parts(launch.config, problem, H200) == parts if parted else launch.workspace == 0
    assert f"in {parts} parts" in launch.why


@dataclass(frozen=True)
class Same(RowProgram):
    """y = x."""

    operands = Operands(("x",), writes=("y",))

    def map(self, v, constants):
        return (v.x,)


@dataclass(frozen=True)
class MeanRemoved(RowProgram):
    """The least that has a fold and a map, of one operand."""

    operands = Operands(rows=("x",), writes=("y",))
    folds = (Fold("sum", lambda v, row: v.x, masked=False),)

    def constants(self, totals, row):
        return totals[0] / row.count

    def map(self, v, mean):
        return (v.x - mean,)


@dataclass(frozen=True)
class TotalOrSame(Total):
    """A total that says what it is of one element."""

    def of_one(self):
        return Same()


def test_rows_of_one_element_are_elements_of_longer_rows():
    def planned(program, shape, dim, variant="auto"):
        x = torch.empty(shape, device="meta")
        return plan_call("total", program, {"x": x, "y": x.select(dim, 0).contiguous()}, (dim,), H200, variant)

    for shape, dim, length in (((1, 4096), 0, 4096), ((4096, 1), 1, 4096), ((8, 1, 512), 1, 4096)):
        config = planned(TotalOrSame(), shape, dim).config
        assert config.binding.program == Same()
        assert planned(TotalOrSame(), shape, dim).arguments[0] == length
        assert planned(Total(), shape, dim).config.binding.program == Total()
    assert planned(TotalOrSame(), (2, 4096), 0).config.binding.program == TotalOrSame()
    assert planned(TotalOrSame(), (1, 4096), 0, "column").config.binding.program == TotalOrSame()
    # Elements that are not side by side, or too many to be numbered, are rows as ever.
    apart = torch.empty(1, 64, 64, device="meta")[..., ::2]
    tensors = {"x": apart, "y": torch.empty(64, 32, device="meta")}
    assert plan_call("total", TotalOrSame(), tensors, (0,), H200).config.binding.program == TotalOrSame()
    assert planned(TotalOrSame(), (1, 2**30), 0).config.binding.program == TotalOrSame()


def test_what_cannot_be_done_is_refused_with_the_way_out():
    problem = problem_of(torch.empty(4096, 512), (0,))
    binding = binding_of(problem, FP32)
    with pytest.raises(UnsupportedError, match=r"variant 'held'.*Variants that can do this call: 'stream', 'column'"):
        plan("scaled", binding, problem, H200, "held")
    with pytest.raises(ArgumentError, match="'auto' or one of 'stream'"):
        plan("scaled", binding, problem, H200, "fastest")
    many = torch.empty((2,) * 20, device="meta").permute(*range(19, -1, -1))
    problem = problem_of(many, (19,), out=torch.empty((2,) * 20, device="meta"))
    with pytest.raises(UnsupportedError, match=r"variant 'grid'.*needs rows; got none"):
        centered((0, 1 << 20), FP32, "grid")
    with pytest.raises(UnsupportedError, match=r"at most 16 dims.*contiguous\(\)"):
        plan("scaled", binding_of(problem, FP32), problem, H200)


# ----------------------------------------------------------------------------------------------------------- kernels


@pytest.mark.parametrize("dtype", [BF16, FP32, FP64])
@pytest.mark.parametrize("gpu", SPECS)
def test_the_list_is_short(gpu, dtype):
    for broadcast in ((), ("dy",)):
        listed = configurations(Binding(Scaled(), (dtype, dtype, FP32, dtype), FP32, broadcast), SPECS[gpu])
        assert 24 <= len(listed) <= 88
        assert len(set(listed)) == len({config.kernel_name for config in listed}) == len(listed)


def test_a_kernel_is_read_on_a_screen_or_two():
    for variant in KERNELS.values():
        module = importlib.import_module(variant.path.partition(":")[0])
        assert len(inspect.getsource(module).splitlines()) <= 150, module.__name__


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["A100", "H200", "B200", "RTX 5090"])
@pytest.mark.parametrize(
    "program, dtype",
    [(Scaled, BF16), (MeanRemoved, BF16), (LayerNorm, BF16), (LayerNormBackward, FP32), (Total, BF16), (Total, FP32)],
)
def test_all_listed_kernels_are_as_declared(program, dtype, gpu):
    names = program.operands.tensors
    binding = Binding(program(), tuple(FP32 if name in ("weight", "mean", "rstd") else dtype for name in names), FP32)
    assert_listed_as_declared(configurations(binding, SPECS[gpu]), SPECS[gpu])


def test_every_kernel_can_be_stored(tmp_path):
    """What the cache cannot trace back to its source it compiles anew in each process."""
    binding = Binding(Shift(), (FP32,) * 3, FP32), Binding(Scaled(), (FP32,) * 4, FP32)
    listed = [config for one in binding for config in configurations(one, H200)]
    first = {(type(config), config.workspace): config for config in reversed(listed)}
    requests = [Request(builder_of(config), config, "sm_90a") for config in first.values()]
    assert len(requests) == 7
    outcomes = compile_all(requests, Store(tmp_path / "kernels"), jobs=2)
    assert [(o.status, o.error) for o in outcomes] == [("compiled", "")] * 7


# ---------------------------------------------------------------------------------------------------------- operators


def scaled_reference(dy, x, weight, dim=-1, eps=1e-5):
    wide = weight.view([-1 if i == dim % x.ndim else 1 for i in range(x.ndim)])
    return (x * wide * torch.rsqrt((x * dy + x * wide).sum(dim, keepdim=True).abs() + eps)).contiguous()


@row_operator(
    "forge_test_rows::centered(Tensor x, Tensor z, int dim=-1, *, ScalarType? dtype=None, str variant='auto')"
    " -> Tensor",
    program=Centered(),
    reference=lambda x, z, dim, dtype: (x.to(dtype) - (x.to(dtype) * z.to(dtype)).sum(dim, keepdim=True)).contiguous(),
    converts=True,
    gradient="reference",
)
def converted(x, z, dim=-1, *, dtype=None, variant="auto"):
    return row_output(
        "centered", Centered(), dim=dim, same=True, dtype=dtype, dtypes=(torch.int64, FP32, FP64), x=x, z=z
    )


def test_rows_are_rounded_to_the_dtype_of_the_result_where_that_is_declared():
    x = torch.arange(12).view(3, 4)
    planned = converted.explain(x, x, dtype=FP32, arch="sm_90a")
    assert planned.config.binding.via is FP32
    assert converted.explain(x.float(), x.float(), dtype=FP32, arch="sm_90a").config.binding.via is None


def test_an_operator_is_differentiated_through_its_reference():
    x, z = (torch.randn(3, 4, dtype=FP64, requires_grad=True) for _ in "xz")
    assert torch.autograd.gradcheck(lambda a, b: converted(a, b, 0, dtype=FP64), (x, z))
    assert torch.autograd.gradgradcheck(lambda a, b: converted(a, b, 0, dtype=FP64), (x, z))
    constant = x.detach()
    (found,) = torch.autograd.grad(converted(constant, z, dtype=FP64).sum(), z)
    assert torch.allclose(found, -constant * 4)


def test_tensors_of_one_dtype_are_asked_for():
    with pytest.raises(DTypeError, match=r"'z': expected the dtype of 'x', torch\.float32, got torch\.float64"):
        converted(torch.randn(2, 3), torch.randn(2, 3, dtype=FP64), dtype=FP32)


def test_a_mapped_example_without_dims_is_a_row_of_one_element():
    x = torch.randn(5)
    got = torch.func.vmap(lambda a, b: converted(a, b, dtype=FP32))(x, x)
    assert torch.allclose(got, x - x * x)


@row_operator(
    "forge_test_rows::scaled(Tensor dy, Tensor x, Tensor weight, int dim=-1, float eps=1e-5, *, str variant='auto')"
    " -> Tensor",
    program=Scaled(),
    reference=scaled_reference,
    gradient={"weight": lambda grad, dy, x, weight, dim, eps, variant: (grad * x).sum_to_size(weight.shape)},
)
def scaled(dy, x, weight, dim=-1, eps=1e-5, *, variant="auto"):
    return row_output("scaled", Scaled(), dim=dim, dy=dy, x=x, weight=weight)


def test_bad_calls_are_refused():
    x, weight = torch.randn(3, 8), torch.randn(8)
    with pytest.raises(ArgumentTypeError, match=r"argument 'eps'.*type float"):
        scaled(x, x, weight, eps="small")
    with pytest.raises(ShapeError, match=r"argument 'weight'.*shape \(8,\), got \(3,\)"):
        scaled(x, x, torch.randn(3))
    with pytest.raises(ShapeError, match=r"argument 'x'.*shape \(3, 8\)"):
        scaled(x, x[:2], weight)
    with pytest.raises(DTypeError, match="float64 alone"):
        scaled(x.double(), x.double(), weight)
    with pytest.raises(DTypeError, match="argument 'weight'"):
        scaled(x, x, weight.int())
    assert torch.equal(scaled(x, x, weight, eps=1), scaled_reference(x, x, weight, eps=1))


def test_a_call_over_a_mapped_dim_is_one_call_more_dims():
    x, weight = torch.randn(5, 3, 8), torch.randn(8)
    each = torch.stack([scaled(x[0], x[i], weight) for i in range(5)])
    assert torch.equal(torch.func.vmap(scaled, in_dims=(None, 0, None))(x[0], x, weight), each)
    weights = torch.randn(5, 8)
    each = torch.stack([scaled(x[i], x[0], weights[i]) for i in range(5)])
    assert torch.equal(torch.func.vmap(scaled, in_dims=(0, None, 0))(x, x[0], weights), each)
    assert torch.func.vmap(scaled, in_dims=(0, None, 0))(x[:0], x[0], weights[:0]).shape == (0, 3, 8)


def test_gradients_are_asked_for_by_name_and_only_where_they_are_needed():
    x, weight = torch.randn(3, 8), torch.randn(8, requires_grad=True)
    scaled(x, x, weight).sum().backward()
    assert torch.allclose(weight.grad, x.sum(0))


def test_pointers_follow_the_schema_and_numbers_the_integers():
    x, weight = torch.randn(4, 64), torch.randn(64)
    explained = scaled.explain(x, x, weight, eps=0.5, arch="sm_90a")
    assert explained.config.binding.order == ("dy", "x", "weight", "y")
    assert explained.arguments == (64, 4, 64, 64, 0, 64, 0.5)


def test_a_gradient_that_is_not_declared_is_that_of_the_reference():
    inputs = [torch.randn(size, dtype=FP64, requires_grad=True) for size in ((3, 8), (3, 8), (8,))]
    (own,) = torch.autograd.grad(scaled(*inputs).sum(), inputs[2])
    assert torch.equal(own, inputs[1].sum(0))  # the one declared, which is not that of the reference
    got = torch.autograd.grad(scaled(*inputs).sum(), inputs)
    want = torch.autograd.grad(scaled_reference(*inputs).sum(), inputs[:2])
    assert torch.equal(got[2], own)
    assert all(torch.allclose(a, b) for a, b in zip(got, want, strict=False))
