"""What is chosen and what it compiles to, without a GPU: on every architecture, with the instructions that it needs."""

from __future__ import annotations

import re

import pytest
import torch

import forge_week2_softmax as week2
from forge_core.device import ARCHES, SPECS
from forge_core.profiling.compiled import compile_to_look_at
from forge_core.profiling.cubin import read_cubin
from forge_core.rows import Binding, configurations
from forge_core.rows.plan import VARIANTS
from forge_core.testing.rows_expected import assert_listed_as_declared
from forge_week2_softmax.program import LogsumexpBackward, Softmax, SoftmaxBackward

BF16, FP32, FP64 = torch.bfloat16, torch.float32, torch.float64
ENGINE = tuple(VARIANTS)


def meta(*shape, dtype=FP32):
    return torch.empty(shape, dtype=dtype, device="meta")


def explain(op, shape, dim=1, *, dtype=FP32, arch="sm_90a", **options):
    """What a call of an operator on contiguous tensors launches."""
    x, kept = meta(*shape, dtype=dtype), meta(shape[1 - dim], dtype=dtype)
    tensors = {"logsumexp_backward": (kept, x, kept)}.get(op, (x, x) if op.endswith("_backward") else (x,))
    return getattr(week2, op).explain(*tensors, dim, arch=arch, **options)


def compiled(told, arch="sm_90a"):
    """Its PTX; nothing may be spilled."""
    made = compile_to_look_at(told.builder, told.config, None, arch=arch)
    assert all(kernel.stack_bytes == 0 for kernel in read_cubin(made.cubin)), told.config.kernel_name
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
        ((2**20, 1), 1, "column"),
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
    # Rows side by side, and an expanded gradient, cost no wide reads.
    assert week2.softmax.explain(meta(4096, 4096)[:, ::2], 1, arch="sm_90a").variant == "stream"
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


def test_a_length_compiles_no_kernel_of_its_own():
    shapes = [(rows, length) for rows in (500, 40000) for length in range(100, 60000, 397)]
    configs = {explain("softmax", shape, dtype=dtype).config for shape in shapes for dtype in (FP32, BF16)}
    assert len(configs) < 60, f"{len(configs)} kernels for {2 * len(shapes)} calls"


# -------------------------------------------------------------------------------------------------------------- code


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("variant", ENGINE)
def test_every_variant_for_every_architecture(variant, arch):
    """A different operator and dtype for each pair, so that all operators meet all variants somewhere."""
    if variant == "grid" and not arch.startswith(("sm_9", "sm_1")):
        pytest.skip("a row over the grid needs sm_90")
    turn = ENGINE.index(variant) + ARCHES.index(arch)
    dtype = (BF16, FP32, torch.float16)[turn // 3 % 3]
    shape, dim = ((4096, 1024), 0) if variant == "column" else (ROWS[variant], 1)
    for op in (
        ("softmax", "log_softmax", "logsumexp")[turn % 3],
        ("softmax_backward", "log_softmax_backward")[turn % 2],
    ):
        ptx = compiled(explain(op, shape, dim, dtype=dtype, arch=arch, variant=variant), arch)
        assert f".target {arch}" in ptx
        # The order in which sums are added must not depend on which block is first: no atomics, of any type.
        assert count(r"\b(atom|red)\.", ptx) == 0


#: Bindings whose list of configurations differs: widths of operands, a dtype of the result, a broadcast gradient.
BINDINGS = {
    "softmax-bf16": Binding(Softmax(), (BF16, BF16), FP32),
    "softmax-fp32": Binding(Softmax(), (FP32, FP32), FP32),
    "softmax-int64-as-bf16": Binding(Softmax(), (torch.int64, BF16), FP32, via=BF16),
    "log_softmax-fp64": Binding(Softmax("log_softmax"), (FP64, FP64), FP64),
    "logsumexp-bf16": Binding(Softmax("logsumexp"), (BF16, BF16), FP32),
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
