"""Layouts: index maps, the sectors and bank conflicts that follow from them, the drawings, and the command."""

from __future__ import annotations

import inspect
import json
import xml.etree.ElementTree as ET

import pytest

from forge_core.commands import layout
from forge_core.profiling.layouts import (
    MOST_ROWS,
    Access,
    Drawing,
    Panel,
    coalescing,
    conflicts,
    swizzle,
    thread_value,
    to_svg,
)

#: The functions of the commands, which return drawings.
tiled_copy, swizzled_tile = (inspect.unwrap(command.callback) for command in (layout.copy, layout.swizzle))

SVG = "{http://www.w3.org/2000/svg}"


def lanes(step, width, start=0):
    return Access("access", tuple(start + lane * step for lane in range(32)), width)


# ---------------------------------------------------------------------------------------------------- global memory


@pytest.mark.parametrize(
    "access, sectors, used, lines",
    [
        (lanes(4, 4), 4, 100, 1),
        (lanes(16, 16), 16, 100, 4),
        (lanes(128, 4), 32, 12.5, 32),
        (lanes(1, 1), 1, 100, 1),
        (lanes(4, 4, start=16), 5, 80, 2),  # begins in the middle of a sector
        (lanes(0, 4), 1, 100, 1),  # one address for all: a broadcast
        (lanes(32, 16), 32, 50, 8),
    ],
)
def test_what_a_warp_touches(access, sectors, used, lines):
    found = coalescing(access)
    assert (found.requests, found.sectors, found.used_pct, found.lines) == (1, sectors, used, lines)
    assert found.sectors_per_request == sectors


def test_warps_are_counted_one_by_one_and_idle_ones_not_at_all():
    busy = tuple(4 * t for t in range(40))
    access = Access("tail", (*busy, *[None] * 56), 4)
    found = coalescing(access)
    assert (found.requests, found.sectors) == (2, 5)


# ------------------------------------------------------------------------------------------------------- shared memory


@pytest.mark.parametrize(
    "access, passes, ideal, worst",
    [
        (lanes(4, 4), 1, 1, 1),
        (lanes(128, 4), 32, 1, 32),  # a column of a tile of 32 words
        (lanes(132, 4), 1, 1, 1),  # the same with a column of padding
        (lanes(8, 4), 2, 1, 2),
        (lanes(16, 16), 4, 4, 1),  # 16 bytes go by eight lanes
        (lanes(128, 16), 32, 4, 8),
        (lanes(8, 8), 2, 2, 1),
        (lanes(0, 4), 1, 1, 1),  # the same word: shared
        (lanes(1, 1), 1, 1, 1),
        (lanes(66, 2), 1, 1, 1),  # the first column of 2-byte elements, padded by one element
        (lanes(66, 2, start=2), 2, 1, 2),  # the second: its last lane comes back to the first bank
    ],
)
def test_passes_of_a_warp(access, passes, ideal, worst):
    found = conflicts(access)
    assert (found.passes, found.ideal, found.worst, found.extra) == (passes, ideal, worst, passes - ideal)


@pytest.mark.parametrize("bits, base, shift", [(0, 2, 0), (1, 5, 1), (3, 4, 3), (2, 3, 6), (4, 2, 8)])
def test_a_swizzle_is_its_own_inverse(bits, base, shift):
    apply = swizzle(bits, base, shift)
    for offset in range(2**14):
        assert apply(apply(offset)) == offset
        assert apply(offset) >> base + shift == offset >> base + shift, "the upper bits stay"


def test_a_swizzle_permutes_the_chunks_of_each_row():
    apply = swizzle(3, 4, 3)
    for row in range(16):
        places = [apply(row * 128 + chunk * 16) for chunk in range(8)]
        assert sorted(places) == [row * 128 + chunk * 16 for chunk in range(8)]
        assert [place % 128 // 16 for place in places] == [chunk ^ row % 8 for chunk in range(8)]


def test_a_negative_shift_takes_the_low_bits_up():
    apply = swizzle(2, 3, -3)
    assert apply(0b01000) == 0b01000 ^ 0b01000 << 3


def test_the_swizzle_frees_the_columns():
    def passes(bits):
        along, down = swizzled_tile(bits, 4, 3, rows=32, row_bytes=128, width="16").panels
        return [sum(conflicts(a).extra for a in panel.accesses) for panel in (along, down)]

    assert passes(3) == [0, 0]
    assert passes(0) == [0, 224]


@pytest.mark.parametrize("arguments", [(-1, 4, 3), (3, -1, 3), (3, 4, 2)])
def test_a_swizzle_that_does_not_exist(arguments):
    with pytest.raises(ValueError, match="expected bits"):
        swizzle(*arguments)


# ---------------------------------------------------------------------------------------------------------- drawings


def test_a_thread_value_layout_gives_an_access_for_each_vector_of_values():
    layout = ((2, 2), (2, 3)), ((4, 100), (1, 10))
    found = thread_value("load", layout, 8, vec=2, address=lambda i: 4 * i if i < 120 else None)
    assert [(a.name, a.places) for a in found] == [
        ("load 0", (0, 16, 400, 416)),
        ("load 1", (40, 56, 440, 456)),
        ("load 2", (80, 96, None, None)),
    ]


def test_a_tiled_copy_touches_each_byte_once():
    drawing = tiled_copy((4, 8), (2, 12), "bfloat16", row_bytes=8 * 24, by_column=False)
    (panel,) = drawing.panels
    touched = sorted(p + i for a in panel.accesses for p in a.places for i in range(a.width))
    assert touched == list(range(8 * 8 * 24))
    assert {a.width for a in panel.accesses} == {8}, "12 elements of 2 bytes are three accesses of 8"


def test_threads_down_the_columns_waste_sectors():
    row = tiled_copy((32, 4), (1, 1), "float32", row_bytes=16, by_column=False).panels[0]
    column = tiled_copy((32, 4), (1, 1), "float32", row_bytes=128, by_column=True).panels[0]
    assert row.summary() == "4.00 sectors a request, 100 % of them used, 1.00 lines"
    assert column.summary() == "32.00 sectors a request, 12 % of them used, 32.00 lines"


def test_a_copy_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="at least 128 bytes"):
        tiled_copy((1, 32), (1, 1), "float32", row_bytes=64, by_column=False)


