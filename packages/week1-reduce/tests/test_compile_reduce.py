"""Every kernel compiles for every architecture, without a GPU, and its PTX has the instructions that its page names."""

from __future__ import annotations

import re

import pytest
import torch

import forge_week1_reduce as week1
from forge_core.device import ARCHES
from forge_core.errors import UnsupportedError
from forge_core.op.launch import load
from forge_core.testing.expectations import assert_as_declared, compiled_for
from forge_week1_reduce.config import VARIANTS
from forge_week1_reduce.expected import EXPECTED

SHAPES = {
    "naive": ((64, 100), -1),
    "shared": ((64, 1000), -1),
    "shuffle": ((64, 1000), -1),
    "vectorized": ((4096, 8192), -1),
    "short": ((4096, 256), -1),
    "cluster": ((64, 131072), -1),
    "split": ((2, 2**23), -1),
    "column": ((4096, 1024), 0),
}


def config_of(variant, arch, dtype=torch.float32, shape=None, dim=None, op=week1.reduce_sum):
    default, default_dim = SHAPES[variant]
    x = torch.empty(shape or default, dtype=dtype, device="meta")
    return op.explain(x, default_dim if dim is None else dim, variant=variant, arch=arch).config


def compiled(variant, arch, *args, **kwargs):
    return load(VARIANTS[variant].path).compile(config_of(variant, arch, *args, **kwargs), arch=arch)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_for_every_architecture(variant, arch):
    if variant == "cluster" and arch in ("sm_80", "sm_86", "sm_89"):
        with pytest.raises(UnsupportedError, match="sm_90 or newer"):
            compiled(variant, arch)
        return
    for dtype in (torch.float32, torch.bfloat16):
        config = config_of(variant, arch, dtype)
        made = compiled_for(VARIANTS[variant].path, config, arch)
        assert f".target {arch}" in made.ptx
        assert_as_declared(made, EXPECTED, config, arch)
        # The order in which sums are added must not depend on which block is first: no atomics, of any type.
        assert not re.search(r"\b(atom|red)\.", made.ptx)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("shape", [(8192, 1024), (2**20, 8), (64, 131072)], ids=str)
def test_loads_that_the_l2_is_to_keep_are_as_declared(shape, arch):
    for dtype in (torch.float32, torch.bfloat16):
        told = week1.reduce_sum.explain(torch.empty(shape, dtype=dtype, device="meta"), arch=arch)
        made = compiled_for(told.builder, told.config, arch)
        assert_as_declared(made, EXPECTED, told.config, arch)
        hinted = len(re.findall(r"ld\.global\.L2::cache_hint\.v4\.b32", made.ptx))
        assert (hinted > 0) == getattr(told.config, "row", told.config).held
        assert hinted or arch != "sm_90a"


