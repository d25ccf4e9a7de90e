"""The choice of a kernel: which branch each kind of problem takes, on devices that this machine need not have."""

from __future__ import annotations

import contextlib
import dataclasses
import math

import pytest

from forge_core.device import SPECS
from forge_core.errors import UnsupportedError
from forge_week0_transpose.config import (
    LinesConfig,
    NaiveConfig,
    RealignedConfig,
    RowsConfig,
    ShiftedConfig,
    TiledConfig,
    VectorizedConfig,
)
from forge_week0_transpose.problem import Problem
from forge_week0_transpose.selection import TILE_SIZES, VARIANTS, plan
from forge_week0_transpose.thresholds import THRESHOLDS

H200 = SPECS["H200"]
each_device = pytest.mark.parametrize("device", list(SPECS.values()), ids=lambda device: device.name)


def contiguous_strides(shape):
    return tuple(math.prod(max(size, 1) for size in shape[i + 1 :]) for i in range(len(shape)))


def transposition(*shape, size=4, pitch=0, src_address=0, dst_address=0):
    """The transposition of a contiguous input, or of one with wider rows."""
    strides = contiguous_strides((*shape[:-1], pitch or shape[-1]))
    out = (*shape[:-2], shape[-1], shape[-2])
    return Problem.make(
        out,
        (*strides[:-2], strides[-1], strides[-2]),
        contiguous_strides(out),
        size,
        src_address=src_address,
        dst_address=dst_address,
    )


def auto(problem, device=H200):
    return plan("transpose", problem, device).config


STRIDED = Problem.make((6, 11), (21, 2), (11, 1), 4)

# ---- which kernel --------------------------------------------------------------------------------------------------


@each_device
@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_large_squares_are_vectorized_and_odd_sizes_shifted_on_every_device(device, size):
    config = auto(transposition(16384, 16384, size=size), device)
    assert config == VectorizedConfig(size, 16, 16)
    assert config.smem_bytes <= device.smem_per_block
    if size <= 8:
        config = auto(transposition(8191, 8193, size=size), device)
        assert isinstance(config, ShiftedConfig)
        assert (config.src_shift, config.dst_shift) == (True, True)
        assert config.smem_bytes <= device.smem_per_block


@pytest.mark.parametrize(
    "problem, src, dst",
    [
        (transposition(50257, 768, size=2), False, True),
        (transposition(768, 50257, size=2), True, False),
        (transposition(50257, 769, size=2), True, True),
        (transposition(4096, 4096, src_address=4), True, False),
        (transposition(4096, 4096, dst_address=4), False, True),
    ],
)
def test_only_the_side_that_needs_it_is_shifted(problem, src, dst):
    config = auto(problem)
    assert isinstance(config, ShiftedConfig)
    assert (config.src_shift, config.dst_shift) == (src, dst)


def test_half_aligned_rows_take_half_as_wide_accesses():
    config = auto(transposition(32768, 1000, size=1))
    assert isinstance(config, VectorizedConfig)
    assert config.src_width == 8
    assert isinstance(auto(transposition(32768, 1004, size=1)), ShiftedConfig), "4-byte accesses lose to shifting"
    assert isinstance(auto(transposition(8184, 8200, size=1)), ShiftedConfig), "so do 8-byte ones on both sides"


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_few_long_lines_unless_whole_tiles_of_vectors_hold_them(size):
    assert auto(transposition(3, 1 << 24, size=size)) == LinesConfig(size, gather=True)
    columns = VectorizedConfig(16, 16, 8) if size == 16 else LinesConfig(size, gather=False, bits=3)
    assert auto(transposition(1 << 24, 8, size=size)) == columns


