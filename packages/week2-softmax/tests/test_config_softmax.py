"""The choice of kernel and configuration, asserted for GPUs that this machine does not have."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from forge_core.device import SPECS, spec_for
from forge_core.errors import ArgumentError, UnsupportedError
from forge_core.profiling.occupancy import LIMITS
from forge_week2_softmax.config import VARIANTS, plan_backward, plan_forward
from forge_week2_softmax.configs import ColumnConfig, GridConfig, HeldConfig, PartsConfig, SplitConfig, SweepConfig
from forge_week2_softmax.problem import Problem
from forge_week2_softmax.thresholds import THRESHOLDS

ARCHES = ("sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a")
H200 = SPECS["H200"]


def meta(shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


def forward(x, dims=(1,), *, op="softmax", device=H200, variant="auto", convert=None):
    kept = [s for i, s in enumerate(x.shape) if i not in dims]
    out = meta(kept if op == "logsumexp" else x.shape, convert or x.dtype)
    return plan_forward(op, out, x, dims, convert, device, variant)


def backward(x, dims=(1,), *, op="softmax", device=H200, variant="auto", grad=None):
    kept = meta([s for i, s in enumerate(x.shape) if i not in dims], x.dtype)
    saved = (x, kept) if op == "logsumexp" else (x,)
    grad = grad if grad is not None else kept if op == "logsumexp" else x
    return plan_backward(op, torch.empty_like(x), grad, saved, dims, device, variant)


@pytest.mark.parametrize(
    "shape, dims, dtype, variant",
    [
        ((4096, 256), (1,), torch.bfloat16, "single_pass"),
        ((32768, 1024), (1,), torch.float32, "single_pass"),
        ((32768, 8192), (1,), torch.float32, "single_pass"),
        ((32768, 16384), (1,), torch.bfloat16, "single_pass"),
        ((32768, 16384), (1,), torch.float32, "cluster"),
        ((8192, 50257), (1,), torch.bfloat16, "cluster"),
        ((4096, 262144), (1,), torch.float32, "cluster"),
        ((8, 32000), (1,), torch.bfloat16, "cluster"),
        ((1, 2**20), (1,), torch.bfloat16, "grid"),
        ((1, 2**22), (1,), torch.float32, "grid"),
        ((4, 2**19), (1,), torch.bfloat16, "grid"),
        ((1, 2**20 + 1), (1,), torch.bfloat16, "split"),
        ((1, 2**24), (1,), torch.bfloat16, "split"),
        ((4, 100_001), (1,), torch.float32, "cluster"),
        ((4, 131_072), (1,), torch.float32, "cluster"),
        ((1, 131_072), (1,), torch.float32, "grid"),
        ((4, 131_080), (1,), torch.float32, "grid"),
        ((4, 200_001), (1,), torch.float32, "cluster"),
        ((1, 200_001), (1,), torch.float32, "split"),
        ((16, 2**22), (1,), torch.float32, "split"),
        ((2000, 2**22), (1,), torch.float32, "online"),
        ((4096, 1000), (0,), torch.float32, "column"),
        ((2**20, 1), (1,), torch.float32, "column"),
        ((0, 5), (1,), torch.float32, "naive"),
    ],
    ids=str,
)
def test_what_is_picked_on_an_h200(shape, dims, dtype, variant):
    found = forward(meta(shape, dtype), dims)
    assert found.variant == variant
    assert found.why
    assert VARIANTS[found.variant].path == found.builder


def test_a_backward_pass_holds_two_tensors_and_shares_a_row_sooner():
    x = meta((32768, 8192))
    assert forward(x).variant == "single_pass"
    assert backward(x).variant == "cluster"
    assert backward(meta((4096, 16384)), op="logsumexp").config.blocks == 0  # blocks that need not meet
    assert forward(meta((4096, 0)), op="logsumexp").variant == "naive"


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_no_configuration_is_beyond_the_hardware(arch, dtype):
    device = spec_for(arch)
    for rows in (1, 3, 17, 100, 1000, 40000):
        for cols in (1, 2, 3, 8, 100, 1024, 5001, 20_000, 50257, 262_144, 2_000_000):
            for dims in ((1,), (0,)):
                for x in (meta((rows, cols), dtype), meta((rows, cols + 1), dtype)[:, :-1]):
                    for launch in (forward(x, dims, device=device), backward(x, dims, device=device)):
                        check(launch, device)


def check(launch, device):
    config = launch.config
    row = config.row if isinstance(config, PartsConfig) else config
    assert 32 <= row.threads <= 1024
    assert row.threads & (row.threads - 1) == 0
    assert row.vector * max(d.itemsize for d in config.arithmetic.sources) <= 16
    assert len(launch.arguments) == config.integers + sum(config.lengths)
    assert all(type(n) is int for n in launch.arguments)  # a tuple costs a launch more than its integers do
    if isinstance(config, HeldConfig):
        assert config.blocks <= (1 if device.capability < (9, 0) else 8 if device.capability >= (12, 0) else 16)
        assert config.lanes == config.threads or config.lanes <= 32
        assert config.blocks == 1 or config.lanes == config.threads >= 64
        # Registers: what is held, and some to compute with; 64 K of them for each multiprocessor.
        held = sum(not r for r in config.arithmetic.on_rows[:-1])
        assert config.chunks * 4 * held <= (64 if config.threads <= 512 else 32)
        assert config.resident * config.threads <= 32 * LIMITS[device.capability].warps
        # With little of one tensor to hold in a block, 32 registers each are enough.
        little = config.chunks <= 2 and config.blocks == 1 and held == 1
        assert config.resident * config.threads * (32 if little else 40) <= 65536
        if not config.arithmetic.backward:
            length = launch.arguments[0]
            assert length <= config.vector * config.chunks * config.lanes * max(config.blocks, 1)
    if isinstance(config, ColumnConfig):
        assert config.lanes <= 32
        assert config.threads % 32 == 0
        assert not config.held or config.groups * config.chunks >= launch.arguments[sum(config.lengths[:2])]
    if isinstance(config, SplitConfig):
        assert 1 <= launch.arguments[1] <= 1024
        assert config.dependent == (device.capability >= (9, 0))
        assert launch.workspace > 0
    elif isinstance(config, GridConfig):
        length, parts, rows = launch.arguments[:3]
        inputs = sum(not r for r in config.arithmetic.on_rows[:-1])
        # All blocks are resident at once, one on a multiprocessor, and hold all that there is.
        assert 1 <= rows * parts <= device.sm_count
        assert config.row.threads <= 512
        assert config.row.unroll * 4 * inputs <= 64
        assert length <= parts * config.row.threads * config.row.unroll * config.row.vector
        assert launch.workspace == rows * parts * 128
    else:
        assert launch.workspace == 0
    assert launch.numbered == isinstance(config, GridConfig)


def test_a_length_compiles_no_kernel_of_its_own():
    configs = {
        forward(meta((rows, cols), dtype)).config
        for dtype in (torch.float32, torch.bfloat16)
        for rows in (500, 40000)
        for cols in range(100, 60000, 97)
    }
    assert len(configs) < 120, f"{len(configs)} kernels for 2472 problems"


def test_rows_that_begin_anywhere_are_read_by_whole_chunks():
    assert forward(meta((8192, 50257))).config.edges
    assert forward(meta((8192, 50257))).config.vector == 4
    assert forward(meta((8192, 50257), torch.bfloat16)).config.vector == 8
    assert not forward(meta((8192, 50256))).config.edges
    # A row of less than two chunks would be nothing but edges.
    short = forward(meta((8192, 7))).config
    assert (short.vector, short.edges) == (1, False)


def problem(x_address, out_address, strides=(1000, 1000), sizes=(2, 2), length=1000):
    return Problem.make((50, length), (1,), [(strides[0], 1), (strides[1], 1)], sizes, (x_address, out_address))


@pytest.mark.parametrize(
    "case, expected",
    [
        (problem(0, 0), (8, False)),
        (problem(6, 6), (8, True)),
        (problem(0, 8), (4, False)),  # in different places of a chunk: smaller chunks, until they agree
        (problem(2, 6), (2, True)),
        (problem(0, 2), (1, False)),
        (problem(0, 0, (1001, 1001)), (8, True)),
        (problem(0, 0, (1001, 1000)), (1, False)),
        (problem(0, 0, (1004, 1000)), (4, False)),
        (problem(0, 0, sizes=(2, 4)), (4, False)),
        (problem(4, 8, sizes=(2, 4)), (4, True)),  # two elements into a chunk, in both
        (problem(0, 0, length=1001), (8, True)),
    ],
)
def test_chunks_that_tensors_have_in_common(case, expected):
    assert case.vector() == expected


def test_layouts_are_merged_and_classified():
    x = meta((6, 5, 7, 9))
    one = Problem.forward(x, x, (3,))
    assert (one.kind, len(one.kept), one.rows, one.length) == ("inner", 1, 210, 9)
    middle = Problem.forward(x, x, (1,))
    assert (middle.kind, len(middle.kept), middle.length) == ("outer", 2, 5)
    turned = x.permute(0, 3, 1, 2)
    assert (
        Problem.forward(turned, torch.empty_strided(turned.shape, turned.stride(), device="meta"), (1,)).kind == "inner"
    )
    assert Problem.forward(x[..., ::2], x[..., ::2], (3,)).kind == "strided"
    lse = Problem.forward(x, meta((5, 9)), (0, 2))
    assert (lse.rows, lse.length, lse.written_bytes) == (45, 42, 180)
    assert Problem.forward(meta(()), meta(()), (0,)).rows == 1


def test_an_expanded_gradient_costs_no_wide_reads():
    x = meta((4096, 1024))
    launch = backward(x, grad=meta((4096, 1)).expand(4096, 1024))
    assert launch.config.spread == (True, False)
    assert launch.config.vector == 4
    assert launch.read == 4096 * 4 + 4096 * 1024 * 4


def test_strided_rows_are_read_so_that_neighbours_meet():
    assert forward(meta((4096, 4096))[:, ::2]).variant == "online"  # neighbours within a row are closer
    assert forward(meta((100, 4096))[:, ::2], (0,)).variant == "column"


def test_variants_are_refused_with_a_way_out():
    with pytest.raises(ArgumentError, match="'single_pass'"):
        forward(meta((8, 8)), variant="fastest")
    with pytest.raises(UnsupportedError, match=r"sm_90 or newer.*'single_pass'"):
        forward(meta((8, 8000)), variant="cluster", device=SPECS["A100"])
    with pytest.raises(UnsupportedError, match="'online'"):
        forward(meta((8, 2**20)), variant="single_pass")
    with pytest.raises(UnsupportedError, match="nothing to exchange"):
        backward(meta((8, 8000)), op="logsumexp", variant="split")
    with pytest.raises(UnsupportedError, match="'column'"):
        forward(meta((800, 80)), (0,), variant="single_pass")
    for name in ("naive", "online"):
        assert isinstance(forward(meta((800, 80)), (0,), variant=name).config, SweepConfig)


def test_elements_must_begin_at_multiples_of_their_size():
    from forge_week2_softmax.arithmetic import Arithmetic
    from forge_week2_softmax.config import select_config

    odd = replace(problem(0, 0), offsets=(1, 0))
    arithmetic = Arithmetic.forward("softmax", torch.bfloat16, torch.bfloat16, None)
    with pytest.raises(UnsupportedError, match="clone"):
        select_config("softmax", odd, arithmetic, H200)


def test_where_the_rounding_happens():
    converted = forward(meta((64, 100), torch.bfloat16), convert=torch.float64).config.arithmetic
    assert (converted.via, converted.acc, converted.dst) == (torch.float64, torch.float64, torch.float64)
    assert forward(meta((64, 100), torch.float16)).config.arithmetic.acc is torch.float32
    assert forward(meta((64, 100), torch.int64), convert=torch.float32).config.arithmetic.acc is torch.float32


def test_nothing_is_numbered_past_what_its_kernel_counts_with():
    long = 2**31 + 8
    assert forward(meta((long, 2)), (0,)).variant == "online"  # a column would number 2^31 elements by 32 bits
    assert forward(meta((long, 2)), (0,)).config.wide
    with pytest.raises(UnsupportedError, match="numbers the elements of a row by 32 bits"):
        forward(meta((long, 2)), (0,), variant="column")
    gradient = backward(meta((1, long), torch.bfloat16), op="logsumexp")
    assert gradient.variant == "online"  # blocks of a row number its elements by 32 bits, a sweep its chunks
    odd = meta((long + 1,), torch.float32)[1:]
    assert forward(odd, (0,)).config.vector == 1
    assert forward(odd, (0,)).config.wide
    strided = torch.empty_strided((2**31, 3), (7, 2), device="meta")
    for variant in ("auto", "naive", "online"):
        with pytest.raises(UnsupportedError, match="fewer than 2\\^31 blocks"):
            forward(strided, (1,), variant=variant)
    assert forward(meta((2**31, 3))).variant == "single_pass"  # several rows a block


@pytest.mark.parametrize(
    "shape, dtype, what",
    [
        # Rows of fp32 that blocks of 512 hold without a rest; with one, and beyond 32 words, smaller blocks.
        ((32768, 16384), torch.float32, (2, 512, 4, 3)),
        ((8192, 65536), torch.float32, (8, 512, 4, 3)),
        ((8192, 50257), torch.float32, (8, 256, 7, 4)),
        ((4096, 151936), torch.float32, (16, 256, 10, 3)),
        ((16384, 32768), torch.bfloat16, (2, 512, 4, 3)),
        ((4096, 151936), torch.bfloat16, (8, 256, 10, 3)),
        ((8192, 131072), torch.bfloat16, (4, 512, 8, 2)),
        ((4096, 262144), torch.float32, (16, 256, 16, 3)),
        # Little to hold: all threads, or two large blocks, and a chunk a lane where all rows are resident at once.
        ((32768, 8192), torch.bfloat16, (1, 512, 2, 4)),
        ((32768, 8192), torch.float32, (1, 512, 4, 2)),
        ((4096, 256), torch.bfloat16, (1, 256, 1, 0)),
        ((4096, 1024), torch.bfloat16, (1, 256, 4, 0)),
        ((1024, 256), torch.bfloat16, (1, 128, 1, 0)),  # blocks of 256 would be fewer than the multiprocessors
        ((65536, 256), torch.bfloat16, (1, 128, 2, 0)),
    ],
    ids=str,
)
def test_blocks_threads_chunks_and_residents_on_an_h200(shape, dtype, what):
    config = forward(meta(shape, dtype)).config
    assert (config.blocks, config.threads, config.chunks, config.resident) == what


def test_who_finds_the_maximum_first():
    """Where all rows are resident, and those that begin anywhere; computed in fp32 by the lanes of a warp."""

    def top(shape, dtype=torch.bfloat16):
        return forward(meta(shape, dtype)).config.top_first

    assert [top((rows, 1024)) for rows in (132, 8448, 8449)] == [True, True, False]
    assert [top((4096, cols)) for cols in (64, 72, 1024, 1032)] == [False, True, True, False]
    assert top((100_000, 255))
    assert not top((4096, 256), torch.float64)
    assert not backward(meta((4096, 256), torch.bfloat16)).config.top_first


@pytest.mark.parametrize("dtype, threads, unroll", [(torch.bfloat16, 512, 1), (torch.float32, 256, 8)], ids=str)
def test_a_long_row_s_gradient_is_cut_by_what_a_thread_can_hold(dtype, threads, unroll):
    found = backward(meta((1, 2**20), dtype), variant="split")
    assert (found.config.row.threads, found.config.row.unroll) == (threads, unroll)


def test_what_the_whole_gpu_holds():
    for dtype, most in ((torch.bfloat16, 8_650_752), (torch.float32, 4_325_376), (torch.float64, 2_162_688)):
        assert forward(meta((1, most), dtype)).variant == "grid"
        assert forward(meta((1, most + 8), dtype)).variant == "split"
        assert backward(meta((1, most // 2), dtype)).variant == "grid"
        with pytest.raises(UnsupportedError, match=f"holds at most {most} elements of each of 1 rows"):
            forward(meta((1, most + 8), dtype), variant="grid")
    # Rows that begin or end inside a chunk, and more rows than multiprocessors.
    with pytest.raises(UnsupportedError, match="begin or end inside one"):
        forward(meta((1, 2**20 + 1)), variant="grid")
    assert forward(meta((132, 64)), variant="grid").arguments[:3] == (64, 1, 132)
    with pytest.raises(UnsupportedError, match="of which there are 132, and 133 rows"):
        forward(meta((133, 64)), variant="grid")
    # Elements that are rounded first wait as they are and as they become.
    assert forward(meta((1, 2**22), torch.bfloat16), convert=torch.float16).variant == "grid"
    with pytest.raises(UnsupportedError, match="no registers for 16 chunks"):
        forward(meta((1, 2**23), torch.bfloat16), variant="grid", convert=torch.float16)


@pytest.mark.parametrize("arch", ["sm_100a", "sm_120a"])
def test_newer_compilers_targets_get_registers_to_spare(arch):
    config = forward(meta((64, 65536), torch.bfloat16), device=spec_for(arch)).config
    assert (config.blocks, config.threads, config.resident) == (4, 256, 3)


@pytest.mark.parametrize(
    "name, value, x, backwards, variant",
    [
        ("block_chunks", 4096, meta((32768, 16384)), False, "single_pass"),
        ("block_chunks", 1024, meta((32768, 8192)), False, "cluster"),
        ("block_chunks_backward", 2048, meta((32768, 8192)), True, "single_pass"),
        ("block_chunks_backward", 512, meta((32768, 4096)), True, "cluster"),
        ("few_rows_grid_from", 8192, meta((1, 131072)), False, "grid"),
        ("few_rows_grid_from", 65536, meta((1, 131072)), False, "cluster"),
        ("few_rows_split_from", 8192, meta((1, 131073)), False, "split"),
        ("few_rows_split_from", 65536, meta((1, 200001)), False, "cluster"),
        ("split_rows", 8, meta((800, 2**20)), False, "split"),
        ("split_rows", 2, meta((400, 2**20)), False, "online"),
    ],
    ids=str,
)
def test_each_threshold_moves_the_border_that_it_names(name, value, x, backwards, variant):
    with THRESHOLDS.override(name, value):
        assert (backward(x) if backwards else forward(x)).variant == variant


def test_every_candidate_of_a_threshold_is_another_launch_somewhere_on_its_probes():
    for threshold in THRESHOLDS.declared:
        chosen = {}
        for value in threshold.candidates:
            with THRESHOLDS.override(threshold.name, value):
                chosen[value] = [
                    str(
                        (backward if probe.operator == "softmax_backward" else forward)(meta(shape_of(s), dtype)).config
                    )
                    for probe in threshold.probes
                    for s in probe.shapes
                    for dtype in (getattr(torch, d) for d in probe.dtypes)
                ]
        assert len(set(map(tuple, chosen.values()))) == len(threshold.candidates), threshold.name


def shape_of(text):
    return tuple(map(int, text.split("x")))
