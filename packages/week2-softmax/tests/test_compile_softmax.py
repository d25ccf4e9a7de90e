"""What is chosen and what it compiles to, without a GPU: on every architecture, with the instructions that it needs."""

from __future__ import annotations

import functools
import re

import pytest
import torch

import forge_week2_softmax as week2
from forge_core.device import ARCHES, SPECS
from forge_core.errors import UnsupportedError
from forge_core.profiling.cubin import read_cubin
from forge_core.rows import Binding, configurations
from forge_core.rows.plan import VARIANTS, Rung, plan_call
from forge_core.testing.expectations import compiled_for, registers_of
from forge_core.testing.rows_expected import assert_listed_as_declared
from forge_week2_softmax.config import LADDER, NaiveConfig, OnlineConfig, SinglePassConfig
from forge_week2_softmax.program import LogsumexpBackward, Softmax, SoftmaxBackward

BF16, FP32, FP64, H200 = torch.bfloat16, torch.float32, torch.float64, SPECS["H200"]
ENGINE = tuple(VARIANTS)


def meta(*shape, dtype=FP32):
    return torch.empty(shape, dtype=dtype, device="meta")


def explain(op, shape, dim=1, *, dtype=FP32, arch="sm_90a", **options):
    """What a call of an operator on contiguous tensors launches."""
    x, kept = meta(*shape, dtype=dtype), meta(shape[1 - dim], dtype=dtype)
    tensors = {"logsumexp_backward": (kept, x, kept)}.get(op, (x, x) if op.endswith("_backward") else (x,))
    return getattr(week2, op).explain(*tensors, dim, arch=arch, **options)


def compiled(told, arch="sm_90a"):
    """Its PTX; nothing may be spilled, and all threads that are to be resident have their registers."""
    made, config = compiled_for(told.builder, told.config, arch), told.config
    kernels = read_cubin(made.cubin)
    assert all(kernel.stack_bytes == 0 for kernel in kernels), config.kernel_name
    most = registers_of(config.threads * getattr(config, "resident", 1))
    assert len(kernels) > 1 or kernels[0].registers <= most, config.kernel_name
    return made.ptx


def count(pattern, ptx):
    return len(re.findall(pattern, ptx))


WIDE_LOAD, WIDE_STORE = r"\bld\.global(\.[\w:]+)*\.v[24]\.\w\d+", r"\bst\.global(\.\w+)*\.v[24]\.\w\d+"
BARRIER = r"\bbar(rier)?\.sync"
#: A row of each kernel.
ROWS = {"held": (64, 8192), "grid": (1, 2**19), "stream": (64, 2**20), "split": (1, 2**21)}

# --------------------------------------------------------------------------------------------------------- selection


@pytest.mark.parametrize("op", ["softmax", "softmax_backward", "log_softmax", "logsumexp"])
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
@pytest.mark.parametrize(
    "shape, dim, variant",
    [
        ((4096, 256), 1, "held"),
        ((32768, 8192), 1, "held"),
        ((16384, 32768), 1, "held"),
        ((8192, 50257), 1, "held"),
        ((4096, 151936), 1, "held"),
        ((8, 32000), 1, "held"),
        ((1, 2**20), 1, "grid"),
        ((1, 2**20 + 1), 1, "grid"),
        ((1, 2**24), 1, "split"),
        ((2000, 2**23), 1, "stream"),
        ((4096, 1000), 0, "column"),
        ((2**20, 1), 1, "held"),  # a map of all elements
        ((2**31 + 8, 200), 0, "stream"),  # a column would number 2^31 elements by 32 bits
        ((2**31, 8), 1, "held"),  # several rows a block
    ],
    ids=str,
)
def test_what_is_picked_on_an_h200(shape, dim, variant, dtype, op):
    told = explain(op, shape, dim, dtype=dtype)
    assert told.variant == variant
    assert told.why


def test_a_gradient_holds_two_tensors_and_one_without_a_reduction_needs_no_cluster():
    assert explain("softmax", (32768, 16384)).config.blocks >= 1
    assert explain("softmax_backward", (32768, 16384)).config.blocks > explain("softmax", (32768, 16384)).config.blocks
    assert explain("logsumexp_backward", (64, 2**20)).config.blocks == 0
    # Rows one by one, and an expanded gradient, cost no wide reads.
    assert week2.softmax.explain(meta(4096, 4096)[:, ::2], 1, arch="sm_90a").variant == "column"
    told = week2.softmax_backward.explain(meta(4096, 1).expand(4096, 1024), meta(4096, 1024), 1, arch="sm_90a")
    assert (told.variant, told.config.vec, told.read) == ("held", 4, 4096 * 4 + 4096 * 1024 * 4)