@pytest.mark.parametrize(
    "problem, expected",
    [
        # Rows and columns that begin anywhere.
        (transposition(2, 20_000_001), LinesConfig(4, gather=True, bits=1)),
        (transposition(3, 1_000_001, size=2), LinesConfig(2, gather=True)),
        (transposition(1_000_001, 3, size=2), LinesConfig(2, gather=False)),
        (transposition(16, 20, 100001, size=2), LinesConfig(2, gather=True, bits=2, batch_rank=1)),
        # Output rows that begin anywhere: lines up to 72 of them, or below 256 bytes.
        (transposition(71, 100_000), LinesConfig(4, gather=True, loads=8)),
        (transposition(73, 100_000), ShiftedConfig),
        (transposition(86, 400_000, size=2), LinesConfig(2, gather=True, bits=1, loads=8)),
        (transposition(127, 400_000, size=2), LinesConfig(2, gather=True, loads=8)),
        (transposition(129, 400_000, size=1), ShiftedConfig),
        # Aligned ones: where less than 0.45 of a tile is full, of 8-byte elements 0.9.
        (transposition(12, 1 << 20), LinesConfig(4, gather=True, bits=2)),
        (transposition(16, 1 << 20), VectorizedConfig),  # 16 of 32 rows
        (transposition(48, 349525, size=1), LinesConfig(1, gather=True, bits=3)),  # 48 of 128
        (transposition(48, 349525, size=2), ShiftedConfig),  # 48 of 64
        (transposition(24, 1 << 20, size=8), LinesConfig(8, gather=True, bits=3)),  # 24 of 32
        (transposition(30, 1 << 20, size=8), VectorizedConfig),
        # Columns likewise, and 0.61 where input rows begin anywhere; of 8-byte elements up to 72 of them.
        (transposition(226719, 19), LinesConfig(4, gather=False)),  # 19 of 32 columns
        (transposition(226719, 21), ShiftedConfig),
        (transposition(226719, 71, size=8), LinesConfig(8, gather=False, loads=8)),
        (transposition(226719, 73, size=8), ShiftedConfig),
        # Too few elements for as many blocks as multiprocessors: by element, in tiles of 32 x 32 that are 0.9 full.
        (transposition(27, 300, size=2), NaiveConfig(2, 2)),
        (transposition(31, 320, size=2), TiledConfig(2, 32)),
        (transposition(33, 300, size=2), TiledConfig(2, 32)),  # or more than 32 rows
        # Of a batch, matrices of 2 KiB and more.
        (transposition(1000, 3, 170), NaiveConfig(4, 3)),
        (transposition(1000, 3, 171), LinesConfig(4, gather=True, batch_rank=1)),
        # Gaps behind few columns are read while they are no more than these, and 128 in all.
        (transposition(1 << 20, 3, pitch=4), LinesConfig(4, gather=False, bits=2, gaps=True)),
        (transposition(1 << 20, 3, pitch=6), LinesConfig(4, gather=False, bits=1, gaps=True)),
        (transposition(1 << 20, 3, pitch=7), NaiveConfig(4, 2, items=8)),
        (transposition(1 << 20, 65, size=2, pitch=129), ShiftedConfig),
        # Transposed input, which is copied by rows.
        (Problem.make((6, 10), (10, 1), (10, 1), 4), RowsConfig(16)),
    ],
)
def test_few_lines(problem, expected):
    config = auto(problem)
    assert expected in (config, type(config))


@pytest.mark.parametrize(
    "shape, size, loads",
    [
        ((16768, 8), 4, None),  # 131 tiles of 128 elements, fewer than multiprocessors
        ((16769, 8), 4, 1),
        ((33536, 8), 4, 1),
        ((33537, 8), 4, 2),  # 132 of 256
        ((134656, 8), 4, 2),
        ((134657, 8), 4, 4),  # 264 of 512
        # From 25 columns and 65 rows on.
        ((1 << 22, 24), 1, 4),
        ((269312, 25), 1, 4),
        ((269313, 25), 1, 8),  # 264 of 1024
        ((63, 1 << 20), 4, 4),
        ((66, 16833), 4, 8),  # 264 of 64
    ],
)
def test_shorter_lines_take_smaller_tiles(shape, size, loads):
    config = auto(transposition(*shape, size=size))
    assert isinstance(config, LinesConfig if loads else NaiveConfig)
    assert getattr(config, "loads", None) == loads


def test_few_tiles_of_rows_that_begin_anywhere_are_moved_by_element():
    for shape in ((18 * 32, 22 * 32 - 1), (15, 129, 131)):  # 396 tiles, three for each of 132, and 375
        assert auto(transposition(*shape)) == TiledConfig(4, 32, len(shape) - 2)
    for shape in ((18 * 32, 22 * 32 + 1), (16, 129, 131)):
        assert isinstance(auto(transposition(*shape)), ShiftedConfig)
    assert isinstance(auto(transposition(18 * 32, 22 * 32)), VectorizedConfig), "aligned rows"


def test_naive_has_eight_elements_a_thread_where_all_threads_have_them():
    for count, items in ((15018, 1), (15019, 8)):  # 8 * 2048 threads * 132 multiprocessors are 2162688 elements
        strided = Problem.make((count, 12, 12), (301, 25, 2), (144, 12, 1), 4)
        assert auto(transposition(count, 12, 12)) == auto(strided) == NaiveConfig(4, 3, items=items)


