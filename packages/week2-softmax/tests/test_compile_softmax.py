"""Every kernel compiles for every architecture, without a GPU, and its PTX has the instructions that its page names."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from forge_core.device import ARCHES, SPECS, spec_for
from forge_core.errors import UnsupportedError
from forge_core.op.launch import load
from forge_core.testing.expectations import assert_as_declared, compiled_for
from forge_week2_softmax.config import VARIANTS, plan_backward, plan_forward
from forge_week2_softmax.expected import EXPECTED

H200 = SPECS["H200"]
SHAPES = {
    "naive": ((64, 1000), 1),
    "online": ((64, 50257), 1),
    "single_pass": ((4096, 8192), 1),
    "cluster": ((64, 65536), 1),
    "grid": ((1, 2**20), 1),
    "split": ((1, 2**20), 1),
    "column": ((4096, 1024), 0),
}
#: One operator for each variant and architecture, so that all operators meet all variants somewhere.
OPS = ("softmax", "log_softmax", "logsumexp")


def planned(variant, op="softmax", *, backward=False, dtype=torch.float32, device=H200, shape=None, dim=None):
    default, default_dim = SHAPES[variant]
    shape, dim = shape or default, default_dim if dim is None else dim
    x = torch.empty(shape, dtype=dtype, device="meta")
    kept = torch.empty(shape[1 - dim], dtype=dtype, device="meta")
    if not backward:
        return plan_forward(op, kept if op == "logsumexp" else x, x, (dim,), None, device, variant)
    saved = (x, kept) if op == "logsumexp" else (x,)
    return plan_backward(op, x, kept if op == "logsumexp" else x, saved, (dim,), device, variant)


def compiled(variant, op="softmax", **kwargs):
    launch = planned(variant, op, **kwargs)
    device = kwargs.get("device", H200)
    return load(launch.builder).compile(launch.config, arch=device.arch)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_for_every_architecture(variant, arch):
    device = spec_for(arch)
    if variant == "cluster" and device.capability < (9, 0):
        with pytest.raises(UnsupportedError, match="sm_90 or newer"):
            planned(variant, device=device)
        return
    turn = list(VARIANTS).index(variant) + ARCHES.index(arch)
    op, dtype = OPS[turn % 3], (torch.bfloat16, torch.float32, torch.float16)[turn // 3 % 3]
    for backward in (False, True):
        if backward and op == "logsumexp" and variant in ("cluster", "grid", "split"):
            op = "softmax"
        launch = planned(variant, op, backward=backward, dtype=dtype, device=device)
        made = compiled_for(launch.builder, launch.config, arch)
        assert f".target {arch}" in made.ptx
        assert_as_declared(made, EXPECTED, launch.config, arch)
        # The order in which sums are added must not depend on which block is first: no atomics, of any type.
        assert not re.search(r"\b(atom|red)\.", made.ptx)


@pytest.mark.parametrize("variant", ["online", "single_pass", "cluster", "grid", "split", "column"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_accesses_are_128_bits_wide(variant, dtype):
    ptx = compiled(variant, dtype=dtype).ptx
    assert len(re.findall(r"ld\.global(\.[\w:]+)*\.v4\.[bfu]32", ptx)) >= 2
    assert len(re.findall(r"st\.global(\.\w+)*\.v4\.[bfu]32", ptx)) >= 2


def count(pattern, ptx):
    return len(re.findall(pattern, ptx))


def test_one_read_and_one_write():
    # The row stays in registers: as many stores as loads, where two passes need twice as many loads.
    for dtype in (torch.float32, torch.bfloat16):
        launch = planned("single_pass", dtype=dtype)
        ptx = compiled("single_pass", dtype=dtype).ptx
        assert count(r"ld\.global(\.[\w:]+)*\.v4", ptx) == count(r"st\.global(\.\w+)*\.v4", ptx) == launch.config.chunks
        ptx = compiled("online", dtype=dtype, shape=(4096, 8192)).ptx
        assert count(r"ld\.global(\.[\w:]+)*\.v4", ptx) == 2 * count(r"st\.global(\.\w+)*\.v4", ptx) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_element_of_a_row_that_begins_anywhere_has_one_exponential(dtype):
    launch = planned("single_pass", dtype=dtype, shape=(4096, 255))
    config, ptx = launch.config, compiled("single_pass", dtype=dtype, shape=(4096, 255)).ptx
    elements = config.chunks * config.vector + max(1, 2 * config.vector // config.lanes)
    assert config.top_first and count(r"ex2\.approx", ptx) == elements
    short = planned("single_pass", dtype=dtype, shape=(4096, 16 * 20 // dtype.itemsize)).config
    ptx = compiled("single_pass", dtype=dtype, shape=(4096, 16 * 20 // dtype.itemsize)).ptx
    assert short.top_first and count(r"ex2\.approx", ptx) == short.chunks * short.vector
    whole = planned("single_pass", dtype=dtype, shape=(32768, 256)).config
    ptx = compiled("single_pass", dtype=dtype, shape=(32768, 256)).ptx
    assert not whole.top_first and count(r"ex2\.approx", ptx) == 2 * whole.chunks * whole.vector + 1


@pytest.mark.parametrize("variant", ["single_pass", "cluster", "grid", "split"])
def test_a_thread_divides_by_multiplying(variant):
    # The compiler's division has a branch, and one of integers tens of instructions: before a thread's first load.
    ptx = compiled(variant).ptx
    assert count(r"rcp\.approx\.ftz\.f32", ptx) == 1
    assert count(r"\b(div|rem|rcp\.rn)\.", ptx) == 0


@pytest.mark.parametrize("backward", [False, True])
def test_a_part_of_a_long_row_waits_in_shared_memory(backward):
    x = torch.empty((4096, 2**18), device="meta")
    launch = (
        plan_backward("softmax", x, x, (x,), (1,), H200)
        if backward
        else plan_forward("softmax", x, x, (1,), None, H200)
    )
    config, tensors = launch.config, 1 + backward
    ptx = compiled_for(launch.builder, config, "sm_90a").ptx
    assert 0 < config.staged < config.chunks
    assert count(r"cp\.async\.ca\.shared\.global\.L2::cache_hint", ptx) == tensors * config.staged
    assert count(r"ld\.global\.L2::cache_hint\.v4", ptx) == tensors * (config.chunks - config.staged)
    # Read for each pass: the maximum and the sum, or the sum, and the results.
    passes = 2 if backward else 3
    assert count(r"ld\.shared\.v4", ptx) == passes * tensors * config.staged
    assert count(r"cp\.async\.wait_all", ptx) == 1
    short = compiled_for(launch.builder, replace(config, staged=0, resident=1), "sm_90a").ptx
    assert count(r"cp\.async", short) == 0


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.bool], ids=str)
def test_integers_wait_as_what_they_become(dtype):
    # They are never in shared memory, where they would lie as they are stored, and leave the registers they take.
    for cols in (50_000, 57_000):
        x, out = torch.empty((4096, cols), dtype=dtype, device="meta"), torch.empty((4096, cols), device="meta")
        launch = plan_forward("softmax", out, x, (1,), torch.float32, H200)
        made = compiled_for(launch.builder, launch.config, "sm_90a")
        assert launch.config.staged == 0
        assert_as_declared(made, EXPECTED, launch.config, "sm_90a")


def test_loads_are_predicated_and_their_lines_held():
    # No branch goes around a load; the policy is made once.
    for variant in ("single_pass", "cluster"):
        ptx = compiled(variant).ptx
        loads = re.findall(r"(\S+)\s+ld\.global\.\S*cache_hint", ptx)
        assert set(loads) == {"@inside"}
        assert count(r"createpolicy\.fractional\.L2::evict_last", ptx) == 1


def test_what_each_step_adds_and_leaves_out():
    lanes = compiled("single_pass", shape=(4096, 256)).ptx
    assert count(r"\bbar(rier)?\.sync", lanes) == 0  # a warp's lanes need no barrier
    assert count(r"redux\.sync\.max\.s32", lanes) == 1  # the maximum
    assert count(r"shfl\.sync\.bfly", lanes) == 5  # the sum
    block = compiled("single_pass", shape=(4096, 4096)).ptx
    assert count(r"\bbar(rier)?\.sync", block) == 1
    cluster = compiled("cluster").ptx
    assert count(r"\bbar(rier)?\.sync", cluster) == 0  # warps write to all blocks at once
    assert count(r"st\.async\.shared::cluster", cluster) == 2
    assert count(r"barrier\.cluster\.wait", cluster) == 1
    assert count(r"mbarrier\.try_wait", cluster) >= 1


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_row_over_the_grid_is_read_once_and_waits_for_slots_alone(dtype, backward):
    launch = planned("grid", dtype=dtype, backward=backward)
    ptx, tensors = compiled("grid", dtype=dtype, backward=backward).ptx, 1 + backward
    assert count(r"\.entry", ptx) == 1
    assert count(r"ld\.global\.L2::cache_hint\.v4", ptx) == tensors * launch.config.row.unroll
    assert count(r"st\.global(\.\w+)*\.v4", ptx) == launch.config.row.unroll
    assert count(r"st\.relaxed\.gpu\.global\.b128", ptx) == count(r"ld\.relaxed\.gpu\.global\.b128", ptx) == 1
    assert count(r"\b(membar|fence)\.", ptx) == 0  # a slot is one access
    # What a launch of a graph does besides: each block signs that it has read, and one empties the slots.
    assert count(r"st\.release\.gpu\.global\.b64", ptx) == count(r"ld\.acquire\.gpu\.global\.b64", ptx) == 1
    assert count(r"\bbar(rier)?\.sync", ptx) == 3
    assert count(r"redux\.sync", ptx) == (0 if backward else 4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(4, 64), (3, 100_000), (1, 2**18), (1, 2**21)], ids=str)
@pytest.mark.parametrize("op, backward", [("softmax", False), ("softmax", True), ("logsumexp", False)])
def test_the_row_of_a_grid_moves_in_whole_chunks(op, backward, shape, dtype):
    """The declared widths allow 8 bytes, for the ends of slots: those are all that is so narrow."""
    try:
        config = planned("grid", op, backward=backward, dtype=dtype, shape=shape).config
    except UnsupportedError:
        assert dtype.itemsize * shape[1] * (1 + backward) > 2**24, "what the GPU cannot hold"
        return
    ptx = compiled("grid", op, backward=backward, dtype=dtype, shape=shape).ptx
    parts = 2 if dtype is torch.float64 and not backward else 1
    chunks = config.row.unroll
    slots = r"(\.relaxed|\.acquire|\.release)\.gpu\.global\.b(64|128)"
    rows = [line for line in ptx.splitlines() if re.search(r"\b(ld|st)\.global", line)]
    loads = [line for line in rows if re.search(r"\bld\.global", line)]
    stores = [line for line in rows if re.search(r"\bst\.global", line)]
    whole = r"\.v4\.\w32|\.v2\.\w64"
    assert [bool(re.search(whole, line)) for line in loads] == [True] * ((1 + backward) * chunks)
    written = [line for line in stores if re.search(whole, line)]
    assert len(written) == (0 if op == "logsumexp" else chunks)
    # One number for each access of a slot and one for its end are taken out; and a row's one result is written.
    assert len(stores) - len(written) == parts + 1 + (op == "logsumexp")
    assert count(slots, ptx) == 2 * parts + 2


def test_the_slots_of_the_plan_are_those_of_the_kernel():
    from forge_core.cute.grid import SLOT_BYTES
    from forge_week2_softmax.config import GRID_SLOT_BYTES
    from forge_week2_softmax.holding import LINE
    from forge_week2_softmax.kernels.split import LINE_CHUNKS

    assert (GRID_SLOT_BYTES, LINE) == (SLOT_BYTES, LINE_CHUNKS)


def test_an_exponential_is_one_instruction():
    for dtype in (torch.float32, torch.bfloat16):
        config = planned("single_pass", dtype=dtype).config
        elements = config.chunks * config.vector
        ptx = compiled("single_pass", dtype=dtype).ptx
        # One for the sum, one for the write, and those of the exchange.
        assert 2 * elements <= count(r"ex2\.approx\.ftz\.f32", ptx) <= 2 * elements + 4
        assert count(r"max\.NaN\.bf16x2", ptx) == (elements // 2 - 1 if dtype is torch.bfloat16 else 0)
        logarithm = compiled("single_pass", "log_softmax", dtype=dtype).ptx
        assert elements <= count(r"ex2\.approx\.ftz\.f32", logarithm) <= elements + 4


@pytest.mark.parametrize("arch, dependent", [("sm_80", False), ("sm_89", False), ("sm_90a", True), ("sm_120a", True)])
def test_the_second_pass_waits_on_the_gpu_where_it_can(arch, dependent):
    ptx = compiled("split", device=spec_for(arch)).ptx
    assert count(r"\.entry", ptx) == 2
    assert ("griddepcontrol.wait" in ptx) == dependent
    assert ("griddepcontrol.launch_dependents" in ptx) == dependent


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(4096, 256), (32768, 8192), (8192, 50257), (4096, 151936)], ids=str)
def test_what_is_chosen_is_as_declared(shape, dtype, backward):
    x = torch.empty(shape, dtype=dtype, device="meta")
    launch = (
        plan_backward("softmax", x, x, (x,), (1,), H200)
        if backward
        else plan_forward("softmax", x, x, (1,), None, H200)
    )
    assert_as_declared(compiled_for(launch.builder, launch.config, "sm_90a"), EXPECTED, launch.config, "sm_90a")


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.int32, torch.uint8], ids=str)
def test_integers_are_converted_on_load(dtype):
    x, out = torch.empty(64, 1003, dtype=dtype, device="meta"), torch.empty(64, 1003, device="meta")
    launch = plan_forward("softmax", out, x, (1,), torch.float32, H200)
    assert load(launch.builder).compile(launch.config, arch="sm_90a").ptx


def test_fp64_is_computed_in_fp64():
    ptx = compiled("cluster", dtype=torch.float64).ptx
    assert "ex2.approx.ftz.f32" not in ptx
    assert count(r"st\.async\.shared::cluster\.\S*f64", ptx) == 2


@pytest.mark.parametrize(
    "variant, dtype, stated",
    [("column", torch.float64, ["2"]), ("column", torch.float32, []), ("split", torch.float64, ["1", "1"])],
    ids=str,
)
def test_blocks_are_stated_where_the_compiler_would_spill(variant, dtype, stated):
    """And nowhere else: it chooses registers well there, and other code would have to be measured anew."""
    ptx = compiled(variant, dtype=dtype, shape=(2, 2**20) if variant == "split" else None).ptx
    assert re.findall(r"\.minnctapersm (\d+)", ptx) == stated