def test_a_row_of_the_whole_gpu_has_two_blocks_a_multiprocessor_where_several_folds_overlap():
    told, gradient = explain("softmax", (2, 2**20)), explain("softmax_backward", (2, 2**19))
    assert (told.variant, told.config.align, told.config.chunks, told.config.resident) == ("grid", "whole", 4, 2)
    # 512 threads hold 4 vectors of 4 elements each: 256 blocks, on 132 multiprocessors.
    assert 132 < 2 * 2**20 // (512 * 4 * 4) <= 2 * 132
    assert (gradient.variant, gradient.config.resident) == ("grid", 1)


@pytest.mark.parametrize(
    "rows, length, held",
    [
        (300000, 7, None),
        (300000, 8, True),
        (16000, 15, None),
        (16000, 16, True),
        (20000, 15, True),
        (25695, 1860, True),
        (100000, 600, True),
        (4096, 4096, False),
        (16, 2**18, False),
    ],
)
def test_rows_of_a_permuted_tensor_are_transposed_on_chip(rows, length, held):
    """But where one thread writes as many elements of a row; in parts where tiles are few and long."""
    x = meta(length, rows).t()
    # Rows that are neighbors in the input, whatever order the result's dims have.
    reversed_dims, batch = meta(length, 2, rows // 2).permute(2, 1, 0), meta(2, length, rows // 2).transpose(1, 2)
    told = [week2.softmax.explain(one, -1, arch="sm_90a") for one in (x, reversed_dims, batch)]
    told += [week2.softmax_backward.explain(x, meta(rows, length), -1, arch="sm_90a")]
    assert {getattr(one.config, "transposes", False) for one in told} == {held is not None}
    assert {getattr(one.config, "held", None) for one in told} == {held}


@pytest.mark.parametrize(
    "rows, length, transposes",
    [(500, 50, False), (1000, 131, False), (1000, 132, True), (64, 2048, False), (8, 2049, True)],
)
def test_few_elements_of_a_permuted_tensor_are_written_without_a_transposition(rows, length, transposes):
    told = week2.softmax.explain(meta(length, rows).t(), -1, arch="sm_90a")
    assert (told.variant, told.config.transposes) == ("column", transposes)


def test_many_elements_of_one_permuted_input_are_loaded_sixteen_a_thread():
    x, few = meta(40, 30000).t(), meta(40, 12000).t()
    assert week2.softmax.explain(x, -1, arch="sm_90a").config.chunks == 16
    assert week2.softmax.explain(few, -1, arch="sm_90a").config.chunks == 8
    assert week2.softmax_backward.explain(x, meta(30000, 40), -1, arch="sm_90a").config.chunks == 8


@pytest.mark.parametrize("op", ["softmax", "log_softmax", "logsumexp"])
def test_rows_of_one_element_are_mapped_together(op):
    forward, backward = explain(op, (4096, 1)), explain(f"{op}_backward", (4096, 1))
    for told in (forward, backward):
        assert not told.config.binding.program.folds
        assert f".entry {told.config.kernel_name}" in compiled(told)


@pytest.mark.parametrize(
    "rows, length, chunks", [(10**6, 64, 8), (10**6, 65, 16), (10**6, 128, 16), (3, 5000, 8), (3, 10000, 16)]
)
def test_permuted_rows_are_held_by_few_registers_if_that_is_enough(rows, length, chunks):
    """One block holds 8 groups of as many elements, or up to eight share the row where tiles are few."""
    x = meta(length, rows).t()
    assert week2.softmax_backward.explain(x, x, -1, arch="sm_90a").config.chunks == chunks


def test_a_length_compiles_no_kernel_of_its_own():
    shapes = [(rows, length) for rows in (500, 40000) for length in range(100, 60000, 397)]
    configs = {explain("softmax", shape, dtype=dtype).config for shape in shapes for dtype in (FP32, BF16)}
    assert len(configs) < 60, f"{len(configs)} kernels for {2 * len(shapes)} calls"


# -------------------------------------------------------------------------------------------------------------- code


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("variant", [*ENGINE, *LADDER])
def test_every_variant_for_every_architecture(variant, arch):
    """A different operator and dtype for each pair, so that all operators meet all variants somewhere."""
    if variant == "grid" and not arch.startswith(("sm_9", "sm_1")):
        pytest.skip("a row over the grid needs sm_90")
    turn = [*ENGINE, *LADDER].index(variant) + ARCHES.index(arch)
    dtype = (BF16, FP32, torch.float16)[turn // 3 % 3]
    shape, dim = ((4096, 1024), 0) if variant == "column" else (ROWS.get(variant, (4096, 8192)), 1)
    ops = ("softmax", "log_softmax", "logsumexp")[turn % 3], ("softmax_backward", "log_softmax_backward")[turn % 2]
    for op in ops if variant in ENGINE else ("softmax",):
        told = explain(op, shape, dim, dtype=dtype, arch=arch, variant=variant)
        ptx = compiled(told, arch)
        assert f".target {arch}" in ptx and f".entry {told.config.kernel_name}" in ptx
        # The order in which sums are added must not depend on which block is first: no atomics, of any type.
        assert count(r"\b(atom|red)\.", ptx) == 0


#: Bindings whose list of configurations differs: widths of operands, a dtype of the result, a broadcast gradient.
BINDINGS = {
    "softmax-bf16": Binding(Softmax(), (BF16, BF16), FP32),
    "softmax-fp32": Binding(Softmax(), (FP32, FP32), FP32),
    "softmax-int64-as-bf16": Binding(Softmax(), (torch.int64, BF16), FP32, via=BF16),
    "log_softmax-fp64": Binding(Softmax("log_softmax"), (FP64, FP64), FP64),
    "logsumexp-bf16": Binding(Softmax("logsumexp"), (BF16, BF16), FP32),
    "logsumexp-of-one-fp32": Binding(Softmax("logsumexp").of_one(), (FP32, FP32), FP32),
    "softmax_backward-bf16-to-fp32": Binding(SoftmaxBackward(), (BF16, BF16, FP32), FP32),
    "log_softmax_backward-fp32-expanded": Binding(SoftmaxBackward("log_softmax"), (FP32,) * 3, FP32, ("grad",)),
    "logsumexp_backward-bf16": Binding(LogsumexpBackward(), (BF16,) * 4, FP32),
}


# All on one generation, and the one of most registers on each.
@pytest.mark.slow
@pytest.mark.parametrize(
    "name, gpu", [(name, "H200") for name in BINDINGS] + [("softmax-bf16", gpu) for gpu in ("A100", "B200", "RTX 5090")]
)
def test_all_listed_kernels_are_as_declared(name, gpu):
    assert_listed_as_declared(configurations(BINDINGS[name], SPECS[gpu]), SPECS[gpu])


@pytest.mark.parametrize("dtype", [FP32, BF16, FP64], ids=str)
@pytest.mark.parametrize("op", ["softmax", "softmax_backward"])
@pytest.mark.parametrize("variant", ROWS)
def test_rows_move_by_16_bytes_and_as_often_as_they_should(variant, op, dtype):
    rows, length = ROWS[variant]
    told = explain(op, (rows, length * 4 // max(dtype.itemsize, 4)), variant=variant, dtype=dtype)
    ptx, tensors = compiled(told), 1 + op.endswith("backward")
    passes = 1 if variant in ("held", "grid") else 2
    assert count(WIDE_LOAD, ptx) == passes * tensors * told.config.chunks
    assert count(WIDE_STORE, ptx) == told.config.chunks
    if variant == "held":  # nothing else is read or written
        assert count(r"\b(ld|st)\.global", ptx) == (tensors + 1) * told.config.chunks


def test_lanes_need_no_barrier_a_block_one_and_a_cluster_its_own_memory():
    lanes = compiled(explain("softmax", (4096, 256)))
    assert count(BARRIER, lanes) == 0
    assert count(r"redux\.sync\.max\.s32", lanes) == 1  # the maximum
    assert count(r"shfl\.sync\.bfly", lanes) == 5  # the sum
    block = explain("softmax", (4096, 4096))
    assert block.config.blocks == 1
    assert count(BARRIER, compiled(block)) == 1
    cluster = explain("softmax", (64, 65536))
    assert cluster.config.blocks > 1
    ptx = compiled(cluster)
    assert count(BARRIER, ptx) == 0  # warps write to all blocks at once
    assert count(r"st\.async\S*\.shared::cluster", ptx) >= 1
    assert count(r"barrier\.cluster\.wait", ptx) == 1
    assert count(r"mbarrier\.try_wait", ptx) >= 1


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
@pytest.mark.parametrize("op", ["softmax", "softmax_backward"])
def test_a_row_over_the_grid_waits_for_slots_alone(op, dtype):
    ptx = compiled(explain(op, (1, 2**20), variant="grid", dtype=dtype))
    assert count(r"\.entry", ptx) == 1
    assert count(r"st\.relaxed\.gpu\.global\.b128", ptx) == count(r"ld\.relaxed\.gpu\.global\.b128", ptx) == 1
    assert count(r"\b(membar|fence)\.", ptx) == 0  # a slot is one access
    # What a launch of a graph does besides: each block signs that it has read, and one empties the slots.
    assert count(r"st\.release\.gpu\.global\.b64", ptx) == count(r"ld\.acquire\.gpu\.global\.b64", ptx) == 1
    assert count(BARRIER, ptx) <= 3


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
@pytest.mark.parametrize("length", [256, 255])
def test_a_short_row_has_few_exponentials_and_one_reciprocal(length, dtype):
    told = explain("softmax", (4096, length), dtype=dtype)
    ptx, config = compiled(told), told.config
    elements = config.chunks * config.vec + (config.edges if config.align == "shifted" else 0)
    # Those of fp32 are kept for the write, those of 16 bits computed again for it.
    assert elements <= count(r"ex2\.approx\.ftz\.f32", ptx) <= elements * (1 if dtype is FP32 else 2)
    assert count(r"max\.NaN\.bf16x2", ptx) == (config.chunks * config.vec // 2 - 1 if dtype is BF16 else 0)
    assert count(r"rcp\.approx\.ftz\.f32", ptx) == 1
    if config.align == "whole":  # the compiler's division has a branch, and one of integers tens of instructions
        assert count(r"\b(div|rem|rcp\.rn)\.", ptx) == 0


def test_fp64_is_computed_in_fp64():
    ptx = compiled(explain("softmax", (64, 32768), dtype=FP64))
    assert "ex2.approx.ftz.f32" not in ptx
    assert count(r"fma\.rn\.f64", ptx) > 0


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.int32, torch.uint8], ids=str)
def test_integers_are_converted_as_they_are_loaded(dtype):
    told = week2.softmax.explain(meta(64, 1003, dtype=dtype), dtype=FP32, arch="sm_90a")
    assert told.config.binding.via is FP32
    assert compiled(told)


# -------------------------------------------------------------------------------------------------------- the ladder


def planned(variant, x, y=None, *, dim=-1, program=None, device=H200, **kwargs):
    program = program or Softmax()
    y = torch.empty(x.shape, dtype=x.dtype, device="meta") if y is None else y
    tensors = {"x": x, "grad": x, "y": y, "dx": y}
    named = {name: tensors[name] for name in program.operands.tensors}
    return plan_call("softmax", program, named, (dim % x.ndim,), device, variant, ladder=LADDER, **kwargs)


@functools.cache
def rung(variant, cols=8192, dtype=FP32):
    """The configuration of a kernel of the ladder, and its PTX."""
    launch = planned(variant, meta(4096, cols, dtype=dtype))
    return launch.config, compiled(launch)


def accesses(ptx):
    """Loads and stores of global memory: all of them, and those of 16 bytes."""
    wide = r"[\w.:]*\.(v4\.\w32|v2\.\w64)\b"
    return tuple(count(rf"\b{kind}\.global{width}", ptx) for width in ("", wide) for kind in ("ld", "st"))


def test_the_ladder_is_in_the_order_of_the_course():
    assert list(LADDER) == ["naive", "online", "single_pass"]
    assert all(isinstance(rung, Rung) for rung in LADDER.values())


def test_any_strides_are_arguments_of_the_launch():
    x = meta(1000, 64)[::2, ::3].T  # rows of 500 elements, 128 apart
    for variant, config in (("naive", NaiveConfig(FP32, 128)), ("online", OnlineConfig(FP32, 128))):
        launch = planned(variant, x)
        assert (launch.config, launch.arguments) == (config, (22, 500, 3, 500, 128, 1))
    assert planned("online", meta(7, 1).expand(7, 9)).arguments == (7, 9, 1, 9, 0, 1)


@pytest.mark.parametrize(
    "rows, cols, dtype, config, arguments",
    [
        (16384, 8192, BF16, (256, 10, 0, 4), (16384, 8192, 128, 8192, 8192)),
        (16384, 8192, FP32, (256, 10, 0, 4), (16384, 8192, 224, 8192, 8192)),
        (32768, 1024, BF16, (128, 4, 32, 12), (32768, 1024, 128, 1024, 1024)),
        (32768, 1024, FP32, (256, 10, 0, 4), (32768, 1024, 32, 1024, 1024)),
        (5, 8, BF16, (128, 2, 2, 16), (5, 8, 128, 8, 8)),
        (1, 40960, FP32, (1024, 10, 0, 1), (1, 40960, 1024, 0, 0)),
    ],
)
def test_single_pass_takes_the_smallest_block_that_holds_a_row(rows, cols, dtype, config, arguments):
    launch = planned("single_pass", meta(rows, cols, dtype=dtype))
    assert (launch.config, launch.arguments) == (SinglePassConfig(dtype, *config), arguments)


@pytest.mark.parametrize("gpu", SPECS)
def test_single_pass_holds_each_row_that_it_takes(gpu):
    for vectors in (*range(1, 400), 2560, 2561, 5120, 5121, 10239, 10240):
        launch = planned("single_pass", meta(3, 4 * vectors), device=SPECS[gpu])
        config, threads = launch.config, launch.arguments[2]
        assert vectors <= (config.lanes or threads) * config.chunks
        assert threads <= config.threads <= 1024
        assert config.resident * config.threads <= SPECS[gpu].sm_threads


@pytest.mark.parametrize(
    "variants, x, kwargs, reason",
    [
        (LADDER, meta(4, 64, dtype=torch.float64), {}, "fp16, bf16 or fp32, and the same dtype for the result"),
        (
            LADDER,
            meta(4, 64, dtype=BF16),
            {"y": meta(4, 64), "via": FP32},
            "fp16, bf16 or fp32, and the same dtype for the result",
        ),
        (LADDER, meta(4, 64), {"program": Softmax("log_softmax")}, "needs softmax; got"),
        (LADDER, meta(4, 64), {"program": SoftmaxBackward()}, "needs softmax; got"),
        (LADDER, meta(0, 64), {}, "rows that have elements"),
        (LADDER, meta(4, 4, 64)[:, :3], {}, r"one stride between rows .* contiguous\(\)"),
        (LADDER, meta(1, 2**31), {}, "fewer than 2\\^31"),
        (["single_pass"], meta(4, 65)[:, 1:], {}, "at multiples of 16 bytes"),
        (["single_pass"], meta(4, 66), {}, "whole 16-byte vectors"),
        (["single_pass"], meta(64, 64), {"dim": 0}, "contiguous rows"),
        (["single_pass"], meta(4, 1).expand(4, 64), {}, "contiguous rows"),
        (["single_pass"], meta(4, 40964), {}, "registers of one block; got 40964 elements"),
    ],
)
def test_what_a_kernel_cannot_do_is_refused_with_the_reason(variants, x, kwargs, reason):
    for variant in variants:
        with pytest.raises(UnsupportedError, match=reason):
            planned(variant, x, **kwargs)


def test_each_rung_reads_a_row_once_less():
    # A loop of one access that is unrolled by four, and a loop of what is left.
    assert accesses(rung("naive")[1]) == (3 * 5, 5, 0, 0)
    config, ptx = rung("online")
    assert config.vec == 4 and accesses(ptx) == (2 * config.chunks, config.chunks) * 2
    config, ptx = rung("online", 8191)
    assert config.vec == 1 and accesses(ptx) == (2 * config.chunks, config.chunks, 0, 0)
    assert [count(r"\bbar(rier)?\.sync", rung(name)[1]) for name in LADDER] == [2, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("cols, dtype, barriers", [(8192, BF16, 1), (1024, BF16, 0), (256, FP32, 0), (40960, FP32, 1)])
def test_single_pass_holds_a_row_in_registers(cols, dtype, barriers):
    config, ptx = rung("single_pass", cols, dtype)
    assert accesses(ptx) == (config.chunks,) * 4
    assert count(r"ld\.global\.L2::cache_hint\.v4", ptx) == config.chunks
    assert count(r"\bbar(rier)?\.sync", ptx) == barriers
    elements = config.chunks * 16 // dtype.itemsize
    assert count(r"max\.NaN\.bf16x2", ptx) == (elements // 2 - 1 if dtype is BF16 else 0)