def test_empty_problems_plan_without_a_crash():
    for shape in ((0, 4), (4, 0), (2, 0, 3)):
        for op, table in VARIANTS.items():
            for name in table:
                assert plan(op, transposition(*shape), H200, name).variant == name


# ---- thresholds ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "size, shape, tile",
    [
        (4, (4096, 4096), (64, 64)),
        (4, (3328, 3264), (64, 64)),  # 2652 tiles, more than 20 for each of 132
        (4, (3264, 3264), (32, 64)),  # 2601 tiles
        (4, (131072, 64), (32, 64)),
        (8, (4096, 4096), (32, 32)),
        (2, (8192, 8192), (128, 128)),
        (2, (4096, 4096), (64, 128)),
        (2, (1024, 1024), (64, 64)),
        (1, (8192, 8192), (256, 256)),
        (1, (4096, 4096), (128, 128)),
        (1, (1024, 1024), (128, 128)),
        # Of those that are at least 0.6 times as full as the fullest.
        (4, (262144, 32), (32, 32)),
        (4, (262144, 36), (64, 64)),  # 0.56, as of 32 x 32
        (4, (262144, 96), (64, 64)),  # 0.75 of 1
        (4, (226719, 41), (60, 64)),  # 0.64, as of 60 x 32
        (4, (226719, 21), (60, 32)),  # 60 x 64: 0.33 of 0.66
        (2, (48, 349525), (64, 64)),  # 128 x 64: 0.375 of 0.75
        (2, (349525, 48), (120, 64)),  # 248 x 128: likewise
    ],
)
def test_fewer_and_emptier_tiles_make_them_smaller(size, shape, tile):
    config = auto(transposition(*shape, size=size))
    assert isinstance(config, VectorizedConfig)
    assert config.tile == tile


def test_the_threshold_counts_the_device_s_multiprocessors():
    problem = transposition(3328, 3264)  # 2652 tiles of 64x64: more than 20 for each of 132, not of 148
    tiles = {name: auto(problem, SPECS[name]).tile[0] for name in ("A100", "H200", "B200")}
    assert tiles == {"A100": 64, "H200": 64, "B200": 32}


@pytest.mark.parametrize(
    "shape, size, by_columns",
    [
        ((32768, 1000), 2, True),  # rows of 15.6 lines, 8 tiles beside one another
        ((32768, 1000), 4, True),
        ((32768, 1000), 1, True),
        ((32768, 1024), 2, False),  # whole lines
        ((32768, 2048), 2, False),
        ((16384, 2056), 2, False),  # 17 tiles
        ((8200, 1000), 2, False),  # output rows share lines, too
        ((1000, 32768), 2, False),
        ((32768, 56), 2, False),  # one tile
        ((32768, 1001), 2, True),
        ((32768, 1001), 4, True),
        ((8191, 8193), 4, False),
        ((50257, 768), 2, False),
    ],
)
def test_blocks_walk_along_columns_where_input_rows_alone_share_lines(shape, size, by_columns):
    config = auto(transposition(*shape, size=size))
    assert isinstance(config, VectorizedConfig | ShiftedConfig)
    assert config.by_columns is by_columns


@pytest.mark.parametrize(
    "shape, flat",
    [
        ((64, 65535 * 64), False),  # 65535 tiles of 64 columns
        ((64, 65535 * 64 + 4), True),
        ((65535, 16, 64), False),
        ((65536, 16, 64), True),
        ((65535 * 64, 1000), False),  # along the columns, 65535 tiles of 64 rows
        ((65536 * 64, 1000), True),
    ],
)
def test_tiles_that_two_dimensions_of_a_grid_cannot_hold_are_numbered(shape, flat):
    config = plan("transpose", transposition(*shape), H200, "vectorized").config
    assert isinstance(config, VectorizedConfig)
    assert config.by_columns is (shape[-1] == 1000)
    assert config.flat is flat


@pytest.mark.parametrize("size", [1, 2, 4])
def test_unaligned_outputs_take_long_tiles(size):
    config, small = (auto(transposition(*shape, size=size)) for shape in ((50257, 768), (1023, 1024)))
    assert isinstance(config, ShiftedConfig) and isinstance(small, ShiftedConfig)
    assert small.row_chunks < config.row_chunks == 32


