"""Rows side by side on a GPU: all widths, alignments and parts, with every kind of operand, to the last bit."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

import pytest
import torch

from forge_core.device import SPECS
from forge_core.dtypes import FLOATS
from forge_core.rows import Fold, Operands, RowProgram
from forge_core.rows.config import ColumnConfig
from forge_core.rows.operator import row_operator, row_output
from forge_core.rows.plan import plan_call
from forge_core.testing.expectations import compiled_for

BF16, FP32, FP64 = torch.bfloat16, torch.float32, torch.float64


@dataclass(frozen=True)
class Total(RowProgram):
    operands = Operands(rows=("x",), results=("y",))
    folds = (Fold("sum", lambda v, row: v.x),)

    def results(self, totals, row):
        return totals


@dataclass(frozen=True)
class Mixed(RowProgram):
    """All kinds of operands, and a pass that needs the total of the one before."""

    operands = Operands(rows=("x", "z"), columns=("weight",), scalars=("s",), writes=("y",))

    @property
    def folds(self):
        return (
            Fold("max", lambda v, row: v.x),
            Fold("sum", lambda v, row, most: (v.x - most) * v.z * v.weight),
        )

    def map(self, v, totals):
        return (v.x * v.weight + totals[0] - totals[1],)

    def constants(self, totals, row):
        return totals[0], totals[1] * row.s


@dataclass(frozen=True)
class Below(RowProgram):
    """An output, and no column operands: with them, rows of these widths are read by element."""

    operands = Operands(rows=("x",), writes=("y",))
    folds = (Fold("max", lambda v, row: v.x),)

    def map(self, v, totals):
        return (v.x - totals[0],)


def below_reference(x, dim):
    return x - x.amax(dim, True)


def total_reference(x, dim):
    return x.double().sum(dim).to(x.dtype)


def mixed_reference(x, z, weight, s, dim):
    dims = [d % x.ndim for d in ([dim] if isinstance(dim, int) else dim)]
    a, b = x.double(), z.double()
    w = weight.double().view([n if i in dims else 1 for i, n in enumerate(x.shape)])
    each = s.double().view([1 if i in dims else n for i, n in enumerate(x.shape)])
    most = a.amax(dims, True)
    return (a * w + most - ((a - most) * b * w).sum(dims, True) * each).to(x.dtype)


@row_operator(
    "forge_test_rows::column_total(Tensor x, int[1] dim=-1, *, str variant='auto') -> Tensor",
    program=Total(),
    reference=total_reference,
)
def column_total(x, dim=-1, *, variant="auto"):
    return row_output("column_total", Total(), x=x, dim=dim, dtypes=(*FLOATS, torch.int8))


@row_operator(
    "forge_test_rows::column_mixed(Tensor x, Tensor z, Tensor weight, Tensor s, int[1] dim=-1, *, str variant='auto')"
    " -> Tensor",
    program=Mixed(),
    reference=mixed_reference,
)
def column_mixed(x, z, weight, s, dim=-1, *, variant="auto"):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@row_operator(
    "forge_test_rows::column_below(Tensor x, int dim=-1, *, str variant='auto') -> Tensor",
    program=Below(),
    reference=below_reference,
)
def column_below(x, dim=-1, *, variant="auto"):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def some(generator, shape, dtype, begin=0, most=2):
    """Small integers, so that every order of additions gives the same total; ``begin`` elements after a boundary."""
    size = torch.Size(shape).numel()
    x = torch.randint(-most, most + 1, (size + begin,), device="cuda", generator=generator).to(dtype)
    return x[begin:].view(shape)


WIDTHS = (1, 2, 3, 7, 8, 15, 16, 23, 64, 100, 242, 257, 300, 1000, 5003)
LENGTHS = (1, 2, 5, 9, 100, 3000, 40000)
MOST = 2**24
"""Elements of a tensor."""


def lengths(width):
    """Of the columns of a tensor of this width."""
    return [length for length in LENGTHS if length * width < MOST]


def beginning_anywhere(width, dtype, most=2):
    """Tensors of columns of all lengths, which begin at a boundary or some elements behind one: (where, x)."""
    generator = torch.Generator(device="cuda").manual_seed(width)
    for length, begin in itertools.product(lengths(width), (0, 1, 5)):
        yield (length, begin), some(generator, (length, width), dtype, begin, most)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [BF16, FP32, FP64], ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_totals_of_neighboring_rows(width, dtype):
    for where, x in beginning_anywhere(width, dtype, 1 if dtype is BF16 else 4):
        for view in (x, x[1:], x.view(1, *x.shape).expand(3, -1, -1), x[:, : width - width // 3]):
            variant = "column" if view.numel() and width > 1 else "auto"  # others are contiguous rows, or none
            got = column_total(view, -2, variant=variant)
            assert torch.equal(got, total_reference(view, -2)), (where, view.shape)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [BF16, FP32, FP64], ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_all_kinds_of_operands_of_neighboring_rows(width, dtype):
    generator = torch.Generator(device="cuda").manual_seed(width)
    for length in lengths(width):
        weight = some(generator, (length,), dtype, 1)
        for shape in ((length, width), (3, length, width)):
            s = some(generator, (*shape[:-2], width), dtype)
            for begin in (0, 3):
                x, z = (some(generator, shape, dtype, begin) for _ in range(2))
                apart = some(generator, (*shape[:-1], width + 3), dtype)[..., :width]
                for a, b in ((x, z), (x, apart), (apart, apart.flip(0).contiguous())):
                    variant = "column" if width > 1 else "auto"
                    got = column_mixed(a, b, weight, s, len(shape) - 2, variant=variant)
                    assert torch.equal(got, mixed_reference(a, b, weight, s, len(shape) - 2)), (shape, begin)


def across(rows, count, dtype=FP32):
    return torch.empty(count, rows, dtype=dtype, device="meta").t()


@pytest.mark.parametrize(
    ("x", "variant", "elements"),
    [
        (across(3001, 4), "held", 4),
        (across(3001, 12), "held", 16),
        (across(3001, 32, BF16), "held", 32),
        (across(3001, 33, BF16), "column", None),
        # Aligned: 16 bits by vectors but for few elements; so too what DRAM limits.
        (across(4096, 12, BF16), "column", None),
        (across(4096, 8, BF16), "held", 8),
        (across(2**20, 16), "column", None),
        (across(2**18, 16), "held", 16),
        # Every other element: no vectors.
        (torch.empty(4096, 40, device="meta")[:, ::2], "held", 32),
        (torch.empty(4096, 400, device="meta")[:, ::2], "held", None),
        (torch.empty(4096, 4000, device="meta")[:, ::2], "column", None),
        # Contiguous rows that are read by element: a thread each up to 16.
        (torch.empty(4096, 9, dtype=BF16, device="meta"), "held", 16),
        (torch.empty(4096, 7, dtype=BF16, device="meta"), "held", 8),
    ],
    ids=str,
)
def test_a_thread_has_a_row_of_a_few_elements(x, variant, elements):
    told = column_total.explain(x, 1, arch="sm_90a")
    assert told.variant == variant
    if elements:
        assert (told.config.lanes, told.config.capacity) == (1, elements)


def stepped(rows, length, dtype=FP32, device="meta"):
    return torch.empty(rows, 2 * length, dtype=dtype, device=device)[:, ::2]


@pytest.mark.parametrize(
    ("rows", "length", "variant", "lanes"),
    [
        (1000, 32, "held", 1),
        (1000, 33, "held", 8),
        (1000, 64, "held", 8),
        (1000, 65, "held", 32),
        (1000, 512, "held", 32),
        (1, 200, "held", 32),
        (1000, 513, "column", None),
        (1, 513, "column", None),
        (1000, 5000, "column", None),
        (1, 20000000, "column", None),
        (7, 300000, "column", None),
    ],
)
def test_rows_farther_apart_than_their_elements_are_read_one_by_one(rows, length, variant, lanes):
    told = column_total.explain(stepped(rows, length), 1, arch="sm_90a")
    assert (told.variant, getattr(told.config, "lanes", None)) == (variant, lanes)
    if variant == "column":
        assert "tiles of 1 neighboring rows" in told.why
        # Of neighboring rows, tiles have several.
        near = column_total.explain(torch.empty(length, 2000, device="meta")[:, ::2], 0, arch="sm_90a")
        assert near.variant == "column"
        assert "tiles of 1 neighboring" not in near.why


@pytest.mark.parametrize(("length", "lanes"), [(4, 1), (8, 1), (9, 4), (24, 4), (25, 8), (64, 8), (65, 32), (512, 32)])
def test_strided_rows_are_written_by_lanes(length, lanes):
    """Neighboring lanes have neighboring elements; of rows that are neighbors themselves a thread has one each."""
    assert column_below.explain(stepped(1000, length), 1, arch="sm_90a").config.lanes == lanes
    if length <= 32:
        near = column_below.explain(torch.empty(length, 2001, device="meta")[:, ::2], 0, arch="sm_90a")
        assert near.config.lanes == 1


@pytest.mark.parametrize("length", [2, 8, 11])
def test_no_load_waits_for_a_predicate_that_is_kept_for_a_store(length):
    """Of more than seven elements a thread compares each again, with a count that the compiler does not know."""
    told = column_below.explain(torch.empty(1000, length * 2, device="meta")[:, ::2], 1, arch="sm_90a")
    compared, under = {"ld": set(), "st": set()}, {}
    for line in compiled_for(told.builder, told.config, "sm_90a").ptx.splitlines():
        if found := re.search(r"setp\S+\s+(%p\d+), (.*);", line):
            under[found[1]] = found[2]
        elif found := re.search(r"@(%p\d+) bra", line):
            last = under[found[1]]
        elif found := re.search(r"\b(ld|st)\.global", line):
            compared[found[1]].add(last)
    elements = told.config.chunks * told.config.rows
    assert len(compared["ld"]) == len(compared["st"]) == elements
    assert compared["ld"].isdisjoint(compared["st"]) == (elements > 7)


@dataclass(frozen=True)
class Dot(RowProgram):
    operands = Operands(rows=("x", "z"), results=("y",))
    folds = (Fold("sum", lambda v, row: v.x * v.z),)

    def results(self, totals, row):
        return totals


@pytest.mark.parametrize(
    ("rows", "length", "found"), [(1000, 100, "32 lanes"), (1000, 600, "of 1 "), (50, 600, "of 4 ")]
)
def test_rows_that_are_nearer_in_one_operand_only(rows, length, found):
    """They are tiles of neighboring rows if fewer than multiprocessors, which would be idle otherwise."""
    x, z = torch.empty(length, rows, device="meta").t(), torch.empty(rows, length, device="meta")
    for first, second in ((x, z), (z, x)):
        tensors = {"x": first, "z": second, "y": torch.empty(rows, device="meta")}
        assert found in plan_call("dot", Dot(), tensors, (1,), SPECS["H200"]).why


@pytest.mark.parametrize(
    ("length", "variant"), [(4, "column"), (8, "column"), (9, "held"), (512, "held"), (513, "column")]
)
def test_strided_rows_with_column_operands(length, variant):
    """Lanes have one, but for a few elements: no thread holds one with its column operands."""
    x, z = stepped(1000, length), stepped(1000, length)
    told = column_mixed.explain(
        x, z, torch.empty(length, device="meta"), torch.empty(1000, device="meta"), 1, arch="sm_90a"
    )
    assert told.variant == variant
    assert (variant == "held" or length > 256) == ("of 1 neighboring" in told.why or "lanes" in told.why)


def test_rows_along_two_dims_are_divided_once_an_element():
    """A reciprocal of the inner dim, from the host; more dims have kernels of their own, which step over them."""
    for shape, dims, reduced in (((8, 64, 28, 28), (0, 2, 3), 2), ((6, 5, 4, 30, 7), (0, 2, 4), 4)):
        told = column_total.explain(torch.empty(shape, device="meta"), dims, arch="sm_90a")
        assert (told.variant, told.config.reduced) == ("column", reduced)


@pytest.mark.parametrize("length", [20, 300, 5000, 300000])
def test_a_strided_row_is_reduced_alike_alone_and_beside_others(length):
    """With batch invariance: by the same kernel and as many threads, blocks and parts."""
    plans = []
    for rows in (1, 2, 50, 5000):
        tensors = {"x": stepped(rows, length), "y": torch.empty(rows, device="meta")}
        plans.append(plan_call("total", Total(), tensors, (1,), SPECS["H200"], invariant=True))
    sizes = slice(0, 5) if isinstance(plans[0].config, ColumnConfig) else slice(0, 1)
    assert {(p.variant, p.config, p.arguments[sizes]) for p in plans} == {
        (plans[0].variant, plans[0].config, plans[0].arguments[sizes])
    }


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [BF16, FP32, FP64], ids=str)
@pytest.mark.parametrize("length", [5, 8, 9, 16, 24, 33, 64, 65, 200, 256, 257, 500, 513, 3001, 50001])
def test_strided_rows(length, dtype):
    """Of all operands or of one, with gaps of one element or more between elements."""
    generator = torch.Generator(device="cuda").manual_seed(length)
    weight = some(generator, (length,), dtype, 1)
    for rows in (1, 37, 300):
        s = some(generator, (rows,), dtype)
        for gap in (2, 3):
            x, z = (some(generator, (rows, gap * length), dtype)[:, ::gap] for _ in range(2))
            assert torch.equal(column_total(x, 1), total_reference(x, 1)), (rows, gap)
            assert torch.equal(column_below(x, 1), below_reference(x, 1)), (rows, gap)
            for a, b in ((x, z), (x, z.contiguous()), (x.contiguous(), z)):
                for variant in ("auto", "column"):
                    if variant == "auto" or not (a.is_contiguous() and rows == 1):
                        got = column_mixed(a, b, weight, s, 1, variant=variant)
                        assert torch.equal(got, mixed_reference(a, b, weight, s, 1)), (rows, gap, variant)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [BF16, FP32, FP64], ids=str)
@pytest.mark.parametrize("shape", [(3, 5, 7), (4, 3, 200), (40, 8, 49), (16, 300, 35), (3, 4, 70001), (700, 3, 784)])
def test_rows_along_two_dims(shape, dtype):
    generator = torch.Generator(device="cuda").manual_seed(shape[1])
    x, z = some(generator, shape, dtype), some(generator, shape, dtype, 1)
    weight, s = some(generator, (shape[0], shape[2]), dtype, 1), some(generator, (shape[1],), dtype)
    for a, b in ((x, z), (x, z.transpose(0, 1).contiguous().transpose(0, 1)), (x.flip(0), z)):
        assert torch.equal(column_total(a, (0, 2)), total_reference(a, (0, 2)))
        got = column_mixed(a, b, weight, s, (0, 2))
        assert torch.equal(got, mixed_reference(a, b, weight, s, (0, 2)))


def test_few_long_rows_side_by_side_are_no_work_for_a_block_each():
    """Where the output lies as the input does not, either by its rows or by its elements."""
    crosswise = torch.empty(2**18, 16, device="meta").t(), torch.empty(2**18, 16, device="meta").t()
    weight, s = torch.empty(2**18, device="meta"), torch.empty(16, device="meta")
    assert column_mixed.explain(*crosswise, weight, s, 1, arch="sm_90a").variant == "column"


@pytest.mark.parametrize("dtype", [BF16, torch.int8], ids=str)
def test_small_elements_are_loaded_at_once(dtype):
    """Nothing but the load is under its predicate: there are seven predicates, for which loads would wait."""
    told = column_total.explain(torch.empty(22, 3001, dtype=dtype, device="meta"), 0, arch="sm_90a")
    assert told.config.align == "element"
    ptx = compiled_for(told.builder, told.config, "sm_90a").ptx
    after = re.findall(r"ld\.global\S*\.b(?:8|16) [^\n]*\n\s*(\S+)", ptx)
    assert len(after) == told.config.chunks
    assert all(each.endswith(":") for each in after), after


def test_wide_rows_have_a_block_per_tile():
    """From 1.5 tiles for each multiprocessor on, a cluster or parts only add an exchange; not if narrow."""
    for width, blocks in ((40001, 1), (4001, 8)):
        config = column_total.explain(torch.empty(1500, width, dtype=BF16, device="meta"), 0, arch="sm_90a").config
        assert (config.held, config.blocks) == (True, blocks)
    for width, held in ((16384, False), (32768, True)):  # tiles of 64 and 128 bytes
        x = torch.empty(32768, width, dtype=BF16, device="meta")
        assert column_total.explain(x, 0, arch="sm_90a").config.held == held


@pytest.mark.parametrize(("width", "align"), [(35, "shifted"), (257, "skewed")])
def test_vectors_are_as_far_from_a_boundary_in_all_operands(width, align):
    """An output begins at a boundary, also where its input does not."""
    for begin, expected in ((0, align), (1, "element")):
        x = torch.empty(200000 * width + begin, dtype=BF16, device="meta")[begin:].view(200000, width)
        assert column_below.explain(x, 0, arch="sm_90a", variant="column").config.align == expected


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [BF16, FP32, FP64], ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_outputs_of_columns_that_begin_anywhere(width, dtype):
    for where, x in beginning_anywhere(width, dtype):
        for variant in ("auto", "column") if width > 1 else ("auto",):
            assert torch.equal(column_below(x, 0, variant=variant), below_reference(x, 0)), (where, variant)


def test_small_columns_are_read_by_element():
    """All at once by a block, of fewer rows the more elements they have; beyond that by a cluster."""
    cases = {(41, 250): (16, 1), (525, 98): (4, 1), (2739, 9): (1, 1), (14064, 2): (2, 4), (9794, 8): (8, 16)}
    for (length, rows), expected in cases.items():
        x = torch.empty(length, rows, dtype=BF16, device="meta")
        told = column_total.explain(x, 0, arch="sm_90a")
        assert (told.config.align, told.config.held, told.config.blocks > 1) == ("element", True, expected[1] > 1)
        found = re.search(r"tiles of (\d+) neighboring rows, in (\d+) parts", told.why)
        assert found and tuple(map(int, found.groups())) == expected
