"""The choice of kernel and configuration, asserted for GPUs that this machine does not have."""

from __future__ import annotations

import pytest
import torch

import forge_week1_reduce as week1
from forge_core.errors import UnsupportedError

ARCHES = ("sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a")


def told(shape, dim=-1, *, arch="sm_90a", dtype=torch.float32, view=None, **kwargs):
    x = torch.empty(shape, dtype=dtype, device="meta")
    return week1.reduce_sum.explain(x if view is None else view(x), dim, arch=arch, **kwargs)


@pytest.mark.parametrize(
    "shape, dim, variant",
    [
        ((1024, 1024), -1, "vectorized"),
        ((1024, 256), -1, "short"),
        ((4096, 512), -1, "vectorized"),
        ((32768, 512), -1, "short"),
        ((32768, 1024), -1, "vectorized"),
        ((32768, 256), -1, "short"),
        ((2**24, 8), -1, "short"),
        ((2**20, 3), -1, "short"),
        ((32768, 4096), -1, "vectorized"),
        ((8192, 65536), -1, "vectorized"),
        ((4096, 50257), -1, "vectorized"),
        ((64, 131072), -1, "cluster"),
        ((16, 4194304), -1, "split"),
        ((1, 2**28), -1, "split"),
        ((32, 64, 56, 56), (0, 2, 3), "cluster"),
        ((32768, 256), 0, "column"),
        ((1, 2**28), 0, "column"),
        ((2**24, 8), 0, "column"),
        ((4096, 50257), 0, "column"),
        ((10**6, 4, 2), 1, "naive"),
        ((0, 5), 0, "naive"),
    ],
    ids=str,
)
def test_what_is_picked_on_an_h200(shape, dim, variant):
    found = told(shape, dim)
    assert found.variant == variant
    assert found.why


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float64, torch.bool], ids=str)
def test_no_configuration_is_beyond_the_hardware(arch, dtype):
    capability = int(arch.removeprefix("sm_").rstrip("a")) / 10
    for rows in (1, 2, 17, 64, 1000, 40000):
        for cols in (1, 3, 8, 100, 1024, 5001, 200_000):
            for dim in (-1, 0):
                for view in (None, lambda x: x[:, : max(x.shape[1] - 1, 1)]):
                    config = told((rows, cols), dim, arch=arch, dtype=dtype, view=view).config
                    threads = getattr(config, "threads", None) or config.row.threads
                    blocks = getattr(config, "blocks", 1)
                    assert threads <= 1024
                    assert threads >= 32 or threads * 32 % 32 == 0
                    assert blocks <= (1 if capability < 9 else 8 if capability >= 12 else 16)
                    if hasattr(config, "groups"):
                        assert config.groups % config.shifts == 0
                        assert config.groups == 1 or config.threads % 32 == 0, config
                        assert config.groups == 1 or config.lanes <= 32


def test_rows_that_begin_anywhere_are_read_by_whole_chunks():
    for dtype, vector in ((torch.float32, 4), (torch.bfloat16, 8)):
        config = told((4096, 50257), dtype=dtype).config
        assert (config.width, config.peel) == (16, True)
        config = told((4096, 50257), 0, dtype=dtype).config
        assert (config.width, config.shifts) == (16, vector)
        assert config.groups % config.shifts == 0
    assert not told((4096, 50256)).config.peel


def test_odd_strides_narrow_the_loads():
    assert told((4096, 64), view=lambda x: x[:, :62]).config.width == 8
    assert told((4096, 63)).config.width == 4
    several = told((8, 64, 1023), (0, 2)).config
    row = getattr(several, "row", several)
    assert (row.width, row.outer_rank, row.peel) == (4, 1, False)


def test_strided_inputs_are_read_so_that_neighbours_meet():
    rows = told((4096, 4096), -1, view=lambda x: x[:, ::2])
    assert rows.variant == "shuffle"  # the reduced dimension has the smaller stride
    columns = told((100, 4096), 0, view=lambda x: x[:, ::2])
    assert columns.variant == "naive"  # the kept one has


def test_only_two_passes_need_a_workspace():
    x = torch.empty(1, 2**28, device="meta")
    from forge_core.device import SPECS
    from forge_week1_reduce.ops import _plan_sum

    launch = _plan_sum(SPECS["H200"], torch.empty(1, device="meta"), x, -1, False, None, "auto")
    assert launch.variant == "split"
    assert launch.workspace == launch.arguments[1] * 4
    launch = _plan_sum(SPECS["H200"], torch.empty(1, device="meta"), x, -1, False, None, "vectorized")
    assert launch.workspace == 0


def test_more_than_two_to_the_31_rows_are_numbered_by_64_bits():
    config = told((2**32, 8), dtype=torch.int8).config
    assert config.wide
    assert told((2**32,), dtype=torch.int8, view=lambda x: x.expand(3, 2**32).t()[::1]).variant
    assert told((2**31 + 5, 2), 0, dtype=torch.int8).config.wide