def test_tiles_by_element_are_a_grid_of_three_dimensions_unless_one_is_too_long():
    walks = [
        (transposition(40, 2**21), False),
        (transposition(2**21, 40), True),
        (transposition(65536, 9, 9), True),
    ]
    configs = [(plan("transpose", problem, H200, "tiled").config, flat) for problem, flat in walks]
    assert all((config.flat, config.wide) == (flat, False) for config, flat in configs)
    assert plan("transpose", transposition(2**31, 40, size=1), H200, "tiled").config.wide


@pytest.mark.parametrize("numel, chunks, tails", [(598, 160 + 1, 299), (600, 150, 150), (3, 3, 3), (127, 32 + 3, 127)])
def test_elements_behind_the_last_chunk_of_a_run_are_copied_by_warps_of_their_own(numel, chunks, tails):
    assert plan("copy", Problem.make((numel,), (1,), (1,), 4), H200).arguments[:2] == (chunks, tails)


def test_tiles_that_do_not_fit_a_device_are_passed_over():
    tiny = dataclasses.replace(H200, smem_per_block=32 * 1024)
    config = auto(transposition(16384, 16384, size=1), tiny)
    assert isinstance(config, VectorizedConfig)
    assert config.smem_bytes <= tiny.smem_per_block


def test_2_to_the_31_elements_need_wide_numbers_and_as_many_columns_wide_places():
    strided = [Problem.make((n, 2), (4, 2), (2, 1), 1) for n in (2**30 - 1, 2**30)]
    assert [plan("copy", p, H200, "naive").config.wide for p in strided] == [False, True]
    pitched = [Problem.make((n, 16), (32, 1), (16, 1), 1) for n in (2**31 - 1, 2**31)]
    # Sixteen bytes become one element, and the rows a strided run of them.
    assert [p.itemsize for p in pitched] == [16, 16]
    rows = [Problem.make((n, 48), (64, 1), (48, 1), 1) for n in (2**31 // 3, 2**31 // 3 + 1)]
    assert [plan("copy", p, H200).config.wide for p in rows] == [False, True]
    columns = [transposition(16, n, size=1) for n in (2**31 - 4096 - 16, 2**31 - 4096, 2**34)]
    assert [plan("transpose", p, H200, "vectorized").config.wide for p in columns] == [False, True, True]


def test_a_side_of_2_to_the_31_elements_is_tiled_as_any_other():
    assert isinstance(auto(transposition(32, 2**31 + 64)), VectorizedConfig)
    assert isinstance(auto(transposition(3, 2**31 + 64, size=1)), LinesConfig)


# ---- rows ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "problem, expected",
    [
        (Problem.make((1024,), (1,), (1,), 4), RowsConfig(16)),
        (Problem.make((1023,), (1,), (1,), 4), RowsConfig(16, 0, 4)),
        (Problem.make((1023,), (1,), (1,), 1), RowsConfig(16, 0, 1)),
        (Problem.make((1024,), (1,), (1,), 2, src_address=2), RealignedConfig(2)),
        (Problem.make((16,), (1,), (1,), 2, src_address=2), RealignedConfig(2)),
        (Problem.make((15,), (1,), (1,), 2, src_address=2), RowsConfig(2)),
        (Problem.make((32,), (1,), (1,), 4, src_address=4), RealignedConfig(4)),
        (Problem.make((31,), (1,), (1,), 4, src_address=4), RowsConfig(4)),
        (Problem.make((64,), (1,), (1,), 4, src_address=8), RealignedConfig(4)),
        (Problem.make((62,), (1,), (1,), 4, src_address=8), RowsConfig(8)),
        (Problem.make((64, 48), (64, 1), (48, 1), 4), RowsConfig(16, 1)),
        (Problem.make((64, 50), (64, 1), (50, 1), 4), RowsConfig(8, 1)),
        (Problem.make((64, 15), (16, 1), (15, 1), 2), RowsConfig(2, 1)),
        (Problem.make((64, 511), (512, 1), (511, 1), 2), RealignedConfig(2, 1)),
        (Problem.make((4, 8, 16, 32), (4096, 32, 256, 1), (4096, 512, 32, 1), 4), RowsConfig(16, 3)),
        (Problem.make((), (), (), 4), RowsConfig(16, 0, 4)),
    ],
)
def test_rows_are_copied_as_wide_as_they_are_aligned(problem, expected):
    assert plan("copy", problem, H200).config == expected


def test_an_aligned_copy_is_never_realigned_however_long():
    for count in (1 << 20, (1 << 29) - 1, 1 << 29, 1 << 30, 1 << 32):
        problem = Problem.make((count,), (1,), (1,), 4)
        assert type(plan("copy", problem, H200).config) is RowsConfig
    odd = Problem.make((1 << 30,), (1,), (1,), 2, src_address=2)
    assert isinstance(plan("copy", odd, H200).config, RealignedConfig)


def test_copy_of_a_permuted_tensor_is_a_transposition():
    problem = transposition(64, 1024, 1024, size=2)
    launch = plan("copy", problem, H200)
    assert launch.variant == "permuted_vectorized"
    assert launch.config == plan("transpose", problem, H200).config


# ---- arguments of the launch, and variants by name -----------------------------------------------------------------


def test_arguments_are_elements():
    launch = plan("transpose", transposition(5, 1024, 2048, size=2), H200)
    assert launch.arguments == (1024, 2048, 2048, 1024, (5, 5, 2097152, 2097152))
    assert (launch.read, launch.written) == (20971520, 20971520)
    assert launch.why
    launch = plan("transpose", transposition(5, 9, 4097, size=2), H200)
    assert launch.arguments == (9, 4097, 4097, 9, launch.config.groups(9), (5, 5, 9 * 4097, 9 * 4097))
    launch = plan("transpose", Problem.make((6, 10), (10, 1), (10, 1), 4), H200)
    assert (launch.variant, launch.arguments) == ("rows", (15, 15, (1,)))
    assert plan("copy_transpose", STRIDED, H200, "tiled", 16).arguments == (11, 6, 2, 21, 1, 11, (1,))


@pytest.mark.parametrize("name", VARIANTS["transpose"])
def test_a_named_variant_is_what_runs(name):
    rows, launches = Problem.make((64, 64), (64, 1), (64, 1), 4), []
    for problem in (transposition(64, 64), transposition(3, 1 << 16), transposition(101, 103), rows):
        with contextlib.suppress(UnsupportedError):
            launches.append(plan("transpose", problem, H200, name))
    assert launches, "some of these problems are what the variant is for"
    for launch in launches:
        assert (launch.variant, launch.builder) == (name, VARIANTS["transpose"][name].path)
        assert name in launch.why


@pytest.mark.parametrize("size", TILE_SIZES)
def test_tile_size_is_taken(size):
    config = plan("copy_transpose", transposition(64, 64), H200, "tiled", tile_size=size).config
    assert config == TiledConfig(4, size)


@pytest.mark.parametrize("name", ["tiled", "vectorized", "shifted", "lines"])
def test_more_tiles_than_a_grid_holds_are_refused(name):
    problem = transposition(2**31 + 5, 16, 17 if name == "shifted" else 16, size=1)
    with pytest.raises(UnsupportedError, match="needs at most 2147483647 tiles"):
        plan("transpose", problem, H200, name)


@pytest.mark.parametrize(
    "name, problem, reason",
    [
        (
            "vectorized",
            transposition(7, 9, size=2),
            r"multiples of 8 bytes in the input, of 16 in the output; got multiples of 2 in the input",
        ),
        ("shifted", transposition(64, 64, size=16), r"elements of at most 8 bytes; got 16"),
        ("shifted", transposition(9, 3), r"input rows of at least 16 bytes"),
        ("lines", transposition(129, 129), "2 to 128 rows"),
        ("lines", transposition(1 << 20, 3, pitch=7), "2 to 128 rows"),
        ("rows", transposition(64, 64), r"contiguous in input and output"),
        ("vectorized", STRIDED, r"a batched matrix transpose; got another permutation"),
    ],
)
def test_a_variant_that_cannot_says_which_can(name, problem, reason):
    with pytest.raises(UnsupportedError, match=reason) as caught:
        plan("transpose", problem, H200, name)
    message = str(caught.value)
    assert f"variant {name!r} was asked for" in message
    assert "'naive'" in message.partition("can do this call: ")[2]
    assert f"'{name}'" not in message.partition("can do this call: ")[2]


# ---- tables --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, low, high, shape, size",
    [
        ("large_tiles_4", 10, 40, (3072, 3072), 4),
        ("large_tiles_2", 3, 10, (4096, 4096), 2),
        ("large_tiles_1", 1, 6, (4096, 4096), 1),
        ("shifted_tiles", 4, 64, (4095, 4097), 4),
        ("columns_beside", 1, 16, (32768, 1000), 2),
    ],
)
def test_thresholds_are_what_the_choice_goes_by(name, low, high, shape, size):
    assert name in {threshold.name for threshold in THRESHOLDS.declared}
    found = []
    for value in (low, high):
        with THRESHOLDS.override(name, value):
            found.append(plan("transpose", transposition(*shape, size=size), H200).config)
    assert found[0] != found[1]