def test_the_drawing_has_a_cell_for_each_access_at_its_place():
    drawing = swizzled_tile(3, 4, 3, rows=8, row_bytes=128, width="16")
    root = ET.fromstring(to_svg(drawing))  # noqa: S314 - our own
    cells = [group.find(f"{SVG}rect") for group in root.iter(f"{SVG}g")]
    assert len(cells) == 2 * 64
    corners = {(cell.get("x"), cell.get("y")) for cell in cells}
    assert len(corners) == 2 * 64, "no two cells lie on each other"
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert "Swizzle<3, 4, 3>: 8 rows of 128 bytes, 16 bytes a lane" in texts
    assert texts.count("8 passes for 2 requests, no bank conflicts") == 2
    assert {f"b{4 * i}" for i in range(8)} <= set(texts)
    width, height = int(root.get("width")), int(root.get("height"))
    assert all(int(c.get("x")) + int(c.get("width")) <= width and int(c.get("y")) < height for c in cells)


def test_a_long_tile_is_cut_and_says_so():
    panel = Panel("long", 4, (Access("a", tuple(4 * t for t in range(96)), 4),))
    text = to_svg(Drawing("a < b", (panel,)))
    assert text.count("<rect") == 1 + MOST_ROWS
    assert f"the first {MOST_ROWS} of 96 rows are drawn" in text
    assert "a &lt; b" in text


# ----------------------------------------------------------------------------------------------------------- command


def test_the_command_draws_and_counts(forge, tmp_path):
    out = tmp_path / "copy.svg"
    done = forge("layout", "copy", "--threads", "16x8", "--values", "1x8", "--dtype", "bfloat16", "--out", out)
    assert done.exit_code == 0 and "16.00 sectors a request, 100 % of them used, 4.00 lines" in done.output
    assert ET.fromstring(out.read_text()).tag == f"{SVG}svg"  # noqa: S314 - as above
    done = forge("layout", "swizzle", "--bits", "0", "--json")
    assert done.exit_code == 0
    told = json.loads(done.output)["panels"][1]["summary"]
    assert told == "256 passes where 32 would do: 224 by bank conflicts, up to 8-way"


@pytest.mark.parametrize(
    "words",
    [
        ("copy", "--threads", "16", "--values", "1x8"),
        ("copy", "--threads", "0x4", "--values", "1x8"),
        ("copy", "--threads", "\u00b2x8", "--values", "1x8"),
        ("copy", "--threads", "4x4", "--values", "1x8", "--dtype", "int3"),
        ("copy", "--threads", "4x4", "--values", "1x8", "--row-bytes", "8"),
        ("swizzle", "--shift", "1"),
        ("swizzle", "--row-bytes", "100"),
        ("swizzle", "--width", "3"),
    ],
)
def test_bad_usage(forge, words):
    assert forge("layout", *words).exit_code == 3


def test_a_kernels_own_layout(forge, dsl):
    def shown(*words):
        done = forge("layout", "kernel", *words)
        assert done.exit_code == 0, done.output
        return done.output

    case = ("transpose", "--shape", "4096x4096", "--dtype", "float32")
    text = shown(*case)
    assert text.count("no bank conflicts") == 2 and text.count("100 % of them used") == 2
    assert "32.00 sectors a request, 12 % of them used" in shown(*case, "--variant", "naive")
    assert shown(*case, "--variant", "shifted").count("no bank conflicts") == 2
    text = shown("reduce_sum", "--shape", "8x4096", "--dtype", "float32", "--arg", "dim=1")
    assert "global memory: x: 16.00 sectors a request, 100 % of them used" in text