@pytest.mark.parametrize("variant", ["vectorized", "short", "cluster", "split", "column"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
def test_loads_are_128_bits_wide(variant, dtype):
    ptx = compiled(variant, "sm_90a", dtype).ptx
    assert len(re.findall(r"ld\.global(\.[\w:]+)*\.v4\.[bfu]32", ptx)) >= 2


@pytest.mark.parametrize(
    "variant, shape", [("vectorized", (4096, 8191)), ("cluster", None), ("split", None), ("column", None)]
)
def test_no_thread_divides(variant, shape):
    # Tens of instructions, and hundreds of 64 bits, before a thread's first load: what is divided is divided before.
    assert not re.search(r"\b(div|rem)\.", compiled(variant, "sm_90a", shape=shape).ptx)


def test_what_each_step_adds_and_leaves_out():
    shuffles = {name: len(re.findall(r"shfl\.sync\.bfly", compiled(name, "sm_90a").ptx)) for name in VARIANTS}
    barriers = {name: len(re.findall(r"\bbar(rier)?\.sync", compiled(name, "sm_90a").ptx)) for name in VARIANTS}
    assert (shuffles["naive"], barriers["naive"]) == (0, 0)
    assert (shuffles["shared"], barriers["shared"]) == (0, 8)  # log2(256)
    assert (shuffles["shuffle"], barriers["shuffle"]) == (5 + 3, 1)  # a warp's lanes, 8 warps
    assert (shuffles["vectorized"], barriers["vectorized"]) == (5 + 4, 1)
    assert barriers["short"] == 0
    assert shuffles["short"] % 5 == 0
    cluster = compiled("cluster", "sm_90a").ptx
    assert "st.shared::cluster" in cluster
    assert len(re.findall(r"barrier\.cluster\.wait", cluster)) == 2


@pytest.mark.parametrize("arch, dependent", [("sm_80", False), ("sm_89", False), ("sm_90a", True), ("sm_120a", True)])
def test_the_second_pass_waits_on_the_gpu_where_it_can(arch, dependent):
    for variant in ("split", "column"):
        shape, dim = ((1, 2**24), -1) if variant == "split" else ((2**20, 64), 0)
        ptx = compiled(variant, arch, shape=shape, dim=dim).ptx
        assert len(re.findall(r"\.visible \.entry|\.entry", ptx)) >= 2
        assert ("griddepcontrol.wait" in ptx) == dependent
        assert ("griddepcontrol.launch_dependents" in ptx) == dependent


def test_nan_wins_in_one_instruction():
    assert "max.NaN.f32" in compiled("vectorized", "sm_90a", op=week1.amax).ptx
    assert "min.NaN.f32" in compiled("vectorized", "sm_80", op=week1.amin).ptx


@pytest.mark.parametrize("variant", ["naive", "shared", "shuffle"])
def test_unsigned_bytes_are_not_sign_extended(variant):
    unsigned, signed = (compiled(variant, "sm_90a", dtype).ptx for dtype in (torch.uint8, torch.int8))
    pattern = r"(cvt\.s\d\d\.s8|ld\.global(\.\w+)*\.s8|bfe\.s)"
    assert re.search(pattern, signed)
    assert not re.search(pattern, unsigned)


def test_another_shape_compiles_no_other_kernel():
    for variant in VARIANTS:
        (rows, cols), dim = SHAPES[variant]
        one = week1.reduce_sum.explain(torch.empty(rows, cols, device="meta"), dim, variant=variant, arch="sm_90a")
        other_shape = (rows, cols * 2) if dim == 0 else (rows + 1, cols)
        other = week1.reduce_sum.explain(torch.empty(other_shape, device="meta"), dim, variant=variant, arch="sm_90a")
        if variant != "column":
            assert one.key == other.key, variant
    keys = {
        week1.reduce_sum.explain(torch.empty(rows, cols, device="meta"), dim, arch="sm_90a").key
        for rows in range(500, 40000, 977)
        for cols in range(500, 40000, 977)
        for dim in (-1, 0)
    }
    assert len(keys) < 100, f"{len(keys)} kernels for 3362 problems"


@pytest.mark.parametrize("dtype", [torch.int8, torch.float64], ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_other_accumulators_are_as_declared(variant, dtype):
    config = config_of(variant, "sm_90a", dtype)
    assert_as_declared(compiled_for(VARIANTS[variant].path, config, "sm_90a"), EXPECTED, config, "sm_90a")


@pytest.mark.parametrize(
    "shape, dim", [((4096, 8191), -1), ((64, 2**20 + 1), -1), ((64, 4096), 0), ((4096, 1000), 0), ((3, 2**17, 6), 1)]
)
def test_what_is_chosen_for_awkward_shapes_is_as_declared(shape, dim):
    told = week1.reduce_sum.explain(torch.empty(shape, device="meta"), dim, arch="sm_90a")
    assert_as_declared(compiled_for(told.builder, told.config, "sm_90a"), EXPECTED, told.config, "sm_90a")


@pytest.mark.parametrize(
    "op, dtype, shape, dim",
    [
        ("reduce_sum", torch.float16, (16, 2**23), -1),
        ("reduce_sum", torch.float16, (16, 3589409), -1),
        ("reduce_sum", torch.bfloat16, (1, 2**26 + 1), -1),
        ("mean", torch.bfloat16, (8192, 28375), -1),
        ("mean", torch.float16, (4096, 28375), -1),
        ("mean", torch.bfloat16, (5572, 8), 0),
        ("amax", torch.bfloat16, (758, 16384), 0),
        ("amin", torch.bfloat16, (10369, 4096), 0),
    ],
    ids=str,
)
def test_what_takes_most_registers_is_as_declared(op, dtype, shape, dim):
    told = getattr(week1, op).explain(torch.empty(shape, dtype=dtype, device="meta"), dim, arch="sm_90a")
    assert_as_declared(compiled_for(told.builder, told.config, "sm_90a"), EXPECTED, told.config, "sm_90a")