def test_loads_are_marked_as_read_once_where_they_are_and_where_it_pays():
    def marked(shape, dim=-1, **kwargs):
        config = told(shape, dim, **kwargs).config
        return getattr(config, "row", config).once

    for shape, dim in (((32768, 1024), -1), ((16, 2**22), -1), ((32768, 1024), 0), ((16, 2**22), 0)):
        assert marked(shape, dim)
    for shape, dim in (((32768, 4096), -1), ((8192, 65536), -1), ((1, 2**28), -1), ((32768, 4096), 0)):
        assert not marked(shape, dim)  # more than 256 MB: the rate is what counts
    for shape, dim in (((32768, 256), -1), ((64, 131072), -1), ((1024, 1024), 0)):
        assert not marked(shape, dim)  # it fits the L2, where its next reader may find it
    assert marked((32768, 256), 0)  # columns are marked earlier
    assert not marked((1, 1024), view=lambda x: x.expand(2**15, 1024))  # each row is the same memory
    assert not marked((30000, 1001), 0)  # chunks at the tiles' edges belong to two blocks
    assert not marked((2**19, 63))  # loads of 4 bytes


def test_what_fits_the_l2_is_asked_to_stay_there():
    def held(shape, dim=-1, **kwargs):
        config = told(shape, dim, **kwargs).config
        row = getattr(config, "row", config)
        assert not (row.once and getattr(row, "held", False))
        return getattr(row, "held", False)

    for shape in ((32768, 256), (64, 131072), (4096, 1024), (8192, 1024), (2**20, 8)):
        assert held(shape)
        assert held((shape[0], 2 * shape[1]), dtype=torch.bfloat16)
    assert not held((1024, 1024))  # too small to gain
    assert not held((32768, 1024))  # more than the L2 holds
    assert not held((32768, 256), 0)  # columns are marked as read once
    assert not held((4096, 4096), dtype=torch.int8)
    assert not held((4, 2**22), dtype=torch.bfloat16)  # guarded loads keep their order, which costs registers
    assert not held((64, 131072 - 4))
    assert not held((2**15, 260))
    assert not held((1, 1024), view=lambda x: x.expand(2**13, 1024))  # each row is the same memory


def test_guards_are_left_out_where_nothing_needs_them():
    exact = told((1024, 1024)).config
    assert (exact.exact, exact.threads * exact.unroll) == (True, 256)
    assert not told((1024, 1020)).config.exact
    assert not told((1024, 1024), view=lambda x: x[:, 1:]).config.exact
    assert told((64, 131072)).config.row.whole
    assert not told((64, 131072 - 4)).config.row.whole


def test_columns_without_guards_are_whole_tiles_of_four_bytes():
    assert told((32768, 256), 0).config.whole
    for shape, dtype in (((32768, 260), torch.float32), ((32767, 256), torch.float32), ((32768, 256), torch.bfloat16)):
        assert not told(shape, 0, dtype=dtype).config.whole
    assert not told((32768, 4096), 0).config.whole  # more bytes than it wins for


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_columns_of_a_single_turn_repeat_nothing(dtype):
    config = told((1024, 1024), 0, dtype=dtype).config
    assert config.whole and config.exact
    assert config.blocks * config.groups * config.unroll == 1024
    for shape in ((1024, 1000), (1000, 1024), (32768, 256)):
        assert not told(shape, 0, dtype=dtype).config.exact


def test_a_second_pass_is_compiled_for_a_few_parts():
    for rows, parts in ((32768, 32), (32767, 16), (2**20, 32)):
        assert told((rows, 256), 0).config.finish.parts == parts
    assert told((2**24, 8), 0).config.finish.parts == 0


def test_rows_of_two_bytes_fill_a_multiprocessor():
    for shape in ((8192, 65536), (4096, 50257)):
        assert told(shape, dtype=torch.bfloat16).config.resident == 4
        assert told(shape, dtype=torch.bfloat16, arch="sm_120a").config.resident == 0
        assert told(shape).config.resident == 0
    assert told((16, 4194304), dtype=torch.bfloat16).config.row.resident == 4
    assert told((32768, 4096), dtype=torch.bfloat16).config.resident == 0


def test_rows_for_which_32_registers_are_too_few_are_left_to_the_compiler():
    half, bf16 = torch.float16, torch.bfloat16

    def resident(shape, dtype, op="reduce_sum"):
        config = getattr(week1, op).explain(torch.empty(shape, dtype=dtype, device="meta"), -1, arch="sm_90a").config
        row = getattr(config, "row", config)
        assert (row.threads, row.unroll) == (512, 4)
        return row.resident

    assert (resident((16, 2**23), half), resident((16, 2**23), bf16)) == (0, 4)  # marked
    assert (resident((16, 2**24), half), resident((16, 2**24), bf16)) == (4, 4)  # of more than 256 MB no load is
    assert (resident((1, 2**26 + 1), bf16), resident((2, 2**25 + 1), bf16)) == (0, 4)
    for dtype in (half, bf16):
        assert (resident((8192, 28375), dtype, "mean"), resident((8192, 28376), dtype, "mean")) == (0, 4)
        assert resident((8192, 28375), dtype) == 4


def test_guarded_means_of_two_bytes_are_left_registers():
    def resident(op, dtype=torch.bfloat16, cols=8):
        x = torch.empty(5572, cols, dtype=dtype, device="meta")
        return getattr(week1, op).explain(x, 0, arch="sm_90a").config.resident

    assert resident("mean") == 2
    assert resident("reduce_sum") == resident("mean", torch.float32) == 0


def test_a_row_of_more_loads_than_32_bits_number_is_shared():
    long = (2**31 * 16,)
    found = told(long, dtype=torch.int8)
    assert found.variant == "split"
    assert told((2**31 * 16 - 16,), dtype=torch.int8, variant="vectorized").variant == "vectorized"
    with pytest.raises(UnsupportedError, match=r"fewer than 2\^31 loads a row; got 2147483648 of 16 bytes.*split"):
        told(long, dtype=torch.int8, variant="vectorized")
