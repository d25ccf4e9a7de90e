"""The ladder of softmax without a GPU: what is chosen and refused, and the instructions of each kernel."""

from __future__ import annotations

import functools
import re

import pytest
import torch

from forge_core.device import SPECS, spec_for
from forge_core.errors import UnsupportedError
from forge_core.profiling.cubin import read_cubin
from forge_core.rows.plan import Rung, plan_call
from forge_core.testing.expectations import compiled_for, registers_of
from forge_week2_softmax.config import LADDER, NaiveConfig, OnlineConfig, SinglePassConfig
from forge_week2_softmax.program import Softmax, SoftmaxBackward

BF16, FP32, H200 = torch.bfloat16, torch.float32, SPECS["H200"]


def meta(*shape, dtype=FP32):
    return torch.empty(shape, dtype=dtype, device="meta")


def planned(variant, x, y=None, *, dim=-1, program=None, device=H200, **kwargs):
    program = program or Softmax()
    y = torch.empty(x.shape, dtype=x.dtype, device="meta") if y is None else y
    tensors = {"x": x, "grad": x, "y": y, "dx": y}
    named = {name: tensors[name] for name in program.operands.tensors}
    return plan_call("softmax", program, named, (dim % x.ndim,), device, variant, ladder=LADDER, **kwargs)


@functools.cache
def compiled(variant, cols=8192, dtype=FP32, arch="sm_90a"):
    launch = planned(variant, meta(4096, cols, dtype=dtype), device=spec_for(arch))
    made = compiled_for(launch.builder, launch.config, arch)
    (kernel,) = read_cubin(made.cubin)
    return launch.config, made.ptx, kernel


def count(pattern, ptx):
    return len(re.findall(pattern, ptx))


def accesses(ptx):
    """Loads and stores of global memory: all of them, and those of 16 bytes."""
    wide = r"[\w.:]*\.(v4\.\w32|v2\.\w64)\b"
    return tuple(count(rf"\b{kind}\.global{width}", ptx) for width in ("", wide) for kind in ("ld", "st"))


# ------------------------------------------------------------------------------------------------------------- choice


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


# --------------------------------------------------------------------------------------------------------------- code


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a", "sm_120a"])
@pytest.mark.parametrize("variant", LADDER)
def test_each_kernel_compiles_for_every_architecture(variant, arch):
    config, ptx, kernel = compiled(variant, arch=arch)
    assert f".target {arch}" in ptx and config.kernel_name in kernel.name
    assert kernel.stack_bytes == 0
    assert kernel.registers <= registers_of(config.threads * getattr(config, "resident", 1))
    assert not re.search(r"\b(atom|red)\.", ptx)  # sums are added in a fixed order


def test_each_rung_reads_a_row_once_less():
    # A loop of one access that is unrolled by four, and a loop of what is left.
    assert accesses(compiled("naive")[1]) == (3 * 5, 5, 0, 0)
    config, ptx, _ = compiled("online")
    assert config.vec == 4 and accesses(ptx) == (2 * config.chunks, config.chunks) * 2
    config, ptx, _ = compiled("online", 8191)
    assert config.vec == 1 and accesses(ptx) == (2 * config.chunks, config.chunks, 0, 0)
    assert [count(r"\bbar(rier)?\.sync", compiled(name)[1]) for name in LADDER] == [2, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("cols, dtype, barriers", [(8192, BF16, 1), (1024, BF16, 0), (256, FP32, 0), (40960, FP32, 1)])
def test_single_pass_holds_a_row_in_registers(cols, dtype, barriers):
    config, ptx, kernel = compiled("single_pass", cols, dtype)
    assert accesses(ptx) == (config.chunks,) * 4
    assert count(r"ld\.global\.L2::cache_hint\.v4", ptx) == config.chunks
    assert count(r"\bbar(rier)?\.sync", ptx) == barriers
    assert kernel.stack_bytes == 0
    assert kernel.registers <= registers_of(config.threads * config.resident)
    elements = config.chunks * 16 // dtype.itemsize
    assert count(r"max\.NaN\.bf16x2", ptx) == (elements // 2 - 1 if dtype is BF16 else 0)
